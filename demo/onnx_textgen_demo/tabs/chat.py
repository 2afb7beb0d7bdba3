"""The tab Chat: one conversation per browser tab. Keys and values of a turn stay in the cache for the next one.

The page always shows the messages of the session. Undo and edit rewind the session to before a turn.
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
from ..models import ModelRegistry
from ..sampling_controls import SamplingControls, make_sampling_controls

if TYPE_CHECKING:
    from gradio.events import Dependency

    from onnx_textgen import Model

FRAME_SECONDS = 0.08
NO_TEMPLATE = """
## {name} cannot chat

It has no chat template: it continues a text, and was not trained to answer. Use the tab **Write** for it.

To chat, fetch a chat model, which takes some minutes, and open this page with it. The first command downloads PyTorch, which only
the export needs, the second the model (92 MB). With PyTorch, *Fetch a model* at the top of the page does the same.

```sh
pip install "onnx-textgen[export]"
onnx-textgen pull smollm2
onnx-textgen demo smollm2
```
"""


@dataclasses.dataclass(slots=True)
class ChatState:
    """A session, and the cancellation of its running answer."""

    session: Conversation
    cancel: Cancellation = dataclasses.field(default_factory=Cancellation)


Frame = tuple[Any, ...]
"""Values for the components, in this order: state, chatbot, message, note, Send, Stop, New chat."""


def make_tab(registry: ModelRegistry, picker: gr.Dropdown, picked: Dependency) -> None:
    """Add the tab's components in the current Gradio context, and their listeners."""
    first = registry.model()
    state = gr.State()
    missing = gr.Markdown(missing_template(registry.names[0]), visible=first.chat_template is None, elem_id="no-chat")
    with gr.Column(visible=first.chat_template is not None) as column, gr.Row():
        with gr.Column(scale=3, min_width=320):
            chatbot, note, message = make_conversation()
            send, stop, clear = make_buttons()
        with gr.Column(scale=2, min_width=320):
            system = gr.Textbox(
                label="System prompt",
                info="Instructions for the model, read when the chat begins.",
                lines=2,
                max_lines=8,
                max_length=MAX_PROMPT_CHARS,
                elem_id="system",
            )
            with gr.Accordion("Sampling", open=False, elem_id="chat-sampling"):
                sampling = make_sampling_controls(first)
    shown = [state, chatbot, message, note, send, stop, clear]
    running = {"outputs": shown, **RUNNING}

    answers = Answers(registry, sampling)
    runs = [
        gr.on([send.click, message.submit], answers.say, [state, picker, system, message, *sampling.inputs], **running),
        chatbot.retry(answers.retry, [state, *sampling.inputs], **running),
        chatbot.edit(answers.edit, [state, *sampling.inputs], **running),
    ]
    # Stop does not use `cancels`: the answer then ends by itself, keeps its text in the session, and draws its last frame.
    stop.click(lambda chat: chat.cancel.cancel() if chat else None, state, None, **QUICK)
    chatbot.undo(undo, state, shown, cancels=runs, **QUICK)
    clear.click(lambda: frame(None), None, shown, cancels=runs, **QUICK)

    picked.then(
        lambda name: pick(name, registry.loaded(name), sampling),
        picker,
        [missing, column, *shown, *sampling.inputs],
        cancels=runs,
        **QUICK,
    )


