"""Parts of a message's content: all three chat APIs send lists of objects with a `type`, of which models here read some."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onnx_textgen.options.checks import shown


def refuse_other_types(given: object, types: Sequence[str], rule: str, advice: str = "") -> None:
    """Raise `ValueError` for the first entry of a list that is not an object of one of `types`.

    The message is the rule, what was found, and the advice. What is not a list is left to the schema.
    """
    for entry in given if isinstance(given, list) else ():
        kind = entry.get("type") if isinstance(entry, Mapping) else None
        if kind not in types:
            found = "one that is not an object" if kind is None else f"one of the type {shown(kind)}"
            raise ValueError(f"{rule}, found {found}{advice}")
