"""Each form's model, made the first time, or the reason why there is none; and its bytes."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
from pathlib import Path

from peers import Peer, conversion_log, convert, converted, cost_file, program, remove, together
from variants import FILES, SOURCES


class RefusedError(Exception):
    """Why there is no model, or why it does not run, in a line."""


@dataclasses.dataclass(frozen=True, slots=True)
class Size:
    """Bytes of a model."""

    bytes: int
    """Of the files that an engine needs, graph and weights."""
    vocabulary_bytes: int
    """Part of them that are the tokenizer's pieces, in a file that holds these too."""


@dataclasses.dataclass(frozen=True, slots=True)
class Maker:
    """Converts one checkpoint for everyone."""

    work: Path
    checkpoint: Path
    tokens: Path
    """Windows of the calibration text, as JSON."""

    def make(self, peer: Peer, *, anew: bool = False) -> Path:
        """The peer's model, with `anew` not an earlier run's; raises `RefusedError`."""
        if anew and peer.convert:
            remove(converted(self.work, peer, self.checkpoint))
        words = {word for command in peer.convert for word in command}
        sources = {word: self.convert(source, {"TOKENS": self.tokens}) for word, source in SOURCES.items() if word in words}
        return self.convert(peer, {"TOKENS": self.tokens, **sources})

    def cost(self, peer: Peer) -> dict[str, float]:
        """What it took to make the peer's model, with an importance matrix where it has one; empty where nothing was made."""
        made = [peer, *(SOURCES["IMPORTANCE"] for command in peer.convert if "IMPORTANCE" in command)]
        files = [cost_file(self.work, each, self.checkpoint) for each in made]
        costs = [json.loads(file.read_text()) for file in files if file.exists()]
        return together(costs) if len(costs) == len(files) else {}

    def convert(self, peer: Peer, sources: dict[str, Path]) -> Path:
        """As `peers.convert`; raises `RefusedError`."""
        try:
            return convert(self.work, peer, self.checkpoint, sources)
        except subprocess.CalledProcessError as error:
            log = conversion_log(self.work, peer, self.checkpoint)
            raise RefusedError(last_words(log.read_text(encoding="utf-8", errors="replace"))) from error


def last_words(log: str) -> str:
    r"""The line of a program's output that says why it failed: the last that begins as an error does, or else the last.

    >>> last_words("load 2 s\nValueError: no such layer\nexit")
    'ValueError: no such layer'
    """
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"(error|[A-Za-z_.]+(Error|Exception)):", line)]
    return (errors or lines or ["no reason given"])[-1].removeprefix("error: ")


def size_of(work: Path, peer: Peer, model: Path) -> Size:
    """Bytes of a peer's model."""
    if model.suffix == ".gguf":
        return Size(model.stat().st_size, vocabulary_bytes(work, model))
    files = [file for pattern in FILES[peer.name] for file in model.glob(pattern)]
    return Size(sum(file.stat().st_size for file in files), 0)


def vocabulary_bytes(work: Path, model: Path) -> int:
    """Bytes of the tokenizer's fields in a GGUF."""
    code = (
        "import sys, gguf\n"
        "fields = gguf.GGUFReader(sys.argv[1]).fields.values()\n"
        "print(sum(part.nbytes for field in fields if field.name.startswith('tokenizer.') for part in field.parts))"
    )
    command = [program(work, "conversions", "python"), "-c", code, str(model)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
