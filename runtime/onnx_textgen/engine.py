"""Continuous batching: the texts of all callers go on together, a step of the graph for all at a time.

A request joins when a row is free and leaves when its text ends; the texts of the others do not change by it. There is no thread
of its own: of the threads that wait for text one leads, and runs the graph for all, until it has what it wants itself; then
another one leads. So a single caller pays nothing for the others that could be there, and nothing runs while nobody waits. The
leader takes streams along whose callers are busy elsewhere, but only so far ahead of them, unless a request waits for their rows.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence

from .cancellation import InterruptedRunError, Watch
from .continuation import Continuation
from .decoder import Decoder, Logits
from .errors import BusyError, ModelError, OnnxTextgenError, OptionError, first_line
from .loop import forget_guesses, go_on, take_verified
from .memory import fits, plan
from .prefilling import Progress, prefill_in_parts
from .prefix_store import SHORTEST, PrefixStore
from .prefixes import common_prefix
from .results import Chunk, FinishReason
from .session import LOG

ROWS = 8
"""Texts that go on together; more wait for a row."""
MOST_WAITING = 1024
"""Requests that may wait; more are refused."""
FARTHEST_AHEAD = 64
"""Chunks that a stream has for its caller before it is no longer taken along."""
LONGEST_WAIT = 1.0
"""Seconds after which a thread looks again whether it should lead, whatever it was told."""
NOBODY = Watch()
"""Ends no run: for those that are several callers'."""
SHORT_PART = 64
"""Tokens of a prompt at a time while other texts wait for their next token."""