def make_conversation() -> tuple[gr.Chatbot, gr.HTML, gr.Textbox]:
    """The messages, the status line, and the field for the next message."""
    chatbot = gr.Chatbot(
        label="Chat",
        show_label=False,  # it would cover the messages
        height="min(28rem, 50vh)",
        editable="user",
        sanitize_html=True,
        render_markdown=False,
        buttons=["copy"],  # the default has another one, which shares the chat elsewhere
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
    return chatbot, note, message


def make_buttons() -> tuple[gr.Button, gr.Button, gr.Button]:
    """A row of buttons: Send, Stop and New chat."""
    with gr.Row():
        send = gr.Button("Send", variant="primary", scale=2, min_width=100, elem_id="send")
        stop = gr.Button("Stop", scale=1, min_width=70, interactive=False, elem_id="chat-stop")
        clear = gr.Button("New chat", scale=1, min_width=110, interactive=False, elem_id="new-chat")
    return send, stop, clear


@dataclasses.dataclass(frozen=True, slots=True)
class Answers:
    """Listeners that send, retry and edit; each yields frames until the answer is complete.

    `values` are the values of the sampling controls.
    """

    registry: ModelRegistry
    sampling: SamplingControls

    def answer(self, chat: ChatState | None, values: tuple[Any, ...]) -> Iterator[Frame]:
        """Let the model answer; after an error the text so far stays."""
        if chat is None:
            return
        try:
            yield from stream_answer(chat, self.sampling.read_options(*values))
        except OnnxTextgenError as error:
            yield frame(chat, problem=str(error))
            raise gr.Error(escape(str(error)), print_exception=False) from error

    def say(self, chat: ChatState | None, name: str, system_prompt: str, text: str, *values: Any) -> Iterator[Frame]:  # noqa: ANN401
        """Send a message."""
        try:
            if not text or not text.strip():
                return
            chat = chat or begin(self.registry.model(name), checked(system_prompt))
            chat.session.append({"role": "user", "content": checked(text)})
        except OnnxTextgenError as error:
            yield frame(chat, problem=str(error))
            raise gr.Error(escape(str(error)), print_exception=False) from error
        yield frame(chat, answer="", message="")
        yield from self.answer(chat, values)

    def retry(self, chat: ChatState | None, event: gr.RetryData, *values: Any) -> Iterator[Frame]:  # noqa: ANN401
        """Answer the same message again."""
        if chat:
            chat.session.rewind(messages=place_of_turn(chat, event.index) + 1)
        yield from self.answer(chat, values)

    def edit(self, chat: ChatState | None, event: gr.EditData, *values: Any) -> Iterator[Frame]:  # noqa: ANN401
        """Replace a message; the messages after it are dropped."""
        if chat:
            try:
                text = checked(unescape(str(event.value)))
                chat.session.rewind(messages=place_of_turn(chat, event.index))
                chat.session.append({"role": "user", "content": text})
            except OnnxTextgenError as error:
                yield frame(chat, problem=str(error))
                raise gr.Error(escape(str(error)), print_exception=False) from error
        yield from self.answer(chat, values)


def pick(name: str, model: Model | None, sampling: SamplingControls) -> tuple[Any, ...]:
    """Values after another model was picked: a new chat, or the explanation why it cannot chat, and the package's defaults."""
    if model is None:  # it could not be loaded; the top of the page says so
        return (gr.skip(),) * (2 + len(frame(None)) + len(sampling.inputs))
    has_chat = model.chat_template is not None
    missing = gr.update(value=missing_template(name), visible=not has_chat)
    return (missing, gr.update(visible=has_chat), *frame(None), *sampling.defaults_of(model))


def missing_template(name: str) -> str:
    """The explanation why the model of that name cannot chat."""
    return NO_TEMPLATE.format(name=escape(name))


def begin(model: Model, system_prompt: str) -> ChatState:
    """An empty chat, or one that begins with a system prompt."""
    chat = ChatState(model.session())
    if system_prompt.strip():
        chat.session.append({"role": "system", "content": system_prompt})
    return chat


def stream_answer(chat: ChatState, options: Mapping[str, Any]) -> Iterator[Frame]:
    """Yield frames with the growing answer."""
    text, shown, last = "", 0.0, None
    chat.cancel = Cancellation()
    yield frame(chat, answer=text, note=view.status_of_turn(None, doing="reading ..."))
    with contextlib.closing(chat.session.stream(cancel=chat.cancel, **options)) as chunks:
        for chunk in chunks:
            text, last = text + chunk.text, chunk
            if time.perf_counter() - shown >= FRAME_SECONDS:
                yield frame(chat, answer=text, note=view.status_of_turn(None, doing="writing ..."))
                shown = time.perf_counter()
    yield frame(chat, note=view.status_of_turn(last))


def frame(
    chat: ChatState | None, *, answer: str | None = None, note: str = "", message: str | None = None, problem: str | None = None
) -> Frame:
    """Values for all components. `answer`: the text so far of a running answer.

    Without a `message` the field keeps its text.
    """
    turns = [(each["role"], each["content"]) for each in visible_turns(chat)]
    is_answering = answer is not None
    if answer is not None:
        turns.append(("assistant", answer))
    # The chatbot would interpret tags in a text, and fetch pictures from any address that the model writes.
    messages = [{"role": role, "content": escape(text, quote=False)} for role, text in turns]
    return (
        chat,
        messages,
        gr.skip() if message is None else message,
        view.status_of_turn(None, problem=problem) if problem else note,
        gr.update(interactive=not is_answering),
        gr.update(interactive=is_answering),
        gr.update(interactive=bool(turns)),
    )


def visible_turns(chat: ChatState | None) -> list[Mapping[str, Any]]:
    """The session's messages without the system prompt, which the chatbot does not count."""
    return [each for each in chat.session.messages if each["role"] != "system"] if chat else []


def place_of_turn(chat: ChatState, index: int | tuple[int, int]) -> int:
    """Index in the session of the user's turn at the chatbot's `index`, or of the last one before it."""
    turns = visible_turns(chat)
    place = min(index if isinstance(index, int) else index[0], len(turns) - 1)
    while place > 0 and turns[place]["role"] != "user":
        place -= 1
    return max(0, place) + len(chat.session.messages) - len(turns)


def undo(chat: ChatState | None, event: gr.UndoData) -> Frame:
    """Remove a turn with its answer, and put its text into the field again."""
    if chat is None or not visible_turns(chat):
        return frame(chat)
    place = place_of_turn(chat, event.index)
    text = chat.session.messages[place]["content"]
    chat.session.rewind(messages=place)
    return frame(chat, message=text)
