"""The command that uses a model, for the end of the commands that make one."""

from __future__ import annotations

from pathlib import Path


def next_step(folder: Path | None, name: str | Path | None = None) -> str:
    """The command, by what the model does; `name`: how it is called there, if not by its folder."""
    from ...package.reading import has_manifest, read_manifest  # noqa: PLC0415

    place = name or folder
    manifest = read_manifest(folder) if folder is not None and has_manifest(folder) else None
    if manifest is not None and manifest.speech is not None:
        return f"onnx-textgen transcribe FILE --model {place}"
    if manifest is not None and manifest.encoder is not None:
        return f"onnx-textgen generate SOURCE --model {place}"
    if manifest is not None and manifest.images is not None:
        return f"onnx-textgen chat {place} --image FILE"
    if manifest is None or manifest.text_encoder is None:
        return f"onnx-textgen chat {place}"
    return f"onnx-textgen serve {place}, and POST to /v1/{'embeddings' if manifest.pair_scoring is None else 'rerank'}"
