"""`onnx-textgen bench`: how fast a model runs on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from .. import options
from ..terminal import screen, tables

if TYPE_CHECKING:
    from ...diagnostics.benchmark import Measurement


def measure_speed(
    folder: options.FolderArgument = None,
    *,
    model: options.ModelOption = None,
    prompt_tokens: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Length of the prompt, or source. Default: 512, or less if the context is short.",
        ),
    ] = None,
    new_tokens: Annotated[int, typer.Option(metavar="N", min=2, help="Tokens to generate after it.")] = 64,
    rounds: Annotated[int, typer.Option(metavar="N", min=1, help="Measure N times and take the medians.")] = 3,
    device: options.DeviceOption = "auto",
    threads: options.ThreadsOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Measure how fast a model runs here.

    Prompt and text speed, time to the first token, load time and peak memory.

    Try:
        onnx-textgen bench
        onnx-textgen bench DIR --prompt-tokens 1024 --threads 2 --json
    """
    from ...diagnostics.benchmark import measure  # noqa: PLC0415  (imports the model's code)

    measured = measure(
        options.one_folder(folder, model),
        prompt_tokens=prompt_tokens,
        new_tokens=new_tokens,
        rounds=rounds,
        device=device,
        threads=threads,
        on_round=lambda number: screen.progress(f"round {number} of {rounds}"),
    )
    screen.progress("")
    if as_json:
        screen.print_json(measured)
    else:
        print_measurement(measured)


def print_measurement(measured: Measurement) -> None:
    """Print the names and values of a measurement."""
    memory = measured.peak_memory_mib
    tables.print_lines(
        [
            ("model", f"{measured.model}, {measured.precision}, target {measured.target}"),
            ("device", measured.device if measured.device != "cpu" else f"cpu, {measured.threads or 'all'} threads"),
            ("work", f"{measured.prompt_tokens} prompt and {measured.new_tokens} new tokens, median of {measured.rounds}"),
            ("prompt", screen.rate(measured.prefill_tokens_per_second)),
            ("text", screen.rate(measured.decode_tokens_per_second)),
            ("first token", f"{measured.first_token_ms:.1f} ms"),
            ("cache", f"{measured.cache_mib:.1f} MiB at the end"),
            ("load", f"{measured.load_seconds:.2f} s"),
            ("peak memory", "not known here" if memory is None else f"{memory:.0f} MiB"),
        ]
    )
