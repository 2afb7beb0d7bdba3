"""The tab Chat: conversations that the browser keeps, each a tree of messages of which one branch is shown.

Every listener gets the open conversation from the browser and returns it; this server keeps only the session, with its cache.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from html import escape
from typing import TYPE_CHECKING, Any

import gradio as gr

from onnx_textgen.errors import OnnxTextgenError, OptionError
from onnx_textgen.options.checks import shown

from ..chat import conversations_pane, turns_pane
from ..chat.answering import ChatSession, answers_to, session_for
from ..chat.frames import FRAME_LENGTH, Frame, Pace, frame, growing_frame
from ..chat.message_tree import Message, MessageTree
from ..chat.no_template import TemplateOffer, make_offer
from ..chat.stored import read_tree
from ..limits import MAX_PROMPT_CHARS, QUICK, RUNNING, checked
from ..models import ModelRegistry
from ..sampling_controls import SamplingControls, make_sampling_controls

if TYPE_CHECKING:
    from gradio.events import Dependency

    from ..fetch_panel import OpenerOf


def make_tab(registry: ModelRegistry, picker: gr.Dropdown, picked: Dependency, opener_of: OpenerOf | None = None) -> None:
    """Add the tab's components in the current Gradio context, and their listeners."""
    first = registry.model()
    session = gr.State()
    offer = make_offer(registry, picker, opener_of)
    with gr.Row(elem_id="chat", visible=first.chat_template is not None) as chat:
        conversations = gr.HTML(
            None,
            html_template=conversations_pane.TEMPLATE,
            js_on_load=conversations_pane.EVENTS,
            apply_default_css=False,
            elem_id="conversations",
        )
        with gr.Column(elem_id="chat-main"):
            turns, growing = make_messages()
            message, send, stop = make_composer()
            note = gr.HTML("", apply_default_css=False, elem_id="chat-note")
        with gr.Column(elem_id="chat-settings"):
            system, sampling = make_settings(registry)
    outputs = [session, conversations, turns, growing, message, note, send, stop]
    running = {"outputs": outputs, **RUNNING}

    answers = Answers(registry, sampling)
    inputs = [session, conversations, picker, system, *sampling.inputs]
    runs = [
        gr.on([send.click, message.submit], answers.say, [message, *inputs], **running),
        turns.submit(answers.suggested, inputs, **running),
        turns.retry(answers.retry, inputs, **running),
        turns.edit(answers.edit, inputs, **running),
    ]
    # Stop does not use `cancels`: the answer then ends by itself, and draws its last frame.
    stop.click(lambda kept: kept.cancel.cancel() if kept else None, session, None, **QUICK)
    turns.select(show_branch, [session, conversations], outputs, **QUICK)
    conversations.select(open_conversation, session, [*outputs, system], cancels=runs, **QUICK)
    conversations.clear(lambda kept: (*frame(kept, MessageTree()), ""), session, [*outputs, system], cancels=runs, **QUICK)

    picked.then(
        lambda name, now: pick(name, now, registry, sampling, offer),
        [picker, conversations],
        [*offer.outputs, chat, *outputs, *sampling.inputs],
        cancels=runs,
        **QUICK,
    )


def make_messages() -> tuple[gr.HTML, gr.HTML]:
    """The messages, and the answer that grows below them, which scroll together."""
    with gr.Column(elem_id="messages"):
        empty = turns_pane.turns_html(MessageTree())
        turns = gr.HTML(empty, js_on_load=turns_pane.EVENTS, apply_default_css=False, elem_id="turns")
        growing = gr.HTML("", apply_default_css=False, elem_id="growing")
    return turns, growing


def make_composer() -> tuple[gr.Textbox, gr.Button, gr.Button]:
    """The field for the next message, with Send, and Stop in its place while an answer grows."""
    with gr.Row(elem_id="composer", equal_height=True):
        message = gr.Textbox(
            label="Message",
            show_label=False,
            container=False,
            placeholder="Message: Enter sends",
            lines=1,
            max_lines=8,
            max_length=MAX_PROMPT_CHARS,
            min_width=160,
            elem_id="message",
        )
        send = gr.Button("Send", variant="primary", scale=0, min_width=90, elem_id="send")
        stop = gr.Button("Stop", scale=0, min_width=90, interactive=False, elem_id="chat-stop")
    return message, send, stop


def make_settings(registry: ModelRegistry) -> tuple[gr.Textbox, SamplingControls]:
    """What the drawer holds: the system prompt, and the sampling options."""
    gr.HTML(
        '<header><h2>Settings</h2><button type="button" id="chat-settings-close" aria-label="Close settings">✕</button></header>',
        apply_default_css=False,
    )
    system = gr.Textbox(
        label="System prompt",
        info="Instructions for the model; they hold for this conversation, from the next answer on.",
        lines=3,
        max_lines=10,
        max_length=MAX_PROMPT_CHARS,
        elem_id="system",
    )
    return system, make_sampling_controls(registry.model())


