"""`onnx-textgen info`: what a model folder says it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from . import certificate, options, screen

if TYPE_CHECKING:
    from pathlib import Path

    from ..artifact import Manifest


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
        ("precision", certificate.precision_in_words(manifest.precision, manifest.quantization)),
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
    if summary := certificate.summary_in_words(manifest.summary):
        lines.append(("proof: summary", summary))
    return lines + proof({name: value for name, value in manifest.certificate.items() if not (summary and name == "summary")})


def proof(entries: dict[str, Any]) -> list[tuple[str, str]]:
    """Lines about the comparison with PyTorch, one for each entry and each scenario."""
    lines = []
    for name, value in entries.items():
        scenarios = value if isinstance(value, list) else [value]
        for scenario in scenarios:
            named = scenario if isinstance(scenario, dict) else {"": scenario}
            numbers = ", ".join(
                f"{key} {one:.3g}" if isinstance(one, float) else f"{key} {one}" for key, one in named.items() if key != "name"
            )
            lines.append((f"proof: {named.get('name', name)}", numbers.strip()))
    return lines
