"""Calls run when they are allowed, and the model answers when all of an answer are decided."""

import threading

import pytest

from onnx_textgen.chat.own_functions import NOT_ALLOWED, OwnFunctions
from onnx_textgen_demo.chat.answering import session_for
from onnx_textgen_demo.chat.own_tools import Permissions, ToolUse
from onnx_textgen_demo.chat.tool_rounds import NOT_AWAITED, answered, decided, is_answerable
from onnx_textgen_demo.conversation.message_tree import ROOT, MessageTree
from onnx_textgen_demo.conversation.open_calls import open_calls
from support.calling_model import FAIL, TOOLS, make_calling, mark


@pytest.fixture
def use(tmp_path):
    (tmp_path / "tools.py").write_text(TOOLS)
    return ToolUse(OwnFunctions(tmp_path / "tools.py"), Permissions())


def asked(use, *texts):
    """A chat whose model writes these texts, and the conversation after its first answer."""
    chat = session_for(make_calling(*texts), None, None if use is None else use.functions)
    tree = MessageTree().add(ROOT, {"role": "user", "content": "Go."})
    return chat, last(answered(tree, chat, {}, name="m", use=use))


def last(steps):
    *_, progress = steps
    return progress.tree


def decide(tree, chat, use, number, decision):
    """The conversation after a decision, and after the answer that may follow it."""
    steps = decided(tree, chat, use, number, decision)
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            tree = ended.value
            break
    return last(answered(tree, chat, {}, name="m", use=use)) if is_answerable(tree, chat) else tree


def contents(tree):
    return [(node.message["role"], node.message["content"]) for node in (tree.nodes[each] for each in tree.path)]


def test_a_function_of_async_def_is_awaited(tmp_path):
    awaiting = TOOLS.replace("def mark", "async def mark").replace("return", "await asyncio.sleep(0)\n    return")
    (tmp_path / "tools.py").write_text(f"import asyncio\n{awaiting}")
    use = ToolUse(OwnFunctions(tmp_path / "tools.py"), Permissions())
    chat, tree = asked(use, mark("x"), "It is done.")
    tree = decide(tree, chat, use, 0, "run")
    assert contents(tree)[2:] == [("tool", "marked x"), ("assistant", "It is done.")]


def test_a_refused_call_and_one_that_fails_are_results_too(use, marks):
    chat, tree = asked(use, mark("x") + FAIL)
    tree = decide(tree, chat, use, 1, "run")
    assert contents(tree)[2:] == [("tool", "ValueError: no <b>")], "the other call still waits"
    tree = decide(tree, chat, use, 0, "refuse")
    assert contents(tree)[3:] == [("tool", NOT_ALLOWED), ("assistant", "Done.")]
    assert [each["content"] for each in chat.session.messages if each["role"] == "tool"] == [NOT_ALLOWED, "ValueError: no <b>"]
    assert marks() == []


def test_a_function_that_is_always_allowed_is_not_asked_for_again_and_others_are(use, marks):
    chat, tree = asked(use, mark("x") + mark("y"), mark("z") + FAIL)
    tree = decide(tree, chat, use, 0, "always")
    assert marks() == ["x", "y", "z"]
    assert open_calls(tree).numbers == (1,)
    assert contents(tree)[-1] == ("tool", "marked z")


def test_without_functions_nothing_is_called(marks):
    _, tree = asked(None, mark("x"))
    assert contents(tree)[-1] == ("assistant", mark("x"))
    assert marks() == []


def test_who_stops_waits_no_longer_for_a_function(use, monkeypatch):
    chat, tree = asked(use, mark("x"))
    may_end = threading.Event()
    monkeypatch.setattr(OwnFunctions, "run", lambda *_: may_end.wait() and "late")
    steps = decided(tree, chat, use, 0, "run")
    assert next(steps).running == "mark"
    chat.cancel.cancel()
    assert next(steps).tree.nodes[-1].message["content"] == NOT_AWAITED
    with pytest.raises(StopIteration) as ended:
        next(steps)
    assert not is_answerable(ended.value.value, chat)
    may_end.set()


def test_a_stopped_answer_runs_no_call(use, marks):
    use.permissions.names.add("mark")
    chat = session_for(make_calling(mark("x")), None, use.functions)
    tree = MessageTree().add(ROOT, {"role": "user", "content": "Go."})
    for progress in answered(tree, chat, {}, name="m", use=use):
        tree = progress.tree
        chat.cancel.cancel()
    assert tree.nodes[-1].message["role"] == "assistant"
    assert marks() == []
