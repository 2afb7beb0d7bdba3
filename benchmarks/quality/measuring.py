"""Peers at work: the logits of every position, and the speed side by side."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from divergence import Logits, diverge, open_logits
from making import RefusedError, last_words
from peers import Peer
from rounds import PeerError, alone, running, started

DECODED, BEHIND, PROMPT = 128, 128, 512
"""Tokens whose decoding is timed, tokens of the prompt before them, tokens of the prompt whose reading is timed."""


@dataclasses.dataclass(frozen=True, slots=True)
class Bench:
    """What every peer is measured with."""

    work: Path
    kinds: Mapping[str, Sequence[Sequence[int]]]
    """Token ids of each kind of text, each window fed alone."""
    threads: int

    @property
    def windows(self) -> list[Sequence[int]]:
        """Of all kinds, one after the other."""
        return [window for windows in self.kinds.values() for window in windows]

    @property
    def reference(self) -> Path:
        """The file of the reference's logits."""
        return self.work / "reference.f32"

    @property
    def positions(self) -> int:
        """Tokens of all windows."""
        return sum(map(len, self.windows))

    @property
    def vocab_size(self) -> int:
        """The reference's."""
        return self.reference.stat().st_size // 4 // self.positions

    def write_logits(self, peer: Peer, model: Path, path: Path) -> None:
        """Let a new process of the peer write its logits of the windows into a file; raises `RefusedError`."""
        log = self.work / "workers.log"
        before = log.stat().st_size if log.exists() else 0
        try:
            with running(self.work, peer, model, self.threads, max(map(len, self.windows)) + 1) as worker:
                worker.ask(windows=self.windows, path=str(path))
        except PeerError as error:
            printed = last_words(log.read_bytes()[before:].decode(errors="replace"))
            raise RefusedError(printed if "exit code" in str(error) else str(error)) from error

    def divergence(self, peer: Peer, model: Path) -> dict[str, Any]:
        """How far the peer's predictions are from the reference's, over all and the KL of each kind; raises `RefusedError`."""
        path = self.work / "logits.f32"
        try:
            self.write_logits(peer, model, path)
            reference, found = open_logits(self.reference, self.positions), open_logits(path, self.positions)
            return dataclasses.asdict(diverge(reference, found, self.windows)) | {"kinds": dict(self.each_kind(reference, found))}
        except ValueError as error:
            raise RefusedError(str(error)) from error
        finally:
            path.unlink(missing_ok=True)

    def each_kind(self, reference: Logits, found: Logits) -> Iterator[tuple[str, float]]:
        """The KL of each kind of text."""
        start = 0
        for kind, windows in self.kinds.items():
            rows = slice(start, start := start + sum(map(len, windows)))
            yield kind, diverge(reference[rows], found[rows], windows).kl

    def speeds(self, models: dict[Peer, Path], rounds: int) -> Iterator[dict[str, Any]]:
        """A record of each peer in each round, new processes in each: all at once in memory, asked in turn."""
        for turn in range(rounds):
            with contextlib.ExitStack() as stack:
                sizes = {"threads": self.threads, "length": PROMPT + DECODED, "vocab_size": self.vocab_size, "turn": turn}
                workers, failures = started(stack, self.work, models, **sizes)
                yield from failures
                yield from alone(workers, BEHIND, self.vocab_size, turn, new=DECODED + 1)
                yield from alone(workers, PROMPT, self.vocab_size, turn)
            print(".", end="", file=sys.stderr, flush=True)
        print(file=sys.stderr)
