"""Which parts of a text are formulas, and that nothing of them becomes HTML."""

import re
from html import unescape

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnx_textgen_demo.chat.formulas import ASSETS, LONGEST, katex_files
from onnx_textgen_demo.chat.markdown import markdown_html


def formulas_in(text):
    """The LaTeX of each formula, and whether it has its own line."""
    found = re.findall('<(?:span|div) class="formula"[^>]*data-tex="([^"]*)"( data-display)?>', markdown_html(text))
    return [(unescape(tex), bool(displayed)) for tex, displayed in found]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"so $x_1*y*z_1$, and \(a_b\)", [("x_1*y*z_1", False), ("a_b", False)]),
        (r"so $$x$$ and \[y\].", [("x", True), ("y", True)]),
        ("text\n\\[\na\n- b\n= c\n\\]\ntext", [("a\n- b\n= c", True)]),
        ("1. one\n   $$\n   x\n   $$\n2. two", [("x", True)]),
        ("> \\[ x \\]", [("x", True)]),
        ("| a |\n|-|\n| $x$ |", [("x", False)]),
        (r"$a\$b$", [(r"a\$b", False)]),
        ("$a\nb$", [("a\nb", False)]),
        ("5 $, or $6, or US$7 and A$8", []),
        ("from $5 to $6", []),
        (r"\$x\$ \\(y\\)", []),
        ("`$x$` and ``\\(y\\)``", []),
        ("```\n$$\nx\n$$\n```\n\n    \\[ x \\]", []),
        ("$x `y`$", []),
        ("$ $ \\(\\) $$$$", []),
        ("\\[ not\n\nclosed \\]", []),
        ("\\[ not closed", []),
        (f"${'x' * (LONGEST + 1)}$", []),
        (f"$$\n{'x' * (LONGEST + 1)}\n$$", []),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_a_formula(text, expected):
    assert formulas_in(text) == expected


PIECES = st.lists(
    st.sampled_from(["$", "$$", "\\(", "\\)", "\\[", "\\]", "\\", "`", "<b>", '"', "x", " ", "\n", "- ", "> ", "|", "5", "_", "*"])
)


@given(PIECES.map("".join))
def test_the_text_of_a_formula_is_what_was_written_and_is_never_html(text):
    shown = markdown_html(text)
    for tag, tex, written in re.findall(r'<(span|div) class="formula"[^>]*data-tex="([^"]*)"[^>]*>(.*?)</\1>', shown, re.DOTALL):
        assert "<" not in tex + written, tag
        assert unescape(tex).split() == unescape(written).strip("$\\()[]").split() or unescape(tex) in unescape(written)
    assert "<b>" not in shown


def test_the_installed_gradio_carries_katex():
    files = katex_files()
    assert [each.rpartition(".")[2] for each in files] == ["js", "css"]
    script = (ASSETS / files[0].removeprefix("assets/")).read_text(encoding="utf-8")
    assert "renderToString" in script
    assert re.search(r"export\{\w+ as default\};?\s*$", script)


def test_without_katex_there_are_no_files(monkeypatch, tmp_path):
    (tmp_path / "katex-1.css").touch()
    monkeypatch.setattr("onnx_textgen_demo.chat.formulas.ASSETS", tmp_path)
    assert katex_files() == []
