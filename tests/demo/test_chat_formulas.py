"""Formulas in a real browser: drawn by the page's own KaTeX, which loads nothing and runs nothing that a model wrote."""

import pytest

from onnx_textgen_demo.conversation.message_tree import ROOT, MessageTree
from support.browser import element, elements, requests_elsewhere, wait_until, window
from support.calling_model import make_calling
from support.chat_page import open_conversation, open_empty_chat, say, wait_for_turns
from support.paced_runs import PacedRuns

HOSTILE = r"""
$\href{javascript:document.title='run'}{x}$ $\includegraphics{http://example.com/x.png}$ $\url{http://example.com/z}$
$\text{<img src=x onerror="document.title='run'">}$ $\htmlStyle{background:url(http://example.com/y.png)}{x}$
$\def\a{\a\a}\a$ $\rule{9999em}{9999em}$
"""


@pytest.fixture
def shown(chromium, served):
    """Call it with an answer: shows it."""
    address = served(make_calling())
    open_empty_chat(chromium, address)

    def show(text):
        tree = MessageTree("ab").add(ROOT, {"role": "user", "content": "?"}).add(0, {"role": "assistant", "content": text})
        open_conversation(chromium, address, tree, 2)
        return address

    return show


def all_drawn(driver):
    return not elements(driver, "#turns .formula:not(.drawn)")


def test_formulas_are_drawn_and_what_is_none_stays_as_it_was_written(chromium, shown):
    shown(r"$\frac{a}{b}$ costs $5, and $\frac{1$, and $\nocommand$" + "\n\n\\[\n\\sum_i x_i\n\\]")
    wait_until(chromium, lambda: all_drawn(chromium), "the formulas")
    drawn = [len(each.find_elements("css selector", ".katex math")) for each in elements(chromium, "#turns .formula")]
    assert drawn == [1, 0, 0, 1]
    assert [each.text for each in elements(chromium, "#turns .formula:not(:has(.katex))")] == [r"$\frac{1$", r"$\nocommand$"]
    assert "costs $5" in element(chromium, "#turns .markdown").text
    family = "return getComputedStyle(document.querySelector('#turns .katex')).fontFamily"
    wait_until(chromium, lambda: "KaTeX_Main" in chromium.execute_script(family), "the style sheet")


def test_a_formula_neither_loads_nor_runs_what_a_model_wrote(chromium, shown):
    chromium.get_log("performance")
    address = shown(HOSTILE)
    wait_until(chromium, lambda: all_drawn(chromium), "the formulas")
    assert elements(chromium, "#turns .katex"), "some of it is drawn"
    assert not elements(chromium, "#turns .formula :is(a, img, script, iframe, [style*=url])")
    tall = (
        "return Math.max(...[...document.querySelectorAll('#turns .formula *')].map((each) => each.getBoundingClientRect().height))"
    )
    assert chromium.execute_script(tall) < 1000
    assert chromium.title == "onnx-textgen"
    assert requests_elsewhere(chromium, address) == []


def test_a_formula_is_drawn_while_the_answer_grows(chromium, served, monkeypatch):
    runs = PacedRuns(monkeypatch)
    open_empty_chat(chromium, served(make_calling(r"So $x^2$ is drawn before the end of this long answer.")))
    runs.seconds = 0.2
    say(chromium, "?")
    wait_until(chromium, lambda: elements(chromium, "#growing .formula .katex"), "the formula")
    runs.seconds = 0
    wait_for_turns(chromium, 2)
    wait_until(chromium, lambda: elements(chromium, "#turns .formula .katex"), "the formula at the end")


def test_a_wide_formula_scrolls_on_a_phone(chromium, shown):
    with window(chromium, 400, 800):
        shown("$$" + "+".join(f"x_{{{n}}}" for n in range(60)) + "$$")
        wait_until(chromium, lambda: all_drawn(chromium) and elements(chromium, "#turns .katex"), "the formula")
        assert chromium.execute_script("return document.documentElement.scrollWidth") <= 400
        assert chromium.execute_script("const m = document.querySelector('#messages'); return m.scrollWidth <= m.clientWidth")
