"""Hybrid models whose prompts run whole, beside the same models traced token by token: prompt and text speed in one run.

    python benchmarks/hybrids.py [--family "gated delta" ...] [--precision int8] [--target standard] [--work DIR]

Each family is a model of random weights in a shape like that of a 135M Llama, 24 layers of which every fourth attends where the
family has attention. It is exported twice: as it is, and with recurrent layers that transformers advances, as older versions did.
Both packages stay open and take turns, the first one alternating, so that the machine's other work reaches both alike.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Unpack
from unittest import mock

import torch
import transformers
from rich.console import Console
from rich.table import Table
from transformers import PreTrainedModel

import onnx_textgen
from onnx_textgen_export import export
from onnx_textgen_export.exporting.options import ExportKeywords
from onnx_textgen_export.huggingface.probed_model import Model

LAYERS, CONTEXT = 24, 1024
KINDS = ["full_attention" if index % 4 == 3 else "linear_attention" for index in range(LAYERS)]
COMMON: dict[str, Any] = {
    "vocab_size": 49_152,
    "hidden_size": 576,
    "num_hidden_layers": LAYERS,
    "tie_word_embeddings": True,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
ATTENTION: dict[str, Any] = {
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "intermediate_size": 1536,
    "max_position_embeddings": CONTEXT,
}
FAMILIES: dict[str, Callable[[], PreTrainedModel]] = {
    "gated delta": lambda: transformers.Qwen3_5ForCausalLM(
        transformers.Qwen3_5TextConfig(
            **COMMON | ATTENTION,
            head_dim=64,
            layer_types=KINDS,
            linear_num_key_heads=9,
            linear_num_value_heads=9,
            linear_key_head_dim=64,
            linear_value_head_dim=128,
        )
    ),
    "Mamba 2": lambda: transformers.BambaForCausalLM(
        transformers.BambaConfig(
            **COMMON | ATTENTION,
            attn_layer_indices=[index for index, kind in enumerate(KINDS) if kind == "full_attention"],
            mamba_n_heads=18,
            mamba_d_head=64,
            mamba_d_state=128,
        )
    ),
    "Mamba": lambda: transformers.MambaForCausalLM(transformers.MambaConfig(**COMMON, intermediate_size=1152, state_size=16)),
}
"""One model type for each kind of recurrence."""
SPREAD = 0.02
PROMPT, NEW, ROUNDS = 512, 32, 5


def make_model(family: str) -> PreTrainedModel:
    """A model of random weights; the embedding's are large, so that what a token is stays visible in the logits."""
    torch.manual_seed(0)
    model = FAMILIES[family]().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1 and "conv" not in name and "A_log" not in name:
                parameter.normal_(std=1.0 if "embed" in name else SPREAD)
    return model


def export_both(family: str, folder: Path, **options: Unpack[ExportKeywords]) -> tuple[Path, Path]:
    """The package with prompts that run whole, and the one that takes token by token; those that exist are used again."""
    whole, single = folder / "whole", folder / "single"
    if not (whole.is_dir() and single.is_dir()):
        model = make_model(family)
        export(model, whole, context_length=CONTEXT, **options)
        with mock.patch.object(Model, "with_own_recurrences", side_effect=NotImplementedError):
            export(model, single, context_length=CONTEXT, **options)
    return whole, single


def speeds(model: onnx_textgen.Model, seed: int) -> tuple[float, float]:
    """Tokens per second of a prompt, and of the text after it."""
    ids = torch.randint(0, COMMON["vocab_size"], (PROMPT,), generator=torch.Generator().manual_seed(seed)).tolist()
    stats = model.generate(ids, max_new_tokens=NEW + 1, temperature=0, ignore_eos=True).stats
    return PROMPT / stats.first_token_seconds, NEW / (stats.total_seconds - stats.first_token_seconds)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", action="append", choices=FAMILIES, help="default: all")
    parser.add_argument("--precision", default="int8")
    parser.add_argument("--target", default="ort")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--work", type=Path, help="where packages are made and kept; default: a temporary folder")
    arguments = parser.parse_args()
    options: ExportKeywords = {"precision": arguments.precision, "target": arguments.target}
    table = Table(title=f"{arguments.target}, {arguments.precision}, {arguments.threads} threads; tokens/s", title_justify="left")
    for column in ("family", "prompt, whole", "prompt, single", "times", "text, whole", "text, single", "times"):
        table.add_column(column, justify="left" if column == "family" else "right")
    with tempfile.TemporaryDirectory() as temporary:
        for family in arguments.family or FAMILIES:
            folder = (arguments.work or Path(temporary)) / f"{family} {arguments.target} {arguments.precision}".replace(" ", "-")
            models = [
                onnx_textgen.load(each, device="cpu", threads=arguments.threads) for each in export_both(family, folder, **options)
            ]
            measured: list[list[tuple[float, float]]] = [[], []]
            for turn in range(ROUNDS + 1):
                for which in (0, 1) if turn % 2 else (1, 0):
                    measured[which].append(speeds(models[which], turn))
            figures = list[str]()
            for what in (0, 1):
                whole, single = ([pair[what] for pair in each[1:]] for each in measured)
                ratio = statistics.median(one / other for one, other in zip(whole, single, strict=True))
                figures += [f"{statistics.median(whole):,.0f}", f"{statistics.median(single):,.0f}", f"{ratio:.1f}"]
            table.add_row(family, *figures)
    Console().print(table)


if __name__ == "__main__":
    main()
