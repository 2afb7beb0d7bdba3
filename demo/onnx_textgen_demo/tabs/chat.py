"""The tab Chat: a conversation, one for each person and tab of a browser; keys and values of what a turn read stay for the next.

What is shown is always what the session holds; a turn is taken back or changed by rewinding the session to before it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator, Mapping
from html import escape, unescape
from typing import TYPE_CHECKING, Any

import gradio as gr

from onnx_textgen import Cancellation
from onnx_textgen.api.conversation import Conversation
from onnx_textgen.errors import OnnxTextgenError

from .. import view
from ..limits import MAX_PROMPT_CHARS, QUICK, RUNNING, checked
from ..sampling_controls import SamplingControls, make_sampling_controls
from ..shelf import Shelf

if TYPE_CHECKING:
    from gradio.events import Dependency

    from onnx_textgen import Model

FRAME_SECONDS = 0.08
NO_TEMPLATE = """
## {name} cannot chat

It has no chat template: it goes on with a text, and was not trained to answer. **Write** is the tab for it.

To get a model that chats, export one that was trained to, and open this page with it. The first command fetches PyTorch, the second
the model, 270 MB.

```sh
pip install "onnx-textgen[export]"
onnx-textgen export HuggingFaceTB/SmolLM2-135M-Instruct --out smollm --precision int8
onnx-textgen demo smollm
```
"""


@dataclasses.dataclass(slots=True)
class Talk:
    """A session, and what ends the answer that is being written."""

    session: Conversation
    cancel: Cancellation = dataclasses.field(default_factory=Cancellation)


Frame = tuple[Any, ...]
"""Values for the components, in this order: session, chatbot, message, note, Send, Stop, New chat."""


def make_tab(shelf: Shelf, picker: gr.Dropdown, picked: Dependency) -> None:
    """Put the tab's components where Gradio stands, and let them answer."""
    first = shelf.model()
    session = gr.State()
    missing = gr.Markdown(missing_template(shelf.names[0]), visible=first.chat_template is None, elem_id="no-chat")
    with gr.Column(visible=first.chat_template is not None) as column, gr.Row():
        with gr.Column(scale=3, min_width=320):
            chatbot = gr.Chatbot(
                label="Chat",
                show_label=False,  # it would lie over what is said
                height="min(28rem, 50vh)",
                editable="user",
                sanitize_html=True,
                render_markdown=False,
                buttons=["copy"],  # by default one more, which shares the chat elsewhere
                elem_id="chatbot",
            )
            note = gr.HTML("", apply_default_css=False, elem_id="chat-note")
            message = gr.Textbox(
                label="Message",
                placeholder="Enter sends",
                max_lines=8,
                max_length=MAX_PROMPT_CHARS,
                elem_id="message",
                submit_btn=False,
            )
            with gr.Row():
                send = gr.Button("Send", variant="primary", scale=2, min_width=100, elem_id="send")
                stop = gr.Button("Stop", scale=1, min_width=70, interactive=False, elem_id="chat-stop")
                clear = gr.Button("New chat", scale=1, min_width=110, interactive=False, elem_id="new-chat")
        with gr.Column(scale=2, min_width=320):
            system = gr.Textbox(
                label="System prompt",
                info="What the model is told before the chat; read when it begins.",
                lines=2,
                max_lines=8,
                max_length=MAX_PROMPT_CHARS,
                elem_id="system",
            )
            with gr.Accordion("Sampling", open=False, elem_id="chat-sampling"):
                sampling = make_sampling_controls(first)
    shown = [session, chatbot, message, note, send, stop, clear]
    running = {"outputs": shown, **RUNNING}

    answers = Answers(shelf, sampling)
    runs = [
        gr.on([send.click, message.submit], answers.say, [session, picker, system, message, *sampling.inputs], **running),
        chatbot.retry(answers.retry, [session, *sampling.inputs], **running),
        chatbot.edit(answers.edit, [session, *sampling.inputs], **running),
    ]
    # Not by `cancels`: so the answer ends by itself, with what there is in the session, and draws its last frame.
    stop.click(lambda talk: talk.cancel.cancel() if talk else None, session, None, **QUICK)
    chatbot.undo(undo, session, shown, cancels=runs, **QUICK)
    clear.click(lambda: frame(None), None, shown, cancels=runs, **QUICK)

    picked.then(
        lambda name: pick(name, shelf.loaded(name), sampling),
        picker,
        [missing, column, *shown, *sampling.inputs],
        cancels=runs,
        **QUICK,
    )


