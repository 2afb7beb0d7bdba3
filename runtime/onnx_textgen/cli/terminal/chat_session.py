"""A session in the terminal, and the commands that change it.

If the model has a chat template, the session is a chat and each entry is a message. If not, each entry is appended to one text.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...answers.records import tool_result
from ...chat.own_functions import MOST_ROUNDS, TOO_MANY_ROUNDS
from ...errors import OptionError, PromptError, did_you_mean
from ...images.in_messages import shown
from ...images.pictures import as_data_url
from . import chat_answer, chat_settings, line_input, screen, tables

if TYPE_CHECKING:
    from ...api.model import Model
    from ...options.keywords import TemplateInputs
    from .own_tools import OwnTools


MOST_SHOWN = 2000
"""Last characters of a loaded session that are shown."""


@dataclasses.dataclass(frozen=True, slots=True)
class Exchange:
    """A question, and the length of the session before it."""

    question: str
    start: int
    """In messages of a chat, or tokens of a text."""
    pictures: tuple[str, ...] = ()
    """Data URLs of the pictures that it is about."""


class Chat:
    """A session with a model. A method that raises leaves the session unchanged."""

    def __init__(
        self,
        model: Model,
        generation: Mapping[str, Any],
        system: str = "",
        variables: Mapping[str, Any] | None = None,
        tools: OwnTools | None = None,
        *,
        open_model: Callable[[str], Model] | None = None,
        shows_stats: bool = True,
    ) -> None:
        """`variables`: further variables of the chat template; `tools`: functions that the model may call.

        open_model: opens another model by its name, for `/model`; shows_stats: write the numbers of each answer below it.
        """
        self.model, self.generation, self.tools = model, dict(generation), tools
        self.open_model, self.shows_stats = open_model, shows_stats
        self.inputs: TemplateInputs = {} if variables is None else {"chat_template_kwargs": variables}
        if tools is not None:
            self.inputs["tools"] = list(tools.tools.values())
        self.thinking = ""
        """Thinking of the last answer."""
        self.session = model.session(**self.inputs)
        self.exchanges: list[Exchange] = []
        self.system, self.last = "", ""
        self.retries = 0
        self.pictures: tuple[str, ...] = ()
        """Data URLs of the pictures for the next question."""
        if system:
            self.set_system(system)

    @property
    def defaults(self) -> dict[str, Any]:
        """Options that nobody gave: small models repeat themselves, and an answer may be as long as the context."""
        return {} if self.model.chat_template is None else {"loop_guard": "stop"}

    @property
    def options(self) -> dict[str, Any]:
        """The options of the next answer."""
        return self.defaults | self.generation

    @property
    def is_chat(self) -> bool:
        """Whether the session consists of messages; a plain text that was loaded stays a plain text."""
        return self.model.chat_template is not None and (bool(self.session.messages) or not len(self.session))

    @property
    def length(self) -> int:
        """Length of the session, in messages of a chat or tokens of a text."""
        return len(self.session.messages) if self.is_chat else len(self.session)

    def ask(self, question: str) -> None:
        """Append a question and write the answer; Ctrl-C keeps the answer so far. An empty question continues a text."""
        if self.is_chat and not question:
            return
        exchange = Exchange(question, self.length, self.pictures)
        try:
            self.append(question)
            before = self.session.token_ids
            answer = self.answer_chat() if self.is_chat else self.answer()
            if answer.finish_reason == screen.CANCELLED and not answer.token_ids:
                raise KeyboardInterrupt  # there is no answer to keep
        except BaseException as error:
            self.rewind(exchange.start)
            if isinstance(error, PromptError) and self.exchanges:
                raise PromptError(f"{error}; /undo and /reset shorten the session") from error
            raise
        self.pictures = ()
        has_shifted = not self.is_chat and self.session.token_ids[: len(before)] != before
        self.exchanges = [] if has_shifted else [*self.exchanges, exchange]  # a shift of the context makes all starts wrong
        self.last = screen.stats_line(answer, is_drawn=self.model.generator.config(self.options).is_drawn)
        if self.shows_stats:
            screen.note_dim(self.last)

    def append(self, question: str) -> None:
        """Append a question to the session; the system prompt comes with the first one, because many templates refuse it alone."""
        if self.is_chat:
            opening = [message("system", self.system)] if self.system and not self.session.messages else []
            self.session.append([*opening, message("user", question, self.pictures)])
        elif question or self.pictures:
            text = f"\n{question}" if len(self.session) else question
            self.session.append(self.model.encode(text, images=self.pictures) if self.pictures else text)

    def answer(self) -> screen.Answer:
        """Stream an answer to stdout, and end its line also after Ctrl-C or an error."""
        before, is_finished = self.session.token_ids, False
        chunks = self.session.stream(on_progress=screen.prefill_progress, **self.options)
        try:
            answer = screen.collect(chunks, screen.writer(sys.stdout))
            is_finished = answer.finish_reason != screen.CANCELLED
            return answer
        finally:
            if is_finished or self.session.token_ids != before:
                screen.write("\n", sys.stdout)

    def answer_chat(self) -> screen.Answer:
        """Answer, run the calls that the answer has, and answer again, until an answer has none."""
        for rounds in range(MOST_ROUNDS + 1):
            before = self.length
            try:
                answer, whole = chat_answer.collect_answer(
                    self.session.stream_chat(on_progress=screen.prefill_progress, **self.options)
                )
            finally:
                if self.length > before and self.session.messages[-1].get("content"):
                    screen.write("\n", sys.stdout)
            self.thinking = "" if whole is None else whole.reasoning
            if whole is None or not whole.tool_calls or self.tools is None:
                return answer
            if rounds == MOST_ROUNDS:
                screen.note(TOO_MANY_ROUNDS)
                return answer
            for call in whole.tool_calls:
                chat_answer.show_call(call)
                result = self.tools.run(call)
                screen.note_dim(f"= {shortened(result)}")
                self.session.append(tool_result(call, result))
        raise AssertionError("the loop returns")

    def show_thinking(self, _: str) -> None:
        """Show what the model thought before its last answer."""
        screen.note_dim(self.thinking or "the model did not think before its last answer")

    def rewind(self, length: int) -> None:
        """Remove everything after the first `length` messages of a chat, or tokens of a text."""
        if self.length <= length:
            return
        if self.session.messages:
            self.session.rewind(messages=length)
        else:
            self.session.rewind(length)

    def last_exchange(self) -> Exchange:
        """The last exchange; raises `PromptError` if there is none."""
        if not self.exchanges:
            why = ", or the beginning of the text was dropped" if len(self.session) else ""
            raise PromptError(f"nothing was asked yet{why}; type a question first")
        return self.exchanges[-1]

    def set_system(self, text: str) -> None:
        """Put a system prompt before all messages, also the earlier ones; an empty `text` removes it."""
        if not self.is_chat:
            raise OptionError(
                f"{self.model.manifest.name} continues a plain text, which has no system prompt; begin the text with it instead"
            )
        turns = [each for each in self.session.messages if each.get("role") != "system"]
        opening = [message("system", text)] if text else []
        # Raises if the template refuses it.
        self.model.encode_chat([*opening, *(turns or [message("user", "Hello")])], **self.inputs)
        if turns:
            had = 1 if self.session.messages[0].get("role") == "system" else 0
            self.session.rewind(messages=0)
            self.session.append([*opening, *turns])
            shift = len(opening) - had
            self.exchanges = [dataclasses.replace(each, start=each.start + shift if each.start else 0) for each in self.exchanges]
        self.system = text
        screen.note("system prompt set" if text else "no system prompt")

    def retry(self, _: str) -> None:
        """Ask the last question again; if that fails, the earlier answer stays."""
        last = self.last_exchange()
        if self.model.generator.config(self.options).temperature == 0:
            raise OptionError("the answer would be the same: temperature 0 always takes the most likely token")
        kept, exchanges, seed = self.session, list(self.exchanges), self.generation.get("seed")
        self.session = kept.fork()
        self.retries += 1
        try:
            if seed is not None:  # without a seed each answer draws a new one
                self.generation["seed"] = seed + self.retries
            self.exchanges.pop()
            self.rewind(last.start)
            self.pictures = last.pictures
            self.ask(last.question)
        except BaseException:
            self.session, self.exchanges = kept, exchanges
            raise
        finally:
            self.generation["seed"] = seed

    def add_picture(self, file: str) -> None:
        """Read a picture, which the next question is about."""
        if self.model.manifest.images is None:
            raise OptionError(f"{self.model.manifest.name} reads text alone; /model NAME takes another one")
        picture = as_data_url(file_name(file, "/image").strip("\"'"), fetches=True)  # its user names it, and nobody else
        self.model.encode("", images=[picture])  # raises for a file that is no picture
        self.pictures = (*self.pictures, picture)
        count = len(self.pictures)
        screen.note(f"{'a picture' if count == 1 else f'{count} pictures'} for the next question")

    def undo(self, _: str) -> None:
        """Remove the last question and its answer."""
        last = self.last_exchange()
        self.rewind(last.start)
        self.exchanges.pop()
        screen.note(f"undone: {screen.quoted(shortened(last.question))}")

    def save(self, file: str) -> None:
        """Save the session in a file."""
        if not self.length:
            raise PromptError("the session is empty; type a question first")
        self.session.save(file_name(file, "/save"))
        screen.note(f"saved {file}; continue it with /load {file}")

    def load(self, file: str) -> None:
        """Load a saved session to continue it, and show its end on stderr."""
        self.session = self.model.load_session(file_name(file, "/load"), **self.inputs)
        messages = self.session.messages
        self.system = next((str(each.get("content")) for each in messages[:1] if each.get("role") == "system"), "")
        # The saved file of a plain text does not say where its questions begin, so they cannot be undone.
        asked = [number for number, each in enumerate(messages) if each.get("role") == "user"]
        self.exchanges = [Exchange(shown(messages[at].get("content")), at if number else 0) for number, at in enumerate(asked)]
        found = f"{len(messages)} messages" if messages else "a text"
        screen.note(f"loaded {file}: {found}, {len(self.session):,} tokens")
        text = self.transcript()
        screen.write(f"{text if len(text) <= MOST_SHOWN else f'... {text[-MOST_SHOWN:]}'}\n", sys.stderr)

    def transcript(self) -> str:
        """The session as the screen shows it: questions after `> `, then answers; or the plain text."""
        if not self.session.messages:
            return self.session.text
        turns = [each for each in self.session.messages if each.get("role") != "system" and each.get("content")]
        return "\n".join(f"{'> ' if each.get('role') == 'user' else ''}{shown(each.get('content'))}" for each in turns)

    def set_adapter(self, name: str) -> None:
        """Answer with one of the package's LoRA adapters from now on, or with none for an empty `name`."""
        self.model.generator.for_adapter(name or None)  # raises for an unknown one, and opens it now, not at the next question
        self.generation["adapter"] = name or None
        others = ", ".join(each for each in self.model.manifest.adapters if each != name)
        screen.note((f"adapter {name}" if name else "no adapter") + (f"; there are also: {others}" if others else ""))

    def change_model(self, name: str) -> None:
        """Talk with another model: the session begins again, with the same options and system prompt."""
        if not name or self.open_model is None:
            screen.note(f"this is {self.model.manifest.name}; /model NAME takes another one of: onnx-textgen list")
            return
        opened = self.open_model(name)
        generation = {name: value for name, value in self.generation.items() if name != "adapter"}
        try:
            system = "" if opened.chat_template is None else self.system
            variables = self.inputs.get("chat_template_kwargs")
            other = Chat(
                opened, generation, system, variables, self.tools, open_model=self.open_model, shows_stats=self.shows_stats
            )
            opened.generator.config(other.options)
        except BaseException:
            opened.close()
            raise
        self.model.close()
        vars(self).update(vars(other))
        screen.note(f"this is {opened.manifest.name} now; the session begins again")

    def set_option(self, text: str) -> None:
        """Change an option of the answers to come, or show them; ollama's spellings of it work too."""
        name, _, value = text.removeprefix("parameter ").partition(" ")
        if not name:
            show_lines(chat_settings.values_of(self.model.generator.config(self.options), self.options))
        elif name in ("verbose", "quiet"):
            self.show_stats("on" if name == "verbose" else "off")
        elif name in ("system", "adapter"):
            (self.set_system if name == "system" else self.set_adapter)(value.strip())
        else:
            option = chat_settings.name_of(name)
            generation = chat_settings.changed(self.generation, option, value.strip())
            config = self.model.generator.config(self.defaults | generation)  # raises for a wrong value
            self.generation = generation
            screen.note(f"{option} {dict(chat_settings.values_of(config, [option]))[option]}")

    def show_stats(self, wanted: str) -> None:
        """Show how full the context is, and the numbers of the last answer; or choose whether each answer has such a line."""
        if wanted in ("on", "off"):
            self.shows_stats = wanted == "on"
            screen.note(f"numbers below each answer: {wanted}")
            return
        tokens, most = len(self.session), self.model.manifest.geometry.context_length
        facts = {
            "model": f"{self.model.manifest.name} on {self.model.device}",
            "context": f"{tokens:,} of {most:,} tokens, {screen.size(self.model.memory(tokens).total_bytes)} of keys and values",
            "exchanges": str(len(self.exchanges)),
            "system prompt": screen.quoted(shortened(self.system)) if self.system else "none",
            **({"adapter": self.generation.get("adapter") or "none"} if self.model.manifest.adapters else {}),
        }
        first, *others = (self.last or "none").split(" | ")
        show_lines([*facts.items(), ("last answer", first), *(("", each) for each in others)])

    def reset(self, _: str) -> None:
        """Start over; the system prompt stays."""
        self.rewind(0)
        self.exchanges.clear()
        screen.note("session cleared")

    def show_help(self, _: str) -> None:
        """List the commands."""
        lines = [(f"{name} {command.metavar}", command.help) for name, command in COMMANDS.items()]
        show_lines([*lines, (line_input.QUOTES, "begins and ends several lines; \\ at a line's end continues it")])

    def quit(self, _: str) -> None:
        """End the session, as the end of the input does."""
        raise EOFError


