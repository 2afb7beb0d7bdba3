"""A conversation in the terminal: a session of the model, and the commands that change it.

Where the model has a chat template the session is a chat, and each entry a message; where it has none, one text that grows.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ...errors import OptionError, PromptError
from . import line_input, screen

if TYPE_CHECKING:
    from ...api.model import Model


MOST_SHOWN = 2000
"""Characters of a conversation that is loaded, the last of them."""


@dataclasses.dataclass(frozen=True, slots=True)
class Exchange:
    """What was asked, and where the session stood before: so many messages of a chat, so many tokens of a text."""

    question: str
    mark: int


class Chat:
    """One conversation with a model. Whatever raises leaves it as it was."""

    def __init__(self, model: Model, generation: Mapping[str, Any], system: str = "") -> None:
        self.model, self.generation = model, dict(generation)
        self.session = model.session()
        self.exchanges: list[Exchange] = []
        self.system, self.last = "", ""
        self.retries = 0
        if system:
            self.set_system(system)

    @property
    def is_chat(self) -> bool:
        """Whether the session is one of messages; a plain text that was loaded goes on as one."""
        return self.model.chat_template is not None and (bool(self.session.messages) or not len(self.session))

    @property
    def mark(self) -> int:
        """Where the session stands."""
        return len(self.session.messages) if self.is_chat else len(self.session)

    def ask(self, question: str) -> None:
        """Append a question and write the answer; what came before Ctrl-C stays. An empty one lets a text go on."""
        if self.is_chat and not question:
            return
        exchange = Exchange(question, self.mark)
        try:
            self.append(question)
            before = self.session.token_ids
            answer = self.answer()
            if answer.finish_reason == screen.CANCELLED and not answer.token_ids:
                raise KeyboardInterrupt  # before anything was said that could be kept
        except BaseException as error:
            self.go_back(exchange.mark)
            if isinstance(error, PromptError) and self.exchanges:
                raise PromptError(f"{error}; /undo and /reset make room") from error
            raise
        is_whole = self.is_chat or self.session.token_ids[: len(before)] == before
        self.exchanges = [*self.exchanges, exchange] if is_whole else []  # else the context shifted: nothing is where it was
        self.last = screen.stats_line(answer, is_drawn=self.model.config(self.generation).is_drawn)
        screen.remark(self.last)

    def append(self, question: str) -> None:
        """Go on with a question; the system prompt goes with the first one, as many templates refuse it alone."""
        if self.is_chat:
            opening = [message("system", self.system)] if self.system and not self.session.messages else []
            self.session.append([*opening, message("user", question)])
        elif question:
            self.session.append(f"\n{question}" if len(self.session) else question)

    def answer(self) -> screen.Answer:
        """Stream an answer, and end its line whatever ends it."""
        before, is_finished = self.session.token_ids, False
        chunks = self.session.stream(on_progress=screen.prefill_progress, **self.generation)
        try:
            answer = screen.collect(chunks, screen.writer(sys.stdout))
            is_finished = answer.finish_reason != screen.CANCELLED
            return answer
        finally:
            if is_finished or self.session.token_ids != before:
                screen.write("\n", sys.stdout)

    def go_back(self, mark: int) -> None:
        """Forget what came after a mark."""
        if self.mark <= mark:
            return
        if self.session.messages:
            self.session.rewind(messages=mark)
        else:
            self.session.rewind(mark)

    def last_exchange(self) -> Exchange:
        """The last one; raises `PromptError` where there is none to go back to."""
        if not self.exchanges:
            why = ", or its beginning was forgotten" if len(self.session) else ""
            raise PromptError(f"nothing was asked yet{why}; type a question first")
        return self.exchanges[-1]

    def set_system(self, text: str) -> None:
        """Put `text` before all messages, also those that were said; without it there is no system prompt."""
        if not self.is_chat:
            raise OptionError(
                f"{self.model.manifest.name} goes on with a plain text, which has no system prompt; begin it with one"
            )
        said = [each for each in self.session.messages if each.get("role") != "system"]
        opening = [message("system", text)] if text else []
        self.model.encode_chat([*opening, *(said or [message("user", "Hello")])])  # raises where the template refuses it
        if said:
            had = 1 if self.session.messages[0].get("role") == "system" else 0
            self.session.rewind(messages=0)
            self.session.append([*opening, *said])
            shift = len(opening) - had
            self.exchanges = [dataclasses.replace(each, mark=each.mark + shift if each.mark else 0) for each in self.exchanges]
        self.system = text
        screen.note("system prompt set" if text else "no system prompt")

    def retry(self, _: str) -> None:
        """Ask the last question again; the answer it had comes back where the new one fails."""
        last = self.last_exchange()
        if self.model.config(self.generation).temperature == 0:
            raise OptionError("the answer would be the same: temperature 0 always takes the likeliest token")
        kept, exchanges, seed = self.session, list(self.exchanges), self.generation.get("seed")
        self.session = kept.fork()
        self.retries += 1
        try:
            if seed is not None:  # else each answer draws one of its own
                self.generation["seed"] = seed + self.retries
            self.exchanges.pop()
            self.go_back(last.mark)
            self.ask(last.question)
        except BaseException:
            self.session, self.exchanges = kept, exchanges
            raise
        finally:
            self.generation["seed"] = seed

    def undo(self, _: str) -> None:
        """Take the last question and its answer back."""
        last = self.last_exchange()
        self.go_back(last.mark)
        self.exchanges.pop()
        screen.note(f"taken back: {screen.quoted(shortened(last.question))}")

    def save(self, file: str) -> None:
        """Keep the session in a file."""
        if not self.mark:
            raise PromptError("nothing was said yet; type a question first")
        self.session.save(file_name(file, "/save"))
        screen.note(f"saved {file}; go on with it by /load {file}")

    def load(self, file: str) -> None:
        """Go on with a session that was kept."""
        self.session = self.model.load_session(file_name(file, "/load"))
        messages = self.session.messages
        self.system = next((str(each.get("content")) for each in messages[:1] if each.get("role") == "system"), "")
        # Of a plain text nothing tells where its lines began.
        asked = [number for number, each in enumerate(messages) if each.get("role") == "user"]
        self.exchanges = [Exchange(str(messages[at].get("content")), at if number else 0) for number, at in enumerate(asked)]
        held = f"{len(messages)} messages" if messages else "a text"
        screen.note(f"loaded {file}: {held}, {len(self.session):,} tokens")
        said = self.said()
        screen.write(f"{said if len(said) <= MOST_SHOWN else f'... {said[-MOST_SHOWN:]}'}\n", sys.stderr)

    def said(self) -> str:
        """The conversation as it stood on the screen: questions behind a mark, then answers; or the one text."""
        if not self.session.messages:
            return self.session.text
        said = [each for each in self.session.messages if each.get("role") != "system"]
        return "\n".join(f"{'> ' if each.get('role') == 'user' else ''}{each.get('content')}" for each in said)

    def show_stats(self, _: str) -> None:
        """How much was said, and what there is room for."""
        tokens, most = len(self.session), self.model.manifest.geometry.context_length
        facts = {
            "model": f"{self.model.manifest.name} on {self.model.device}",
            "context": f"{tokens:,} of {most:,} tokens, {screen.size(self.model.memory(tokens).total_bytes)} of keys and values",
            "exchanges": str(len(self.exchanges)),
            "system prompt": screen.quoted(shortened(self.system)) if self.system else "none",
        }
        first, *others = (self.last or "none").split(" | ")
        for name, value in [*facts.items(), ("last answer", first), *(("", each) for each in others)]:
            screen.note(f"  {name:13}  {value}")

    def reset(self, _: str) -> None:
        """Start over; the system prompt stays."""
        self.go_back(0)
        self.exchanges.clear()
        screen.note("forgotten")

    def show_help(self, _: str) -> None:
        """Name the commands."""
        width = max(len(f"{name} {command.metavar}") for name, command in COMMANDS.items())
        for name, command in COMMANDS.items():
            screen.note(f"  {f'{name} {command.metavar}':{width}}  {command.help}")
        screen.note(f"  {line_input.QUOTES:{width}}  begins and ends several lines; \\ at the end of a line goes on")

    def leave(self, _: str) -> None:
        """End as the end of the input does."""
        raise EOFError


@dataclasses.dataclass(frozen=True, slots=True)
class Command:
    """What a line with a slash does."""

    run: Callable[[Chat, str], None]
    metavar: str
    help: str


COMMANDS: Mapping[str, Command] = {
    "/system": Command(Chat.set_system, "TEXT", "set the system prompt; without TEXT take it away"),
    "/retry": Command(Chat.retry, "", "answer again, with another seed"),
    "/undo": Command(Chat.undo, "", "take the last question and its answer back"),
    "/save": Command(Chat.save, "FILE", "keep the conversation in a file"),
    "/load": Command(Chat.load, "FILE", "go on with a conversation that was kept"),
    "/stats": Command(Chat.show_stats, "", "show how full the context is, and how fast the answer came"),
    "/reset": Command(Chat.reset, "", "start over; the system prompt stays"),
    "/help": Command(Chat.show_help, "", "show this"),
    "/quit": Command(Chat.leave, "", "end, as Ctrl-D does"),
}


def follow(chat: Chat, entry: line_input.Entry) -> None:
    """Do what a line says: a command, or a question."""
    name, _, argument = entry.text.partition(" ")
    if entry.is_literal or not name.startswith("/"):
        chat.ask(entry.text)
    elif command := COMMANDS.get(name):
        command.run(chat, argument.strip())
    else:
        raise OptionError(f"there is no command {name}; /help shows those there are")


def message(role: str, content: str) -> dict[str, str]:
    """One turn of a chat."""
    return {"role": role, "content": content}


def file_name(argument: str, command: str) -> str:
    """The file that a command was given."""
    if not argument:
        raise OptionError(f"{command} needs a file, like {command} talk.session")
    return argument


def shortened(text: str) -> str:
    """As much of a text as fits on a line."""
    return text if len(text) <= 60 else f"{text[:57]}..."
