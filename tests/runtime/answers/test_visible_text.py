"""What a person decides by reading is shown as it is."""

from __future__ import annotations

import json
import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from onnx_textgen.answers.visible_text import DIRECTION, visible

CLASSES = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
CODES = [code for code in range(0x3000) if unicodedata.bidirectional(chr(code)) in CLASSES]


def test_every_mark_of_direction_and_control_character_becomes_an_escape() -> None:
    assert set(CODES) <= set(DIRECTION)
    controls = [code for code in range(0x3000) if unicodedata.category(chr(code)) == "Cc" and chr(code) not in "\t\n"]
    for code in (*CODES, *controls, 0x200E, 0x200F, 0x061C):
        assert visible(f"a{chr(code)}b") == f"a\\u{code:04x}b"
    assert visible("\tשׁ é 🙂\n") == "\tשׁ é 🙂\n"


@given(st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from([chr(code) for code in DIRECTION])))
def test_json_with_visible_marks_is_the_same_json(text: str) -> None:
    assert json.loads(visible(json.dumps({"x": text}, ensure_ascii=False))) == {"x": text}
