"""Peak memory and time of exporting, on checkpoints of random weights in the shapes of known models.

    python benchmarks/export.py                                # llama-135m, llama-1b, and two depths of one width, at int4
    python benchmarks/export.py --shape llama-1b --precision int8
    python benchmarks/export.py --tokenizer tokenizer.json     # with calibration, which reads a text
    python benchmarks/export.py --work DIR                     # keep the checkpoints there, to use them again

Each export is a process of its own. Memory is the largest resident set that the system saw of it, the pages of mapped files
included; time is by the clock, on a machine that should do nothing else meanwhile.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from safetensors.torch import save_file
from transformers import LlamaConfig, MixtralConfig


@dataclasses.dataclass(frozen=True)
class Shape:
    """Sizes of a Llama decoder, or of a Mixtral one."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    vocab: int
    context: int = 2048
    experts: int = 0
    """Of a mixture, of which each token takes two; 0: a plain feed-forward."""


SHAPES = {
    "llama-135m": Shape(576, 30, 9, 3, 1536, 49_152),
    "llama-24m": Shape(320, 6, 5, 1, 896, 49_152),
    "llama-1b": Shape(2048, 16, 32, 8, 8192, 128_256, context=131_072),
    "4 layers": Shape(1024, 4, 16, 4, 4096, 32_000),
    "32 layers": Shape(1024, 32, 16, 4, 4096, 32_000),
    "8 experts, 4 layers": Shape(512, 4, 8, 4, 1792, 8192, experts=8),
    "8 experts, 16 layers": Shape(512, 16, 8, 4, 1792, 8192, experts=8),
}
SPREAD = 0.01
"""Standard deviation of the matrices; the embedding's is 1, so that what a token is stays visible in the logits, as in a trained
model. Logits that are all alike would change their order with any rounding, and the export would be refused."""


def feed_forward(shape: Shape) -> dict[str, tuple[int, int]]:
    """Names and sizes [out, in] of a layer's matrices behind its attention."""
    up, down = (shape.intermediate, shape.hidden), (shape.hidden, shape.intermediate)
    if not shape.experts:
        return {"mlp.gate_proj": up, "mlp.up_proj": up, "mlp.down_proj": down}
    experts = {
        f"block_sparse_moe.experts.{expert}.{name}": sizes
        for expert in range(shape.experts)
        for name, sizes in (("w1", up), ("w2", down), ("w3", up))
    }
    return {"block_sparse_moe.gate": (shape.experts, shape.hidden), **experts}


def make_checkpoint(folder: Path, shape: Shape) -> None:
    """Write a tied bfloat16 checkpoint, one file per layer."""
    folder.mkdir(parents=True)
    head_size = shape.hidden // shape.heads
    kind: dict[str, int] = {"num_local_experts": shape.experts} if shape.experts else {}
    config = (MixtralConfig if shape.experts else LlamaConfig)(
        **kind,
        vocab_size=shape.vocab,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=shape.context,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
    )
    config.save_pretrained(folder)
    generator, places = torch.Generator().manual_seed(0), dict[str, str]()

    def matrix(rows: int, columns: int, spread: float = SPREAD) -> torch.Tensor:
        return (torch.randn(rows, columns, generator=generator) * spread).bfloat16()

    def write(name: str, tensors: dict[str, torch.Tensor]) -> None:
        save_file(tensors, folder / name, metadata={"format": "pt"})
        places.update(dict.fromkeys(tensors, name))

    ones = torch.ones(shape.hidden, dtype=torch.bfloat16)
    write("embedding.safetensors", {"model.embed_tokens.weight": matrix(shape.vocab, shape.hidden, 1.0), "model.norm.weight": ones})
    for index in range(shape.layers):
        projections = {
            "self_attn.q_proj": (shape.heads * head_size, shape.hidden),
            "self_attn.k_proj": (shape.kv_heads * head_size, shape.hidden),
            "self_attn.v_proj": (shape.kv_heads * head_size, shape.hidden),
            "self_attn.o_proj": (shape.hidden, shape.heads * head_size),
            **feed_forward(shape),
        }
        tensors = {f"model.layers.{index}.{name}.weight": matrix(*sizes) for name, sizes in projections.items()}
        tensors |= {f"model.layers.{index}.{name}_layernorm.weight": ones.clone() for name in ("input", "post_attention")}
        write(f"layer-{index:03}.safetensors", tensors)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))


def run_export(checkpoint: Path, out: Path, precision: str, tokenizer: Path | None) -> tuple[int, float, int, int]:
    """Export in a process of its own; returns its exit code, seconds, peak resident bytes, and the package's bytes."""
    command = [str(Path(sys.executable).with_name("onnx-textgen")), "export", str(checkpoint), "--out", str(out)]
    command += ["--tokenizer", str(tokenizer)] if tokenizer is not None else []
    started = time.perf_counter()
    process = os.posix_spawn(command[0], [*command, "--precision", precision], os.environ)
    _, status, usage = os.wait4(process, 0)
    seconds = time.perf_counter() - started
    size = sum(path.stat().st_size for path in out.iterdir()) if out.is_dir() else 0
    return os.waitstatus_to_exitcode(status), seconds, usage.ru_maxrss * 1024, size


def main() -> None:
    """Export each shape and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", action="append", choices=SHAPES, help="default: all")
    parser.add_argument("--precision", default="int4")
    parser.add_argument("--tokenizer", type=Path, help="a tokenizer.json of no more tokens than the shape has")
    parser.add_argument("--work", type=Path, help="where checkpoints are made and kept; default: a temporary folder")
    arguments = parser.parse_args()
    table = Table(title=f"onnx-textgen export --precision {arguments.precision}, {os.cpu_count()} cores", title_justify="left")
    for column in ("shape", "checkpoint MB", "package MB", "peak memory MB", "seconds"):
        table.add_column(column, justify="left" if column == "shape" else "right")
    with tempfile.TemporaryDirectory() as temporary:
        work = arguments.work or Path(temporary)
        for name in arguments.shape or SHAPES:
            checkpoint, out = work / name.replace(" ", "-"), Path(temporary) / "package"
            if not checkpoint.exists():
                make_checkpoint(checkpoint, SHAPES[name])
            stored = sum(path.stat().st_size for path in checkpoint.iterdir())
            code, seconds, peak, size = run_export(checkpoint, out, arguments.precision, arguments.tokenizer)
            figures = [f"{size / 1e6:,.0f}", f"{peak / 1e6:,.0f}", f"{seconds:.0f}"] if code == 0 else ["", "", f"failed ({code})"]
            table.add_row(name, f"{stored / 1e6:,.0f}", *figures)
            shutil.rmtree(out, ignore_errors=True)
    Console().print(table)


if __name__ == "__main__":
    main()
