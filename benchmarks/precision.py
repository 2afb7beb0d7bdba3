"""What each precision costs in quality and buys in size and speed.

    python benchmarks/precision.py TEXT SOURCE... [--tokens N] [--threads N] [--rounds N] [--write docs/precision.md]

Each source (a checkpoint folder) is traced once per target at fp32; every precision is then made from that graph and compared
with it, on text that the model was not trained on: the same token next (top-1), the divergence of the distributions (KL, nats per
token), and the perplexity of what really follows. Speed is that of greedy decoding, the best of some rounds; `--rounds 0` leaves it
out, as one should where other work runs. Lines `<|endoftext|>` separate the texts.
"""

import argparse
import dataclasses
import platform
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime

import onnx_textgen
from onnx_textgen.api.model import Model
from onnx_textgen.package.manifest import CHAT_TEMPLATE, GRAPH, TOKENIZER, WEIGHTS, Target, weights_files
from onnx_textgen.package.reading import read_manifest
from onnx_textgen_export import export
from onnx_textgen_export.package.folder import new_folder, records, write_manifest
from onnx_textgen_export.passes.float16 import to_float16
from onnx_textgen_export.passes.quantization.options import DEFAULTS, Quantization
from onnx_textgen_export.passes.quantization.stored_matrices import quantize

DECODED = 96
ShortText = list[int]


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    name: str
    target: Target
    change: Callable[[ir.Model], None]


def quantised(options: Quantization, *, name: str = "", target: Target = "ort") -> Row:
    """The row of a quantisation."""
    shown = options.describe() + (f", accuracy level {options.accuracy_level}" if options.accuracy_level != 4 else "")
    default = " **(default)**" if options in DEFAULTS.values() else ""
    return Row((name or shown) + default, target, lambda model: quantize(model, options, target))


def all_rows() -> Iterator[Row]:
    """Every precision and option."""
    yield Row("fp32", "ort", lambda model: None)
    yield Row("fp16", "ort", to_float16)
    for method in ("rtn", "k_quant"):
        for symmetric in (True, False):
            yield quantised(Quantization(8, symmetric=symmetric, method=method))
    yield quantised(Quantization(8, accuracy_level=0))
    for size in (16, 64, 128):
        yield quantised(Quantization(8, size))
    for method in ("rtn", "k_quant"):
        for symmetric in (True, False):
            yield quantised(Quantization(4, symmetric=symmetric, method=method))
    yield quantised(Quantization(4, symmetric=False, method="hqq"))
    yield quantised(Quantization(4, accuracy_level=0))
    for size in (16, 64, 128):
        yield quantised(Quantization(4, size, symmetric=False))
    for symmetric in (True, False):
        yield quantised(Quantization(4, symmetric=symmetric, head_bits=8))
        yield quantised(Quantization(4, symmetric=symmetric, sensitive_bits=8))
        yield quantised(Quantization(4, symmetric=symmetric, head_bits=8, sensitive_bits=8))
    yield quantised(Quantization(4, 16, symmetric=False, head_bits=8, sensitive_bits=8))
    yield Row("fp32", "standard", lambda model: None)
    for options in DEFAULTS.values():
        yield quantised(options, target="standard")


@dataclasses.dataclass(frozen=True, slots=True)
class Quality:
    """How a package differs from fp32."""

    top1: float
    divergence: float
    perplexity: float


def read_texts(path: Path, model: Model, tokens: int) -> list[ShortText]:
    """Token ids of the first texts, each cut to the context and 512 tokens; `tokens` of them altogether."""
    texts, most = [], min(512, model.manifest.geometry.context_length)
    for text in re.split(r"^<\|endoftext\|>$", path.read_text(encoding="utf-8"), flags=re.MULTILINE):
        if sum(map(len, texts)) >= tokens:
            break
        texts.append(model.tokenizer.encode(text.strip())[:most])
    return texts


def log_probabilities(logits: np.ndarray) -> np.ndarray:
    """Log softmax in float64."""
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))


def compare(model: Model, reference: Model, texts: list[ShortText]) -> Quality:
    """`model` beside fp32, token by token of the texts."""
    same, divergences, ours, theirs = [], [], [], []
    for ids in texts:
        got = log_probabilities(model.new_context().feed(ids, every_position=True))
        want = log_probabilities(reference.new_context().feed(ids, every_position=True))
        same.append(got.argmax(1) == want.argmax(1))
        divergences.append((np.exp(want) * (want - got)).sum(axis=1))
        positions = np.arange(len(ids) - 1)
        ours.append(got[positions, ids[1:]])
        theirs.append(want[positions, ids[1:]])
    perplexity = np.exp(-np.concatenate(ours).mean()) / np.exp(-np.concatenate(theirs).mean()) - 1
    return Quality(float(np.concatenate(same).mean()), float(np.concatenate(divergences).mean()), float(perplexity))


