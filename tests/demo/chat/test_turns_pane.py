"""A branch as HTML: parts in their order, buttons for what can be done, and no text that becomes HTML."""

import dataclasses
import re

from hypothesis import given
from hypothesis import strategies as st

from onnx_textgen_demo.chat.turns_pane import growing_html, turns_html
from onnx_textgen_demo.conversation.message_tree import ROOT, Figures, MessageTree
from onnx_textgen_demo.conversation.parts import Reasoning, Text, ToolCall, parts_of
from onnx_textgen_demo.conversation.stored import read_tree

CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Bern"}}}
ASKED = {"role": "assistant", "content": "I look.", "reasoning_content": "Hm.", "tool_calls": [CALL]}
RESULT = {"role": "tool", "content": '{"sky": "grey"}', "tool_call_id": "c1"}


def test_parts_come_in_the_order_in_which_they_were_made():
    stray = {"role": "tool", "content": "late", "name": "clock"}
    assert parts_of(ASKED, [stray, RESULT], thinking_seconds=3) == [
        Reasoning("Hm.", 3),
        Text("I look."),
        ToolCall("weather", '{\n  "city": "Bern"\n}', '{\n  "sky": "grey"\n}'),
        ToolCall("clock", "", "late"),
    ]
    assert parts_of({"role": "assistant", "content": "", "reasoning_content": "Hm."}) == [Reasoning("Hm.", is_over=False)]


def test_thoughts_are_folded_and_tool_calls_are_cards_with_their_results():
    tree = read_tree([{"role": "user", "content": "Weather?"}, ASKED, RESULT, {"role": "assistant", "content": "Grey."}])
    nodes = [dataclasses.replace(node, figures=Figures(thinking_seconds=3.2)) for node in tree.nodes]
    shown = turns_html(dataclasses.replace(tree, nodes=tuple(nodes)))
    assert '<details class="thoughts"><summary>Thought for 3 s</summary>' in shown
    assert "<summary>Tool <code>weather</code> <small>done</small></summary>" in shown
    assert (
        shown.index("&quot;city&quot;: &quot;Bern&quot;") < shown.index("&quot;sky&quot;: &quot;grey&quot;") < shown.index("Grey.")
    )
    assert shown.count("<article") == 3, "a result belongs to its call"
    assert "no result yet" in turns_html(read_tree([ASKED]))


def test_an_answer_has_its_figures_and_the_share_of_the_context():
    figures = Figures("m", 204, 1000, 900, 8192, 12.34, 0.5, 0.0, "length")
    shown = turns_html(MessageTree().add(ROOT, {"role": "assistant", "content": "a"}, figures))
    for words in (
        "<b>12.3</b> tokens/s",
        '<b>1,204 / 8,192</b> <span class="words">tokens of context</span>',
        "width:14.7%",
        "900 of 1,000",
        "max new tokens",
    ):
        assert words in shown


def test_alternatives_are_paged_and_the_ends_have_no_next():
    tree = MessageTree().add(ROOT, {"role": "user", "content": "a"})
    for text in "bcd":
        tree = tree.add(0, {"role": "assistant", "content": text})
    assert "<span>3/3</span>" in turns_html(tree)
    assert 'data-does="select" disabled aria-label="Next answer"' in turns_html(tree)
    middle = turns_html(tree.show(2))
    assert "<span>2/3</span>" in middle
    assert 'data-index="1" aria-label="Previous answer"' in middle
    assert 'data-index="3" aria-label="Next answer"' in middle


def test_a_message_without_an_answer_can_be_answered():
    tree = MessageTree().add(ROOT, {"role": "user", "content": "a"})
    assert 'data-does="retry" data-index="0"' in turns_html(tree)


def test_both_kinds_of_message_have_the_same_buttons_where_they_make_sense():
    tree = read_tree([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, ASKED, RESULT])
    user, answer, calling = (each.split("</article>")[0] for each in turns_html(tree).split("<article")[1:])
    shared = ["Copy message", "New chat from here", "Delete"]
    assert names_in(user) == sorted([*shared, "Edit this message"])
    assert names_in(answer) == sorted([*shared, "Edit this answer", "Write another answer"])
    assert names_in(calling) == sorted([*shared, "Write another answer"]), "another version's calls would have no results"
    assert 'data-does="copy" data-index="3"' in calling, "a copy has the results too"
    assert 'data-asks="Delete 3 messages?"' in user
    assert 'data-asks="Delete this message?"' in calling


def names_in(shown):
    return sorted(re.findall('<button[^>]*aria-label="([^"]*)"', shown))


def test_a_call_that_was_cut_off_is_a_card_without_buttons():
    cut = {"id": "c2", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Be'}}
    tree = MessageTree().add(ROOT, {"role": "user", "content": "a"}).add(0, ASKED, None, (cut,))
    shown = turns_html(read_tree(tree.to_json()), asks=True)
    assert shown.count("<small>waits for you</small>") == 1, "the whole one"
    assert "<small>cut off</small>" in shown
    assert "{&quot;city&quot;: &quot;Be</code>" in shown
    assert shown.index("cut off") < shown.index("it cannot run")
    assert shown.count('data-decision="run"') == 1
    assert "the model writes it" in growing_html(tree)


def test_what_grows_is_drawn_alone_and_without_buttons():
    tree = MessageTree().add(ROOT, {"role": "user", "content": "a"}).add(0, {"role": "assistant", "content": "b"})
    assert "<p>b</p>" in growing_html(tree)
    assert "<button" not in growing_html(tree)
    assert "<p>b</p>" not in turns_html(tree, grows=True)
    assert 'aria-busy="true"' in turns_html(tree, grows=True)


HOSTILE = st.sampled_from(["<script>x</script>", '"><img src=x onerror=y>', "'", "&lt;", "</textarea><b>"])


@given(HOSTILE, HOSTILE, HOSTILE)
def test_no_text_of_a_conversation_becomes_html(one, two, three):
    call = {"id": one, "type": "function", "function": {"name": two, "arguments": three}}
    messages = [
        {"role": "user", "content": one},
        {"role": "assistant", "content": two, "reasoning_content": three, "tool_calls": [call]},
        {"role": "tool", "content": one, "tool_call_id": two, "name": three},
    ]
    tree = read_tree(messages)
    figures = Figures(model=one, generated_tokens=1, finish_reason=two)
    shown = turns_html(dataclasses.replace(tree, nodes=tuple(dataclasses.replace(each, figures=figures) for each in tree.nodes)))
    for tag in ("<script", "<img", "</textarea", "<b>x"):
        assert tag not in shown.replace("<b>1</b>", "")


def test_a_mark_of_direction_in_a_call_is_seen_by_the_person_who_decides():
    call = {"id": "c1", "type": "function", "function": {"name": "re\u2066ad", "arguments": '{"file": "a\u202egpj.exe"}'}}
    shown = turns_html(read_tree([{"role": "user", "content": "a"}, {"role": "assistant", "content": "", "tool_calls": [call]}]))
    assert r"re\u2066ad" in shown
    assert r"a\u202egpj.exe" in shown
    assert not {"\u202e", "\u2066"} & set(shown)
