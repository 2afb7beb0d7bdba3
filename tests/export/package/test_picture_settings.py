"""The chat template that transformers.js gets for models that read pictures."""

from __future__ import annotations

import pytest

from onnx_textgen.package.manifest import ImageRecord
from onnx_textgen.text.chat_template import render_chat
from onnx_textgen_export.package.other_runtimes import with_image_tokens

MESSAGES = [
    {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What?"}]},
    {"role": "assistant", "content": [{"type": "text", "text": "A dog."}]},
    {"role": "user", "content": [{"type": "text", "text": "And"}, {"type": "image"}]},
]
PARTS = "{% for part in m.content %}{% if part.type == 'image' %}PLACE{% else %}{{ part.text }}{% endif %}{% endfor %}"


@pytest.mark.parametrize("expansion", ["\n\n<boi><i><i><eoi>\n\n", "'<i>\"\\n<i>", "<i>{{ 1 }}{% x %}"])
@pytest.mark.parametrize(
    "place", ["<boi>", "{%- if true -%} <boi> {%- endif -%}", "{{ '<boi>' }}", '{% if "<boi>" %}<boi>{% endif %}', "\n<boi>\n"]
)
@pytest.mark.parametrize("around", ["{}", "\n{}\n", "{}\n\n", "  {}"])
def test_its_text_has_what_a_picture_becomes_and_nothing_else_differs(expansion: str, place: str, around: str) -> None:
    template = around.format("{% for m in messages %}<{{ m.role }}>" + PARTS.replace("PLACE", place) + "{% endfor %}")
    record = ImageRecord("<boi>", expansion, 5, 2)
    found = render_chat(with_image_tokens(template, record), MESSAGES, bos_token=None, eos_token=None)
    assert found == render_chat(template, MESSAGES, bos_token=None, eos_token=None).replace("<boi>", expansion)
    assert found.count(expansion) == 2