def decode_rate(model: Model, prompt: ShortText, rounds: int) -> float:
    """Greedy tokens per second, the best of the rounds."""
    rates = []
    for _ in range(rounds):
        context = model.new_context()
        token = int(context.feed(prompt)[-1].argmax())
        start = time.perf_counter()
        for _ in range(DECODED):
            token = int(context.feed([token])[-1].argmax())
        rates.append(DECODED / (time.perf_counter() - start))
    return max(rates)


def make(fp32: Path, row: Row, out: Path) -> float:
    """Write the row's package beside the fp32 one of its target; returns the seconds it took."""
    start = time.perf_counter()
    model = ir.load(fp32 / GRAPH)
    row.change(model)
    manifest = onnx_textgen.load(fp32).manifest
    with new_folder(out, force=True) as folder:
        ir.save(model, folder / GRAPH, external_data=WEIGHTS)
        for name in manifest.files.keys() & {TOKENIZER, CHAT_TEMPLATE}:
            (folder / name).write_bytes((fp32 / name).read_bytes())
        write_manifest(folder, dataclasses.replace(manifest, files=records(folder), certificate={}, golden=()))
    return time.perf_counter() - start


def size_of(folder: Path) -> int:
    """Bytes of graph and weights."""
    return sum((folder / name).stat().st_size for name in (GRAPH, *weights_files(read_manifest(folder))))


def measure(source: Path, text: Path, tokens: int, threads: int, rounds: int) -> Iterator[str]:
    """The table of one source, line by line."""
    with tempfile.TemporaryDirectory() as scratch:
        folders = {target: export(source, Path(scratch, target), target=target).folder for target in ("ort", "standard")}
        reference = onnx_textgen.load(folders["ort"], device="cpu", threads=threads)
        texts = read_texts(text, reference, tokens)
        whole = size_of(folders["ort"])
        geometry = reference.manifest.geometry
        yield (
            f"\n## {source.name}: {geometry.layers} layers, width {geometry.hidden_size}, vocabulary {geometry.vocab_size:,}, "
            f"{sum(map(len, texts)):,} tokens\n"
        )
        yield "| precision | target | size (MB) | of fp32 | same top-1 | KL (nats/token) | perplexity |" + (
            " tokens/s |" if rounds else ""
        )
        yield "|---|---|---:|---:|---:|---:|---:|" + ("---:|" if rounds else "")
        for row in all_rows():
            folder = Path(scratch, "row")
            make(folders[row.target], row, folder)
            model = onnx_textgen.load(folder, device="cpu", threads=threads)
            quality, size = compare(model, reference, texts), size_of(folder)
            speed = f" {decode_rate(model, texts[0][:16], rounds):,.0f} |" if rounds else ""
            yield (
                f"| {row.name} | {row.target} | {size / 1e6:.2f} | {size / whole:.0%} | {quality.top1:.2%} "
                f"| {quality.divergence:.2e} | {quality.perplexity:+.2%} |{speed}"
            )


def conditions(text: Path, tokens: int, threads: int, rounds: int) -> str:
    """What a reader must know to repeat the figures."""
    command = f"python benchmarks/precision.py {text.name} SOURCE... --tokens {tokens} --threads {threads} --rounds {rounds}"
    return (
        f"Measured with `{command}`, ONNX Runtime {onnxruntime.__version__}, {platform.machine()}, {threads} "
        f"thread{'s' if threads > 1 else ''}."
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables, and put them between the markers of a document if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path)
    parser.add_argument("sources", type=Path, nargs="+")
    parser.add_argument("--tokens", type=int, default=8000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", type=Path)
    chosen = parser.parse_args(arguments)
    lines = [conditions(chosen.text, chosen.tokens, chosen.threads, chosen.rounds)]
    print(lines[0])
    for source in chosen.sources:
        for line in measure(source, chosen.text, chosen.tokens, chosen.threads, chosen.rounds):
            print(line, flush=True)
            lines.append(line)
    if chosen.write:
        before, _, rest = chosen.write.read_text(encoding="utf-8").partition("<!-- tables -->\n")
        after = rest.partition("<!-- end of tables -->")[2]
        tables = "\n".join(lines)
        chosen.write.write_text(f"{before}<!-- tables -->\n{tables}\n<!-- end of tables -->{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
