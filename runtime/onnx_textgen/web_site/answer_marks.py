"""Literal markers around thinking and tool calls, for the chat of a site.

Templates with regular expressions, and those whose text has marks too, are left out: the page then shows what the model writes.
"""

from __future__ import annotations

from pathlib import Path

from ..answers.response_template import Field, read_response_template
from ..api.response_templates import response_template_at
from ..package.manifest import RESPONSE_TEMPLATE, Manifest

Marks = dict[str, dict[str, list[str]]]
"""For `thinking` and `call`: the texts that may `open` and `close` it; one without `close` extends to the end."""


def answer_marks(package: Path, manifest: Manifest) -> Marks:
    """The marks of a model folder; raises `PackageError` if its response template is damaged."""
    data = response_template_at(package, manifest)
    if data is None:
        return {}
    template = read_response_template(data, RESPONSE_TEMPLATE)
    fields = {"thinking": template.reasoning, "call": template.tool_calls}
    if template.implicit is None:
        return {}
    return {kind: found for kind, field in fields.items() if field is not None and (found := marks_of(field))}


def marks_of(field: Field) -> dict[str, list[str]]:
    """The texts around a field; empty if they are not known as texts."""
    if field.open is None or not field.open.literals or (field.close is not None and not field.close.literals):
        return {}
    return {"open": list(field.open.literals), "close": [] if field.close is None else list(field.close.literals)}
