"""The loss curve of a training run: measured, written as a table, and drawn."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

from onnx_textgen_export import TinyTransformer


def held_out_bits_per_byte(model: TinyTransformer, tokenizer: Tokenizer, documents: list[str]) -> float:
    """Bits per UTF-8 byte over `documents`, each in its own row after the first token; padding is not counted."""
    bits = 0.0
    with torch.no_grad():
        for start in range(0, len(documents), 16):
            rows = [torch.tensor(tokenizer.encode(text).ids) for text in documents[start : start + 16]]
            ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1)
            with torch.autocast(ids.device.type, torch.bfloat16):
                logits = model(ids[:, :-1].clamp(min=0))
            loss = F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten(), ignore_index=-1, reduction="sum")
            bits += float(loss) / math.log(2)
    return bits / sum(len(text.encode()) for text in documents)


def plot_curve(folder: Path, name: str) -> None:
    """Draw curve.csv as curve.png."""
    import matplotlib.pyplot as plt  # noqa: PLC0415 - training works without it

    with (folder / "curve.csv").open(encoding="utf-8", newline="") as file:
        rows = [{key: float(value) for key, value in row.items()} for row in csv.DictReader(file)]
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    tokens, bits = [row["tokens"] / 1e6 for row in rows], [row["held_out_bits_per_byte"] for row in rows]
    axes.plot(tokens, bits, label="held-out bits per byte")
    axes.set(xlabel="million tokens seen", ylabel="bits per byte", title=f"{name}: held-out loss while training")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(folder / "curve.png", dpi=120)
    plt.close(figure)


def append_row(path: Path, record: dict[str, float]) -> None:
    """Append a row to a CSV table, with a header if it is the first."""
    is_new = not path.exists()
    with path.open("a", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, record)
        if is_new:
            writer.writeheader()
        writer.writerow(record)
