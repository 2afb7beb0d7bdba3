"""The command `onnx-textgen export`. Torch is imported when it runs, since that takes seconds."""

from __future__ import annotations

import dataclasses
import signal
import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from onnx_textgen.cli.help_texts import help_of
from onnx_textgen.errors import OptionError

if TYPE_CHECKING:
    from onnx_textgen.package.manifest import Manifest

    from .exporting import Exported
    from .passes.quantization.options import Quantization

WRITTEN = {"method": "--quantizer", "accuracy_level": "--exact"}
"""Options of a quantised precision that are written otherwise than they are called."""

app = typer.Typer(context_settings={"help_option_names": ["-h", "--help"]}, add_completion=False, rich_markup_mode=None)


class PrecisionName(StrEnum):
    """How weights are stored."""

    fp32 = "fp32"
    fp16 = "fp16"
    int8 = "int8"
    int4 = "int4"


class QuantizerName(StrEnum):
    """How the numbers of a quantised matrix are chosen."""

    calibrated = "calibrated"
    rtn = "rtn"
    k_quant = "k_quant"
    hqq = "hqq"


class ActivationsName(StrEnum):
    """What is computed in besides the quantised products."""

    fp32 = "fp32"
    fp16 = "fp16"


class TargetName(StrEnum):
    """Which operators the graph may use."""

    ort = "ort"
    standard = "standard"


def export(
    source: Annotated[str, typer.Argument(help="A checkpoint folder, owner/name on the hub, or file.py:name for your own.")],
    *,
    out: Annotated[Path, typer.Option(help="The model folder to make.")],
    precision: Annotated[PrecisionName, typer.Option(help="How weights are stored; fp16 is meant for CUDA.")] = PrecisionName.fp32,
    activations: Annotated[
        ActivationsName | None, typer.Option(help="int8, int4: what the rest computes in, and the cache; fp16 is meant for GPUs.")
    ] = None,
    target: Annotated[TargetName, typer.Option(help="ort: fast, for ONNX Runtime. standard: any runtime.")] = TargetName.ort,
    genai: Annotated[
        bool, typer.Option("--genai-config/--no-genai-config", help="Let onnxruntime-genai open the folder too.")
    ] = True,
    hidden_states: Annotated[bool, typer.Option("--hidden-states", help="Give hidden states too, to embed texts by.")] = False,
    attention_maps: Annotated[
        bool, typer.Option("--attention-maps", help="Add a graph that shows who looks at whom, for the web page.")
    ] = False,
    int8_cache: Annotated[
        bool, typer.Option("--int8-cache", help="Add a graph with keys and values at 8 bits, for long contexts on a CPU.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the model folder that is there.")] = False,
    tokenizer: Annotated[Path | None, typer.Option(help="A tokenizer.json, for a source that brings none.")] = None,
    eos_id: Annotated[list[int] | None, typer.Option(help="An id that ends a text, where the source names none.")] = None,
    context_length: Annotated[int | None, typer.Option(min=2, help="Most tokens, if the source does not say.")] = None,
    name: Annotated[str | None, typer.Option(help="The model's name; default: the folder's.")] = None,
    origin: Annotated[str | None, typer.Option(help="Where the weights came from, and their licence.")] = None,
    block_size: Annotated[
        int | None,
        typer.Option(help="int8, int4: weights that share one scale. Given for int4, no block is smaller; on some CPUs faster."),
    ] = None,
    symmetric: Annotated[
        bool | None, typer.Option("--symmetric/--asymmetric", help="int8, int4: without or with a zero point in each block.")
    ] = None,
    quantizer: Annotated[QuantizerName | None, typer.Option(help="int8, int4: how the numbers are chosen.")] = None,
    head_bits: Annotated[int | None, typer.Option(help="int4: 8 keeps the output layer in int8.")] = None,
    sensitive_bits: Annotated[int | None, typer.Option(help="int4: 8 keeps the layers that suffer most in int8.")] = None,
    max_kl: Annotated[
        float | None, typer.Option(help="int8, int4: most divergence from the unrounded model, in nats per token.")
    ] = None,
    target_size: Annotated[float | None, typer.Option(help="int4: as good as it gets in so many MB.", metavar="MB")] = None,
    strict_bits: Annotated[
        bool, typer.Option("--strict-bits", help="int4: 4 bits for every matrix, whatever that costs in quality.")
    ] = False,
    calibration: Annotated[
        Path | None, typer.Option("--calibrate", help="int8, int4: a text like yours to find the numbers by.", metavar="FILE")
    ] = None,
    calibrates: Annotated[bool, typer.Option(" /--no-calibrate", help="int8, int4: look at no text; quicker, and coarser.")] = True,
    exact: Annotated[
        bool, typer.Option("--exact", help="int8, int4: multiply in float32, so that every runtime writes the same; slower.")
    ] = False,
    allow_pickle: Annotated[
        bool, typer.Option("--allow-pickle", help="Read weights from a pickle where there is nothing else; tensors only.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the manifest as JSON.")] = False,
) -> None:
    """Make a model folder from a PyTorch decoder, and prove that both compute the same.

    Try:
        onnx-textgen export ./my-checkpoint --out ./my-model
        onnx-textgen export ./my-checkpoint --out ./small --precision int4
        onnx-textgen export ./my-checkpoint --out ./smaller --precision int4 --target-size 90
        onnx-textgen export HuggingFaceTB/SmolLM2-135M-Instruct --out ./smollm --precision int8
        onnx-textgen export my_model.py:build --out ./my-model --tokenizer tokenizer.json
    """
    import logging  # noqa: PLC0415

    from .calibration.attempts import Budget  # noqa: PLC0415
    from .exporting import export as make  # noqa: PLC0415

    logging.getLogger("transformers").setLevel(logging.ERROR)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that nothing half-written stays
    stages = Stages()
    if precision is PrecisionName.fp16 and activations is not None:
        raise OptionError("--precision fp16 is float16 throughout, so --activations does nothing; drop it, or take int8 or int4")
    made = make(
        source,
        out,
        precision=precision.value,
        target=target.value,
        quantization=quantization_from(
            precision.value,
            block_size=block_size,
            finer_blocks=False if block_size is not None else None,
            symmetric=symmetric,
            method=quantizer and quantizer.value,
            head_bits=head_bits,
            sensitive_bits=sensitive_bits,
            accuracy_level=0 if exact else None,
            activations="fp16" if activations is ActivationsName.fp16 else None,
        ),
        budget=Budget(
            max_kl=max_kl,
            target_bytes=None if target_size is None else round(target_size * 1e6),
            strict_bits=strict_bits,
            calibrates=calibrates,
            calibration=calibration,
        ),
        tokenizer=tokenizer,
        eos_ids=tuple(eos_id or ()),
        context_length=context_length,
        name=name,
        origin=origin,
        allow_pickle=allow_pickle,
        genai=genai,
        hidden_states=hidden_states,
        attention_maps=attention_maps,
        int8_cache=int8_cache,
        force=force,
        report=stages.begin,
    )
    stages.begin(None)
    if precision is PrecisionName.fp16 or activations is ActivationsName.fp16:
        typer.echo("float16 is meant for GPUs; on a CPU int8 with float32 activations is faster", err=True)
    if as_json:
        typer.echo((made.folder / "manifest.json").read_text(encoding="utf-8"), nl=False)
    else:
        show(made)


