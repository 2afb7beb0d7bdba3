"""Real chat templates get the same from us as from transformers: messages to continue, tools and documents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from onnx_textgen.errors import TemplateError
from onnx_textgen.text.chat_template import render_chat

TALKS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "Count."}, {"role": "assistant", "content": answer}]
    for answer in ("One, two,", "One, two, ", "One\n", "{}", "ééé 🙂")
]
TALKS += [
    [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Count."},
        {"role": "user", "content": "Count."},
        {"role": "assistant", "content": "Count."},
    ]
]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather at a place.",
            "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
        },
    }
]


def templates(shared: Path) -> dict[str, str]:
    """The text of each template, by its file."""
    golden = json.loads((shared / "golden" / "chat_templates.json").read_text(encoding="utf-8"))
    found = {}
    for name in sorted({case["template"] for case in golden["cases"]}):
        text = (shared / "chat_templates" / name).read_text(encoding="utf-8")
        found[name] = json.loads(text)["chat_template"] if name.endswith(".json") else text
    return found


def by_transformers(template: str, messages: list[dict[str, Any]], **wanted: Any) -> str:
    rendered, _ = render_jinja_template([messages], chat_template=template, bos_token="<s>", eos_token="</s>", **wanted)
    return str(rendered[0])


@pytest.mark.parametrize("with_tools", [False, True])
def test_the_last_message_is_continued_where_transformers_continues_it(with_tools: bool, shared: Path) -> None:
    compared = 0
    for name, template in templates(shared).items():
        for messages in TALKS:
            wanted: dict[str, Any] = {"continue_final_message": True, "add_generation_prompt": False}
            wanted |= {"tools": TOOLS} if with_tools else {}
            try:
                theirs = by_transformers(template, messages, **wanted)
            except Exception:  # noqa: BLE001 - whatever a template or transformers raises
                with pytest.raises(TemplateError):
                    render_chat(template, messages, bos_token="<s>", eos_token="</s>", **wanted)
                continue
            ours = render_chat(template, messages, bos_token="<s>", eos_token="</s>", **wanted)
            assert ours == theirs, (name, messages)
            compared += 1
    assert compared > 30


def test_documents_are_rendered_as_by_transformers(shared: Path) -> None:
    documents = [
        {"title": "Harbour", "text": "The harbour was built in 1854."},
        {"title": "Reef", "text": "Three ships were lost."},
    ]
    template = next((text for text in templates(shared).values() if "documents" in text), "{{ documents | tojson }}")
    messages = [{"role": "user", "content": "When?"}]
    wanted: dict[str, Any] = {"documents": documents, "add_generation_prompt": True}
    ours = render_chat(template, messages, bos_token="<s>", eos_token="</s>", **wanted)
    assert ours == by_transformers(template, messages, **wanted)
