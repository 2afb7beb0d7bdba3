"""Write `Options` in keywords.py, the options as keyword arguments, from the fields of `GenerationConfig` and their texts.

Run it after a change there: python docs/make_keywords.py
"""

from __future__ import annotations

import ast
import itertools
from pathlib import Path

OPTIONS = Path(__file__).resolve().parents[1] / "runtime" / "onnx_textgen" / "options"
KEYWORDS = OPTIONS / "keywords.py"
WIDER = {
    "dry_sequence_breakers": "Sequence[str]",
    "logit_bias": "Mapping[int, float]",
    "bad_words_ids": "Sequence[Sequence[int]]",
    "stop": "str | Sequence[str]",
    "json_schema": "str | Mapping[str, Any]",
    "logprobs": "int | bool",
    "logits_processor": "LogitsProcessor",
    "stopping_criterion": "StoppingCriterion",
}
"""What a caller may give where a field holds something narrower."""


def class_in(source: str, name: str) -> ast.ClassDef:
    """The class of that name."""
    (found,) = (each for each in ast.parse(source).body if isinstance(each, ast.ClassDef) and each.name == name)
    return found


def keywords() -> str:
    """The fields of `Options`: each option, or None, with its text."""
    source = (OPTIONS / "generation_config.py").read_text(encoding="utf-8")
    body, fields = class_in(source, "GenerationConfig").body, list[str]()
    for field, text in itertools.pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
            name, kind = field.target.id, ast.get_source_segment(source, field.annotation) or ""
            fields.append(f"    {name}: {WIDER.get(name, kind.removesuffix(' | None'))} | None\n")
            fields.append(f"    {ast.get_source_segment(source, text)}\n")
    return "".join(fields)


def written() -> str:
    """The text of keywords.py with these fields."""
    source = KEYWORDS.read_text(encoding="utf-8")
    lines, (docstring, *_, last) = source.splitlines(keepends=True), class_in(source, "Options").body
    return "".join([*lines[: docstring.end_lineno], "\n", keywords(), *lines[last.end_lineno :]])


if __name__ == "__main__":
    KEYWORDS.write_text(written(), encoding="utf-8")
