"""Many threads at one model, whose calls end in every way there is: nobody's text changes, and nothing is left of any."""

from __future__ import annotations

import asyncio
import functools
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import onnx_textgen
from onnx_textgen import Cancellation, Model
from onnx_textgen.errors import OptionError

from .law import HARMLESS, Case, Law, Verdict, Violation

PACKAGE = Path(__file__).parents[1] / "packages" / "ort"
THREADS, CALLS = 32, 2
"""Threads of a case, and how many calls each makes."""
PROMPTS = ("a", "The cat", "Once upon a time there was", "x" * 90, "x" * 90 + "y")
MOST_TOKENS = 40
LONGEST_WAIT = 300
"""Seconds: a guard, and no measure."""
Ids = tuple[int, ...]


class BrokenError(Exception):
    """What a caller's own code raises in the middle."""


@functools.cache
def model() -> Model:
    """Of fewer rows than there are threads, so that some wait."""
    return onnx_textgen.load(PACKAGE, threads=1, device="cpu", batch_size=4)


@functools.cache
def alone(prompt: str, seed: int) -> Ids:
    """What a call gives when there is no other."""
    return model().generate(prompt, seed=seed, max_new_tokens=MOST_TOKENS).token_ids


class Caller:
    """One call: its wish, and the random choices of how it ends."""

    def __init__(self, choose: random.Random) -> None:
        self.prompt, self.seed = choose.choice(PROMPTS), choose.randrange(6)
        self.way = choose.choice(list(WAYS))
        self.after = choose.randrange(1, 12)
        """Chunks that it takes before something happens."""
        self.seconds = choose.choice((1e-9, 1e-3, 5e-3, 2e-2))
        self.cancel = Cancellation()
        self.want = alone(self.prompt, self.seed)

    def stream(self, **options: float) -> Iterator[onnx_textgen.Chunk]:
        """Its chunks."""
        wish = {"seed": self.seed, "max_new_tokens": MOST_TOKENS, **options}
        return model().stream(self.prompt, cancel=self.cancel, **wish)  # type: ignore[arg-type]

    def begin(self, stream: Iterator[onnx_textgen.Chunk]) -> None:
        """Take the first chunks; raises `Violation` for others than it gets alone."""
        ids: list[int] = []
        for _, chunk in zip(range(self.after), stream, strict=False):
            ids += chunk.token_ids
        self.check_part(tuple(ids))

    def check_part(self, ids: Ids) -> None:
        """Raise `Violation` for ids that the text alone does not begin with."""
        if self.want[: len(ids)] != ids:
            raise Violation(f"{self.way}: {ids} is no beginning of {self.want}")

    def check_whole(self, ids: Ids) -> None:
        """Raise `Violation` for ids that are not those of the text alone."""
        if self.want != ids:
            raise Violation(f"{self.way}: {ids} in place of {self.want}")


def whole(caller: Caller) -> None:
    """A text to its end."""
    caller.check_whole(model().generate(caller.prompt, seed=caller.seed, max_new_tokens=MOST_TOKENS).token_ids)


def streamed(caller: Caller) -> None:
    """A stream to its end."""
    caller.check_whole(tuple(i for chunk in caller.stream() for i in chunk.token_ids))


def many(caller: Caller) -> None:
    """Two texts of one call, the first of which is the one alone."""
    first, _ = model().generate([caller.prompt, "other"], seed=caller.seed, max_new_tokens=MOST_TOKENS)
    caller.check_whole(first.token_ids)


def in_session(caller: Caller) -> None:
    """A text of a session."""
    session = model().session()
    session.append(caller.prompt)
    caller.check_whole(session.generate(seed=caller.seed, max_new_tokens=MOST_TOKENS).token_ids)


def in_a_loop(caller: Caller) -> None:
    """A text of asyncio."""
    found = asyncio.run(model().agenerate(caller.prompt, seed=caller.seed, max_new_tokens=MOST_TOKENS))
    caller.check_whole(found.token_ids)


def task_cancelled(caller: Caller) -> None:
    """A task of asyncio that is cancelled while it waits for its text."""

    async def work() -> None:
        task = asyncio.ensure_future(model().agenerate(caller.prompt, seed=caller.seed, max_new_tokens=MOST_TOKENS))
        for _ in range(caller.after):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(work())


def dropped(caller: Caller) -> None:
    """A generator that is forgotten."""
    caller.begin(caller.stream())


def never_begun(caller: Caller) -> None:
    """A generator that nobody asked for anything."""
    caller.stream()


def closed(caller: Caller) -> None:
    """A stream that is closed, twice."""
    stream = caller.stream()
    caller.begin(stream)
    stream.close()  # type: ignore[attr-defined]
    stream.close()  # type: ignore[attr-defined]


def broken_within(caller: Caller) -> None:
    """An exception in the loop that takes the chunks."""
    try:
        for number, chunk in enumerate(caller.stream()):
            caller.check_part(chunk.token_ids if number == 0 else ())
            if number == caller.after:
                raise BrokenError
    except BrokenError:
        pass


def thrown_into(caller: Caller) -> None:
    """An exception thrown into the generator."""
    stream = caller.stream()
    caller.begin(stream)
    try:
        stream.throw(BrokenError())  # type: ignore[attr-defined]
    except BrokenError:
        return
    raise Violation("what was thrown into a stream did not come out")


