"""Functions of a user's file: which are tools, and what a call gives."""

from pathlib import Path

import pytest

from onnx_textgen.answers.records import ToolCall
from onnx_textgen.chat.own_functions import OwnFunctions

FILE = '''
import asyncio
import sys
from pathlib import Path

def add(a: int, b: int) -> int:
    """Add."""
    return a + b

def leave() -> None:
    """End the program."""
    sys.exit(3)

def circle() -> list:
    """What is no JSON."""
    found = []
    found.append(found)
    return found

def where() -> dict:
    """What JSON does not know."""
    return {"path": Path("a")}

async def later(text: str) -> dict:
    """Wait."""
    await asyncio.sleep(0)
    if not text:
        raise ValueError("no text")
    return {"text": text}

async def leave_later() -> None:
    """End the program, after a while."""
    await asyncio.sleep(0)
    sys.exit(4)

def _hidden(a: int) -> int:
    return a
'''


@pytest.fixture
def functions(tmp_path: Path) -> OwnFunctions:
    file = tmp_path / "tools.py"
    file.write_text(FILE)
    return OwnFunctions(file)


def test_the_public_functions_of_the_file_are_tools_and_the_warning_names_them(functions: OwnFunctions) -> None:
    assert list(functions.tools) == ["add", "leave", "circle", "where", "later", "leave_later"]
    named, warning = functions.warning()
    assert "add, leave, circle, where, later" in named
    assert "can do whatever you can" in warning


@pytest.mark.parametrize(
    ("name", "arguments", "result"),
    [
        ("add", {"a": 2, "b": 3}, "5"),
        ("add", {"a": 2, "c": 3}, "TypeError: add() got an unexpected keyword argument 'c'"),
        ("leave", {}, "SystemExit: 3"),
        ("circle", {}, "ValueError: Circular reference detected"),
        ("where", {}, '{"path": "a"}'),
        ("later", {"text": "a"}, '{"text": "a"}'),
        ("later", {"text": ""}, "ValueError: no text"),
        ("leave_later", {}, "SystemExit: 4"),
        ("_hidden", {"a": 1}, "there is no function _hidden; the functions are: add, leave, circle, where, later, leave_later"),
    ],
)
def test_a_call_gives_text_whatever_the_function_does(functions: OwnFunctions, name: str, arguments: dict, result: str) -> None:
    assert functions.run(ToolCall("abc", name, arguments, "{}")) == result
