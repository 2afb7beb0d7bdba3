"""The command `onnx-textgen adapter`: `add` and `remove`. Torch is imported when they run, since that takes seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onnx_textgen.help_texts import help_of, summary_of

from .stages import begin_export

app = typer.Typer(
    help="Add a LoRA adapter to a model folder, or remove one.",
    context_settings={"help_option_names": ["-h", "--help"]},
    add_completion=False,
    rich_markup_mode=None,
)


def add(
    folder: Annotated[Path, typer.Argument(help="The model folder.")],
    adapter: Annotated[str, typer.Argument(help="A LoRA adapter that PEFT saved: its folder, or owner/name on the hub.")],
    *,
    name: Annotated[str | None, typer.Option(help="What texts choose it by; default: the adapter's folder.")] = None,
    against: Annotated[
        str | None, typer.Option(metavar="SOURCE", help="Compare with PyTorch; SOURCE is what the folder was exported from.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an adapter of this name.")] = False,
    allow_pickle: Annotated[
        bool, typer.Option("--allow-pickle", help="Read the adapter from a pickle if there are no safetensors; tensors only.")
    ] = False,
) -> None:
    """Add a LoRA adapter to a model folder; the model's own weights stay unchanged.

    Try:
        onnx-textgen adapter add DIR ./my-adapter
        onnx-textgen adapter add DIR ./my-adapter --name french --against CHECKPOINT
        onnx-textgen generate "Bonjour" --model DIR --adapter french
    """
    from onnx_textgen.cli.terminal.certificate import summary_in_words  # noqa: PLC0415

    from .adding import add_adapter  # noqa: PLC0415

    stages = begin_export()
    given = {"name": name, "against": against, "force": force, "allow_pickle": allow_pickle}
    added, record = add_adapter(folder, adapter, report=stages.begin, **given)  # type: ignore[arg-type]
    stages.begin(None)
    compared = (
        f"compared with PyTorch: {summary_in_words(record.certificate['summary'])}"
        if record.certificate
        else ("not compared with PyTorch; --against SOURCE does that")
    )
    typer.echo(f"{folder} has the adapter {added}: rank {record.rank}, {record.parameters} parameters, {compared}")
    typer.echo(f'Next: onnx-textgen generate "Once upon a time" --model {folder} --adapter {added}')


app.command("add", help=help_of(add), short_help=summary_of(add))(add)


def remove(
    folder: Annotated[Path, typer.Argument(help="The model folder.")],
    name: Annotated[str, typer.Argument(help="The adapter, as info lists it.")],
) -> None:
    """Remove a LoRA adapter from a model folder.

    Try:
        onnx-textgen adapter remove DIR french
    """
    from .adding import remove_adapter  # noqa: PLC0415

    remove_adapter(folder, name)
    typer.echo(f"{folder} has the adapter {name} no longer")


app.command("remove", help=help_of(remove), short_help=summary_of(remove))(remove)
