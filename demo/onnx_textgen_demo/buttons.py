"""Which buttons can be pressed: those that start a run while none is under way, and Stop while one is."""

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
        """In the order of what `running` and `at_rest` give."""
        return [*self.starts, self.stop]

    def running(self) -> list[dict[str, Any]]:
        """From the press on."""
        return [*[gr.update(interactive=False)] * len(self.starts), gr.update(interactive=True)]

    def at_rest(self) -> list[dict[str, Any]]:
        """From the end on."""
        return [*[gr.update(interactive=True)] * len(self.starts), gr.update(interactive=False)]


def at_the_end(run: Dependency, answer: Callable[..., Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
    """Let a function answer the end of a run, whatever it was: `then` alone is silent where the run failed (Gradio 6.31)."""
    for when in (run.then, run.failure):
        when(answer, list(inputs), list(outputs), **QUICK)
