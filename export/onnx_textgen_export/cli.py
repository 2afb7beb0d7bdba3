"""The command `onnx-textgen export`. Torch is imported when it runs, since that takes seconds."""

from __future__ import annotations

import importlib
import importlib.util
import signal
import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onnx_textgen.errors import OptionError

if TYPE_CHECKING:
    from torch import nn

    from onnx_textgen.artifact import Manifest

    from .exporting import Exported

app = typer.Typer(context_settings={"help_option_names": ["-h", "--help"]}, add_completion=False, rich_markup_mode=None)


class PrecisionName(StrEnum):
    """How weights are stored."""

    fp32 = "fp32"
    fp16 = "fp16"
    int8 = "int8"
    int4 = "int4"


class TargetName(StrEnum):
    """Which operators the graph may use."""

    ort = "ort"
    standard = "standard"


@app.command()
def export(
    source: Annotated[str, typer.Argument(help="A checkpoint folder, or file.py:name for a decoder of your own.")],
    *,
    out: Annotated[Path, typer.Option(help="The model folder to make.")],
    precision: Annotated[PrecisionName, typer.Option(help="How weights are stored.")] = PrecisionName.fp32,
    target: Annotated[TargetName, typer.Option(help="ort: fast, for ONNX Runtime. standard: any runtime.")] = TargetName.ort,
    force: Annotated[bool, typer.Option("--force", help="Replace the model folder that is there.")] = False,
    tokenizer: Annotated[Path | None, typer.Option(help="A tokenizer.json, for a source that brings none.")] = None,
    eos_id: Annotated[list[int] | None, typer.Option(help="An id that ends a text, where the source names none.")] = None,
    context_length: Annotated[int | None, typer.Option(min=2, help="Most tokens, if the source does not say.")] = None,
    name: Annotated[str | None, typer.Option(help="The model's name; default: the folder's.")] = None,
    origin: Annotated[str | None, typer.Option(help="Where the weights came from, and their licence.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the manifest as JSON.")] = False,
) -> None:
    r"""Make a model folder from a PyTorch decoder, and prove that both compute the same.

    \b
    Try:
        onnx-textgen export ./my-checkpoint --out ./my-model
        onnx-textgen export ./my-checkpoint --out ./small --precision int8
        onnx-textgen export my_model.py:build --out ./my-model --tokenizer tokenizer.json
    """
    import logging  # noqa: PLC0415

    from .exporting import export as make  # noqa: PLC0415

    logging.getLogger("transformers").setLevel(logging.ERROR)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that nothing half-written stays
    stages = Stages()
    made = make(
        import_module(source) if is_import(source) else source,
        out,
        precision=precision.value,
        target=target.value,
        tokenizer=tokenizer,
        eos_ids=tuple(eos_id or ()),
        context_length=context_length,
        name=name,
        origin=origin,
        force=force,
        report=stages.begin,
    )
    stages.begin(None)
    if as_json:
        typer.echo((made.folder / "manifest.json").read_text(encoding="utf-8"), nl=False)
    else:
        show(made)


class Stages:
    """Says on stderr what is being done, and how long each stage took."""

    def __init__(self) -> None:
        self.name: str | None = None
        self.started = time.perf_counter()

    def begin(self, name: str | None) -> None:
        """End the stage that runs, and begin another if there is one."""
        now, on_terminal = time.perf_counter(), sys.stderr.isatty()
        if self.name is not None:
            start = "\r" if on_terminal else ""  # over the line that said it had begun
            typer.echo(f"{start}{self.name:<24} {now - self.started:6.1f} s", err=True)
        self.name, self.started = name, now
        if name is not None and on_terminal:
            typer.echo(f"{name} ...", nl=False, err=True)


def is_import(source: str) -> bool:
    """Whether `source` names a Python object (`file.py:name`, `package.module:name`) and not a folder."""
    module, colon, attribute = source.rpartition(":")
    return bool(colon) and attribute.isidentifier() and len(module) > 1 and not Path(source).exists()


def import_module(source: str) -> nn.Module:
    """Run the user's own file and return the decoder it defines or builds."""
    from torch import nn  # noqa: PLC0415

    where, _, attribute = source.rpartition(":")
    try:
        if where.endswith(".py"):
            spec = importlib.util.spec_from_file_location(Path(where).stem, where)
            assert spec is not None and spec.loader is not None, "a .py path has a loader"
            module = importlib.util.module_from_spec(spec)
            sys.modules[spec.name] = module
            spec.loader.exec_module(module)
        else:
            module = importlib.import_module(where)
    except (ImportError, FileNotFoundError) as error:
        raise OptionError(f"cannot import {where}: {error}") from error
    found: Any = getattr(module, attribute, None)
    if found is None:
        raise OptionError(f"{where} defines no {attribute}; name an nn.Module, or a function without arguments that returns one")
    made = found if isinstance(found, nn.Module) else found()
    if not isinstance(made, nn.Module):
        raise OptionError(f"{source} gave {type(made).__name__}; it should be an nn.Module, or a function that returns one")
    return made


def show(made: Exported) -> None:
    """Print the certificate."""
    from rich import box  # noqa: PLC0415
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    from onnx_textgen.artifact import TOKENIZER  # noqa: PLC0415

    manifest: Manifest = made.manifest
    table = Table(title="compared with PyTorch", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("scenario", overflow="fold")
    for column in ("positions", "logits error", "same top-1", "KL", "perplexity"):
        table.add_column(column, justify="right")
    for scenario in manifest.certificate["scenarios"]:
        table.add_row(
            scenario["name"],
            str(scenario["tokens"]),
            f"{scenario['logits_error']:.1e}",
            f"{scenario['top1_agreement']:.1%}",
            f"{scenario['kl_divergence']:.1e}",
            f"{scenario['perplexity_change']:+.2%}",
        )
    console = Console(highlight=False, markup=False, emoji=False)
    console.print(table)
    geometry = manifest.geometry
    size = sum(record.size for record in manifest.files.values()) / 1e6
    console.print(
        f"{made.folder}: {manifest.name}, {manifest.precision}, target {manifest.target}, {geometry.layers} layers, "
        f"context {geometry.context_length:,}, {size:.1f} MB, proved to {manifest.certificate['longest_text']:,} tokens"
    )
    if untested := manifest.certificate["untested_windows"]:
        console.print(f"Not tested: the window of {untested[0]:,} tokens, longer than the longest text compared")
    prompt = '"Once upon a time"' if TOKENIZER in manifest.files else "--token-ids 1,2,3"
    console.print(f"Next: onnx-textgen generate {prompt} --model {made.folder}", style="dim")