def progress_fails(caller: Caller) -> None:
    """A caller whose `on_progress` fails."""

    def fail(_: object) -> None:
        raise BrokenError

    try:
        wish = {"seed": caller.seed, "max_new_tokens": MOST_TOKENS}
        for chunk in model().stream(caller.prompt, on_progress=fail, **wish):  # type: ignore[arg-type]
            caller.check_part(chunk.token_ids)
            break
    except BrokenError:
        pass


def cancelled_before(caller: Caller) -> None:
    """A call whose cancellation came first."""
    caller.cancel.cancel()
    found = model().generate(caller.prompt, cancel=caller.cancel, seed=caller.seed, max_new_tokens=MOST_TOKENS)
    if found.finish_reason != "cancelled":
        raise Violation(f"a cancelled call ended with {found.finish_reason}")


def cancelled_within(caller: Caller) -> None:
    """A stream that its own caller cancels, and reads to its end."""
    stream = caller.stream()
    caller.begin(stream)
    caller.cancel.cancel()
    if not set((reasons := [chunk.finish_reason for chunk in stream])[:-1]) <= {None}:
        raise Violation(f"a cancelled stream ended with {reasons}")


def cancelled_elsewhere(caller: Caller) -> None:
    """A call that another thread cancels."""
    other = threading.Timer(caller.seconds, caller.cancel.cancel)
    other.start()
    found = model().generate(caller.prompt, cancel=caller.cancel, seed=caller.seed, max_new_tokens=MOST_TOKENS)
    other.join()
    caller.check_part(found.token_ids)


def out_of_time(caller: Caller) -> None:
    """A deadline in the middle, or before anything."""
    wish = {"seed": caller.seed, "max_new_tokens": MOST_TOKENS, "max_time": caller.seconds}
    caller.check_part(model().generate(caller.prompt, cancel=caller.cancel, **wish).token_ids)  # type: ignore[arg-type]


def refused(caller: Caller) -> None:
    """An option that is wrong."""
    try:
        model().generate(caller.prompt, top_k=-5)
    except OptionError:
        return
    raise Violation("a wrong option was taken")


WAYS: dict[str, Callable[[Caller], None]] = {
    each.__name__: each
    for each in (
        *(whole, streamed, many, in_session, in_a_loop, task_cancelled, dropped, never_begun, closed, broken_within, thrown_into),
        *(progress_fails, cancelled_before, cancelled_within, cancelled_elsewhere, out_of_time, refused),
    )
}


def crowd(choose: random.Random, _: Path) -> Verdict:
    """All threads begin at once; afterwards each call is accounted for, and nothing is left."""
    callers = [[Caller(choose) for _ in range(CALLS)] for _ in range(THREADS)]
    before, begin = set(threading.enumerate()), threading.Barrier(THREADS)
    outcomes, wrong = Counter[str](), list[str]()

    def work(mine: list[Caller]) -> None:
        begin.wait()
        for caller in mine:
            try:
                WAYS[caller.way](caller)
                outcomes[caller.way] += 1
            except BaseException as error:  # noqa: BLE001 - told below, whatever it is
                wrong.append(f"{caller.way}: {type(error).__name__}: {error}")

    threads = [threading.Thread(target=work, args=[mine], daemon=True) for mine in callers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONGEST_WAIT)
    if stuck := sum(thread.is_alive() for thread in threads):
        raise Violation(f"{stuck} threads wait for ever")
    if wrong or outcomes.total() != THREADS * CALLS:
        raise Violation(f"{len(wrong)} of {THREADS * CALLS} calls went wrong: {'; '.join(wrong)[:600]}")
    check_nothing_left([caller for mine in callers for caller in mine], before)
    return HARMLESS


def check_nothing_left(callers: list[Caller], before: set[threading.Thread]) -> None:
    """Raise `Violation` for a row, a place in the queue, a scope, a timer or a thread that is still there."""
    engine = model().generator.engine
    for thread in set(threading.enumerate()) - before:  # timers that were cancelled end by themselves
        thread.join(LONGEST_WAIT)
    left = {
        "rows": engine.scheduler.rows,
        "requests": list(engine.scheduler.queue),
        "followers": list(engine.turns.followers),
        "leader": engine.turns.leader,
        "decoder": engine.scheduler.decoder,
        "scopes": [scope for caller in callers for scope in caller.cancel._scopes],
        "threads": [thread.name for thread in threading.enumerate() if thread not in before],
    }
    if found := {name: value for name, value in left.items() if value}:
        raise Violation(f"left behind: {found!r:.600}")
    for prompt, seed in ((PROMPTS[1], 3), (PROMPTS[2], 5)):
        if model().generate(prompt, seed=seed, max_new_tokens=MOST_TOKENS).token_ids != alone(prompt, seed):
            raise Violation("afterwards the model writes another text")


def crowds(count: int, choose: random.Random) -> Iterator[Case]:
    """Crowds of their own random choices."""
    for number in range(count):
        yield Case(f"crowd {number}", functools.partial(crowd, random.Random(choose.randrange(2**32))))


LAWS = (
    Law(
        f"{THREADS * CALLS} calls of {THREADS} threads that end in every way give what they give alone, and leave nothing",
        crowds,
        whole=8,
        quick=1,
        cpu_seconds=600,
        memory_bytes=32 << 30,
    ),
)
