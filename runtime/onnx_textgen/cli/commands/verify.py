"""`onnx-textgen verify`: whether a model folder is unchanged, and whether PyTorch (`--against`) or another runtime agrees with it.

Another package compares with PyTorch: by a function in the entry-point group `onnx_textgen.verifiers`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ... import extras
from ...errors import OptionError, PackageError
from .. import options
from ..terminal import certificate, screen, tables

if TYPE_CHECKING:
    from ...diagnostics.golden_elsewhere import Comparison
    from ...diagnostics.runtimes.protocol import Rounding, Runtime
    from ...inference.decoder import Decoder
    from ...package.manifest import GoldenRun, Manifest, TextEncoderRecord
    from ...tasks.golden_runs import Replay

GROUP = "onnx_textgen.verifiers"
REASONS: Mapping[Rounding, str] = {
    "onnxruntime": "the package rounds activations to 8 bits, on each processor in a slightly different way",
    "none": "the package rounds activations to 8 bits, and this runtime does not",
    "own": "the package rounds activations to 8 bits, and this runtime does so in its own way",
}
"""Why a continuation can differ, by how the runtime rounds."""
EXACT = "export the model with --exact for the same tokens in every runtime"
FLOAT16 = "the package computes in float16, where runtimes round differently; export the model with float32 activations"


class RuntimeName(StrEnum):
    """A runtime that the golden runs are replayed in."""

    genai = "genai"
    openvino = "openvino"
    node = "node"
    browser = "browser"


Verifier = Callable[..., Sequence[Mapping[str, Any]]]
"""`verify_against(folder, source, report) -> scenario records`: compares a model folder with the PyTorch decoder of its export.

`report` is called with the name of each stage when it begins; with `--adapter` there is a keyword `adapter` too. A record has the
entries of `certificate.NUMBERS`, `name`, and `admitted`: whether the scenario's differences are within what the package's precision
allows.
"""


def verify_package(
    folder: options.FolderArgument = None,
    *,
    model: options.ModelOption = None,
    against: Annotated[
        str | None, typer.Option(metavar="SOURCE", help="Also compare with PyTorch; SOURCE is what was exported.")
    ] = None,
    adapter: Annotated[
        str | None,
        typer.Option(
            metavar="[NAME=]DIR",
            help="With --against: the LoRA adapter that was merged into SOURCE, or NAME=DIR for one that the package keeps.",
        ),
    ] = None,
    runtime: Annotated[
        RuntimeName | None, typer.Option(help="Replay the golden runs in another runtime, which has to be installed.")
    ] = None,
    device: options.DeviceOption = "auto",
    threads: options.ThreadsOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Check that a model folder is unchanged.

    Compares every file with its hash, then replays the golden runs, which were recorded when the export was compared with PyTorch.
    On a hybrid device each run is replayed twice: the second engine then computes the prompt and half of the text.
    With --runtime that runtime continues their prompts, and every continuation that differs is an error.

    Try:
        onnx-textgen verify DIR
        onnx-textgen verify DIR --against CHECKPOINT
        onnx-textgen verify DIR --against CHECKPOINT --adapter ADAPTER
        onnx-textgen verify DIR --runtime genai
    """
    from ...hub.lookup import locate  # noqa: PLC0415

    def say(line: str) -> None:
        if not as_json:
            typer.echo(line)

    if adapter is not None and against is None:
        raise OptionError("--adapter is for the comparison with PyTorch; add --against BASE")
    if runtime is not None and against is not None:
        raise OptionError("--runtime and --against are two comparisons; make them one after the other")
    elsewhere = None if runtime is None else find_runtime(runtime)
    compare: Verifier | None = None if against is None else extras.load_function(GROUP, "verify --against")
    path, manifest = check_package(locate(options.one_folder(folder, model)), say)
    if manifest.text_encoder is not None:
        verify_text_encoder(path, manifest.text_encoder, device, threads, say, refused=runtime or against, as_json=as_json)
        return
    if elsewhere is not None and manifest.encoder is not None:
        raise OptionError(f"{manifest.name} is an encoder-decoder, which other runtimes do not run; leave out --runtime")
    if elsewhere is not None:
        ours = functools.cache(lambda: options.load_model(str(path), device, threads))
        verify_elsewhere(elsewhere, path, manifest, lambda: ours().new_context(), say=say, as_json=as_json)
        return
    replays = replay_golden(path, manifest, device, threads, say)
    pictures = reread_pictures(path, manifest, device, threads, say)
    scenarios = compare_with(compare, path, against, adapter) if compare is not None and against is not None else []
    is_right = pictures and all(one.is_right for one in replays) and all(one.get("admitted", True) for one in scenarios)
    if as_json:
        golden = [{**dataclasses.asdict(one), "is_right": one.is_right} for one in replays]
        screen.print_json({"is_right": is_right, "files": len(manifest.files), "golden": golden, "scenarios": list(scenarios)})
    elif scenarios:
        typer.echo()
        tables.show_table(certificate.scenario_table(scenarios))
    if not is_right:
        raise typer.Exit(1)