@dataclasses.dataclass(frozen=True, slots=True)
class Answers:
    """Listeners after which the model answers; each yields frames until the answer is complete.

    Their inputs are the session, the conversation, the model's name, the system prompt, and the values of the sampling controls.
    """

    registry: ModelRegistry
    sampling: SamplingControls

    def say(self, text: str, *inputs: Any) -> Iterator[Frame]:  # noqa: ANN401 - values of components
        """Send a message after the last one."""
        if text and text.strip():
            yield from self.after(inputs, lambda tree: tree.add(tree.leaf, user_message(text)), clears_field=True)

    def suggested(self, event: gr.EventData, *inputs: Any) -> Iterator[Frame]:  # noqa: ANN401 - likewise
        """Send a suggestion of the empty conversation."""
        yield from self.after(inputs, lambda tree: tree.add(tree.leaf, user_message(text_of(event))))

    def edit(self, event: gr.EventData, *inputs: Any) -> Iterator[Frame]:  # noqa: ANN401 - likewise
        """Send a message in another version, as another branch."""
        yield from self.after(inputs, lambda tree: tree.add(tree.nodes[place_in(tree, event)].parent, user_message(text_of(event))))

    def retry(self, event: gr.EventData, *inputs: Any) -> Iterator[Frame]:  # noqa: ANN401 - likewise
        """Write another answer, or the missing one to the last message."""
        yield from self.after(inputs, lambda tree: tree.before_answer(place_in(tree, event)))

    def after(self, inputs: tuple[Any, ...], change: Change, *, clears_field: bool = False) -> Iterator[Frame]:
        """Change the conversation, then let the model answer its last message; after an error the text so far stays."""
        kept, stored, name, system, *values = inputs
        before = tree = MessageTree()
        chat, has_begun = kept, False
        try:
            before = tree = tree_in(stored)
            tree = change(dataclasses.replace(tree, system=checked(system)))
            options = self.sampling.read_options(*values)
            chat = session_for(self.registry.model(name), kept)
            pace, asked = Pace(), tree
            for tree in answers_to(asked, asked.leaf, chat, options, name=name):
                if pace.is_due():
                    latest = growing_frame(chat, tree, is_kept=pace.is_kept(), is_first=not has_begun, clears_field=clears_field)
                    has_begun = True
                    yield latest
                    pace.drawn(latest)
            yield frame(chat, tree)
        except OnnxTextgenError as error:
            # What could not be sent stays in the field.
            yield frame(chat, before if clears_field and not has_begun else tree.after_error(), problem=str(error))
            raise gr.Error(escape(str(error)), print_exception=False) from error


Change = Callable[[MessageTree], MessageTree]


def tree_in(stored: object) -> MessageTree:
    """The conversation of the browser, an empty one if there is none; raises `OptionError` if it is damaged."""
    return read_tree(stored) if stored else MessageTree()


def user_message(text: str) -> Message:
    """A message; raises `PromptError` if it is too long."""
    return {"role": "user", "content": checked(text)}


def text_of(event: gr.EventData) -> str:
    """The text that an event of the browser carries."""
    text = event.text
    if not isinstance(text, str) or not text.strip():
        raise OptionError(f"a message should be text, found {shown(text)}; type one")
    return text


def place_in(tree: MessageTree, event: gr.EventData) -> int:
    """The message that an event of the browser is about; raises `OptionError` if there is none."""
    place = event.index
    if not isinstance(place, int) or not 0 <= place < len(tree.nodes):
        raise OptionError(f"the conversation has no message {shown(place)}; reload the page")
    return place


@contextlib.contextmanager
def shown_errors() -> Iterator[None]:
    """Show an error of the library on the page."""
    try:
        yield
    except OnnxTextgenError as error:
        raise gr.Error(escape(str(error)), print_exception=False) from error


def show_branch(chat: ChatSession | None, stored: object, event: gr.EventData) -> Frame:
    """Show the latest branch through a message."""
    with shown_errors():
        tree = tree_in(stored)
        return frame(chat, tree.show(place_in(tree, event)))


def open_conversation(chat: ChatSession | None, event: gr.EventData) -> tuple[Any, ...]:
    """Show a conversation that the browser kept or the reader imported, and its system prompt."""
    with shown_errors():
        tree = read_tree(event.conversation)
        if event.is_imported:
            tree = dataclasses.replace(tree, key=MessageTree().key)  # never instead of one that is kept
        return (*frame(chat, tree), tree.system)


def pick(name: str, stored: object, registry: ModelRegistry, sampling: SamplingControls, offer: TemplateOffer) -> tuple[Any, ...]:
    """Values after another model was picked: it continues the conversation, or an explanation says why it cannot chat."""
    model = registry.loaded(name)
    if model is None:  # it could not be loaded; the top of the page says so
        return (gr.skip(),) * (len(offer.outputs) + 1 + FRAME_LENGTH + len(sampling.inputs))
    has_chat = model.chat_template is not None
    with shown_errors():
        shown_frame = frame(None, tree_in(stored))
    return (*offer.updates(name, has_chat), gr.update(visible=has_chat), *shown_frame, *sampling.defaults_of(model))
