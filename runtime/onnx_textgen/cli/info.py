"""`onnx-textgen info`: what a model folder says it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from ..errors import PackageError
from . import certificate, options, screen

if TYPE_CHECKING:
    from pathlib import Path

    from ..artifact import Manifest
    from ..session import Session


def show_info(
    folder: options.FolderArgument = None,
    *,
    model: options.ModelOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Show what a model folder says it is.

    The graph is opened to see what its cache takes; files are not checked, see verify.

    Try:
        onnx-textgen info
        onnx-textgen info DIR --json
    """
    from ..artifact import find_package, manifest_to_json, read_manifest  # noqa: PLC0415
    from ..foreign import is_foreign, open_foreign  # noqa: PLC0415  (ONNX Runtime takes half a second; `--help` should not)

    path = find_package(options.one_folder(folder, model))
    session = None
    if is_foreign(path):
        manifest, session = open_foreign(path, device="cpu")
    else:
        manifest = read_manifest(path)
    if as_json:
        typer.echo(manifest_to_json(manifest).rstrip())
        return
    screen.print_lines(facts(path, manifest, session))


def facts(path: Path, manifest: Manifest, session: Session | None) -> list[tuple[str, str]]:
    """Lines of the table: name and value."""
    geometry = manifest.geometry
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
        ("cache", cache_in_words(path, session, geometry.context_length)),
        ("begins with id", "none" if manifest.bos_id is None else str(manifest.bos_id)),
        ("ends with id", ", ".join(map(str, manifest.eos_ids)) or "none"),
        ("defaults", ", ".join(f"{name} {value}" for name, value in manifest.generation.items()) or "none"),
        ("golden runs", str(len(manifest.golden))),
    ]
    lines += [(name, screen.size(record.size)) for name, record in manifest.files.items()]
    lines += [(f"made with {name}", version) for name, version in manifest.versions.items()]
    if not manifest.certificate:
        lines.append(("proof", "none; a model that onnx-textgen exports is compared with PyTorch"))
    if summary := certificate.summary_in_words(manifest.summary):
        lines.append(("proof: summary", summary))
    return lines + proof({name: value for name, value in manifest.certificate.items() if not (summary and name == "summary")})


def cache_in_words(path: Path, session: Session | None, context_length: int) -> str:
    """What one text's keys, values and states take, as the graph itself has them; `session`: the graph, if it is open."""
    from ..artifact import GRAPH  # noqa: PLC0415
    from ..session import open_session  # noqa: PLC0415

    try:
        tensors = (session or open_session(path / GRAPH, device="cpu")).cache_tensors
    except PackageError as error:
        return f"not known: {error}"
    per_token = sum(tensor.bytes_for(1) for tensor in tensors if tensor.length_axis is not None)
    fixed = sum(tensor.bytes_for(0) for tensor in tensors if tensor.length_axis is None)
    words = [f"{screen.size(per_token)} a token, {screen.size(per_token * context_length)} in a full context"] if per_token else []
    words += [f"{screen.size(fixed)} of state, however long the text"] if fixed else []
    return "; ".join(words)


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
            what = f"proof, {name.replace('_', ' ')}" if name == "same_weights" else "proof"
            lines.append((f"{what}: {named.get('name', name)}", numbers.strip()))
    return lines