def reread_pictures(path: Path, manifest: Manifest, device: str, threads: int | None, say: Callable[[str], None]) -> bool:
    """Read the golden pictures of a model that reads pictures again, and say the result; returns whether they are right."""
    if (about := manifest.images) is None:
        return True
    from ...images.golden import reread  # noqa: PLC0415

    with options.load_model(str(path), device, threads) as model:
        reader = model.generator.opened.images
        assert reader is not None, "the manifest has images"
        errors = [reread(reader, each) for each in about.golden]
    is_right = all(error <= about.tolerance for error in errors)
    found = f"largest error {max(errors, default=0):.1e}, limit {about.tolerance:g}"
    say(f"pictures: {len(errors)} read again, {found}{'' if is_right else ': they differ'}")
    return is_right


def verify_text_encoder(
    path: Path,
    about: TextEncoderRecord,
    device: str,
    threads: int | None,
    say: Callable[[str], None],
    *,
    refused: object,
    as_json: bool,
) -> None:
    """Read the golden texts of a text encoder again, and say the result; exits with 1 if a number differs.

    refused: what was asked for that text encoders do not have, if anything.
    """
    from ...tasks.golden_numbers import reread  # noqa: PLC0415

    if refused is not None:
        raise OptionError(f"{path.name} is a text encoder; leave out --runtime and --against")
    if not about.golden:
        say("golden: the manifest has no runs to replay")
    opened = options.load_model(str(path), device, threads)
    errors = [reread(opened.graph, opened.manifest, each) for each in about.golden]
    for number, error in enumerate(errors, start=1):
        is_right = error <= about.tolerance
        say(f"golden {number}: {'the same numbers' if is_right else 'DIFFERENT'}, to {error:.1e} of the largest")
    are_right = all(error <= about.tolerance for error in errors)
    if as_json:
        screen.print_json({"is_right": are_right, "files": len(opened.manifest.files), "golden": errors})
    if not are_right:
        raise typer.Exit(1)


def check_package(place: Path, say: Callable[[str], None]) -> tuple[Path, Manifest]:
    """Compare the files of a package with their hashes and say what was checked; returns its folder and manifest.

    `place`: the folder, or a graph in it. Raises `PackageError` for a folder without a manifest, or a file that differs.
    """
    from ...package.foreign import folder_of, is_foreign  # noqa: PLC0415
    from ...package.integrity import check_files  # noqa: PLC0415
    from ...package.manifest import INT8_CACHE_GRAPH, MANIFEST  # noqa: PLC0415
    from ...package.reading import read_manifest  # noqa: PLC0415

    if is_foreign(place):
        raise PackageError(f"{place} has no {MANIFEST}: no hashes and no golden runs to check; export the model with onnx-textgen")
    path = folder_of(place)
    manifest = read_manifest(path)
    check_files(path, manifest)
    say(f"files: {len(manifest.files)} as the manifest says")
    if not manifest.sha256:
        say(f"manifest: damage to it would not be noticed, because it was written before {MANIFEST} had its own sha256")
    if summary := certificate.summary_in_words(manifest.summary):
        say(f"certificate: {summary}")
    if place.name == INT8_CACHE_GRAPH:
        say(f"golden: runs of the folder's main graph; {INT8_CACHE_GRAPH} was compared only with its hash")
    return path, manifest


