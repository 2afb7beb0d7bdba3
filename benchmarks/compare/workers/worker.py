"""A peer at work in its own environment: reads requests from standard input, a JSON object a line, and answers in the same way.

Each peer's script makes an `Engine` and calls `main`. Only the standard library may be used here.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

BEGUN = time.perf_counter()
"""When this process had its interpreter; what the engine's own import takes comes after."""


class Engine(Protocol):
    """A model of some peer, opened."""

    def generate(self, token_ids: Sequence[int], new: int) -> Iterator[int]:
        """Forget all, take the prompt, and give `new` greedy tokens one after the other, the end of text not heeded."""
        ...

    def logits(self, token_ids: Sequence[int]) -> Any:
        """Forget all, take the tokens, and give the logits of every position, a float32 array [tokens, vocabulary]; optional."""
        ...

    def together(self, prompts: Sequence[Sequence[int]], new: int) -> float:
        """Seconds that `new` tokens behind each of several prompts take, computed at once; optional."""
        ...


def timed(engine: Engine, token_ids: Sequence[int], new: int) -> dict[str, Any]:
    """Seconds to the first token, and of each later one."""
    times, found = [time.perf_counter()], []
    for token in engine.generate(token_ids, new):
        times.append(time.perf_counter())
        found.append(int(token))
    if len(found) != new:
        raise RuntimeError(f"asked for {new} tokens, got {len(found)}")
    return {"prefill": times[1] - times[0], "steps": [b - a for a, b in itertools.pairwise(times[1:])], "tokens": found}


def peak_bytes() -> int:
    """The largest resident set of this process so far, mapped files included."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))


def write_logits(engine: Engine, windows: Sequence[Sequence[int]], path: str) -> None:
    """Logits of each window fed alone, one row after the other, as float32 without a header."""
    with Path(path).open("wb") as file:
        for token_ids in windows:
            logits = engine.logits(token_ids)
            if len(logits) != len(token_ids):
                raise RuntimeError(f"gave logits of {len(logits)} positions out of {len(token_ids)}")
            logits.astype("float32", copy=False).tofile(file)


def main(make: Callable[[str, int, int], Engine]) -> None:
    """Open the model by `make(path, threads, context)`, say how long it took, and answer requests until the input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--context", type=int, required=True)
    arguments = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints must not come among the answers

    def answer(**fields: Any) -> None:
        print(json.dumps(fields), file=answers, flush=True)

    engine = make(arguments.model, arguments.threads, arguments.context)
    answer(load=time.perf_counter() - BEGUN)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if "windows" in request:
                write_logits(engine, request["windows"], request["path"])
                answer()
            elif "prompts" in request:
                answer(seconds=engine.together(request["prompts"], request["new"]))
            else:
                answer(**timed(engine, request["token_ids"], request["new"]), peak=peak_bytes())
        except Exception as error:  # noqa: BLE001 - a peer's failure is an entry of the table
            answer(error=f"{type(error).__name__}: {error}"[:300])
