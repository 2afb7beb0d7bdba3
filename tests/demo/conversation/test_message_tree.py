"""A conversation keeps every branch, and what comes back from a browser is checked."""

import contextlib
import dataclasses
import functools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnx_textgen.errors import OptionError
from onnx_textgen_demo.conversation import stored
from onnx_textgen_demo.conversation.message_tree import DELETED, ROOT, Figures, MessageTree
from onnx_textgen_demo.conversation.stored import read_tree

CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Bern"}'}}
MESSAGES = [
    {"role": "system", "content": "be kind"},
    {"role": "user", "content": "What is the weather?"},
    {"role": "assistant", "content": None, "reasoning_content": "I should look.", "tool_calls": [CALL]},
    {"role": "tool", "content": "rain", "tool_call_id": "c1"},
    {"role": "assistant", "content": "It rains."},
]


def said(text):
    return {"role": "user", "content": text}


def answered(text):
    return {"role": "assistant", "content": text}


def texts_of(tree):
    return [tree.nodes[each].message["content"] for each in tree.path]


def test_another_answer_is_a_branch_and_both_are_shown_again():
    tree = MessageTree().add(ROOT, said("a")).add(0, answered("b"))
    other = tree.before_answer(1)
    assert texts_of(other) == ["a"]
    other = other.add(other.leaf, answered("c")).add(2, said("d"))
    assert texts_of(other) == ["a", "c", "d"]
    assert other.alternatives()[0] == [1, 2]
    assert texts_of(other.show(1)) == ["a", "b"]
    assert texts_of(other.show(1).show(2)) == ["a", "c", "d"]


def test_an_edited_message_is_a_branch_too():
    tree = MessageTree().add(ROOT, said("a")).add(0, answered("b"))
    edited = tree.add(tree.nodes[0].parent, said("A"))
    assert (texts_of(edited), texts_of(edited.show(0))) == (["A"], ["a", "b"])
    assert edited.title == "a"


def test_an_answer_without_a_text_is_dropped_after_an_error():
    tree = MessageTree().add(ROOT, said("a"))
    assert tree.add(0, answered("")).after_error() == tree
    both = tree.add(0, answered("b"))
    assert both.after_error() == both
    assert both.before_answer(1).add(0, answered("")).after_error() == both, "the answer before is shown again"
    assert both.before_answer(1).after_error() == both
    assert MessageTree().after_error().nodes == ()


@st.composite
def trees(draw):
    tree = MessageTree(title=draw(st.text(max_size=5)), system=draw(st.text(max_size=5)))
    for place in range(draw(st.integers(0, 12))):
        parent = draw(st.integers(ROOT, place - 1))
        message = draw(st.sampled_from([said("a"), answered("b"), *({"content": None} | each for each in MESSAGES[2:])]))
        figures = draw(st.none() | st.just(Figures("m", 3, 2, 1, 9, 1.5, 0.5, 0.0, "eos")))
        tree = tree.add(parent, message, figures, draw(st.sampled_from([(), (CALL,)])))
    return dataclasses.replace(tree, leaf=draw(st.integers(ROOT, len(tree.nodes) - 1)))


@st.composite
def trees_with_gaps(draw):
    """Some with deleted messages, and messages after those, as two tabs of a browser make them."""
    tree = draw(trees())
    for index in draw(st.lists(st.integers(0, max(0, len(tree.nodes) - 1)), max_size=3)):
        if tree.nodes and not tree.nodes[index].is_deleted:
            tree = tree.without(index)
            if draw(st.booleans()):
                tree = tree.add(index, said("late"))
    return tree


@given(trees_with_gaps())
def test_what_a_browser_keeps_is_what_comes_back(tree):
    assert read_tree(json.loads(json.dumps(tree.to_json()))) == tree


@given(trees_with_gaps(), st.data())
def test_every_message_can_be_shown_and_its_branch_ends_in_a_leaf(tree, data):
    if living := [index for index, node in enumerate(tree.nodes) if not node.is_deleted]:
        index = data.draw(st.sampled_from(living))
        shown = tree.show(index)
        assert index in shown.path
        assert shown.leaf not in shown.alternatives()
        assert shown.path == sorted(shown.path)


@given(trees_with_gaps(), st.data())
def test_a_deleted_message_takes_all_that_follows_it_and_nothing_else(tree, data):
    if not (living := [index for index, node in enumerate(tree.nodes) if not node.is_deleted]):
        return
    index = data.draw(st.sampled_from(living))
    left, followers = tree.without(index), {each for each in living if index in tree.show(each).path_to(each)}
    assert {each for each in living if left.nodes[each].is_deleted} == followers
    for each in set(living) - followers:
        assert left.nodes[each] == tree.nodes[each]
    assert [node.parent for node in left.nodes] == [node.parent for node in tree.nodes], "every other one keeps its place"
    assert left.leaf == ROOT or not left.nodes[left.leaf].is_deleted
    kept = json.dumps([node.to_json() for place, node in enumerate(left.nodes) if place in followers])
    assert "content" not in kept, "its text is gone"
    said_or_answered = [each for each in followers if tree.nodes[each].message["role"] != "tool"]
    assert tree.counts()[index] == len(said_or_answered)


def test_after_a_deletion_another_version_is_shown_or_what_was_before():
    tree = MessageTree().add(ROOT, said("a")).add(0, answered("b")).add(0, answered("c")).add(2, said("d"))
    assert tree.counts() == [4, 1, 2, 1]
    assert texts_of(tree.without(2)) == ["a", "b"]
    assert texts_of(tree.without(2).without(1)) == ["a"]
    assert texts_of(tree.without(3)) == ["a", "c"]
    empty = tree.without(0)
    assert (empty.path, empty.title, empty.key) == ([], "", tree.key)
    assert {node.message["role"] for node in empty.nodes} == {"deleted"}
    assert empty.add(empty.leaf, said("e")).title == "e"


