"""`onnx-textgen chat`: a conversation in the terminal that keeps the key/value cache between turns."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..errors import OnnxTextgenError, OptionError
from . import options, screen
from .generation_options import OPTIONS, with_options

if TYPE_CHECKING:
    from ..textgen import Model

NOT_IN_A_CHAT = (
    "num_return_sequences",
    "best_of",
    "num_beams",
    "num_beam_groups",
    "diversity_penalty",
    "length_penalty",
    "early_stopping",
    "logprobs",
)
"""Options of several texts, of which a conversation could go on with one only, and what it does not show."""
HELP = "/reset to start over, /quit or Ctrl-D to end, Ctrl-C to stop an answer, /help"


class TemplateTurns:
    """A conversation that the model's chat template renders: each line of the user is a turn."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.messages: list[dict[str, str]] = []

    def question(self, line: str) -> list[int]:
        """Token ids of the whole conversation with `line` as the user's last turn."""
        return self.model.encode_chat([*self.messages, {"role": "user", "content": line}])

    def remember(self, line: str, question: list[int], answer: screen.Answer) -> None:
        """Keep a turn and its answer."""
        self.messages += [{"role": "user", "content": line}, {"role": "assistant", "content": answer.text}]


class GrowingText:
    """What stands in for a conversation where a model has no template: one text that both sides go on with."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.token_ids: list[int] = []

    def question(self, line: str) -> list[int]:
        """Token ids of the text so far with `line` as its last line; an empty line lets the model go on."""
        if not self.token_ids:
            return self.model.tokenizer.encode(line)
        return self.token_ids + (self.model.tokenizer.encode("\n" + line, add_special_tokens=False) if line else [])

    def remember(self, line: str, question: list[int], answer: screen.Answer) -> None:
        """Keep the text, without the id that ended it."""
        self.token_ids = question + [i for i in answer.token_ids if i not in self.model.manifest.eos_ids]


@with_options([name for name in OPTIONS if name not in NOT_IN_A_CHAT])
def hold_conversation(
    *,
    model: options.ModelOption = None,
    device: options.DeviceOption = "auto",
    threads: options.ThreadsOption = None,
    assistant_model: options.AssistantOption = None,
    generation: Mapping[str, Any],
) -> None:
    """Talk with a model, line by line.

    /reset starts over, /quit or Ctrl-D ends, Ctrl-C stops an answer.

    Try:
        onnx-textgen chat --model DIR
    """
    loaded = options.load_model(model, device, threads, assistant_model)
    _ = loaded.tokenizer  # a package without one has nothing to talk with, and says so
    if loaded.chat_template is None:
        screen.note(f"{loaded.manifest.name} has no chat template: it goes on with one growing text, to which you add lines")
    context = loaded.new_context()

    def answer(token_ids: list[int]) -> screen.Answer:
        chunks = loaded.stream(token_ids, context=context, on_progress=screen.prefill_progress, **generation)
        return screen.collect(chunks, sys.stdout)

    converse(lambda: GrowingText(loaded) if loaded.chat_template is None else TemplateTurns(loaded), answer)


def converse(start: Callable[[], TemplateTurns | GrowingText], answer: Callable[[list[int]], screen.Answer]) -> None:
    """Read lines and answer them until `/quit` or the end of the input."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401, PLC0415  (gives input() history and editing where it exists)
    screen.note(HELP)
    turns = start()
    while (line := read_line()) is not None:
        match line.strip():
            case "/quit":
                return
            case "/reset":
                turns = start()
                screen.note("forgotten")
            case "/help":
                screen.note(HELP)
            case command if command.startswith("/"):
                screen.note(f"there is no command {command}; {HELP}")
            case text:
                take_turn(turns, text, answer)


def take_turn(turns: TemplateTurns | GrowingText, line: str, answer: Callable[[list[int]], screen.Answer]) -> None:
    """Answer one line; what cannot be answered is said and forgotten."""
    try:
        question = turns.question(line)
        reply = answer(question)
    except OptionError:
        raise  # the same for every line: the command was called wrongly
    except OnnxTextgenError as error:
        screen.note(f"error: {error}")
        return
    sys.stdout.write("\n")
    sys.stdout.flush()
    screen.note(screen.stats_line(reply))
    turns.remember(line, question, reply)


def read_line() -> str | None:
    """The next line, or None at the end of the input."""
    interactive = sys.stdin.isatty() and sys.stdout.isatty()
    while True:
        try:
            return input("> " if interactive else "")
        except EOFError:
            if interactive:
                screen.note("")
            return None
        except KeyboardInterrupt:
            if not interactive:
                raise
            screen.note("\n/quit or Ctrl-D ends the conversation")
