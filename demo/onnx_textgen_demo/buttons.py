"""Enables the buttons that start a run while nothing runs, and Stop during a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import gradio as gr

from .limits import QUICK

if TYPE_CHECKING:
    from gradio.events import Dependency


@dataclasses.dataclass(frozen=True, slots=True)
class RunButtons:
    """The buttons of a tab's runs."""

    starts: tuple[gr.Button, ...]
    stop: gr.Button

    @property
    def outputs(self) -> list[gr.Button]:
        """The buttons, in the order of the updates of `running` and `at_rest`."""
        return [*self.starts, self.stop]

    def running(self) -> list[dict[str, Any]]:
        """Updates for the start of a run."""
        return [*[gr.update(interactive=False)] * len(self.starts), gr.update(interactive=True)]

    def at_rest(self) -> list[dict[str, Any]]:
        """Updates for the end of a run."""
        return [*[gr.update(interactive=True)] * len(self.starts), gr.update(interactive=False)]


def at_the_end(run: Dependency, answer: Callable[..., Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
    """Call a function at the end of a run, however it ends.

    Gradio 6.31 calls `then` after a finished run, `failure` after a failed one, and both once a run is cancelled. What follows the
    click that cancels is no such place: it is called while the run still ends, and a run started there would be skipped.
    """
    for when in (run.then, run.failure):
        when(answer, list(inputs), list(outputs), **QUICK)
