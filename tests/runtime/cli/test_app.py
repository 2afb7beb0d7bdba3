"""`onnx-textgen`: what goes to which stream, how errors read, and how the process ends."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import onnx_textgen
from onnx_textgen.cli import run
from onnx_textgen.cli.renamed_names import in_todays_names
from onnx_textgen.cli.terminal.screen import collect, prefill_progress, writer
from onnx_textgen.errors import ModelError
from onnx_textgen.inference.decoder import Decoder
from onnx_textgen.inference.prefill import Progress
from onnx_textgen.requirements import as_numbers
from support.cli_model import CharacterModel

STATS_LINE = "prompt 6 tokens 310 tok/s | text 2 tokens 61.2 tok/s | first token 140 ms | seed 7 | stop: length\n"


@pytest.fixture
def model(monkeypatch):
    model = CharacterModel()
    monkeypatch.setattr(onnx_textgen, "load", lambda package, **options: model)
    return model


@pytest.fixture
def stdin(monkeypatch):
    def give(content: bytes):
        monkeypatch.setattr("typer.get_binary_stream", lambda name: __import__("io").BytesIO(content))

    return give


def test_generated_text_alone_goes_to_stdout_and_the_numbers_to_stderr(model, capsys):
    assert run(["generate", "Hello"]) == 0
    assert capsys.readouterr() == ("Hello\n", STATS_LINE)


@pytest.fixture
def on_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda stream: True)
    monkeypatch.setenv("TERM", "xterm")


@pytest.mark.usefixtures("on_a_terminal")
@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["Hi"], "\x1b[2mHi\x1b[0mHello\n"),
        (["--token-ids", "1,72,105"], "\x1b[2mHi\x1b[0mHello\n"),
        (["a\x1b[31mb"], "\x1b[2ma\N{REPLACEMENT CHARACTER}[31mb\x1b[0mHello\n"),
        (["x" * 1000], f"\x1b[2m... {'x' * 500}\x1b[0mHello\n"),
        ([], "\x1b[2mOnce upon a time\x1b[0mHello\n"),
    ],
)
def test_a_person_sees_the_prompt_before_the_text(model, capsys, arguments, shown):
    assert run(["generate", *arguments]) == 0
    assert capsys.readouterr().out == shown


@pytest.mark.usefixtures("on_a_terminal")
def test_a_terminal_without_colours_shows_the_prompt_all_the_same(model, capsys, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    assert run(["generate", "Oh, "]) == 0
    assert capsys.readouterr().out == "Oh, Hello\n"
    assert run(["generate", "Oh, ", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["text"] == "Hello"


@pytest.mark.usefixtures("on_a_terminal")
def test_the_prompt_stands_before_each_of_several_texts(story, monkeypatch, capsys):
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(onnx_textgen, "load", lambda package, **options: story)
    assert run(["generate", "The dog", "--num-return-sequences", "2", "-n", "3", "--seed", "1"]) == 0
    assert [line[:11] for line in capsys.readouterr().out.splitlines()] == ["[1] The dog", "[2] The dog"]


def test_the_seed_is_told_where_the_text_depends_on_it(model, capsys):
    for options, told in {(): True, ("--temperature", "0"): False}.items():
        assert run(["generate", "Hi", *options]) == 0
        assert (" | seed 7 | " in capsys.readouterr().err) is told


def test_the_numbers_of_the_best_of_several_texts_are_those_of_reading_the_prompt(story, monkeypatch, capsys):
    monkeypatch.setattr(onnx_textgen, "load", lambda package, **options: story)
    for seed in range(6):  # another of the three is the best
        assert run(["generate", "The dog", "--best-of", "3", "-n", "5", "--seed", str(seed)]) == 0
        err = capsys.readouterr().err
        assert err.startswith("prompt 3 tokens ")
        assert "kept" not in err and " 0.0 tok/s" not in err


def test_json_is_one_object_with_the_new_ids_and_no_other_output(model, capsys):
    assert run(["generate", "Hello", "--json"]) == 0
    out, err = capsys.readouterr()
    answer = json.loads(out)
    assert set(answer) == {"text", "token_ids", "finish_reason", "stats"}
    assert (answer["text"], answer["token_ids"], answer["finish_reason"]) == ("Hello", [72, 101, 108, 108, 111], "length")
    assert answer["stats"]["seed"] == 7
    assert (out.count("\n"), err) == (1, "")


def test_every_option_reaches_the_model_and_those_not_given_do_not(model):
    assert run(["generate", "a"]) == 0
    options = "--max-new-tokens 5 --temperature 0.5 --top-k 4 --top-p 0.9 --min-p 0.1 --seed 3 --stop . --stop !"
    assert run(["generate", "a", *options.split()]) == 0
    assert model.calls[0] == ("a", {})
    given = {"max_new_tokens": 5, "temperature": 0.5, "top_k": 4, "top_p": 0.9, "min_p": 0.1, "seed": 3, "stop": [".", "!"]}
    assert model.calls[1] == ("a", given)


def test_what_to_open_and_where_reaches_load(monkeypatch):
    seen = []
    monkeypatch.setattr(onnx_textgen, "load", lambda *args, **options: seen.append((args, options)) or CharacterModel())
    assert run(["generate", "a", "--model", "folder", "--device", "cpu", "--threads", "2"]) == 0
    assert run(["generate", "a", "--model", "folder", "--assistant-model", "small"]) == 0
    assert run(["generate", "a", "--model", "folder", "--prefix-folder", "saved"]) == 0
    run(["chat", "folder", "--prefix-folder", "saved"])  # which this model cannot
    others = {"assistant_model": None, "prefix_folder": None, "response_template": None}
    assert seen == [
        (("folder",), others | {"device": "cpu", "threads": 2}),
        (("folder",), others | {"device": "auto", "threads": None, "assistant_model": "small"}),
        *[(("folder",), others | {"device": "auto", "threads": None, "prefix_folder": Path("saved")})] * 2,
    ]


def test_a_flag_of_an_old_name_works_and_is_told_the_new_one(capsys):
    assert in_todays_names(["serve", "--prefix-cache", "a", "--prefix-bytes=5", "--", "--prefix-cache"]) == [
        *("serve", "--prefix-folder", "a", "--prefix-folder-bytes=5", "--", "--prefix-cache")
    ]
    warned = capsys.readouterr().err.splitlines()
    assert warned[0] == "warning: --prefix-cache is called --prefix-folder now" and len(warned) == 2
    assert run(["generate", "-h", "--prefix-cache", "saved"]) == 0 and "--prefix-cache" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "today"),
    [
        (["add-adapter", "DIR", "A"], ["adapter", "add", "DIR", "A"]),
        (["--color", "never", "remove-adapter", "DIR", "A"], ["--color", "never", "adapter", "remove", "DIR", "A"]),
    ],
)
def test_an_old_name_of_a_command_still_works_and_warns(
    given: list[str], today: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert in_todays_names(given) == today
    old, new = ("add-adapter", "adapter add") if "add" in today else ("remove-adapter", "adapter remove")
    assert capsys.readouterr().err == f"warning: {old} is called {new} now\n"


def test_the_old_name_of_a_command_is_no_command_where_it_is_a_prompt_or_a_value(capsys: pytest.CaptureFixture[str]) -> None:
    for given in (["generate", "add-adapter"], ["--color", "add-adapter", "list"], []):
        assert in_todays_names(given) == given
    assert capsys.readouterr().err == ""


def test_a_prompt_of_one_dash_is_read_from_stdin(model, stdin):
    stdin("Grüße\n".encode())
    assert run(["generate", "-", "--json"]) == 0
    assert model.calls[0][0] == "Grüße\n"


@pytest.fixture
def piped(monkeypatch, tmp_path):
    """Let stdin be a pipe, a socket, or a file, with a content; None: the pipe stays open and empty."""
    opened, ends = [], []

    def give(kind, content):
        if kind == "file":
            (tmp_path / "in").write_bytes(content)
            end = (tmp_path / "in").open(encoding="utf-8")
        else:
            reading, writing = os.pipe() if kind == "pipe" else [each.detach() for each in socket.socketpair()]
            os.write(writing, content or b"")
            end = os.fdopen(reading, encoding="utf-8")
            opened.append(writing)
            if content is not None:
                os.close(opened.pop())
        ends.append(end)
        monkeypatch.setattr("sys.stdin", end)

    yield give
    for each in opened:
        os.close(each)
    for end in ends:
        end.close()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such sockets")
@pytest.mark.parametrize("kind", ["pipe", "socket", "file"])
def test_a_prompt_comes_through_a_pipe(model, piped, kind, capsys):
    for content, prompt in {b"The dog\n": "The dog", b"caf\xc3\xa9": "café", b"\n\n": "\n"}.items():
        piped(kind, content)
        assert run(["generate"]) == 0
        assert model.calls.pop()[0] == prompt
    piped(kind, b"")
    assert run(["generate"]) == 0
    assert model.calls.pop()[0] == "Once upon a time"
    piped(kind, b"no \xff")
    assert run(["generate"]) == 1
    assert "not UTF-8" in capsys.readouterr().err


def test_a_pipe_that_stays_empty_is_not_waited_for(model, piped, monkeypatch, capsys):
    monkeypatch.setattr("onnx_textgen.cli.options.PIPE_SECONDS", 0.1)
    piped("pipe", None)
    assert run(["generate"]) == 0
    assert model.calls.pop()[0] == "Once upon a time"
    assert "nothing came through stdin" in capsys.readouterr().err
    assert run(["generate", "Hello"]) == 0
    assert capsys.readouterr().err == STATS_LINE, "a prompt is given"
    with Path(os.devnull).open(encoding="utf-8") as of_cron:
        for nothing in (None, of_cron):  # None: closed, as with `<&-`
            monkeypatch.setattr("sys.stdin", nothing)
            assert run(["generate"]) == 0
            assert model.calls.pop()[0] == "Once upon a time"
    assert "nothing came" not in capsys.readouterr().err


def test_token_ids_stand_in_for_a_prompt(model):
    assert run(["generate", "--token-ids", "5, 17,100"]) == 0
    assert model.calls[0][0] == [5, 17, 100]


def test_without_a_prompt_the_embedded_model_gets_a_few_words(model):
    assert run(["generate"]) == 0
    assert model.calls[0][0] == "Once upon a time"


def test_a_package_without_a_tokenizer_shows_its_ids(monkeypatch, capsys):
    bare = CharacterModel(("", ""), tokenizer=False)
    bare.speak = lambda prompt_tokens: iter([onnx_textgen.Chunk("", (5,)), onnx_textgen.Chunk("", (17,), finish_reason="length")])
    monkeypatch.setattr(onnx_textgen, "load", lambda package, **options: bare)
    assert run(["generate", "--token-ids", "3"]) == 0
    assert capsys.readouterr().out == "5,17\n"


def test_an_accelerator_that_auto_took_is_named(monkeypatch, capsys):
    monkeypatch.setattr(onnx_textgen, "load", lambda package, **options: CharacterModel(device="cuda:0"))
    assert run(["generate", "Hello"]) == 0
    assert capsys.readouterr() == ("Hello\n", "device: cuda:0\n" + STATS_LINE)


def test_ctrl_c_keeps_the_text_so_far_closes_the_stream_and_exits_with_130(model, capsys):
    model.reply = ("Hel", KeyboardInterrupt(), "lo")
    assert run(["generate", "Hello"]) == 130
    assert capsys.readouterr() == ("Hel\n", "text 3 tokens | stop: cancelled\n")
    assert model.closed == 1
    assert run(["generate", "Hello", "--json"]) == 130
    assert json.loads(capsys.readouterr().out) == {
        "text": "Hel",
        "token_ids": [72, 101, 108],
        "finish_reason": "cancelled",
        "stats": None,
    }


def test_ctrl_c_while_the_model_loads_exits_with_130(monkeypatch, capsys):
    def load(package, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(onnx_textgen, "load", load)
    assert run(["generate", "Hello"]) == 130
    assert capsys.readouterr() == ("", "")


def told(reason: str) -> list[str]:
    """What a value should be, where typer says it in a form that can be read: from 0.29 on; before, its own words are shown."""
    return [reason] if as_numbers(version("typer")) >= (0, 29) else ["Invalid value for"]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["generate", "a", "--temperature", "-1"], 2, ["temperature", "-1"]),
        (["generate", "a", "--temperature", "nan"], 2, ["temperature", "nan"]),
        (["generate", "a", "--temperature", "warm"], 2, ["--temperature", "generate -h"]),
        (["generate", "a", "--top-p", "1.5"], 2, ["top_p", "1.5"]),
        (["generate", "a", "--tempature", "1"], 2, ["--tempature", "--temperature"]),
        (["generate", "a", "b"], 2, ["b", "generate -h"]),
        (["info", "a", "b"], 2, ["b", "info -h"]),
        (["generate", "a", "--num-beams", "4", "--top-k", "3"], 2, ["top_k", "num_beams", "leave it out"]),
        (["generate", "a", "--token-ids", "5"], 2, ["PROMPT", "--token-ids"]),
        (["generate", "--token-ids", "5;6"], 2, ["5,17,300", "'5;6'"]),
        (["generate", "--model", "somewhere"], 2, ["somewhere", "PROMPT"]),
        (["generate", ""], 2, ["prompt is empty", "--token-ids N"]),
        (["inspect", ""], 2, ["prompt is empty", "--token-ids N"]),
        (["score", ""], 2, ["prompt is empty; give some text"]),
        (["generate", "The", "dog", "ran"], 2, ['in quotes: "The dog ran"', "generate -h"]),
        (["inspect", "The", "--steps", "2", "dog"], 2, ['in quotes: "The dog"']),
        (["score", "The", "dog", "--json"], 2, ['a TEXT of several words goes in quotes: "The dog"']),
        (["score", "a", "--choice"], 2, ["--choice", "see: onnx-textgen score -h"]),
        (["--color", "never", "generate", "a", "--stop"], 2, ["--stop", "see: onnx-textgen generate -h"]),
        (["generate", "a", "--temperature", "hot"], 2, ["--temperature", *told("takes a number, found 'hot'")]),
        (["generate", "a", "-n", "1.5"], 2, ["--max-new-tokens", *told("takes a whole number, found '1.5'")]),
        (["info", "--batch", "0"], 2, ["--batch", *told("takes at least 1, found '0'")]),
        (["--color", "pink", "list"], 2, ["--color", "'pink'", "always"]),
        (["info", "somewhere", "--model", "elsewhere"], 2, ["somewhere", "elsewhere"]),
        (["info", "somewhere"], 1, ["somewhere", "onnx-textgen list"]),
        (["verify", "somewhere"], 1, ["somewhere"]),
        (["score"], 2, ["TEXT"]),
        (["genarate"], 2, ["genarate; did you mean generate?"]),
        (["run", "story"], 2, ["no command run; did you mean chat?"]),
        (["exprot"], 2, ["did you mean export?"]),
        (["pull", "smollm3"], 2, ["did you mean smollm3-3b?"]),
        (["pull", "SMOLLM2"], 2, ["did you mean smollm2?"]),
        (["info", "Smollm2"], 1, ["did you mean smollm2?"]),
        (["--nonsense"], 2, ["--nonsense"]),
    ],
)
def test_an_error_is_one_line_that_names_the_thing(model, capsys, arguments, code, words):
    assert run(arguments) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert all(word in err for word in words), err


def test_an_error_commands_no_terminal(model, capsys):
    model.reply = (ModelError("node \x1b]0;owned\x07 failed"),)
    assert run(["generate", "a", "--max-new-tokens", "3"]) == 1
    assert capsys.readouterr().err == "error: node \ufffd]0;owned\ufffd failed\n"


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (["generate", "a", "--num-beams", "3"], "more than one text"),
        (["generate", "a", "--prompt-lookup-num-tokens", "3"], "drafts instead of it"),
        (["generate", "a", "--num-assistant-tokens", "0"], "--num-assistant-tokens 0"),
        (["chat", "--prompt-lookup-num-tokens", "3"], "drafts instead of it"),
    ],
)
def test_an_assistant_model_that_would_draft_nothing_is_an_error(model, capsys, command, why):
    assert run([*command, "--assistant-model", "small"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.startswith("error: --assistant-model cannot take effect"), why in err) == ("", True, True)


def test_a_failure_in_the_middle_of_a_text_is_one_line_and_exits_with_1(model, capsys):
    model.reply = ("Hel", ModelError("the model failed while it ran:\nsomething"))
    assert run(["generate", "Hello"]) == 1
    assert capsys.readouterr() == ("Hel", "error: the model failed while it ran: something\n")


def test_a_bug_is_one_line_too_and_its_traceback_is_there_for_who_asks(model, capsys, monkeypatch):
    model.reply = (ZeroDivisionError("division by zero"),)
    assert run(["generate", "Hello"]) == 1
    assert capsys.readouterr().err == "error: ZeroDivisionError: division by zero; for the traceback set ONNX_TEXTGEN_DEBUG=1\n"
    monkeypatch.setenv("ONNX_TEXTGEN_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        run(["generate", "Hello"])


def test_an_empty_stdin_is_an_error(model, stdin, capsys):
    stdin(b"")
    assert run(["generate", "-"]) == 1
    assert capsys.readouterr().err.startswith("error: stdin is empty; give some text")


def test_text_that_is_no_utf8_on_stdin_is_an_error(model, stdin, capsys):
    stdin(b"abc\xff")
    assert run(["generate", "-"]) == 1
    assert "not UTF-8 text (byte 3)" in capsys.readouterr().err


class Terminal:
    """Takes what is written, and says that it is a terminal."""

    def __init__(self):
        self.shown = ""

    def write(self, text):
        self.shown += text

    def flush(self):
        pass

    def isatty(self):
        return True


def test_a_terminal_is_not_sent_the_commands_a_model_writes():
    terminal = Terminal()
    answer = collect(CharacterModel(("a\tb\n", "\x1b[2J\x07", "\x9b1m")).speak(1), writer(terminal))
    assert terminal.shown == "a\tb\n�[2J��1m"
    assert answer.text == "a\tb\n\x1b[2J\x07\x9b1m"


def test_the_reading_of_a_long_prompt_is_shown_on_a_terminal_and_wiped_off_at_its_end(monkeypatch):
    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stderr", terminal)
    for done in (512, 1024, 1100):
        prefill_progress(Progress(done, 1100))
    rows = [f"prompt: 512 of 1,100 tokens  {'█' * 9}{'░' * 11}  46 %", f"prompt: 1,024 of 1,100 tokens  {'█' * 18}{'░' * 2}  93 %"]
    assert terminal.shown.split("\r\033[K") == ["", *rows, ""]


def test_a_terminal_that_knows_plain_text_alone_gets_no_progress(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "dumb")
    prefill_progress(Progress(512, 1100))
    assert terminal.shown == ""


def test_progress_is_not_written_into_a_file(capsys):
    prefill_progress(Progress(512, 1100))
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("command", ["generate", "inspect"])
def test_the_help_names_the_prompt_that_is_taken_where_none_is_given(command, capsys):
    assert run([command, "-h"]) == 0
    assert 'an embedded model gets "Once upon a time".' in " ".join(capsys.readouterr().out.split())


def test_no_command_at_all_shows_the_help_on_stderr_and_is_a_usage_error(capsys):
    assert run([]) == 2
    out, err = capsys.readouterr()
    assert (out, "Usage: onnx-textgen" in err) == ("", True)


COMMANDS = ["generate", "chat", "list", "inspect", "score", "info", "verify", "bench", "doctor", "export", "demo"]


def test_the_help_names_every_command(capsys):
    assert run(["-h"]) == 0
    out = capsys.readouterr().out
    assert [name for name in COMMANDS if f"\n  {name} " not in out] == []


@pytest.mark.parametrize("wanted", [["help"], ["help", "list"], ["-v"]])
def test_words_of_other_programs_work(wanted, capsys):
    usual = {"help": ["-h"], "list": ["list", "-h"], "-v": ["--version"]}[wanted[-1]]
    assert [run(wanted), run(usual)] == [0, 0]
    out = capsys.readouterr().out
    assert out[: len(out) // 2] == out[len(out) // 2 :]


WITHOUT_EXTRAS = """
import contextlib, io, sys
from onnx_textgen.cli import app
from onnx_textgen.cli.extensions import SUMMARIES
from onnx_textgen.extras import EXTRA_MODULES
MISSING = {"openvino", "starlette", "mcp"}.union(*EXTRA_MODULES.values())
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in MISSING:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
for command in [*app.COMMANDS, *SUMMARIES, "adapter add", "adapter remove"]:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        code = app.run([*command.split(), "-h"])
    print(command, code, out.getvalue().startswith(f"Usage: onnx-textgen {command} "), sep="|")