@given(trees_with_gaps(), st.data())
def test_a_copy_is_another_conversation_of_the_messages_so_far(tree, data):
    if tree.path:
        index = data.draw(st.sampled_from(tree.path))
        copy = tree.copied_to(index)
        assert copy.messages_to(copy.leaf) == tree.messages_to(index)
        assert [copy.nodes[each].figures for each in copy.path] == [tree.nodes[each].figures for each in tree.path_to(index)]
        assert copy.key != tree.key
        assert copy.copied_to(copy.leaf).title == copy.title == f"Branch: {tree.title.removeprefix('Branch: ')}"


def test_only_a_conversation_of_the_page_may_have_deleted_messages():
    with pytest.raises(OptionError, match="role"):
        read_tree([DELETED])
    tree = MessageTree("ab").add(ROOT, said("a")).add(0, answered("b")).without(1)
    shown_last = tree.to_json() | {"leaf": 1}  # as another tab of the browser may leave it
    assert read_tree(shown_last).leaf == 0


def test_messages_in_openais_form_become_a_conversation_and_come_out_the_same():
    for value in (MESSAGES, {"title": "Rain", "messages": MESSAGES, "model": "other"}):
        tree = read_tree(value)
        assert tree.messages_to(tree.leaf) == MESSAGES
    assert tree.title == "Rain"
    parts = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    assert texts_of(read_tree(parts)) == ["ab"]


GOOD = MessageTree(key="ab").add(ROOT, said("a")).to_json()
NODE = GOOD["nodes"][0]


@pytest.mark.parametrize(
    "value",
    [
        "text",
        7,
        {"messages": "text"},
        {"messages": [said("a")] * (stored.MOST_MESSAGES + 1)},
        {"messages": [said("a" * stored.MOST_CHARS)]},
        {"messages": [{"role": "robot", "content": "a"}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        {"messages": [{"role": "user", "content": 7}]},
        {"messages": [{"role": "assistant", "tool_calls": [7]}]},
        {"messages": [{"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": 7}}]}]},
        {"messages": [{"role": "assistant", "reasoning_content": ["a"]}]},
        GOOD | {"version": 2},
        GOOD | {"key": "<script>"},
        GOOD | {"key": 7},
        GOOD | {"leaf": 1},
        GOOD | {"leaf": None},
        GOOD | {"leaf": True},
        GOOD | {"title": {"a": "b"}},
        GOOD | {"nodes": {}},
        GOOD | {"nodes": [NODE | {"parent": 0}]},
        GOOD | {"nodes": [NODE | {"parent": -2}]},
        GOOD | {"nodes": [NODE | {"message": None}]},
        GOOD | {"nodes": [NODE | {"unfinished_calls": 7}]},
        GOOD | {"nodes": [NODE | {"unfinished_calls": [7]}]},
        GOOD | {"nodes": [NODE | {"unfinished_calls": [CALL | {"id": "a" * stored.MOST_CHARS}]}]},
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_damaged_conversation_is_an_error_of_one_line(value):
    with pytest.raises(OptionError) as caught:
        read_tree(value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


def test_arguments_that_are_nested_deeply_are_an_error_of_one_line():
    deep = functools.reduce(lambda inner, _: [inner], range(5_000), 1)
    with pytest.raises(OptionError, match="nested too deeply"):
        read_tree(GOOD | {"nodes": [NODE | {"unfinished_calls": [CALL | {"function": {"name": "f", "arguments": {"x": deep}}}]}]})


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*GOOD, *NODE, *MESSAGES[2], "messages"]), inner),
    max_leaves=12,
)


@given(JSON, st.sampled_from(list(GOOD)), JSON)
def test_any_json_is_a_conversation_or_an_option_error(value, name, other):
    node = NODE | {"message": value, "figures": other}
    for each in (value, GOOD | {name: other}, GOOD | {"nodes": [node]}, GOOD | {"nodes": [NODE | {"unfinished_calls": value}]}):
        with contextlib.suppress(OptionError):
            assert isinstance(read_tree(each), MessageTree)


def test_figures_that_are_damaged_cost_only_the_figures():
    good = dataclasses.asdict(Figures("m", 3))
    for figures in (good | {"generated_tokens": "3"}, good | {"tokens_per_second": float("nan")}, good | {"model": 7}, [], "x"):
        assert read_tree(GOOD | {"nodes": [NODE | {"figures": figures}]}).nodes[0].figures is None
    assert read_tree(GOOD | {"nodes": [NODE | {"figures": good}]}).nodes[0].figures == Figures("m", 3)


@pytest.mark.parametrize(
    ("message", "figures", "can"),
    [
        (answered("a"), Figures(finish_reason="length"), True),
        (answered("a"), Figures(finish_reason="cancelled"), True),
        (answered("a"), Figures(), True),
        (answered("a"), None, True),
        (answered("a"), Figures(finish_reason="eos"), False),
        (answered("a"), Figures(finish_reason="context"), False),
        (answered(""), Figures(finish_reason="length"), False),
        (MESSAGES[2], Figures(finish_reason="length"), False),
        (said("a"), None, False),
    ],
)
def test_the_model_goes_on_with_text_that_was_cut_off_or_written_by_the_user(message, figures, can):
    assert MessageTree().add(ROOT, message, figures).can_be_continued(0) is can
