"""Which calls wait for the user, and in which order the model reads their results."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnx_textgen.chat.own_functions import MOST_ROUNDS, NOT_ALLOWED
from onnx_textgen_demo.chat.turns_pane import turns_html
from onnx_textgen_demo.conversation.message_tree import ROOT, MessageTree
from onnx_textgen_demo.conversation.open_calls import (
    OpenCalls,
    arguments_of,
    call_in,
    in_order_of_calls,
    is_stopped,
    open_calls,
    with_result,
    with_the_rest_refused,
)
from onnx_textgen_demo.conversation.stored import read_tree

ASKED = {"role": "user", "content": "Weather?"}


def answer(*ids, name="look"):
    calls = [{"id": each, "type": "function", "function": {"name": name, "arguments": "{}"}} for each in ids]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def result(call_id, content="x"):
    return {"role": "tool", "tool_call_id": call_id, "name": "look", "content": content}


@pytest.mark.parametrize(
    ("messages", "numbers"),
    [
        ([ASKED, answer("a", "b")], (0, 1)),
        ([ASKED, answer("a", "b"), result("b")], (0,)),
        ([ASKED, answer("a", "b"), result("b"), result("a")], None),
        ([ASKED, answer("", "")], (0, 1)),
        ([ASKED, answer("", ""), result("")], (1,)),
        ([ASKED, answer("a"), ASKED], None),
        ([ASKED], None),
        ([result("a")], None),
        ([], None),
    ],
)
def test_calls_without_a_result_at_the_end_are_open(messages, numbers):
    found = open_calls(read_tree(messages))
    assert (None if found is None else found.numbers) == numbers


def test_a_model_that_calls_without_end_is_stopped():
    tree = MessageTree().add(ROOT, ASKED)
    for each in range(MOST_ROUNDS):
        tree = tree.add(tree.leaf, answer(f"c{each}"))
        assert open_calls(tree) == OpenCalls(tree.leaf, (0,))
        tree = with_result(tree, call_in(tree, tree.leaf, 0), "x")
    assert not is_stopped(tree)
    tree = tree.add(tree.leaf, answer("more"))
    assert is_stopped(tree)
    assert open_calls(tree) is None
    assert open_calls(tree.add(tree.leaf, ASKED).add(tree.leaf + 1, answer("z"))) is not None, "the next question begins from 0"


@given(st.permutations(["a", "b", "c"]), st.sampled_from([ASKED, answer("d")]))
def test_the_model_reads_results_in_the_order_of_the_calls(decided, after):
    messages = [ASKED, answer("a", "b", "c"), *map(result, decided), after]
    found = in_order_of_calls(messages)
    assert [each["tool_call_id"] for each in found[2:5]] == ["a", "b", "c"]
    assert [found[0], found[1], found[5]] == [ASKED, messages[1], after]


def test_who_goes_on_without_deciding_has_refused():
    tree = with_the_rest_refused(read_tree([ASKED, answer("a", "b"), result("a")]))
    assert tree.nodes[-1].message == result("b", NOT_ALLOWED)
    assert with_the_rest_refused(tree) is tree


@pytest.mark.parametrize(
    ("written", "arguments"),
    [('{"a": 1}', {"a": 1}), ({"a": 1}, {"a": 1}), ("", {}), ("[1]", None), ('{"a"', None), ("[" * 100_000, None)],
)
def test_arguments_are_a_json_object_or_none(written, arguments):
    assert arguments_of({"function": {"name": "f", "arguments": written}}) == arguments


def test_only_open_calls_of_a_page_that_asks_have_buttons():
    tree = read_tree([ASKED, answer("a", "b", name='l"><b>'), result("a")])
    assert 'data-does="decide"' not in turns_html(tree)
    assert 'data-does="decide"' not in turns_html(tree, asks=True, runs=True)
    shown = turns_html(tree, asks=True)
    assert shown.count('data-does="decide"') == 3
    assert (
        'data-index="1" data-call="1" data-decision="always" aria-label="Always run this function: l&quot;&gt;&lt;b&gt;"' in shown
    )
    assert "waits for you" in shown
    assert "Let the model answer" not in shown
    refused = with_the_rest_refused(tree)
    assert "<small>refused</small>" in turns_html(refused, asks=True)


def test_a_conversation_with_open_calls_survives_the_browser():
    tree = read_tree([ASKED, answer("a")])
    again = read_tree(json.loads(json.dumps(tree.to_json())))
    assert open_calls(again) == open_calls(tree) == OpenCalls(1, (0,))
