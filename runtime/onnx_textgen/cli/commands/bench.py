"""`onnx-textgen bench`: how fast a model runs on this machine, and whether another form or device would be faster."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...errors import OptionError
from .. import options
from ..terminal import screen, tables

if TYPE_CHECKING:
    from ...diagnostics.benchmark import Measurement
    from ...diagnostics.device_speed import DeviceSpeed
    from ...diagnostics.product_speed import FormSpeeds

DEVICE_VARIABLE = "ONNX_TEXTGEN_DEVICE"
SLOWER = 0.95
"""Below this multiple of the package's speed, a form that is recommended for something else is said to be slower."""
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
    forms: Annotated[
        bool, typer.Option("--forms", help="int8, int4: time the products in other forms too: bits, blocks, zero points.")
    ] = False,
    as_json: options.JsonOption = False,
) -> None:
    """Measure how fast a model runs here.

    Prompt and text speed, time to the first token, load time and peak memory, and the speed of 8 texts together.

    Try:
        onnx-textgen bench
        onnx-textgen bench DIR --prompt-tokens 1024 --threads 2 --json
        onnx-textgen bench DIR --devices
        onnx-textgen bench DIR --forms
    """
    place = options.one_folder(folder, model)
    if devices:
        if forms or device not in ("auto", os.environ.get(DEVICE_VARIABLE)):
            raise OptionError(f"--devices measures on all devices; leave out {'--forms' if forms else '--device'}")
        lengths = {"--prompt-tokens": prompt_tokens, "--new-tokens": new_tokens, "--rounds": rounds, "--threads": threads}
        given = [f"{name}={value}" for name, value in lengths.items() if value is not None]
        measure_devices(place, given, as_json=as_json)
        return
    compare = FormComparison(place, device, threads) if forms else None
    from ...diagnostics.benchmark import measure  # noqa: PLC0415  (imports the model's code)

    measured = measure(
        place,
        prompt_tokens=prompt_tokens,
        new_tokens=new_tokens,
        rounds=rounds,
        device=device if compare is None else "cpu",
        threads=threads,
        on_round=lambda number: screen.progress(f"round {number} of {rounds}"),
    )
    screen.progress("")
    speeds = None if compare is None else compare.run()
    if as_json:
        screen.print_json(dataclasses.asdict(measured) | ({} if speeds is None else {"forms": speeds}))
        return
    print_measurement(measured)
    if speeds is not None:
        print_forms(speeds)


class FormComparison:
    """The comparison that `--forms` asks for: checked before the model is measured, run afterwards."""

    def __init__(self, place: str | None, device: str, threads: int | None) -> None:
        """Raise `OptionError` if the device or the package has no such products."""
        from ...diagnostics.product_forms import package_products  # noqa: PLC0415
        from ...package.hub import locate  # noqa: PLC0415

        if device not in ("auto", "cpu"):
            raise OptionError(f"--forms times ONNX Runtime's products on the CPU, and the device is {device}; take --device cpu")
        self.products, manifest = package_products(locate(place))
        self.width, self.threads = manifest.geometry.hidden_size, threads

    def run(self) -> FormSpeeds:
        """Time the forms."""
        from ...diagnostics.product_speed import compare_forms  # noqa: PLC0415

        def show(number: int, count: int) -> None:
            screen.progress(f"products: shape {number} of {count}")

        speeds = compare_forms(self.products, self.width, threads=self.threads, on_shape=show)
        screen.progress("")
        return speeds


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


def print_forms(speeds: FormSpeeds) -> None:
    """Print the forms of products, compared with the package's own, and which is faster here."""
    typer.echo()
    numbers = frozenset({"text", "prompts", "size"})
    table = tables.Table(("form of the weights", "text", "prompts", "size"), numbers, frozenset({"form of the weights"}))
    table.add(f"{speeds.package} (this package)", "1.00", "1.00", "1.00")
    for each in speeds.forms:
        table.add(each.form, f"{each.text:.2f}", f"{each.prompt:.2f}", f"{each.size:.2f}")
    tables.show_table(table)
    for sentence in remarks(speeds):
        tables.print_sentence(sentence)


def remarks(speeds: FormSpeeds) -> Iterator[str]:
    """What the figures mean, and which form is faster."""
    yield "Speed of the matrix products alone, and size of their weights, as multiples of this package's."
    if speeds.keeps_8_bits:
        yield "Matrices that have 8 bits in this package, to hold its budget, keep them in the forms of int4."
    if speeds.has_only_8_bits:
        yield "An export at int4 keeps 8 bits where its budget requires them: its speed and size lie between int8 and int4."
    if speeds.disturbed:
        yield "Other work slowed the measurement down, so no form is recommended: repeat it while the machine is idle."
        return
    found = {what: fastest for what in ("text", "prompts") if (fastest := speeds.fastest(what)) is not None}
    for form in dict.fromkeys(found.values()):
        gains = {"text": form.text, "prompts": form.prompt}
        named = " and ".join(f"{gains[what]:.2f} times as fast for {what}" for what in form.faster_for)
        named += "".join(f", but {gain:.2f} times for {what}" for what, gain in gains.items() if gain < SLOWER)
        most = "up to " if speeds.has_only_8_bits and form.form.startswith("int4") else ""
        yield f"Faster here: products of {form.form}, {most}{named}; export with {form.export_options}."
        yield "docs/precision.md says what it costs in quality."
    if not found:
        yield "No other form is at least 1.1 times as fast here, in both halves of the rounds."


def measure_devices(place: str | None, lengths: Sequence[str], *, as_json: bool) -> None:
    """Measure on each device in turn, and print them together; exit with 1 if the model runs on none."""
    from ...diagnostics.device_speed import installed_devices, measure_on  # noqa: PLC0415
    from ...package.foreign import folder_of, is_foreign  # noqa: PLC0415
    from ...package.hub import locate  # noqa: PLC0415
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
