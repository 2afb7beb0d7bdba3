"""`onnx-textgen bench`: how fast a model runs on this machine, and which device is fastest."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...errors import OptionError
from .. import options
from ..terminal import screen, tables

if TYPE_CHECKING:
    from ...diagnostics.benchmark import Measurement
    from ...diagnostics.device_speed import DeviceSpeed

DEVICE_VARIABLE = "ONNX_TEXTGEN_DEVICE"
MARK = "*"
"""Before the best value of a column, for readers without colours."""


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
    devices: Annotated[bool, typer.Option("--devices", help="Measure on each device of this installation.")] = False,
    as_json: options.JsonOption = False,
) -> None:
    """Measure how fast a model runs here.

    Prompt and text speed, time to the first token, load time and peak memory, and the speed of 8 texts together.

    Try:
        onnx-textgen bench
        onnx-textgen bench DIR --prompt-tokens 1024 --threads 2 --json
        onnx-textgen bench DIR --devices
    """
    place = options.one_folder(folder, model)
    if devices:
        if device not in ("auto", os.environ.get(DEVICE_VARIABLE)):
            raise OptionError("--devices measures on all devices; leave out --device")
        lengths = {"--prompt-tokens": prompt_tokens, "--new-tokens": new_tokens, "--rounds": rounds, "--threads": threads}
        given = [f"{name}={value}" for name, value in lengths.items() if value is not None]
        measure_devices(place, given, as_json=as_json)
        return
    from ...diagnostics.benchmark import measure  # noqa: PLC0415  (imports the model's code)

    measured = measure(
        place,
        prompt_tokens=prompt_tokens,
        new_tokens=new_tokens,
        rounds=rounds,
        device=device,
        threads=threads,
        on_round=lambda number: screen.progress(f"round {number} of {rounds}"),
    )
    screen.progress("")
    if as_json:
        screen.print_json(dataclasses.asdict(measured))
    else:
        print_measurement(measured)


def print_measurement(measured: Measurement) -> None:
    """Print the names and values of a measurement."""
    memory, batch = measured.peak_memory_mib, measured.batch_tokens_per_second
    tables.print_lines(
        [
            ("model", f"{measured.model}, {measured.precision}, target {measured.target}"),
            ("device", measured.device if measured.device != "cpu" else f"cpu, {measured.threads or 'all'} threads"),
            ("work", f"{measured.prompt_tokens} prompt and {measured.new_tokens} new tokens, median of {measured.rounds}"),
            ("prompt", screen.rate(measured.prefill_tokens_per_second)),
            ("text", screen.rate(measured.decode_tokens_per_second)),
            *([] if batch is None else [("8 together", f"{screen.rate(batch)}, prompts of 32 tokens included")]),
            ("first token", f"{measured.first_token_ms:.1f} ms"),
            ("cache", f"{measured.cache_mib:.1f} MiB at the end"),
            ("load", f"{measured.load_seconds:.2f} s"),
            ("peak memory", "not known here" if memory is None else f"{memory:.0f} MiB"),
        ]
    )


def measure_devices(place: str | None, lengths: Sequence[str], *, as_json: bool) -> None:
    """Measure on each device in turn, and print them together; exit with 1 if the model runs on none."""
    from ...diagnostics.device_speed import installed_devices, measure_on  # noqa: PLC0415
    from ...hub.lookup import locate  # noqa: PLC0415
    from ...package.foreign import folder_of, is_foreign  # noqa: PLC0415
    from ...package.reading import read_manifest  # noqa: PLC0415

    path = locate(place)  # a download is seen
    if not is_foreign(path):
        read_manifest(folder_of(path))  # a wrong name is one error, not one for each device
    speeds = list[Any]()
    for device in installed_devices():
        screen.progress(f"measuring on {device} ...")
        speeds.append(measure_on(device, [*lengths, *([] if place is None else ["--", place])]))
    screen.progress("")
    if as_json:
        found = {each.device: each.measured if each.problem is None else {"problem": each.problem} for each in speeds}
        screen.print_json({"devices": found})
    else:
        print_devices(speeds)
    if all(each.measured is None for each in speeds):
        raise typer.Exit(1)


DEVICE_COLUMNS = {
    "prefill_tokens_per_second": "prompt tok/s",
    "decode_tokens_per_second": "text tok/s",
    "batch_tokens_per_second": "8 together tok/s",
    "first_token_ms": "first token ms",
    "load_seconds": "load s",
    "peak_memory_mib": "peak memory MiB",
}


def print_devices(speeds: Sequence[DeviceSpeed]) -> None:
    """Print a row for each device, with the best value of each column marked; and why others do not run the model."""
    from ...diagnostics.device_speed import best_of  # noqa: PLC0415

    best, measured = best_of(speeds), [(each.device, each.measured) for each in speeds if each.measured is not None]
    table = tables.Table(("device", *DEVICE_COLUMNS.values()), frozenset(DEVICE_COLUMNS.values()))
    for device, one in measured:
        cells = {
            title: (MARK if device in best.get(column, ()) else "") + figure(getattr(one, column))
            for column, title in DEVICE_COLUMNS.items()
        }
        bold = frozenset(title for column, title in DEVICE_COLUMNS.items() if device in best.get(column, ()))
        table.add(device, *cells.values(), bold=bold)
    if measured:
        one = measured[0][1]
        lengths = f"{one.prompt_tokens} prompt and {one.new_tokens} new tokens, median of {one.rounds}"
        tables.print_sentence(f"{one.model}, {one.precision}, target {one.target}: {lengths}")
        tables.show_table(table)
    if best:
        tables.print_sentence(f"{MARK} the best of its column, or within 5 % of it; each device in a new process, in turn")
    tables.print_lines([(each.device, each.problem) for each in speeds if each.problem is not None])


def figure(value: float | None) -> str:
    """A number with about three digits; None: a dash."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
