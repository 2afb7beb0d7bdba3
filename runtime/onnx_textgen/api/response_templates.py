"""How a model's answers are divided into text, thinking and tool calls, as its package or a caller says it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import PackageError, first_line
from ..files.text_files import parse_json, read_text
from ..package.foreign import folder_of, is_foreign
from ..package.hf_settings import read_tokenizer_settings
from ..package.manifest import RESPONSE_TEMPLATE, Manifest


def response_template_at(place: Path, manifest: Manifest) -> Mapping[str, Any] | None:
    """The response template of a package, checked by its hash, or of another exporter's folder; None if it has none."""
    folder, listed = folder_of(place), manifest.files.get(RESPONSE_TEMPLATE)
    if is_foreign(place):
        found = read_tokenizer_settings(folder).get("response_template")
        return found if isinstance(found, Mapping) else None
    return None if listed is None else parsed_template(folder / RESPONSE_TEMPLATE, listed.sha256)


def given_template(given: str | Path | Mapping[str, Any]) -> Mapping[str, Any]:
    """A response template that a caller gives, checked now; raises `PackageError`."""
    from ..answers.response_template import read_response_template  # noqa: PLC0415 - few models need it, and it takes 20 ms

    data = parsed_template(Path(given)) if isinstance(given, str | Path) else given
    return read_response_template(data, "the response template" if isinstance(given, Mapping) else str(given)).data


def parsed_template(path: Path, sha256: str = "") -> Mapping[str, Any]:
    """A file with a response template; raises `PackageError`."""
    try:
        found = parse_json(read_text(path, sha256=sha256))
    except (ValueError, RecursionError) as error:
        raise PackageError(f"{path} is not valid JSON ({first_line(error)}); give another response template") from error
    if not isinstance(found, Mapping):
        raise PackageError(f"{path} should hold a JSON object; give another response template")
    return found
