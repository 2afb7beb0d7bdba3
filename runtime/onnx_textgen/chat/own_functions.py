"""Functions of the user's own that a model may call: read from a Python file, and run once a user has allowed a call.

Whether a call may run is asked by the programs that talk with the user, the terminal and the page, each in its own way.
"""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..answers.records import ToolCall
from ..answers.tools import Tool, read_tools
from ..errors import OptionError, first_line

NOT_ALLOWED = "the user did not allow this call"
"""The result of a call that the user refused."""
MOST_ROUNDS = 16
"""Most answers with calls to one question."""
TOO_MANY_ROUNDS = f"the model has called tools {MOST_ROUNDS} times for one question, and was stopped"
WARNING = "These functions can do whatever you can. The model may be wrong, or misled by what it reads: look at each call."
MODULE = "onnx_textgen_own_tools"


class OwnFunctions:
    """The functions of a file, as tools."""

    def __init__(self, path: Path) -> None:
        """Run the file, and take its public functions; raises `OptionError`."""
        self.path = path
        self.tools: dict[str, Tool] = {tool.name: tool for tool in read_tools(functions_of(path))}
        if not self.tools:
            raise OptionError(f"{path} has no function to call; define one without a leading underscore, with annotations")

    def warning(self) -> list[str]:
        """The lines that a user reads before the model gets the functions."""
        return [f"{self.path} was run, and the model may call: {', '.join(self.tools)}", WARNING]

    def run(self, call: ToolCall) -> str:
        """Run a call, without asking, and return its result as text for the model; an error of the function is one too.

        An `async def` function runs in a separate event loop, so the calling thread must not be in one.
        """
        tool = self.tools.get(call.name)
        if tool is None or tool.function is None:
            return f"there is no function {call.name}; the functions are: {', '.join(self.tools)}"
        try:
            result = tool.function(**call.arguments)
            result = asyncio.run(result) if inspect.iscoroutine(result) else result
            return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False, default=str)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - of a function that is not ours; the model may do better
            return f"{type(error).__name__}: {first_line(error)}"


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
