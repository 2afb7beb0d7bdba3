"""The tab Chat: conversations that the browser keeps, each a tree of messages of which one branch is shown.

Every listener gets the open conversation from the browser and returns it; this server keeps only the session, with its cache.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from html import escape
from typing import TYPE_CHECKING, Any

import gradio as gr

from onnx_textgen.errors import OnnxTextgenError, OptionError

from ..chat import conversations_pane, pictures_pane, turns_pane
from ..chat.answering import ChatSession, session_for
from ..chat.branches import Branches
from ..chat.frames import FIELD, FRAME_LENGTH, Drawing, Frame, frame
from ..chat.from_browser import decision_in, place_in, text_of, tree_in, user_message
from ..chat.no_template import TemplateOffer, make_offer
from ..chat.own_tools import OwnTools, Permissions, ToolUse, described, tool_use
from ..chat.tool_rounds import Progress, answered, decided, is_answerable
from ..conversation.message_tree import MessageTree
from ..conversation.open_calls import with_the_rest_refused
from ..conversation.user_pictures import read_pictures
from ..encoder_decoders import can_chat
from ..error_messages import shown_errors
from ..limits import MAX_PROMPT_CHARS, QUICK, RUNNING, checked
from ..models import ModelRegistry
from ..sampling_controls import SamplingControls, make_sampling_controls

if TYPE_CHECKING:
    from gradio.events import Dependency

    from onnx_textgen import Model

    from ..fetch_panel import OpenerOf


def make_tab(
    registry: ModelRegistry,
    picker: gr.Dropdown,
    picked: Dependency,
    opener_of: OpenerOf | None = None,
    own: OwnTools | None = None,
) -> None:
    """Add the tab's components in the current Gradio context, and their listeners. `own`: functions that the model may call."""
    first = registry.model()
    session, permissions = gr.State(), gr.State(Permissions())
    offer = make_offer(registry, picker, opener_of)
    with gr.Row(elem_id="chat", visible=can_chat(first)) as chat:
        conversations = gr.HTML(
            None,
            html_template=conversations_pane.TEMPLATE,
            js_on_load=conversations_pane.EVENTS,
            apply_default_css=False,
            elem_id="conversations",
        )
        with gr.Column(elem_id="chat-main"):
            turns, growing = make_messages()
            pictures, message, send, stop = make_composer(shows_pictures=reads_pictures(first))
            note = gr.HTML("", apply_default_css=False, elem_id="chat-note")
            if own is not None:
                make_tools_line(own, registry, picker, picked)
        with gr.Column(elem_id="chat-settings"):
            system, sampling = make_settings(registry)
    outputs = [session, conversations, turns, growing, message, pictures, note, send, stop]
    running = {"outputs": outputs, **RUNNING}

    answers, branches = Answers(registry, sampling, own), Branches(own)
    inputs = [session, permissions, conversations, picker, system, *sampling.inputs]
    runs = [
        gr.on([send.click, message.submit], answers.say, [message, pictures, *inputs], **running),
        turns.submit(answers.suggested, inputs, **running),
        turns.retry(answers.retry, inputs, **running),
        turns.play(answers.proceed, inputs, **running),
        turns.edit(answers.edit, inputs, **running),
        turns.apply(answers.decide, inputs, **running),
    ]
    # Stop does not use `cancels`: the answer then ends by itself, and draws its last frame.
    stop.click(lambda kept: kept.cancel.cancel() if kept else None, session, None, **QUICK)
    at_once = {"inputs": [session, conversations], "outputs": outputs, **QUICK}
    turns.select(branches.show, **at_once)
    turns.input(branches.rewrite, **at_once)
    turns.delete(branches.delete, **at_once)
    turns.copy(branches.copy, **at_once)
    conversations.select(branches.open, session, [*outputs, system], cancels=runs, trigger_mode="always_last", **QUICK)
    conversations.clear(
        lambda kept: (*frame(kept, MessageTree(), asks=False), ""), session, [*outputs, system], cancels=runs, **QUICK
    )

    picked.then(
        Picks(registry, sampling, offer, branches).pick,
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


def make_tools_line(own: OwnTools, registry: ModelRegistry, picker: gr.Dropdown, picked: Dependency) -> None:
    """A line about the functions; it depends on the address by which the page was opened, and on the model."""
    line = gr.HTML("", apply_default_css=False, elem_id="chat-tools")

    def describe(request: gr.Request, name: str) -> str:
        model = registry.loaded(name)
        stay_text = model is not None and can_chat(model) and not model.chats.calls_tools
        return escape(described(own, request, unread=name if stay_text else None))

    gr.on(None, describe, picker, line, **QUICK)  # when the page is loaded
    picked.then(describe, picker, line, **QUICK)


def reads_pictures(model: Model) -> bool:
    """Whether messages to a model may have pictures."""
    return model.manifest.images is not None


def make_composer(*, shows_pictures: bool) -> tuple[gr.HTML, gr.Textbox, gr.Button, gr.Button]:
    """The pictures and the text of the next message, with Send, and Stop in its place while an answer grows."""
    pictures = gr.HTML(
        [],
        html_template=pictures_pane.TEMPLATE,
        js_on_load=pictures_pane.EVENTS,
        apply_default_css=False,
        visible=shows_pictures,
        elem_id="pictures",
    )
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
    return pictures, message, send, stop


def make_settings(registry: ModelRegistry) -> tuple[gr.Textbox, SamplingControls]:
    """What the drawer holds: the system prompt, and the sampling options."""
    gr.HTML(
        "<header><h2>Settings</h2>"
        '<button type="button" class="glyph glyph-close" id="chat-settings-close" aria-label="Close settings"></button></header>',
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
    return system, make_sampling_controls(registry.model(), "answer")


@dataclasses.dataclass(frozen=True, slots=True)
class Answers:
    """Listeners after which the model answers; each yields frames until the answer is complete.

    Their inputs are the request, the session, what the user has permitted, the conversation, the model's name, the system prompt,
    and the values of the sampling controls.
    """

    registry: ModelRegistry
    sampling: SamplingControls
    own: OwnTools | None

    def say(self, request: gr.Request, text: str, pictures: object, *inputs: Any) -> Iterator[Frame]:  # noqa: ANN401 - values of components
        """Send a message after the last one."""

        def change(tree: MessageTree, use: ToolUse | None) -> MessageTree:
            tree = tree if use is None else with_the_rest_refused(tree)
            return tree.add(tree.leaf, user_message(text or "", read_pictures(pictures)))

        if (text and text.strip()) or pictures:
            yield from self.after(request, inputs, change, clears_field=True)

    def suggested(self, request: gr.Request, event: gr.EventData, *inputs: Any) -> Iterator[Frame]:  # noqa: ANN401 - likewise
        """Send a suggestion of the empty conversation."""
        yield from self.after(request, inputs, lambda tree, _: tree.add(tree.leaf, user_message(text_of(event))))

    def edit(self, request: gr.Request, event: gr.EventData, *inputs: Any) -> Iterator[Frame]:  # noqa: ANN401 - likewise
        """Send a message in another version, as another branch."""

        def change(tree: MessageTree, _: ToolUse | None) -> MessageTree:
            node = tree.nodes[place_in(tree, event)]
            return tree.add(node.parent, user_message(text_of(event), node.message.get("images") or ()))

        yield from self.after(request, inputs, change)

    def retry(self, request: gr.Request, event: gr.EventData, *inputs: Any) -> Iterator[Frame]:  # noqa: ANN401 - likewise
        """Write another answer, or the missing one to the last message."""
        yield from self.after(request, inputs, lambda tree, _: tree.before_answer(place_in(tree, event)))

    def proceed(self, request: gr.Request, event: gr.EventData, *inputs: Any) -> Iterator[Frame]:  # noqa: ANN401 - likewise
        """Continue an answer that was cut off, as another version of it."""

        def begin(run: Run) -> Iterator[Progress]:
            beginning = run.tree.nodes[place_in(run.tree, event)].message
            return answered(run.tree, run.chat, run.options, name=run.name, use=run.use, beginning=beginning)

        def change(tree: MessageTree, _: ToolUse | None) -> MessageTree:
            if not tree.can_be_continued(place := place_in(tree, event)):
                raise OptionError("the model has ended this answer, so it cannot be continued; write another one")
            return tree.before_answer(place)

        yield from self.drawn(request, inputs, change, begin)

    def decide(self, request: gr.Request, event: gr.EventData, *inputs: Any) -> Iterator[Frame]:  # noqa: ANN401 - likewise
        """Run or refuse a call of the last answer; the model answers again when all its calls are decided."""

        def begin(run: Run) -> Iterator[Progress]:
            number, decision = decision_in(run.tree, event)
            tree = yield from decided(run.tree, run.chat, opened(run.use), number, decision)
            if is_answerable(tree, run.chat):
                yield from answered(tree, run.chat, run.options, name=run.name, use=run.use)

        def check(tree: MessageTree, use: ToolUse | None) -> MessageTree:
            opened(use)
            return tree

        yield from self.drawn(request, inputs, check, begin)

    def after(self, request: gr.Request, inputs: tuple[Any, ...], change: Change, *, clears_field: bool = False) -> Iterator[Frame]:
        """Change the conversation, then let the model answer its last message; after an error the text so far stays."""

        def begin(run: Run) -> Iterator[Progress]:
            return answered(run.tree, run.chat, run.options, name=run.name, use=run.use)

        yield from self.drawn(request, inputs, change, begin, clears_field=clears_field)

    def drawn(
        self,
        request: gr.Request,
        inputs: tuple[Any, ...],
        change: Change,
        begin: Callable[[Run], Iterator[Progress]],
        *,
        clears_field: bool = False,
    ) -> Iterator[Frame]:
        """Change the conversation, and yield frames of what begins then; after an error the text so far stays."""
        kept, permissions, stored, name, system, *values = inputs
        use = tool_use(self.own, permissions, request)
        before = tree = MessageTree()
        chat, drawing = kept, Drawing(clears_field=clears_field)
        try:
            before = tree = tree_in(stored)
            tree = change(dataclasses.replace(tree, system=checked(system)), use)
            options = self.sampling.read_options(*values)
            chat = session_for(self.registry.model(name), kept, None if use is None else use.functions)
            for progress in begin(Run(tree, chat, options, name, use)):
                tree = progress.tree
                if (latest := drawing.frame_of(chat, progress)) is not None:
                    yield latest
            yield frame(chat, tree, asks=use is not None)
        except OnnxTextgenError as error:
            # What could not be sent stays in the field.
            shown_tree = before if clears_field and not drawing.has_begun else tree.after_error()
            yield frame(chat, shown_tree, asks=use is not None, problem=str(error))
            raise gr.Error(escape(str(error)), print_exception=False) from error


Change = Callable[[MessageTree, "ToolUse | None"], MessageTree]


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """What an answer begins with."""

    tree: MessageTree
    chat: ChatSession
    options: Mapping[str, Any]
    name: str
    """The model's on the page."""
    use: ToolUse | None


def opened(use: ToolUse | None) -> ToolUse:
    """The functions; raises `OptionError` for a page that has none, or was opened without the key."""
    if use is None:
        raise OptionError(
            "no function can run here: start the page with --tools FILE, and open it by the address that the terminal shows"
        )
    return use


@dataclasses.dataclass(frozen=True, slots=True)
class Picks:
    """The listener after another model was picked."""

    registry: ModelRegistry
    sampling: SamplingControls
    offer: TemplateOffer
    branches: Branches

    def pick(self, request: gr.Request, name: str, stored: object) -> tuple[Any, ...]:
        """Values: the model continues the conversation, or an explanation says why it cannot chat."""
        model = self.registry.loaded(name)
        if model is None:  # it could not be loaded; the top of the page says so
            return (gr.skip(),) * (len(self.offer.outputs) + 1 + FRAME_LENGTH + len(self.sampling.inputs))
        has_chat = can_chat(model)
        with shown_errors():
            shown_frame = list(frame(None, tree_in(stored), asks=self.branches.asks(request)))
            shown_frame[FIELD + 1] = gr.update(visible=reads_pictures(model))
        return (*self.offer.updates(name, has_chat), gr.update(visible=has_chat), *shown_frame, *self.sampling.defaults_of(model))
