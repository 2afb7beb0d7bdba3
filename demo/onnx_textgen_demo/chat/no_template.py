"""What the tab Chat shows with a model that has no chat template: what to do, and a press that opens or fetches one that has."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from html import escape
from typing import TYPE_CHECKING, Any, Literal

import gradio as gr

from onnx_textgen.errors import OnnxTextgenError
from onnx_textgen.package.short_names import short_names

from .. import fetch_panel, view
from ..buttons import RunButtons, at_the_end
from ..encoder_decoders import can_chat, is_encoder_decoder
from ..limits import QUICK
from ..models import ModelRegistry

if TYPE_CHECKING:
    from ..fetch_panel import OpenerOf

REASON = """
## {name} cannot chat

{why}. Use the tab **Write** for it, or another model to chat.
"""
NO_TEMPLATE = "It has no chat template: it continues a text, and was not trained to answer"
READS_SOURCE = "It is an encoder-decoder: it reads a source and writes a text for it, and was not trained to answer"
COMMANDS = """
To chat, open this page with a chat model, which this command fetches once ({megabytes} MB):

```sh
onnx-textgen demo {fetched}
```
"""
FETCHED = next(iter(short_names()))
"""The short name of the model that is offered."""


@dataclasses.dataclass(frozen=True, slots=True)
class TemplateOffer:
    """The explanation and its buttons."""

    registry: ModelRegistry
    can_fetch: bool
    column: gr.Column
    text: gr.Markdown
    open_other: gr.Button
    fetch: gr.Button

    @property
    def outputs(self) -> list[Any]:
        """The components, in the order of `updates`."""
        return [self.column, self.text, self.open_other, self.fetch]

    def updates(self, name: str, has_chat: bool) -> list[Any]:
        """Values after the model of that name was picked."""
        values = offer_for(self.registry, name, can_fetch=self.can_fetch)
        return [gr.update(visible=not has_chat), values.text, *(update_of(label) for label in (values.other, values.fetch))]


@dataclasses.dataclass(frozen=True, slots=True)
class OfferValues:
    """What the explanation says, and the labels of its buttons; None hides one."""

    text: str
    other: str | None
    fetch: str | None


def offer_for(registry: ModelRegistry, name: str, *, can_fetch: bool) -> OfferValues:
    """What to offer instead of the model of that name."""
    others, entry = registry.chat_names(), short_names()[FETCHED]
    is_fetched = FETCHED in registry.names
    model = registry.loaded(name)
    why = READS_SOURCE if model is not None and is_encoder_decoder(model) else NO_TEMPLATE
    text = REASON.format(name=escape(name), why=why)
    if not others and not (can_fetch and not is_fetched):
        text += COMMANDS.format(fetched=FETCHED, megabytes=entry.megabytes)
    return OfferValues(
        text,
        f"Chat with {others[0]}" if others else None,
        f"Fetch {FETCHED} ({entry.megabytes} MB) and chat" if can_fetch and not is_fetched else None,
    )


def update_of(label: str | None) -> Any:  # noqa: ANN401 - Gradio's
    """The update of a button."""
    return gr.update(visible=label is not None, value=label or "")


def make_offer(registry: ModelRegistry, picker: gr.Dropdown, opener_of: OpenerOf | None) -> TemplateOffer:
    """Add the explanation in the current Gradio context; its buttons pick the model that they open."""
    values = offer_for(registry, registry.names[0], can_fetch=opener_of is not None)
    with gr.Column(visible=not can_chat(registry.model()), elem_id="no-chat") as column:
        text = gr.Markdown(values.text)
        with gr.Row():
            other = offer_button(values.other, "primary", "no-chat-open")
            fetch = offer_button(values.fetch, "secondary", "no-chat-fetch")
            stop = gr.Button("Stop", interactive=False, visible=opener_of is not None, elem_id="no-chat-stop")
        status = gr.HTML("", apply_default_css=False, elem_id="no-chat-status")
    other.click(lambda: gr.update(value=registry.chat_names()[0]), None, picker, **QUICK)
    if opener_of is not None:
        make_fetching(registry, picker, opener_of, RunButtons((fetch,), stop), status)
    return TemplateOffer(registry, opener_of is not None, column, text, other, fetch)


def offer_button(label: str | None, variant: Literal["primary", "secondary"], elem_id: str) -> gr.Button:
    """A button that is hidden without a label; on a phone each has a line."""
    return gr.Button(label or "", visible=label is not None, variant=variant, min_width=300, elem_id=elem_id)


def make_fetching(registry: ModelRegistry, picker: gr.Dropdown, opener_of: OpenerOf, buttons: RunButtons, status: gr.HTML) -> None:
    """Let the first button fetch the model, and pick it."""

    def fetch() -> Iterator[tuple[str, Any]]:
        try:
            for line in fetch_panel.lines_of(fetch_panel.command(FETCHED)):
                yield view.status_line([], line), gr.skip()
        except OnnxTextgenError as error:
            yield view.status_line([], str(error), is_problem=True), gr.skip()
            return
        registry.add(FETCHED, opener_of(FETCHED))
        yield "", gr.update(choices=registry.names, value=FETCHED)

    pressed = buttons.starts[0].click(buttons.running, None, buttons.outputs, **QUICK)
    run = pressed.then(fetch, None, [status, picker], **fetch_panel.FETCHING)
    at_the_end(run, buttons.at_rest, [], buttons.outputs)
    buttons.stop.click(lambda: view.status_line([], "stopped by you"), None, status, cancels=[run], **QUICK)
