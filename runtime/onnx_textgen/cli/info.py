"""`onnx-textgen info` and `verify`: what a model folder says it is, and whether it still is that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from . import options, screen

if TYPE_CHECKING:
    from pathlib import Path

    from ..artifact import Manifest
    from ..replay import Replay


def show_info(
    folder: options.FolderArgument = None,
    *,
    model: options.ModelOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Show what a model folder says it is.

    The model itself is not opened.

    Try:
        onnx-textgen info
        onnx-textgen info DIR --json
    """
    from ..artifact import find_package, manifest_to_json, read_manifest  # noqa: PLC0415

    path = find_package(options.one_folder(folder, model))
    manifest = read_manifest(path)
    if as_json:
        typer.echo(manifest_to_json(manifest).rstrip())
        return
    screen.print_lines(facts(path, manifest))


def facts(path: Path, manifest: Manifest) -> list[tuple[str, str]]:
    """Lines of the table: name and value."""
    geometry = manifest.geometry
    bytes_per_value = 2 if manifest.precision == "fp16" else 4
    per_token = geometry.layers * 2 * geometry.kv_heads * geometry.head_size * bytes_per_value
    lines = [
        ("name", manifest.name),
        ("folder", str(path)),
        ("source", manifest.source or "not stated"),
        ("target", manifest.target),
        ("precision", manifest.precision),
        ("layers", str(geometry.layers)),
        ("heads", f"{geometry.heads} of size {geometry.head_size}, {geometry.kv_heads} for keys and values"),
        ("vocabulary", f"{geometry.vocab_size:,}"),
        ("context", f"{geometry.context_length:,} tokens"),
        ("cache", f"{screen.size(per_token)} a token, {screen.size(per_token * geometry.context_length)} in a full context"),
        ("begins with id", "none" if manifest.bos_id is None else str(manifest.bos_id)),
        ("ends with id", ", ".join(map(str, manifest.eos_ids)) or "none"),
        ("defaults", ", ".join(f"{name} {value}" for name, value in manifest.generation.items()) or "none"),
        ("golden runs", str(len(manifest.golden))),
    ]
    lines += [(name, screen.size(record.size)) for name, record in manifest.files.items()]
    lines += [(f"made with {name}", version) for name, version in manifest.versions.items()]
    return lines + proof(manifest.certificate)


def proof(certificate: dict[str, Any]) -> list[tuple[str, str]]:
    """Lines about the comparison with PyTorch, one for each entry and each scenario."""
    lines = []
    for name, value in certificate.items():
        scenarios = value if isinstance(value, list) else [value]
        for scenario in scenarios:
            named = scenario if isinstance(scenario, dict) else {"": scenario}
            numbers = ", ".join(
                f"{key} {one:.3g}" if isinstance(one, float) else f"{key} {one}" for key, one in named.items() if key != "name"
            )
            lines.append((f"proof: {named.get('name', name)}", numbers.strip()))
    return lines


def verify_package(
    folder: options.FolderArgument = None,
    *,
    model: options.ModelOption = None,
    device: options.DeviceOption = "auto",
    threads: options.ThreadsOption = None,
) -> None:
    """Check that a model folder is what it was.

    Compares every file with its hash, then replays the golden runs from when the folder was made and compared with PyTorch.

    Try:
        onnx-textgen verify DIR
    """
    from ..artifact import check_files, find_package, read_manifest  # noqa: PLC0415
    from ..replay import replay  # noqa: PLC0415

    path = find_package(options.one_folder(folder, model))
    manifest = read_manifest(path)
    check_files(path, manifest)
    typer.echo(f"files: {len(manifest.files)} as the manifest says")
    if not manifest.golden:
        typer.echo("golden: the manifest has no runs to replay")
        return
    loaded = options.load_model(str(path), device, threads)
    right = True
    for number, run in enumerate(manifest.golden, start=1):
        found = replay(loaded.new_context(), manifest, run)
        right = right and found.is_right
        typer.echo(f"golden {number}: {found.prompt_tokens} prompt tokens, {in_words(found)}")
    if not right:
        raise typer.Exit(1)


def in_words(found: Replay) -> str:
    """How a replay went."""
    if found.same == found.new_tokens:
        return f"{found.new_tokens} new tokens, all the same"
    if found.is_right:
        return (
            f"{found.same} of {found.new_tokens} new tokens the same, the others behind by at most {found.largest_gap:.1e} "
            f"({found.allowed_gap:.1e} allowed at this precision)"
        )
    place = (found.first_difference or 0) + 1
    return f"DIFFERENT at new token {place} of {found.new_tokens}: behind by {found.largest_gap:.1e}"
