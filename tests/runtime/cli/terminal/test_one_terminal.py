"""What a person sees at the end, where stdout and stderr are one terminal: all of the text, and no progress."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
from rich.cells import chop_cells

import onnx_textgen
from onnx_textgen import ChatAnswer, ChatChunk, ToolCall
from onnx_textgen.cli import run
from onnx_textgen.cli.commands.chat import GREETING
from onnx_textgen.cli.terminal import line_input
from onnx_textgen.errors import ModelError
from onnx_textgen.inference.prefill import Progress
from support.cli_model import CharacterModel

pytest.importorskip("termios", reason="needs a pseudo-terminal")
from support.terminal import PseudoTerminal, broken, screen_of  # Windows has none

TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"
README = {
    "What is the capital of France?": "The capital of France is Paris, France.",
    "Name three things to see there.": (
        "1. Eiffel Tower: The iconic iron lady of Paris, with a tower of 328 meters.\n\n"
        "2. Louvre Museum: The largest art museum in the world, housed in the museum complex of the Louvre."
    ),
}
READ = [Progress(512, 1100), Progress(1024, 1100), Progress(1100, 1100)]
TOOLS = 'def look(city: str) -> str:\n    """Tell the weather."""\n    return f"rain in {city}"\n'


class ChattyModel(CharacterModel):
    """Answers question after question with chunks: texts, thoughts (in brackets), calls, and what is to happen between them."""

    chats = SimpleNamespace(calls_tools=True)

    def __init__(self, *answers: list[Any]) -> None:
        super().__init__(chat_template=TEMPLATE)
        self.answers = list(answers)

    def session(self, **_: Any) -> Any:
        made = super().session()
        made.stream_chat = lambda on_progress, **_: self.stream_chat(made, on_progress)
        return made

    def stream_chat(self, session: Any, on_progress: Any) -> Any:
        text, calls = "", ()
        for each in self.answers.pop(0):
            if isinstance(each, ToolCall):
                calls = (*calls, each)
            elif isinstance(each, Progress):
                on_progress(each)
            elif isinstance(each, str):
                is_thought = each.startswith("(")
                text += "" if is_thought else each
                yield ChatChunk("" if is_thought else each, each.strip("()") if is_thought else "", token_ids=(5,))
            elif isinstance(each, KeyboardInterrupt):
                self.terminal.interrupt()
                session.messages.append({"role": "assistant", "content": text})
                raise each
            else:
                raise each
        answer = ChatAnswer(text, "", calls, "tool_calls" if calls else "eos", SimpleNamespace(stats=None))
        session.messages.append(answer.message)
        yield ChatChunk(answer=answer)


def seen(monkeypatch: pytest.MonkeyPatch, columns: int, model: Any, arguments: list[str], *typed: str) -> list[str]:
    """What the terminal shows after a command line, and lines that are typed when they are asked for."""
    terminal, lines = PseudoTerminal(columns), iter(typed)
    model.terminal = terminal

    def ask(prompt: str) -> str:
        sys.stdout.write(prompt)
        sys.stdout.flush()
        terminal.type(next(lines, "\x04") + "\n")
        return sys.stdin.readline().removesuffix("\n")

    def read(prompt: str = "") -> str:
        line = ask(prompt)
        if line == "/quit":
            raise EOFError
        return line

    for name, value in {"COLUMNS": str(columns), "TERM": "xterm", line_input.HISTORY_VARIABLE: ""}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("builtins.input", read)
    monkeypatch.setattr(onnx_textgen, "load", lambda *_, **__: model)
    with terminal.streams() as (stdin, stdout, stderr), monkeypatch.context() as streams:
        for name, stream in {"stdin": stdin, "stdout": stdout, "stderr": stderr}.items():
            streams.setattr(sys, name, stream)
        run(arguments)
    return terminal.rows()


def wrapped(lines: list[str], columns: int) -> list[str]:
    """Lines as a person should see them: what was typed as the terminal breaks it, everything else broken between words."""
    return [row for line in lines for row in (chop_cells(line, columns) if line.startswith(">") else broken(line, columns - 1))]


STATS = "text {} tokens | stop: {}"
CHATS: dict[str, tuple[list[list[Any]], list[str]]] = {
    "the README's": ([[text] for text in README.values()], []),
    "word by word": ([["Par", "is", ", ", "France."]], []),
    "after a long prompt": ([[*READ, "Paris."]], []),
    "thinking": ([["(so it is)", "(or not)", "Paris."]], ["thought for 0 s; /thinking shows it"]),
    "thinking after a long prompt": ([[*READ, "(hm)", "Par", "is."]], ["thought for 0 s; /thinking shows it"]),
    "thought that comes late": ([["Paris", "(hm)", "."]], []),
    "a prompt that is read again": ([["Par", *READ, "is."]], []),
    "lines": ([["One.\n", "\nTwo.\n", "Three"]], []),
    "wide characters": ([["日本語" * 9, "!"]], []),
    "exactly a row": ([["x" * 30]], []),
}


@pytest.mark.parametrize("columns", [30, 60, 80])
@pytest.mark.parametrize("name", CHATS)
def test_every_answer_of_a_chat_stays_on_the_screen(name: str, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    answers, notes = CHATS[name]
    questions = [*README][: len(answers)]
    expected = [GREETING]
    for question, answer in zip(questions, answers, strict=True):
        texts = [each for each in answer if isinstance(each, str)]
        said = "".join(text for text in texts if not text.startswith("("))
        expected += [f"> {question}", *notes, *said.split("\n"), STATS.format(len(texts), "eos")]
    rows = seen(monkeypatch, columns, ChattyModel(*answers), ["chat"], *questions, "/quit")
    assert rows == wrapped([*expected, "> /quit"], columns)


@pytest.mark.parametrize("columns", [30, 60, 80])
@pytest.mark.parametrize(
    ("answer", "shown"),
    [
        (["Par", "is", KeyboardInterrupt()], ["Paris^C"]),
        ([*READ, "Paris\nis", KeyboardInterrupt()], ["Paris", "is^C"]),
        (["(hm)", "Par", KeyboardInterrupt()], ["thought for 0 s; /thinking shows it", "Par^C"]),
        (["(hm)", KeyboardInterrupt()], []),
    ],
)
def test_ctrl_c_keeps_what_was_said(answer: list[Any], shown: list[str], columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = seen(monkeypatch, columns, ChattyModel(answer, ["Yes."]), ["chat"], "so?", "and?", "/quit")
    tokens = len(answer) - 1 - 3 * (READ[0] in answer)
    expected = [GREETING, "> so?", *shown, STATS.format(tokens, "cancelled"), "> and?", "Yes.", STATS.format(1, "eos"), "> /quit"]
    assert rows == wrapped(expected, columns)


@pytest.mark.parametrize("columns", [30, 60, 80])
def test_a_call_its_question_and_its_result_stand_below_the_text(
    columns: int, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tools.py").write_text(TOOLS)
    call = ToolCall("abc", "look", {"city": "Oslo"}, "{}")
    for before, shown in ((["I ", "look."], ["I look."]), (["(hm)"], []), ([], [])):
        model = ChattyModel([*before, call], [*READ, "It ", "rains."])
        rows = seen(monkeypatch, columns, model, ["chat", "--tools", str(tmp_path / "tools.py")], "rain?", "y", "/quit")
        begin = rows.index("> rain?") + 1
        card = next(number for number, row in enumerate(rows) if row.startswith("╭"))
        assert rows[begin:card] == shown
        after = ["run look? [y]es, [N]o, [a]lways: y", "= rain in Oslo", "It rains.", STATS.format(2, "eos"), "> /quit"]
        assert rows[card + 3 :] == wrapped(after, columns)


@pytest.mark.parametrize("columns", [30, 60, 80])
def test_an_error_in_an_answer_has_a_line_for_itself(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = ModelError("the logits are no numbers")
    rows = seen(monkeypatch, columns, ChattyModel(["Par", broken], ["(hm)", broken]), ["chat"], "so?", "and?", "/quit")
    error = f"error: {broken}"
    assert rows == wrapped([GREETING, "> so?", "Par", error, "> and?", error, "> /quit"], columns)
    for reply in ((broken,), ("Par", broken)):
        rows = seen(monkeypatch, columns, CharacterModel(reply), ["generate", "So: "])
        assert rows == wrapped([*["So: Par"][: len(reply) - 1], error], columns)


@pytest.mark.parametrize("options", [[], ["--show-tokens"]])
@pytest.mark.parametrize("columns", [30, 60, 80])
def test_generated_text_is_not_erased_by_the_reading_of_a_prompt(
    columns: int, options: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Reading(CharacterModel):
        """Reads a prompt before the text, and within it as after a shift of the context."""

        def stream(self, prompt: Any, *, on_progress: Any = None, **more: Any) -> Any:
            for chunk in super().stream(prompt, **more):
                for each in READ:
                    on_progress(each)
                yield chunk

    rows = seen(monkeypatch, columns, Reading(("Par", "is", ".")), ["generate", "So: ", *options])
    assert rows[0] == "So: Paris."
    assert "".join(rows[1:]).replace(" ", "").startswith(("prompt5tokens", "50%ormore"))


@pytest.mark.parametrize("columns", [30, 60, 80])
def test_progress_that_is_wider_than_the_terminal_leaves_no_row_behind(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("/a/folder/with/a/long/path/" * 5, "模型" * 50):
        rows = seen(monkeypatch, columns, CharacterModel(("Paris.",)), ["generate", "So: ", "--model", name])
        assert rows[0] == "So: Paris."


def test_the_terminal_shows_what_a_terminal_would() -> None:
    assert screen_of("one\r\ntwo\rT\x1b[K\x1b[2m!\x1b[0m\r\n", 10) == ["one", "T!"]
    assert screen_of("0123456789", 10) == ["0123456789"], "a full row is no new row"
    assert screen_of("0123456789\r\nab", 10) == ["0123456789", "ab"]
    assert screen_of("0123456789ab\r\x1b[Kc", 10) == ["0123456789", "c"], "a wrapped line is two rows"
    assert screen_of("日本語日本語", 9) == ["日本語日", "本語"]