def replay_golden(path: Path, manifest: Manifest, device: str, threads: int | None, say: Callable[[str], None]) -> list[Replay]:
    """Replay the golden runs, and say the result of each."""
    from ...tasks.golden_runs import replay  # noqa: PLC0415

    recorded: dict[str | None, tuple[GoldenRun, ...]] = {None: manifest.golden}
    recorded |= {name: record.golden for name, record in manifest.adapters.items()}
    for name, runs in recorded.items():
        if not runs:
            say("golden: the manifest has no runs to replay" + (f" with the adapter {name}" if name is not None else ""))
    if not any(recorded.values()):
        return []
    loaded = options.load_model(str(path), device, threads)
    replays = []
    if loaded.device.startswith("openvino") and manifest.adapters:
        say(f"golden: adapters run on ONNX Runtime; their runs were not replayed on {loaded.device}")
        recorded = {None: manifest.golden}
    for name, runs in recorded.items():
        about = manifest if name is None else dataclasses.replace(manifest, certificate=manifest.adapters[name].certificate)
        for number, run in enumerate(runs, start=1):
            where = f"golden {number}" if name is None else f"golden {number} with the adapter {name}"
            has_two = loaded.new_context(adapter=name).prompt_engine is not None
            for hands_over in (False, True) if has_two else (False,):
                found = replay(loaded.new_context(adapter=name), about, run, hands_over=hands_over)
                how = "" if found.prompt_device is None else f", prompt and half of the text by {found.prompt_device}"
                say(f"{where}{how}: {found.prompt_tokens} prompt tokens, {in_words(found)}")
                replays.append(dataclasses.replace(found, adapter=name))
    return replays


def find_runtime(name: RuntimeName) -> Runtime:
    """The runtime of this name; raises `DeviceError`, with the command that installs it, if this machine does not have it."""
    from ...diagnostics.runtimes.finding import RUNTIMES  # noqa: PLC0415

    return RUNTIMES[name.value]()


def verify_elsewhere(
    runtime: Runtime,
    path: Path,
    manifest: Manifest,
    new_decoder: Callable[[], Decoder],
    *,
    say: Callable[[str], None],
    as_json: bool,
) -> None:
    """Replay the golden runs in another runtime, and say the result; exits with 1 if a continuation differs."""
    from ...diagnostics.golden_elsewhere import compare_golden  # noqa: PLC0415

    screen.progress(f"{runtime.name} ...")
    try:
        compared = compare_golden(runtime, path, manifest, new_decoder)
    finally:
        screen.progress("")
    is_right = all(one.is_equal for one in compared)
    if as_json:
        golden = [{**dataclasses.asdict(one), "is_equal": one.is_equal} for one in compared]
        about = {"name": runtime.name, "rounding": runtime.rounding}
        screen.print_json({"is_right": is_right, "files": len(manifest.files), "runtime": about, "golden": golden})
    for number, one in enumerate(compared, start=1):
        if not one.is_equal:
            say(f"golden {number}: {difference_in_words(one)}")
    say(f"{runtime.name}: {sum(one.is_equal for one in compared)} of {len(compared)} golden continuations are the same")
    if any(one.is_exact for one in compared):
        say("compared with the continuations of products in float32, because this runtime rounds no activations")
    if not is_right and not manifest.is_exact:
        say(FLOAT16 if manifest.is_float16 else f"{REASONS[runtime.rounding]}; {EXACT}")
    if manifest.adapters:
        say("golden: runs with adapters were not replayed there")
    if not is_right:
        raise typer.Exit(1)


def difference_in_words(one: Comparison) -> str:
    """Where a continuation differs, as a part of a line."""
    expected, found = ("the end of the text" if each is None else str(each) for each in (one.expected_id, one.found_id))
    return (
        f"DIFFERENT at new token {(one.first_difference or 0) + 1} of {one.new_tokens}: {found} instead of {expected}; "
        f"our two largest logits are {one.gap or 0:.1e} of the largest apart there"
    )


def compare_with(compare: Verifier, path: Path, source: str, adapter: str | None) -> Sequence[Mapping[str, Any]]:
    """Compare with PyTorch, with the progress on stderr; returns the scenario records."""
    try:
        with extras.explain_missing("verify --against", "export"):
            given = {} if adapter is None else {"adapter": adapter}
            return compare(path, source, lambda stage: screen.progress(f"{stage} ..."), **given)
    finally:
        screen.progress("")


def in_words(found: Replay) -> str:
    """The result of a replay as a part of a line."""
    if found.same == found.new_tokens:
        return f"{found.new_tokens} new tokens, all the same"
    if found.is_right:
        return (
            f"{found.same} of {found.new_tokens} new tokens the same, the logits of the others below the largest by at most "
            f"{found.largest_gap:.1e} of it ({found.allowed_gap:.1e} allowed at this precision)"
        )
    place = (found.first_difference or 0) + 1
    return f"DIFFERENT at new token {place} of {found.new_tokens}: logits below the largest by up to {found.largest_gap:.1e} of it"
