"""Named chat templates: the one for tools is rendered where tools are given, whatever place the names stand in."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from onnx_textgen.package.end_tokens import read_template
from onnx_textgen.text.chat_template import render_chat

DEFAULT = "\n{%- for m in messages %}{{ m.content }}|{% endfor %}\n"
TOOLS = "  {% set n = tools | length %}{{ n }} tools\n  "
NAMED = {"default": DEFAULT, "tool_use": TOOLS, "rag": "documents"}


def as_list(folder: Path) -> None:
    entries = [{"name": name, "template": template} for name, template in NAMED.items()]
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": entries}))


def as_object(folder: Path) -> None:
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": NAMED}))


def as_files(folder: Path) -> None:
    (folder / "additional_chat_templates").mkdir()
    (folder / "chat_template.jinja").write_text(DEFAULT)
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text(TOOLS)


@pytest.mark.parametrize("write", [as_list, as_object, as_files])
@pytest.mark.parametrize(("tools", "template"), [(None, DEFAULT), ([], DEFAULT), ([{"name": "f"}], TOOLS)])
def test_the_template_for_tools_is_rendered_when_tools_are_given(
    write: Callable[[Path], None], tools: list[object] | None, template: str, tmp_path: Path
) -> None:
    write(tmp_path)
    found = read_template(tmp_path)
    assert found is not None
    messages = [{"role": "user", "content": "hi"}]
    texts = [render_chat(each, messages, bos_token="", eos_token="", tools=tools) for each in (found, template)]
    assert texts[0] == texts[1]
