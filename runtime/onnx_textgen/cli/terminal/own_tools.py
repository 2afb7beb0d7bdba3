"""Functions of the user's own that a model may call in a chat: read from a Python file, and run after asking."""

from __future__ import annotations

import importlib.util
import inspect
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import OptionError, first_line
from . import line_input, screen

if TYPE_CHECKING:
    from ...chat.answers import ToolCall
    from ...chat.tools import Tool

NOT_ALLOWED = "the user did not allow this call"
MODULE = "onnx_textgen_own_tools"


class OwnTools:
    """The functions of a file, and which of them may run without asking again."""

    def __init__(self, path: Path) -> None:
        """Run the file, and take its public functions; raises `OptionError`."""
        from ...chat.tools import read_tools  # noqa: PLC0415  (only for chats with tools)

        self.tools: dict[str, Tool] = {tool.name: tool for tool in read_tools(functions_of(path))}
        if not self.tools:
            raise OptionError(f"{path} has no function to call; define one without a leading underscore, with annotations")
        self.allowed = set[str]()

    def run(self, call: ToolCall) -> str:
        """Ask, run a call, and return its result as text for the model; an error of the function is one too."""
        tool = self.tools.get(call.name)
        if tool is None or tool.function is None:
            return f"there is no function {call.name}; the functions are: {', '.join(self.tools)}"
        if not self.may_run(call):
            return NOT_ALLOWED
        try:
            result = tool.function(**call.arguments)
            return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False, default=str)
        except Exception as error:  # noqa: BLE001 - of a function that is not ours, and the model may do better next time
            return f"{type(error).__name__}: {first_line(error)}"

    def may_run(self, call: ToolCall) -> bool:
        """Whether the user allows a call: this one, or all of its function. Without a terminal none is allowed."""
        if call.name in self.allowed:
            return True
        if not line_input.is_interactive():
            screen.note(f"{call.name} was not run: calls are asked for, which needs a terminal")
            return False
        answer = line_input.read_line(f"run {call.name}? [y]es, [N]o, [a]lways: ").strip().lower()
        if answer in ("a", "always"):
            self.allowed.add(call.name)
        return answer in ("y", "yes", "a", "always")


def functions_of(path: Path) -> list[Callable[..., Any]]:
    """The public functions that a Python file defines; raises `OptionError` if it cannot be run."""
    if not path.is_file():
        raise OptionError(f"there is no file {path} with tools; give a Python file")
    spec = importlib.util.spec_from_file_location(MODULE, path)
    if spec is None or spec.loader is None:
        raise OptionError(f"{path} is no Python file; its name should end with .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[MODULE] = module  # annotations are looked up there
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise OptionError(f"{path} cannot be run ({type(error).__name__}: {first_line(error)}); correct it") from error
    return [
        each
        for name, each in vars(module).items()
        if inspect.isfunction(each) and each.__module__ == MODULE and not name.startswith("_")
    ]