"""


def test_every_command_explains_itself_without_extras():
    pytest.importorskip("onnx_textgen_export", reason="a checkout of the runtime alone")
    done = subprocess.run([sys.executable, "-c", WITHOUT_EXTRAS], capture_output=True, text=True, check=True, timeout=120)
    told = [line.split("|") for line in done.stdout.splitlines()]
    assert len(told) >= 19
    assert [each for each in told if each[1:] != ["0", "True"]] == []


@pytest.mark.parametrize("command", COMMANDS[:-2])
def test_every_command_explains_itself_at_80_columns_and_begins_with_examples(command, capsys):
    assert run([command, "-h"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"Usage: onnx-textgen {command} ")
    assert "-h, --help" in out
    assert max(map(len, out.splitlines())) <= 80
    examples = out.split("\n\n")[1]
    assert examples.startswith("  Try:\n") and f"onnx-textgen {command}" in examples
    assert command in ("list", "doctor") or "ONNX_TEXTGEN_MODEL" in out


def test_the_version_is_that_of_the_installed_distribution(capsys):
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"onnx-textgen {onnx_textgen.__version__}\n"


def in_a_process(code: str) -> list[str]:
    setup = "import sys; sys.path.insert(0, 'tests'); import onnx_textgen; from support.cli_model import CharacterModel; "
    load = "onnx_textgen.load = lambda package, **options: CharacterModel(" + code + "); "
    return [sys.executable, "-W", "error", "-c", setup + load + "from onnx_textgen.cli import main; main()"]


INTERRUPTED = """
import os, signal, sys
from importlib.abc import MetaPathFinder
from onnx_textgen.cli import main
class Interrupt(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == module:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
_, module, *arguments = sys.argv
sys.argv[:] = ["onnx-textgen", *arguments]
main()
"""


@pytest.mark.parametrize(
    ("module", "command"),
    [
        ("onnx_textgen.cli.app", "list"),
        ("typer", "list"),
        ("onnx_textgen.diagnostics.inventory", "list"),
        ("onnx_textgen_export.cli", "export -h"),
        ("numpy.linalg", "generate"),
        ("onnxruntime.capi", "generate"),
        ("onnxruntime.capi", "info"),
        ("onnx_textgen.web_site.building", "site --out somewhere"),
    ],
)
def test_ctrl_c_while_python_reads_the_modules_is_no_traceback(module, command):
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, module, *command.split()], capture_output=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


def test_ctrl_c_ends_the_row_of_what_was_being_done():
    pytest.importorskip("termios", reason="needs a pseudo-terminal")
    from support.terminal import PseudoTerminal  # noqa: PLC0415

    terminal = PseudoTerminal(80)
    with terminal.streams() as (stdin, stdout, stderr):
        command = [sys.executable, "-c", INTERRUPTED, "onnxruntime.capi", "generate"]
        environment = os.environ | {"TERM": "xterm"}
        done = subprocess.run(command, stdin=stdin, stdout=stdout, stderr=stderr, env=environment, check=False, timeout=60)
    assert (done.returncode, terminal.rows()) == (130, ["loading the model ..."])
    assert terminal.written.endswith(b"...\r\n")


def test_the_loading_of_a_model_is_shown_on_a_terminal_and_wiped_off(model, monkeypatch):
    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stderr", terminal)
    assert run(["generate", "a", "--model", "somewhere"]) == 0
    assert terminal.shown.startswith("\r\033[Kloading somewhere ...\r\033[K")


def test_a_reader_that_goes_away_ends_the_command_quietly(request):
    command = [*in_a_process("('word ' * 100,) * 10_000"), "generate", "Hello"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=request.config.rootpath) as process:
        assert process.stdout.read(9) == b"word word"
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=60) == 141


def test_text_reaches_a_pipe_as_utf8_in_any_locale(request):
    command = [*in_a_process("('Grüße 🙂',)"), "generate", "Hello"]
    environment = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "PATH": ""}
    done = subprocess.run(command, capture_output=True, cwd=request.config.rootpath, env=environment, check=False, timeout=60)
    assert (done.returncode, done.stdout.decode()) == (0, "Grüße 🙂\n")


def test_a_prompt_is_utf8_in_a_locale_that_does_not_say_so():
    environment = {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PATH": ""}
    command = [sys.executable, "-m", "onnx_textgen.cli", "score", "--json"]
    for prompt, code in {"café".encode(): 0, "café".encode("latin-1"): 1}.items():
        done = subprocess.run([*command, prompt], capture_output=True, env=environment, check=False, timeout=60)
        assert done.returncode == code
        assert done.stderr == b"" if code == 0 else b"locale (LC_ALL=POSIX, ascii)" in done.stderr
    assert run(["score", "\ud800"]) == 1


def test_output_that_nobody_reads_any_more_ends_the_command_as_other_programs_end():
    command = f'set -o pipefail; "{sys.executable}" -m onnx_textgen.cli list 2>&1 | true'
    done = subprocess.run(["bash", "-c", command], capture_output=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (141, b"")


BEFORE_MAIN = """
import sys
from importlib.metadata import version
before = set(sys.modules)
import onnx_textgen.cli
print(sorted(set(sys.modules) - before - {"__future__"}))
"""


def test_almost_nothing_is_imported_before_ctrl_c_is_taken_care_of():
    done = subprocess.run([sys.executable, "-c", BEFORE_MAIN], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "['onnx_textgen', 'onnx_textgen.cli']\n"


@pytest.mark.skipif(sys.platform != "linux", reason="namespaces of Linux")
def test_the_first_process_of_a_container_ends_by_sigterm():
    """Signals without a handler do not reach process 1."""
    apart = ["unshare", "--user", "--map-root-user", "--pid", "--fork"]
    if shutil.which("unshare") is None or subprocess.run([*apart, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this system lets nobody make a namespace")
    code = "import os, signal; from onnx_textgen.cli import main; os.kill(os.getpid(), signal.SIGTERM) if os.getpid() == 1 else 0; "
    started = "import onnx_textgen.cli.app as app; app.main = lambda: (os.kill(1, signal.SIGTERM), print('still here')); main()"
    done = subprocess.run([*apart, sys.executable, "-c", code + started], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (143, ""), done.stderr


@pytest.mark.parametrize("options", [["--num-return-sequences", "3"], ["--best-of", "3"], ["--num-beams", "3"]], ids=" ".join)
def test_ctrl_c_keeps_what_there_is_of_several_texts(story, monkeypatch, capsys, options):
    monkeypatch.setattr(onnx_textgen, "load", lambda package, **options: story)
    step, steps = Decoder.step, []

    def interrupted(decoder, *given, **more):
        steps.append(given)
        if len(steps) == 5:
            signal.raise_signal(signal.SIGINT)
        return step(decoder, *given, **more)

    monkeypatch.setattr(Decoder, "step", interrupted)
    before = signal.getsignal(signal.SIGINT)
    assert run(["generate", "The dog", *options, "-n", "50", "--seed", "1"]) == 130
    out, err = capsys.readouterr()
    assert len(out.split()) >= 3
    assert "stop: cancelled" in err
    assert signal.getsignal(signal.SIGINT) is before