@dataclasses.dataclass(frozen=True, slots=True)
class Answers:
    """What sends, retries and edits; each gives frames until the model's answer is there.

    `values` are what the sampling controls hold.
    """

    shelf: Shelf
    sampling: SamplingControls

    def answer(self, talk: Talk | None, values: tuple[Any, ...]) -> Iterator[Frame]:
        """Let the model answer; an error leaves what there is."""
        if talk is None:
            return
        try:
            yield from follow(talk, self.sampling.read_options(*values))
        except OnnxTextgenError as error:
            yield frame(talk, problem=str(error))
            raise gr.Error(escape(str(error)), print_exception=False) from error

    def say(self, talk: Talk | None, name: str, told: str, text: str, *values: Any) -> Iterator[Frame]:  # noqa: ANN401
        """Send a message."""
        try:
            if not text or not text.strip():
                return
            talk = talk or begin(self.shelf.model(name), checked(told))
            talk.session.append({"role": "user", "content": checked(text)})
        except OnnxTextgenError as error:
            yield frame(talk, problem=str(error))
            raise gr.Error(escape(str(error)), print_exception=False) from error
        yield frame(talk, answer="", message="")
        yield from self.answer(talk, values)

    def retry(self, talk: Talk | None, event: gr.RetryData, *values: Any) -> Iterator[Frame]:  # noqa: ANN401
        """Another answer to the same message."""
        if talk:
            talk.session.rewind(messages=place_of_turn(talk, event.index) + 1)
        yield from self.answer(talk, values)

    def edit(self, talk: Talk | None, event: gr.EditData, *values: Any) -> Iterator[Frame]:  # noqa: ANN401
        """Another message in place of one; what followed it is forgotten."""
        if talk:
            try:
                text = checked(unescape(str(event.value)))
                talk.session.rewind(messages=place_of_turn(talk, event.index))
                talk.session.append({"role": "user", "content": text})
            except OnnxTextgenError as error:
                yield frame(talk, problem=str(error))
                raise gr.Error(escape(str(error)), print_exception=False) from error
        yield from self.answer(talk, values)


def pick(name: str, model: Model | None, sampling: SamplingControls) -> tuple[Any, ...]:
    """What another model changes: whether there is a chat, a new one, and the package's own options."""
    if model is None:  # it could not be loaded, which the top of the page tells
        return (gr.skip(),) * (2 + len(frame(None)) + len(sampling.inputs))
    has_chat = model.chat_template is not None
    missing = gr.update(value=missing_template(name), visible=not has_chat)
    return (missing, gr.update(visible=has_chat), *frame(None), *sampling.defaults_of(model))


def missing_template(name: str) -> str:
    """Why there is no chat with the model of that name."""
    return NO_TEMPLATE.format(name=escape(name))


def begin(model: Model, told: str) -> Talk:
    """An empty chat, or one that begins with a system prompt."""
    talk = Talk(model.session())
    if told.strip():
        talk.session.append({"role": "system", "content": told})
    return talk


def follow(talk: Talk, options: Mapping[str, Any]) -> Iterator[Frame]:
    """The model's answer as it grows."""
    text, shown, last = "", 0.0, None
    talk.cancel = Cancellation()
    yield frame(talk, answer=text, note=view.status_of_turn(None, doing="reading ..."))
    with contextlib.closing(talk.session.stream(cancel=talk.cancel, **options)) as chunks:
        for chunk in chunks:
            text, last = text + chunk.text, chunk
            if time.perf_counter() - shown >= FRAME_SECONDS:
                yield frame(talk, answer=text, note=view.status_of_turn(None, doing="writing ..."))
                shown = time.perf_counter()
    yield frame(talk, note=view.status_of_turn(last))


def frame(
    talk: Talk | None, *, answer: str | None = None, note: str = "", message: str | None = None, problem: str | None = None
) -> Frame:
    """The tab as it stands; `answer`: what has come of one that is being written.

    Without a `message` the field keeps what is typed in it.
    """
    turns = [(each["role"], each["content"]) for each in visible_turns(talk)]
    is_answering = answer is not None
    if answer is not None:
        turns.append(("assistant", answer))
    # The chatbot would read tags in a text, and fetch a picture from wherever the model says.
    messages = [{"role": role, "content": escape(text, quote=False)} for role, text in turns]
    return (
        talk,
        messages,
        gr.skip() if message is None else message,
        view.status_of_turn(None, problem=problem) if problem else note,
        gr.update(interactive=not is_answering),
        gr.update(interactive=is_answering),
        gr.update(interactive=bool(turns)),
    )


def visible_turns(talk: Talk | None) -> list[Mapping[str, Any]]:
    """The session's messages without the system prompt, as the chatbot counts them."""
    return [each for each in talk.session.messages if each["role"] != "system"] if talk else []


def place_of_turn(talk: Talk, index: int | tuple[int, int]) -> int:
    """Where in the session the user's turn is that the chatbot counts as `index`, or the one before that place."""
    turns = visible_turns(talk)
    place = min(index if isinstance(index, int) else index[0], len(turns) - 1)
    while place > 0 and turns[place]["role"] != "user":
        place -= 1
    return max(0, place) + len(talk.session.messages) - len(turns)


def undo(talk: Talk | None, event: gr.UndoData) -> Frame:
    """Take back a turn with its answer; its text is in the field again."""
    if talk is None or not visible_turns(talk):
        return frame(talk)
    place = place_of_turn(talk, event.index)
    text = talk.session.messages[place]["content"]
    talk.session.rewind(messages=place)
    return frame(talk, message=text)