@dataclasses.dataclass(frozen=True, slots=True)
class Command:
    """Command of a line that begins with a slash."""

    run: Callable[[Chat, str], None]
    metavar: str
    help: str


COMMANDS: Mapping[str, Command] = {
    "/system": Command(Chat.set_system, "TEXT", "set the system prompt; without TEXT remove it"),
    "/image": Command(Chat.add_picture, "FILE", "ask about a picture: the next question has it"),
    "/retry": Command(Chat.retry, "", "answer again, with another seed"),
    "/undo": Command(Chat.undo, "", "remove the last question and its answer"),
    "/save": Command(Chat.save, "FILE", "save the session in a file"),
    "/load": Command(Chat.load, "FILE", "continue a saved session"),
    "/set": Command(
        Chat.set_option, "NAME VALUE", "change an option, like temperature 0.2; without VALUE to its default; alone: show"
    ),
    "/model": Command(Chat.change_model, "NAME", "talk with another model; the session begins again"),
    "/adapter": Command(Chat.set_adapter, "NAME", "answer with an adapter of the package; without NAME with none"),
    "/thinking": Command(Chat.show_thinking, "", "show what the model thought before its last answer"),
    "/stats": Command(Chat.show_stats, "on|off", "show or hide the numbers of answers; alone: also how full the context is"),
    "/reset": Command(Chat.reset, "", "start over; the system prompt stays"),
    "/help": Command(Chat.show_help, "", "show this"),
    "/bye": Command(Chat.quit, "", "end, as /quit, exit, Ctrl-D and two Ctrl-C do"),
}
ALIASES = {"/quit": "/bye", "/exit": "/bye", "/clear": "/reset", "/?": "/help"}
"""What other programs call the same."""
LEAVING = ("exit", "quit")
"""Words of a person that end the session; from a pipe they are questions."""