app.command(help=help_of(export))(export)


def quantization_from(precision: str, **given: int | str | None) -> Quantization | None:
    """The options of a quantised precision that were given, over its defaults; None where none was."""
    from .passes.quantization.options import DEFAULTS  # noqa: PLC0415

    options = {name: value for name, value in given.items() if value is not None}
    if options and precision not in DEFAULTS:
        name = next(iter(options))
        written = WRITTEN.get(name, f"--{name.replace('_', '-')}")
        raise OptionError(f"{precision} is not quantised, so {written} does nothing; drop it, or take int4")
    return dataclasses.replace(DEFAULTS[precision], **options) if options else None  # type: ignore[arg-type]


class Stages:
    """Says on stderr what is being done, and how long each stage took; a stage with a colon is a message and takes no time."""

    def __init__(self) -> None:
        self.name: str | None = None
        self.started = time.perf_counter()

    def begin(self, name: str | None) -> None:
        """End the stage that runs, and begin another if there is one."""
        now, on_terminal = time.perf_counter(), sys.stderr.isatty()
        if self.name is not None:
            start = "\r" if on_terminal else ""  # over the line that said it had begun
            typer.echo(f"{start}{self.name:<24} {now - self.started:6.1f} s", err=True)
        if name is not None and ":" in name:
            typer.echo(name, err=True)
            name = None
        self.name, self.started = name, now
        if name is not None and on_terminal:
            typer.echo(f"{name} ...", nl=False, err=True)


def show(made: Exported) -> None:
    """Print the certificate."""
    from rich.console import Console  # noqa: PLC0415

    from onnx_textgen.cli.terminal.certificate import precision_in_words, scenario_table, summary_in_words  # noqa: PLC0415
    from onnx_textgen.cli.terminal.tables import show_table  # noqa: PLC0415
    from onnx_textgen.package.manifest import INT8_CACHE_GRAPH, TOKENIZER  # noqa: PLC0415

    manifest: Manifest = made.manifest
    console = Console(highlight=False, markup=False, emoji=False)
    show_table(scenario_table(manifest.certificate["scenarios"]))
    console.print()
    geometry = manifest.geometry
    weights = precision_in_words(manifest.precision, manifest.quantization)
    console.print(
        f"{made.folder}: {manifest.name}, {weights}, target {manifest.target}, {geometry.layers} layers, "
        f"context {geometry.context_length:,}, proved to {manifest.certificate['longest_text']:,} tokens"
    )
    console.print(f"On real text: {summary_in_words(manifest.summary)}")
    if exact := manifest.certificate.get("same_weights"):
        error = max(scenario["logits_error"] for scenario in exact)
        console.print(f"With the same rounded weights PyTorch's logits differ by {error:.1e}: the rest is rounding")
    if rounded := manifest.certificate.get("int8_cache"):
        console.print(f"With keys and values at 8 bits ({INT8_CACHE_GRAPH}): {summary_in_words(rounded)}")
    if untested := manifest.certificate["untested"]:
        console.print(f"Not tested: {' and '.join(untested)} tokens, beyond the longest text compared")
    prompt = '"Once upon a time"' if TOKENIZER in manifest.files else "--token-ids 1,2,3"
    console.print(f"Next: onnx-textgen generate {prompt} --model {made.folder}", style="dim")