class Request:
    """One text that a caller wants."""

    def __init__(
        self,
        continuation: Continuation,
        watch: Watch,
        *,
        on_progress: Callable[[Progress], None] | None = None,
        in_pieces: bool = True,
        caller: object = None,
    ) -> None:
        """`in_pieces`: whether the caller wants each chunk as it comes, and not only the end.

        `caller`: the same for all texts that one caller wants; None where this is the only one.
        """
        self.continuation, self.watch, self.on_progress, self.in_pieces = continuation, watch, on_progress, in_pieces
        self.caller = self if caller is None else caller
        self.chunks: collections.deque[Chunk] = collections.deque()
        """What the caller has not taken yet."""
        self.progress: collections.deque[Progress] = collections.deque()
        """How far its prompt is, for `on_progress`, which the caller's own thread calls."""
        self.error: BaseException | None = None
        self.parts: Iterator[Logits | None] | None = None
        """The rest of the prompt, while it is fed."""
        self.logits: Logits | None = None
        """[vocabulary], of the next token."""
        self.has_ended = False
        """Whether its last chunk is there to be taken, or was."""
        self.is_left = False
        """Whether its caller is gone."""
        self.changed = threading.Event()
        self.work = contextlib.ExitStack()
        """What lasts as long as it has a row: its cancellation and its deadline reach the run that is under way."""

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come."""
        return self.error is not None or self.has_ended

    @property
    def is_ready(self) -> bool:
        """Whether the caller has something to take."""
        return self.is_over or (self.in_pieces and bool(self.chunks or self.progress))


class Engine:
    """The requests of one model. Safe to use from several threads."""

    def __init__(self, new_decoder: Callable[[int], Decoder], store: PrefixStore, *, rows: int = ROWS) -> None:
        """`new_decoder` makes one of so many rows."""
        self.new_decoder, self.store, self.most_rows = new_decoder, store, rows
        self.decoder: Decoder | None = None
        self.rows: list[Request] = []
        """The requests at work, each in the decoder's row of its place."""
        self.queue: collections.deque[Request] = collections.deque()
        self.leader: Request | None = None
        self.leading_thread = 0
        """Its thread, while there is a leader."""
        self.followers: dict[Request, None] = {}
        """Requests whose threads wait while another one leads, in order."""
        self._lock = threading.RLock()  # a signal handler may need it while its own thread has it

    def submit(self, request: Request) -> None:
        """Let a request wait for a row; raises `BusyError` where too many do."""
        with self._lock:
            if sum(not waiting.is_left for waiting in list(self.queue)) >= MOST_WAITING:
                raise BusyError(f"{MOST_WAITING:,} requests are waiting already; try again later")
            self.queue.append(request)

    def chunks(self, request: Request) -> Generator[Chunk, None, None]:
        """Submit a request and give its chunks; closing the iterator ends its work."""
        self.submit(request)
        try:
            while True:
                self.wait_for(request)
                is_over = request.is_over  # asked before the chunks are taken: the last one may come meanwhile
                while request.progress and request.on_progress is not None:
                    request.on_progress(request.progress.popleft())
                while request.chunks:
                    yield request.chunks.popleft()
                if request.error is not None:
                    raise request.error
                if is_over:
                    return
        finally:
            self.leave([request])

    def finish(self, requests: Sequence[Request]) -> None:
        """Wait for the end of some requests; raises what ended the first that failed. Few of many wait for a row at a time."""
        submitted, window = 0, 2 * self.most_rows
        try:
            for index, request in enumerate(requests):
                while submitted < min(len(requests), index + window):
                    self.submit(requests[submitted])
                    submitted += 1
                self.wait_for(request)
                if request.error is not None:
                    raise request.error
        finally:
            self.leave(requests)

    def leave(self, requests: Sequence[Request]) -> None:
        """Let go of requests whose caller is gone; where another thread leads, it does so."""
        for request in requests:
            request.is_left = True
        if not requests:
            return
        try:
            with self._lock:
                leads = self.leader is None and self.holds_left
                if leads:
                    self.leader, self.leading_thread = requests[0], threading.get_ident()
            if leads:
                self.lead(requests[0])
        finally:
            self.resign(requests[0])

    @property
    def holds_left(self) -> bool:
        """Whether a request is at work or waits whose caller is gone."""
        return any(request.is_left for request in (*self.rows, *self.queue))

    def wait_for(self, request: Request) -> None:
        """Lead or follow until the request has something for its caller."""
        try:
            self.lead_or_follow(request)
        finally:
            self.resign(request)

    def resign(self, request: Request) -> None:
        """After an interrupt too: a thread that neither leads nor follows any more must not be counted on."""
        with self._lock:
            self.followers.pop(request, None)
            if self.leader is request:
                self.leader = None
            self.wake_a_follower()

    def lead_or_follow(self, request: Request) -> None:
        """See `wait_for`."""
        while True:
            with self._lock:
                self.followers.pop(request, None)
                if request.is_ready:
                    return
                if self.leader is None:
                    self.leader, self.leading_thread = request, threading.get_ident()
                elif self.leading_thread == threading.get_ident():
                    raise OptionError("this runs inside a run of the model, in a signal handler say; ask the model from elsewhere")
                leads = self.leader is request
                if not leads:
                    self.followers[request] = None
                    request.changed.clear()
            if leads:
                self.lead(request)
            else:
                request.changed.wait(LONGEST_WAIT)

    def wake_a_follower(self) -> None:
        """Let another thread lead, if none does: one that has nothing to take, and so would not just go away."""
        if self.leader is None:
            follower = next((request for request in self.followers if not request.is_ready and not request.is_left), None)
            if follower is not None:
                follower.changed.set()

    def lead(self, request: Request) -> None:
        """Run the graph for all until `request` is ready, or left, then let another thread lead."""
        try:
            while not (request.is_ready or request.is_left):
                if request not in self.rows and request not in self.queue:
                    self.fail(request, ModelError("the request was lost when another call was interrupted; ask again"))
                    break
                self.turn()
            while self.must_let_go():
                self.dismiss()
        except BaseException as error:  # an interrupt in the middle: what the rows hold is not known any more
            if self.leader is request:
                self.give_up(error)
            raise
        finally:
            self.resign(request)

    def must_let_go(self) -> bool:
        """Whether the leader holds requests that were left; if not it leads no more, so that who leaves next sees to it alone."""
        with self._lock:
            holds_left = self.holds_left
            if not holds_left:
                self.leader = None
            return holds_left

    def turn(self) -> None:
        """A part of the oldest prompt that is not fed yet, a step of all texts that are under way, and their next tokens.

        The tokens come last, so that callers have them before the next step and not after it.
        """
        self.dismiss()
        self.admit()
        if feeding := self.feeding:
            if len(begun := self.begin_together(feeding)) > 1:
                self.feed_prompts(begun)
            else:
                self.feed_part(feeding[0])
        if going := [request for request in self.rows if request.continuation.unfed and not self.rests(request)]:
            self.step(going)
        for request in self.rows:
            if request.logits is not None and not request.is_over:
                with self.answering(request):
                    self.choose(request)
        self.dismiss()

    def rests(self, request: Request) -> bool:
        """Whether a text has no step to make now: it is over, or far enough ahead of its caller while nobody waits for its row."""
        return request.is_over or (request.in_pieces and len(request.chunks) >= FARTHEST_AHEAD and not self.queue)

    def admit(self) -> None:
        """Give free rows to those who wait, one prompt at a time, or several that are fed together."""
        while self.queue and len(self.rows) < self.most_rows:
            with self._lock:
                request = self.next_waiting()
                if request is None or not self.can_be_fed_with(request, self.feeding) or not self.has_memory_for(request):
                    return
                self.queue.remove(request)
                self.rows.append(request)
            row = len(self.rows) - 1
            continuation = request.continuation
            with self.answering(request):
                self.decoder = decoder = self.decoder or self.new_decoder(self.most_rows)
                request.work.enter_context(request.watch.active())
                decoder.watch = NOBODY
                self.store.prepare_row(decoder, continuation.prompt_ids, row)
                continuation.reused_tokens = decoder.reusable(continuation.prompt_ids, row=row)
                request.parts = self.parts(request)

    def next_waiting(self) -> Request | None:
        """The first in the queue of those whose callers have the fewest rows: who wants many texts does not hold up the others."""
        rows = collections.Counter(id(request.caller) for request in self.rows)
        return min(self.queue, key=lambda waiting: rows[id(waiting.caller)], default=None)

    @property
    def feeding(self) -> list[Request]:
        """Those whose prompts are not fed to their end."""
        return [request for request in self.rows if request.parts is not None]

    @property
    def part_size(self) -> int:
        """Tokens of prompts at a time: fewer while texts wait for their next token."""
        assert self.decoder is not None, "admit made it"
        return self.decoder.chunk if len(self.feeding) == len(self.rows) else self.decoder.short_chunk(SHORT_PART)

    def can_be_fed_with(self, request: Request, feeding: list[Request]) -> bool:
        """Whether a prompt can go along with those that are being fed; one that begins as they do waits and goes on from them."""
        if not feeding:
            return True
        prompts = [each.continuation.prompt_ids for each in (*feeding, request)]
        if self.decoder is None or any(common_prefix(prompts[-1], prompt) >= SHORTEST for prompt in prompts[:-1]):
            return False
        return self.decoder.takes_prompts([len(prompt) for prompt in prompts], self.part_size)

    def has_memory_for(self, request: Request) -> bool:
        """Whether a text fits beside those at work: buffers may give each as much room as the longest needs."""
        if self.decoder is None:
            return True  # alone it does: who asked for it has looked
        count, tensors = len(self.rows), self.decoder.cache.tensors
        longest = max(each.continuation.most_tokens for each in (*self.rows, request))
        held = sum(self.decoder.bytes_of(length) for length in self.decoder.cache.lengths[:count])
        return fits(plan(tensors, longest, count + 1), held)

    def begin_together(self, feeding: list[Request]) -> list[Request]:
        """Of prompts that are being fed, those at the beginning that lie side by side, have not begun, and fit in a run."""
        assert self.decoder is not None, "admit made it"
        first, found = self.rows.index(feeding[0]), list[Request]()
        for row, request in enumerate(self.rows[first:], first):
            lengths = [len(each.continuation.prompt_ids) for each in (*found, request)]
            if request.parts is None or self.decoder.token_ids[row] or not self.decoder.takes_prompts(lengths, self.part_size):
                break
            found.append(request)
        return found

    def parts(self, request: Request) -> Iterator[Logits | None]:
        """Feed a prompt part by part; the last one gives the logits of its last token."""
        assert self.decoder is not None, "admit made it"
        decoder, prompt = self.decoder, request.continuation.prompt_ids
        return prefill_in_parts(
            decoder,
            prompt,
            row=lambda: self.rows.index(request),
            size=lambda: self.part_size,
            on_progress=functools.partial(self.tell_progress, request) if request.on_progress is not None else None,
        )

    def feed_part(self, request: Request) -> None:
        """One part of a prompt, ended within the run where its caller cancels."""
        assert self.decoder is not None and request.parts is not None, "admit made them"
        start = time.perf_counter()
        with self.answering(request):
            self.decoder.watch = request.watch
            logits = next(request.parts)
            if logits is not None:
                request.parts, request.logits = None, logits
        request.continuation.prefill_seconds += time.perf_counter() - start

    def feed_prompts(self, requests: list[Request]) -> None:
        """Several whole prompts in one run; where it fails, it fails for all of them."""
        assert self.decoder is not None, "admit made it"
        start, prompts = time.perf_counter(), [request.continuation.prompt_ids for request in requests]
        self.decoder.watch = NOBODY
        try:
            logits = self.decoder.begin_rows(prompts, self.rows.index(requests[0]))
        except OnnxTextgenError as error:
            for request in requests:
                self.fail(request, error)
            return
        for request, prompt, each in zip(requests, prompts, logits, strict=True):
            request.parts, request.logits = None, each
            request.continuation.prefill_seconds += time.perf_counter() - start
            if request.on_progress is not None:
                self.tell_progress(request, Progress(len(prompt), len(prompt)))

    def step(self, going: list[Request]) -> None:
        """Feed each text's new tokens."""
        assert self.decoder is not None, "admit made it"
        decoder = self.decoder
        decoder.watch = NOBODY
        for request in list(going):
            logits = take_verified(decoder, request.continuation, self.rows.index(request))
            if logits is not None:
                request.logits = logits
                going.remove(request)
        together = [request for request in going if self.takes_one(request)]
        if len(together) == 1 or not decoder.steps_together:
            together = []  # each alone, so that its caller can end the run and an error is its own
        for request in going:
            if request not in together:
                with self.answering(request):
                    decoder.watch = request.watch
                    request.logits = go_on(decoder, request.continuation, row=self.rows.index(request))
        decoder.watch = NOBODY
        if together:
            self.feed_together(together)

    def choose(self, request: Request) -> None:
        """The next token of a text, and those that a rule leaves no choice about."""
        continuation = request.continuation
        assert request.logits is not None, "it is running"
        logits, request.logits = request.logits, None
        self.tell(request, continuation.accept(continuation.choose(logits), logits))
        while continuation.finish_reason is None and continuation.is_forced:
            self.tell(request, continuation.accept(continuation.forced.popleft()))

    def takes_one(self, request: Request) -> bool:
        """Whether a text goes on with a single token that its context has room for."""
        continuation = request.continuation
        assert self.decoder is not None, "admit made it"
        row = self.rows.index(request)
        held = len(self.decoder.token_ids[row])
        fits = held < continuation.limits.context_length and not self.decoder.must_begin_anew(row, 1)
        return len(continuation.unfed) == 1 and fits

    def feed_together(self, requests: list[Request]) -> None:
        """One step for several texts; one that fails fails for all of them, and leaves their rows as they were."""
        assert self.decoder is not None, "admit made it"
        places = {self.rows.index(request): request for request in requests}
        count = max(places) + 1
        ids = [places[row].continuation.unfed[0] if row in places else 0 for row in range(count)]
        try:
            logits = self.decoder.step(ids, [row in places for row in range(count)])
        except OnnxTextgenError as error:
            for request in requests:
                self.fail(request, error)
            return
        for row, request in places.items():
            request.continuation.take_unfed()
            request.logits = logits[row]

    def dismiss(self) -> None:
        """Let go of requests that are over, or that nobody waits for any more; the last row moves into the gap."""
        for request in list(self.rows):
            if not request.is_over and (reason := request.watch.reason):
                self.end(request, reason)
        with self._lock:
            waiting = [request for request in self.queue if request.is_left or request.watch.reason]
            for request in waiting:
                self.queue.remove(request)
        for request in waiting:
            if reason := request.watch.reason:
                self.end(request, reason)
        for request in [request for request in self.rows if request.is_over or request.is_left]:
            self.free(self.rows.index(request))

    def free(self, row: int) -> None:
        """Keep what a row holds for later prompts, and close the gap."""
        self.rows[row].work.close()
        last = len(self.rows) - 1
        if self.decoder is None:  # it could not be made
            self.rows.pop(row)
            return
        forget_guesses(self.decoder, self.rows[row].continuation, row)
        self.rows[row].continuation.close()
        try:
            self.store.keep(self.decoder, row=row)
        except Exception as error:  # noqa: BLE001 - no memory for a copy, say: the text is there, later ones are computed anew
            LOG.warning("what a prompt left was not kept: %s", first_line(error))
        if row != last:
            self.decoder.fork(last, row)
            self.rows[row] = self.rows[last]
        self.rows.pop()
        if self.rows:
            self.decoder.rewind(0, row=last)
        else:
            self.decoder = None  # and with it the memory of as many rows as there were

    def tell(self, request: Request, chunk: Chunk) -> None:
        """Give a chunk to a request's caller."""
        with self._lock:
            request.chunks.append(chunk)
            request.has_ended = request.has_ended or chunk.finish_reason is not None
            if request.is_ready and request is not self.leader:
                request.changed.set()

    def tell_progress(self, request: Request, progress: Progress) -> None:
        """Let a request's caller know how far its prompt is."""
        with self._lock:
            request.progress.append(progress)
            request.changed.set()

    def end(self, request: Request, reason: FinishReason) -> None:
        """End a text before its time."""
        self.tell(request, request.continuation.finish(reason))

    def fail(self, request: Request, error: BaseException) -> None:
        """Let a request's caller have an error."""
        with self._lock:
            request.error, request.logits, request.parts = error, None, None
            request.changed.set()

    def answering(self, request: Request) -> Answering:
        """Within it, what goes wrong is the request's, and nobody else's."""
        return Answering(self, request)

    def give_up(self, error: BaseException) -> None:
        """Forget the decoder and let the callers of all its rows know."""
        name = type(error).__name__
        for request in self.rows:
            request.work.close()
            self.fail(request, ModelError(f"another call was interrupted ({name}) in the middle of a common run; ask again"))
        self.rows, self.decoder = [], None


class Answering:
    """A context that hands errors to a request; an interrupt of the whole process passes through."""

    def __init__(self, engine: Engine, request: Request) -> None:
        self.engine, self.request = engine, request

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, InterruptedRunError):
            self.engine.end(self.request, error.reason)
            return True
        if isinstance(error, Exception):
            self.engine.fail(self.request, error)
            return True
        return False
