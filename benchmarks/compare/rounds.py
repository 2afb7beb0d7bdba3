"""Peers at work side by side: each in a process of its own, asked in turn, so that a noisy minute strikes all alike."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from peers import HERE, ROOT, Peer, program

NEW = 24
"""Tokens generated behind each prompt; the first of them belongs to the prefill."""
TOGETHER, TOGETHER_PROMPT, TOGETHER_NEW = 8, 32, 64
"""Requests at once, tokens of the prompt of each, new tokens of each."""
TOGETHER_ROUNDS = 3
ROUNDS_OF_A_PROCESS = 2
"""Then all are started anew: where in memory the weights happen to lie makes a tenth of difference as long as a process lasts."""
SETTLE_SECONDS = 0.4
"""Between two peers, so that the threads of the one have stopped spinning before the next is asked."""


class PeerError(Exception):
    """What a peer said instead of an answer."""


@dataclasses.dataclass
class Worker:
    """A running peer."""

    process: subprocess.Popen[str]
    load: float
    """Seconds from the start of its interpreter to a model ready for tokens."""

    def ask(self, **request: object) -> dict[str, Any]:
        """One request, one answer; raises `PeerError`."""
        assert self.process.stdin is not None
        print(json.dumps(request), file=self.process.stdin, flush=True)
        return read_answer(self.process)


def read_answer(process: subprocess.Popen[str]) -> dict[str, Any]:
    """The next line a worker writes."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise PeerError(f"ended with exit code {process.wait()}")
    answer = json.loads(line)
    if "error" in answer:
        raise PeerError(answer["error"])
    return dict(answer)


@contextlib.contextmanager
def running(work: Path, peer: Peer, model: Path, threads: int, context: int) -> Iterator[Worker]:
    """A worker of `peer`, ended afterwards."""
    script = HERE / "workers" / peer.worker
    variables = {
        "OMP_NUM_THREADS": str(threads),
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    if peer.environment.startswith("onnx-textgen"):
        variables["PYTHONPATH"] = str(ROOT / "runtime")  # the tree as it is, the environment's packages
    command = [
        program(work, peer.environment, "python"),
        str(script),
        str(model),
        "--threads",
        str(threads),
        "--context",
        str(context),
    ]
    with (work / "workers.log").open("a") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=os.environ | variables | dict(peer.variables),
        )
    try:
        yield Worker(process, read_answer(process)["load"])
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def prompt_of(length: int, vocab_size: int, seed: int = 0) -> list[int]:
    """Token ids drawn at random, those of single bytes left out."""
    draw = random.Random(seed)
    return [draw.randrange(256, vocab_size) for _ in range(length)]


def cold_start(work: Path, peer: Peer, model: Path, threads: int, vocab_size: int) -> dict[str, float]:
    """A new process up to its first token behind 32, and its peak memory after a prompt of 512 and `NEW` tokens."""
    begun = time.perf_counter()
    with running(work, peer, model, threads, 512 + NEW) as worker:
        worker.ask(token_ids=prompt_of(32, vocab_size), new=1)
        first = time.perf_counter() - begun
        peak = worker.ask(token_ids=prompt_of(512, vocab_size), new=NEW)["peak"]
    return {"first token": first, "load": worker.load, "peak": peak}


def shuffled(workers: dict[Peer, Worker], *seed: int) -> list[tuple[Peer, Worker]]:
    """In another order each time, as what a peer's threads still do falls to the next one."""
    return random.Random(repr(seed)).sample(list(workers.items()), len(workers))


def together(workers: dict[Peer, Worker], vocab_size: int, turn: int) -> Iterator[dict[str, Any]]:
    """A record of each peer that computes several requests at once."""
    prompts = [prompt_of(TOGETHER_PROMPT, vocab_size, seed=100 * turn + row) for row in range(TOGETHER)]
    for peer, worker in shuffled(workers, turn, 0):
        time.sleep(SETTLE_SECONDS)
        with contextlib.suppress(PeerError):
            answer = worker.ask(prompts=prompts, new=TOGETHER_NEW)
            yield {"peer": peer.name, "precision": peer.precision, "together": TOGETHER, "round": turn} | answer


def started(
    stack: contextlib.ExitStack, work: Path, peers: dict[Peer, Path], *, threads: int, length: int, vocab_size: int, turn: int
) -> tuple[dict[Peer, Worker], list[dict[str, Any]]]:
    """A warm worker of each peer, ended with the stack, and records of those that failed."""
    workers, failures = dict[Peer, Worker](), []
    for peer in random.Random(turn).sample(list(peers), len(peers)):
        try:
            worker = stack.enter_context(running(work, peer, peers[peer], threads, length))
            worker.ask(token_ids=prompt_of(64, vocab_size), new=4)
            workers[peer] = worker
        except PeerError as error:
            failures.append({"peer": peer.name, "precision": peer.precision, "error": str(error)})
    return workers, failures


def alone(workers: dict[Peer, Worker], context: int, vocab_size: int, turn: int, new: int = NEW) -> Iterator[dict[str, Any]]:
    """A record of each peer: one prompt of `context` tokens, and the `new` tokens that follow it."""
    prompt = prompt_of(context, vocab_size, seed=turn)
    for peer, worker in shuffled(workers, turn, context):
        record = {"peer": peer.name, "precision": peer.precision, "context": context, "round": turn}
        time.sleep(SETTLE_SECONDS)
        try:
            answer = worker.ask(token_ids=prompt, new=new)
        except PeerError as error:
            answer = {"error": str(error)}
        yield record | answer


def measure(
    work: Path,
    peers: dict[Peer, Path],
    *,
    contexts: dict[int, int],
    threads: int,
    vocab_size: int,
    length: int,
) -> Iterator[dict[str, Any]]:
    """Rounds over all peers: a record of each measurement, failures among them. `contexts` says how many rounds each gets."""
    turns = range(max(contexts.values()))
    for some in (turns[begin : begin + ROUNDS_OF_A_PROCESS] for begin in turns[::ROUNDS_OF_A_PROCESS]):
        with contextlib.ExitStack() as stack:
            sizes = {"threads": threads, "length": length, "vocab_size": vocab_size, "turn": some.start}
            workers, failures = started(stack, work, peers, **sizes)
            yield from failures
            for turn in some:
                for context in (context for context, rounds in contexts.items() if turn < rounds):
                    yield from alone(workers, context, vocab_size, turn)
                if turn < TOGETHER_ROUNDS:
                    yield from together(workers, vocab_size, turn)
                print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
