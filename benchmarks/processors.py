"""Whether packages write the same on two processors: `record` on each, `compare` the two files anywhere.

python benchmarks/processors.py record DIR ... --out x86.npz
python benchmarks/processors.py compare x86.npz arm.npz

A file has, of each package, the greedy tokens after some prompts and the logits of a text, fed whole and token by token.
"""

from __future__ import annotations

import argparse
import platform
from pathlib import Path

import numpy as np
import numpy.typing as npt

import onnx_textgen

PROMPTS = (
    "Once upon a time",
    "The capital of France is",
    "def add(a, b):",
    "In 1969,",
    "She opened the door and",
    "Water boils at",
)
TEXT = (
    "The river was high after the rain, and the two boats that usually lay at the old bridge had been tied to a tree. Nobody had "
    "seen who did it. In the village they said that the ferryman, who had left for the city in spring, was back; others said that "
    "boats know."
)


def record(packages: list[Path], out: Path, new_tokens: int) -> None:
    """Run each package on this machine's CPU."""
    found: dict[str, npt.NDArray[np.generic]] = {"processor": np.array(platform.machine())}
    for folder in packages:
        with onnx_textgen.load(folder, device="cpu") as model:
            texts = [model.generate(prompt, max_new_tokens=new_tokens, temperature=0).token_ids for prompt in PROMPTS]
            ids = model.encode(TEXT)
            whole = model.new_context().feed(ids, every_position=True)
            stepping = model.new_context()
            steps = np.concatenate([stepping.feed([each], every_position=True) for each in ids])
        name = folder.name
        found |= {f"{name}/text{number}": np.array(each) for number, each in enumerate(texts)}
        found |= {f"{name}/whole": whole, f"{name}/steps": steps}
        print(name, flush=True)
    np.savez_compressed(out, **found)  # type: ignore[arg-type]  # its stubs take no mapping of arrays


def compare(one: Path, other: Path) -> None:
    """Print a row for each package of two files."""
    with np.load(one) as first, np.load(other) as second:
        names = list(dict.fromkeys(key.partition("/")[0] for key in first if "/" in key))
        processors = f"{first['processor']} and {second['processor']}"
        print(f"| {processors} | same texts | common beginning | largest logits error | KL |")
        print("|---|---|---|---|---|")
        for name in names:
            texts = [(first[f"{name}/text{each}"], second[f"{name}/text{each}"]) for each in range(len(PROMPTS))]
            same = sum(np.array_equal(*pair) for pair in texts)
            common = [common_length(*pair) / max(1, len(pair[0])) for pair in texts]
            logits = [np.concatenate([each[f"{name}/{kind}"] for kind in ("whole", "steps")]) for each in (first, second)]
            error = np.abs(logits[0] - logits[1]).max() / np.abs(logits[0]).max()
            divergence = np.mean(kl(*logits))
            print(f"| {name} | {same} of {len(texts)} | {np.mean(common):.0%} | {error:.1e} | {divergence:.1e} |")


def common_length(one: npt.NDArray[np.generic], other: npt.NDArray[np.generic]) -> int:
    """How many tokens two texts begin with in common."""
    size = min(len(one), len(other))
    differing = np.flatnonzero(one[:size] != other[:size])
    return int(differing[0]) if len(differing) else size


def kl(one: npt.NDArray[np.float32], other: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """The KL divergence of each row's distribution, in nats."""
    first, second = (logits - np.logaddexp.reduce(logits.astype(np.float64), axis=-1, keepdims=True) for logits in (one, other))
    return np.asarray((np.exp(first) * (first - second)).sum(axis=-1))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record")
    recording.add_argument("packages", nargs="+", type=Path)
    recording.add_argument("--out", type=Path, required=True)
    recording.add_argument("--new-tokens", type=int, default=48, help="fewer where emulation is slow")
    comparing = commands.add_parser("compare")
    comparing.add_argument("one", type=Path)
    comparing.add_argument("other", type=Path)
    given = parser.parse_args()
    if given.command == "record":
        record(given.packages, given.out, given.new_tokens)
    else:
        compare(given.one, given.other)