def run_entry(chat: Chat, entry: line_input.Entry) -> None:
    """Run an entry as a command, or ask it as a question."""
    name, _, argument = entry.text.partition(" ")
    if entry.text.lower() in LEAVING and not entry.is_literal and line_input.is_interactive():
        chat.quit("")
    elif entry.is_literal or not name.startswith("/"):
        chat.ask(entry.text)
    elif command := COMMANDS.get(ALIASES.get(name, name)):
        command.run(chat, argument.strip())
    else:
        raise OptionError(f"there is no command {name:.60}; {did_you_mean(name, COMMANDS)}/help lists the commands")


def show_lines(lines: Sequence[tuple[str, str]]) -> None:
    """Write names and values on stderr."""
    screen.begin_line()
    tables.print_lines(lines, stderr=True)


def message(role: str, content: str, pictures: Sequence[str] = ()) -> dict[str, Any]:
    """One turn of a chat."""
    parts = [*({"type": "image", "image": each} for each in pictures), {"type": "text", "text": content}]
    return {"role": role, "content": parts if pictures else content}


def file_name(argument: str, command: str) -> str:
    """The file argument of a command; raises `OptionError` if it is missing."""
    if not argument:
        raise OptionError(f"{command} needs a file, like {command} talk.session")
    return argument


def shortened(text: str) -> str:
    """The beginning of a text, at most 60 characters."""
    return text if len(text) <= 60 else f"{text[:57]}..."
