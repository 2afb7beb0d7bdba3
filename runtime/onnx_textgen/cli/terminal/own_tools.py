"""Asks in the terminal before a function of the user's own is run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ...chat.own_functions import NOT_ALLOWED, OwnFunctions
from . import line_input, screen

if TYPE_CHECKING:
    from ...answers.records import ToolCall
    from ...answers.tools import Tool


class OwnTools:
    """The functions of a file, and which of them may run without asking again."""

    def __init__(self, path: Path) -> None:
        """Run the file, and take its public functions; raises `OptionError`."""
        self.functions = OwnFunctions(path)
        self.allowed = set[str]()

    @property
    def tools(self) -> dict[str, Tool]:
        """The functions as tools, by name."""
        return self.functions.tools

    def run(self, call: ToolCall) -> str:
        """Ask, run a call, and return its result as text for the model."""
        if call.name in self.tools and not self.may_run(call):
            return NOT_ALLOWED
        return self.functions.run(call)

    def may_run(self, call: ToolCall) -> bool:
        """Return whether the user allows a call: this one, or all of its function. Without a terminal none is allowed."""
        if call.name in self.allowed:
            return True
        if not line_input.is_interactive():
            screen.note(f"{call.name} was not run: calls are asked for, which needs a terminal")
            return False
        answer = line_input.read_line(f"run {call.name}? [y]es, [N]o, [a]lways: ").strip().lower()
        if answer in ("a", "always"):
            self.allowed.add(call.name)
        return answer in ("y", "yes", "a", "always")
