"""How often the loop guard mistakes ordinary text for a circle: `python benchmarks/loop_guard.py TEXT...` (files, .zst too).

Each file is tokenised with the embedded model's tokenizer and read in pieces of 2,000 tokens, as texts of that length would be.
"""

import sys
from pathlib import Path

import zstandard

import onnx_textgen
from onnx_textgen.sampling.repetition_guard import LoopGuard

PIECE = 2000
CHARACTERS = 4_000_000
"""Of each file."""


def read(path: Path) -> str:
    """The beginning of a file, unpacked where it is packed."""
    if path.suffix == ".zst":
        with path.open("rb") as packed, zstandard.ZstdDecompressor().stream_reader(packed) as stream:
            return stream.read(CHARACTERS).decode("utf-8", "replace")
    return path.read_text(encoding="utf-8")[:CHARACTERS]


def alarmed(token_ids: list[int]) -> int | None:
    """Where the guard says that a text runs in a circle, if it does."""
    guard = LoopGuard()
    for place, token_id in enumerate(token_ids):
        guard.push(token_id)
        if guard.next_in_cycle is not None:
            return place
    return None


def main() -> None:
    """Print one line per file, and the text around each alarm."""
    tokenizer = onnx_textgen.load(device="cpu", threads=1).tokenizer
    for name in sys.argv[1:]:
        token_ids = tokenizer.encode(read(Path(name)), add_special_tokens=False)
        pieces = [token_ids[start : start + PIECE] for start in range(0, len(token_ids), PIECE)]
        alarms = [(piece, place) for piece in pieces if (place := alarmed(piece)) is not None]
        print(f"{Path(name).name:40} {len(token_ids):>10,} tokens {len(pieces):>6,} pieces {len(alarms):>4} alarms", flush=True)
        for piece, place in alarms[:3]:
            print("    ", repr(tokenizer.decode(piece[max(0, place - 40) : place])))


if __name__ == "__main__":
    main()
