"""`onnx-textgen chat`: turns, the growing text, and the commands with a slash."""

import re
import stat
import sys
from types import SimpleNamespace

import pytest

import onnx_textgen
from onnx_textgen import ChatAnswer, ChatChunk, ToolCall
from onnx_textgen.cli import run
from onnx_textgen.cli.terminal import chat_session, line_input
from onnx_textgen.errors import ModelError, PromptError
from support.cli_model import BOS, CharacterModel

TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}[{{ message.role }}]{{ message.content }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


@pytest.fixture
def chat(monkeypatch):
    def talk(model, *lines, options=()):
        given = iter(lines)

        def read(prompt=""):
            line = next(given, EOFError())
            if callable(line):
                line = line() or ""
            if isinstance(line, BaseException):
                raise line
            return line

        monkeypatch.setattr("builtins.input", read)
        monkeypatch.setattr(onnx_textgen, "load", lambda package, **options: model)
        return run(["chat", *options])

    return talk


@pytest.fixture
def terminal(monkeypatch):
    """A person at both ends, whose own history stays as it is."""
    monkeypatch.setattr(line_input, "is_interactive", lambda: True)
    monkeypatch.setenv(line_input.HISTORY_VARIABLE, "")


def prompts(model):
    return ["".join(map(chr, prompt)) for prompt, _ in model.calls]


def test_each_line_is_a_turn_and_the_template_renders_the_whole_conversation(chat, capsys):
    model = CharacterModel(("Hi", "!"), chat_template=TEMPLATE)
    assert chat(model, "one", "two") == 0
    assert prompts(model) == ["<s>[user]one[assistant]", "<s>[user]one[assistant]Hi![user]two[assistant]"]
    assert capsys.readouterr().out == "Hi!\nHi!\n"


def test_reset_forgets_the_turns_before(chat):
    model = CharacterModel(chat_template=TEMPLATE)
    assert chat(model, "one", "/reset", "two") == 0
    assert prompts(model) == ["<s>[user]one[assistant]", "<s>[user]two[assistant]"]


def test_without_a_template_one_text_grows_and_stderr_says_so_once(chat, capsys):
    model = CharacterModel(("bc", "\x02"))  # the reply ends with the end-of-text id
    assert chat(model, "a", "", "d") == 0
    assert prompts(model) == [chr(BOS) + "a", chr(BOS) + "abc", chr(BOS) + "abcbc\nd"]
    assert capsys.readouterr().err.count("no chat template") == 1


def test_quit_ends_and_an_unknown_command_is_no_turn(chat, capsys):
    model = CharacterModel(chat_template=TEMPLATE)
    assert chat(model, "/help", "/nonsense", "/quit", "never read") == 0
    assert model.calls == []
    out, err = capsys.readouterr()
    assert out == ""
    assert "there is no command /nonsense" in err


@pytest.mark.parametrize("word", ["/bye", "/quit", "exit", "quit", "Exit"])
def test_words_that_leave(chat, terminal, word):
    model = CharacterModel(chat_template=TEMPLATE)
    assert chat(model, "one", word, "never read") == 0
    assert len(model.calls) == 1


def test_from_a_pipe_each_line_is_a_question(chat):
    model = CharacterModel(chat_template=TEMPLATE)
    assert chat(model, "exit", "quit") == 0
    assert len(model.calls) == 2


def test_two_ctrl_c_at_the_prompt_leave_and_others_do_not(chat, terminal, capsys):
    model = CharacterModel(chat_template=TEMPLATE)
    stop = KeyboardInterrupt()
    assert chat(model, stop, "one", stop, "two", stop, stop, "never read") == 0
    assert len(model.calls) == 2
    assert capsys.readouterr().err.count("Ctrl-C again, /bye or Ctrl-D ends the session") == 3
    model.reply = (stop,)  # no answer yet: the next Ctrl-C, at the prompt, is the first one there
    assert chat(model, "one", stop, "two") == 0
    assert len(model.calls) == 4


def test_options_can_be_changed_between_answers(chat, capsys):
    model = CharacterModel(chat_template=TEMPLATE)
    lines = ["/set temperature 0.2", "one", "/set parameter top-k 7", "/set stop END", "two", "/set temperature", "three"]
    assert chat(model, *lines, "/set ignore_eos on", "/set", "four", options=["--seed", "3"]) == 0
    usual = {"loop_guard": "stop", "seed": 3}
    assert [options for _, options in model.calls] == [
        usual | {"temperature": 0.2},
        usual | {"temperature": 0.2, "top_k": 7, "stop": ["END"]},
        usual | {"top_k": 7, "stop": ["END"]},
        usual | {"top_k": 7, "stop": ["END"], "ignore_eos": True},
    ]
    err = capsys.readouterr().err
    assert "temperature 0.2\n" in err and "temperature is the default again" not in err
    shown = [tuple(line.split()[:2]) for line in err.splitlines()]
    assert {("top_k", "7"), ("seed", "3"), ("loop_guard", "stop"), ("max_new_tokens", "256")} <= {*shown}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("/set temperature hot", "temperature takes a number, found 'hot'"),
        ("/set temperature -1", "temperature"),
        ("/set top_k 1.5", "top_k takes a whole number"),
        ("/set ignore_eos maybe", "ignore_eos takes on or off"),
        ("/set tempratur 1", "did you mean temperature?"),
        ("/set num_beams 3", "there is no option num_beams"),
        ("/resett", "did you mean /reset?"),
    ],
)
def test_a_wrong_setting_changes_nothing(chat, capsys, line, words):
    model = CharacterModel(chat_template=TEMPLATE)
    assert chat(model, line, "one") == 0
    assert words in capsys.readouterr().err
    assert [options for _, options in model.calls] == [{"loop_guard": "stop"}]


def test_the_numbers_can_be_hidden(chat, capsys):
    for lines, options, shown in [
        (["one"], ["--no-stats"], 0),
        (["one", "/stats off", "two", "/stats on", "three"], [], 2),
        (["/set quiet", "one", "/set verbose", "two"], [], 1),
    ]:
        assert chat(CharacterModel(chat_template=TEMPLATE), *lines, options=options) == 0
        assert capsys.readouterr().err.count("stop: ") == shown
    assert run(["generate", "Hi", "--no-stats"]) == 0
    assert capsys.readouterr() == ("Hello\n", "")


def test_another_model_begins_anew_with_the_same_options(chat, monkeypatch, capsys):
    first, second = CharacterModel(chat_template=TEMPLATE), CharacterModel(("Yo",), chat_template=TEMPLATE)
    closed = []
    first.close = lambda: closed.append(first)

    def load(name, **options):
        if name == "nowhere":
            raise ModelError("it is not there")
        return second

    def switch():
        monkeypatch.setattr(onnx_textgen, "load", load)
        return "/model nowhere"

    lines = ["one", "/set top_k 3", "/model", switch, "two", "/model other", "three"]
    assert chat(first, *lines, options=["--system", "Brief."]) == 0
    assert len(prompts(first)) == 2 and closed == [first]
    assert prompts(second) == ["<s>[system]Brief.[user]three[assistant]"]
    assert second.calls[0][1] == {"loop_guard": "stop", "top_k": 3}
    err = capsys.readouterr().err
    assert "it is not there" in err and "the session begins again" in err


def test_ctrl_c_stops_the_answer_and_the_conversation_goes_on_from_what_was_said(chat):
    model = CharacterModel(("Hel", KeyboardInterrupt(), "lo"), chat_template=TEMPLATE)
    assert chat(model, "one", "two") == 0
    assert prompts(model)[1] == "<s>[user]one[assistant]Hel[user]two[assistant]"
    assert model.closed == 2


def test_a_turn_that_cannot_be_answered_is_said_and_forgotten(chat, capsys):
    model = CharacterModel((PromptError("the prompt has 101 tokens"),), chat_template=TEMPLATE)
    assert chat(model, "one", "two") == 0
    assert prompts(model)[1] == "<s>[user]two[assistant]"
    assert capsys.readouterr().err.count("error: the prompt has 101 tokens") == 2


def test_a_wrong_option_ends_the_chat_as_a_usage_error(chat, capsys):
    assert chat(CharacterModel(), "one", options=["--top-p", "2"]) == 2
    assert "top_p" in capsys.readouterr().err


def test_a_template_that_raises_is_said_in_one_line(chat, capsys):
    model = CharacterModel(chat_template="{{ raise_exception('only questions, please') }}")
    assert chat(model, "one") == 0
    assert [
        line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ") and "only questions, please" in line
    ]


def test_what_a_template_raises_commands_no_terminal(chat, capsys):
    model = CharacterModel(chat_template=r"{{ raise_exception('no \x1b]0;owned\x07') }}")
    assert chat(model, "one") == 0
    assert "no \ufffd]0;owned\ufffd" in capsys.readouterr().err


def test_options_reach_every_turn(chat):
    model = CharacterModel(chat_template=TEMPLATE)
    assert chat(model, "one", "two", options=["-n", "9", "--seed", "4"]) == 0
    assert [options for _, options in model.calls] == [{"loop_guard": "stop", "max_new_tokens": 9, "seed": 4}] * 2
    model = CharacterModel(chat_template=TEMPLATE)
    assert chat(model, "one", options=["--loop-guard", "off"]) == 0
    assert [options for _, options in model.calls] == [{"loop_guard": "off"}]


def test_a_system_prompt_stands_before_the_conversation_also_one_that_has_begun(chat):
    model = CharacterModel(("Hi",), chat_template=TEMPLATE)
    assert chat(model, "one", "/system Brief.", "two", "/reset", "three", "/system", "four", options=["--system", "Kind."]) == 0
    assert prompts(model) == [
        "<s>[system]Kind.[user]one[assistant]",
        "<s>[system]Brief.[user]one[assistant]Hi[user]two[assistant]",
        "<s>[system]Brief.[user]three[assistant]",
        "<s>[user]three[assistant]Hi[user]four[assistant]",
    ]


def test_a_template_that_takes_no_system_prompt_is_asked_before_one_is_set(chat, capsys):
    template = "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}" + TEMPLATE
    model = CharacterModel(("Hi",), chat_template=template)
    assert chat(model, "one", "/system Brief.", "two") == 0
    assert prompts(model)[1] == "<s>[user]one[assistant]Hi[user]two[assistant]"
    assert "no system role" in capsys.readouterr().err
    assert chat(CharacterModel(), "/system Brief.") == 0
    assert "no system prompt" in capsys.readouterr().err
    assert chat(CharacterModel(), "never read", options=["--system", "Brief."]) == 2


@pytest.mark.parametrize("template", [None, TEMPLATE])
def test_undo_takes_one_exchange_back_at_a_time(chat, capsys, template):
    model = CharacterModel(("Hi",), chat_template=template)
    options = ["--system", "Kind."] if template else []
    assert chat(model, "one", "two", "/undo", "three", "/undo", "/undo", "/undo", "four", options=options) == 0
    first, second, third, fourth = prompts(model)
    assert third == second.replace("two", "three")
    assert fourth == first.replace("one", "four")
    err = capsys.readouterr().err
    assert re.findall("undone: (.*)", err) == ["'two'", "'three'", "'one'"]
    assert err.count("error: nothing was asked yet") == 1


@pytest.mark.parametrize("template", [None, TEMPLATE])
def test_retry_asks_the_same_again_with_other_seeds(chat, template):
    model = CharacterModel(("Hi",), chat_template=template)
    assert chat(model, "one", "two", "/retry", "/retry", "three", options=["--seed", "4"]) == 0
    _, second, *again, last = prompts(model)
    assert again == [second, second]
    assert last.count("one") == last.count("two") == 1
    assert [options["seed"] for _, options in model.calls] == [4, 4, 5, 6, 4]


@pytest.mark.parametrize("failure", [ModelError("the graph failed"), KeyboardInterrupt()])
def test_a_retry_that_fails_leaves_the_answer_there_was(chat, terminal, failure):
    model = CharacterModel(("Hi",), chat_template=TEMPLATE)
    assert chat(model, "one", lambda: setattr(model, "reply", (failure,)), "/retry", "two") == 0
    assert prompts(model)[2] == "<s>[user]one[assistant]Hi[user]two[assistant]"


def test_a_retry_that_could_only_give_the_same_says_so(chat, capsys):
    model = CharacterModel(chat_template=TEMPLATE)
    assert chat(model, "/retry", "one", "/retry", options=["--temperature", "0"]) == 0
    assert len(model.calls) == 1
    err = capsys.readouterr().err
    assert "nothing was asked yet" in err
    assert "temperature 0" in err


def test_a_failure_in_the_middle_of_an_answer_takes_its_question_back(chat, capsys):
    model = CharacterModel(("Hel", ModelError("the graph failed")), chat_template=TEMPLATE)
    assert chat(model, "one", "two") == 0
    assert prompts(model)[1] == "<s>[user]two[assistant]"
    assert capsys.readouterr().out == "Hel\nHel\n"


def test_ctrl_c_before_the_first_token_takes_the_question_back(chat, capsys, terminal):
    model = CharacterModel((KeyboardInterrupt(),), chat_template=TEMPLATE)
    assert chat(model, "one", "two") == 0
    assert prompts(model)[1] == "<s>[user]two[assistant]"
    assert capsys.readouterr().out == ""


def test_ctrl_c_in_a_pipe_ends_the_chat_with_130(chat):
    assert chat(CharacterModel((KeyboardInterrupt(),)), "one", "never read") == 130


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        (['"""', " one", "", "/two", '"""'], " one\n\n/two"),
        (['"""one', 'two"""'], "one\ntwo"),
        (['"""one"""'], "one"),
        (['"""one', "two"], "one\ntwo"),
        (["one \\", "  two\\", "three"], "one \n  two\nthree"),
    ],
)
def test_several_lines_are_one_question(chat, lines, text):
    model = CharacterModel(chat_template=TEMPLATE)
    assert chat(model, *lines) == 0
    assert prompts(model) == [f"<s>[user]{text}[assistant]"]


@pytest.fixture
def chat_model(story):
    """The embedded model, with a template that it knows nothing of."""
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    return onnx_textgen.Model(story.folder, story.manifest, story.graph, chat_template=template)


def without_template(model):
    return onnx_textgen.Model(model.folder, model.manifest, model.graph, chat_template=None)


@pytest.mark.parametrize("has_template", [False, True])
def test_a_conversation_is_saved_and_gone_on_with_by_the_real_model(chat, chat_model, tmp_path, capsys, has_template):
    model, file = chat_model, str(tmp_path / "talk.session")
    if not has_template:
        model = without_template(model)
    options = ["--seed", "1", "-n", "12"]
    assert chat(model, "The dog", f"/save {file}", "It ran", options=options) == 0
    whole = capsys.readouterr().out
    assert chat(model, f"/load {file}", "It ran", "/stats", "/undo", "/undo", options=options) == 0
    out, err = capsys.readouterr()
    assert out and whole.endswith(out), "it writes what it would have written"
    assert f"loaded {file}: {'2 messages' if has_template else 'a text'}, " in err
    assert re.search(r"context +\d+ of 512 tokens", err)
    assert "kept)" in err, "the keys and values were in the file"
    assert err.count("undone: ") == (2 if has_template else 1), "the file does not say where the questions of a loaded text begin"


@pytest.mark.parametrize("has_template", [False, True])
def test_a_loaded_conversation_is_shown(chat, chat_model, tmp_path, capsys, has_template):
    file = str(tmp_path / "talk.session")
    if not has_template:
        chat_model = without_template(chat_model)
    assert chat(chat_model, "The dog", f"/save {file}", options=["--temperature", "0", "-n", "6"]) == 0
    answer = capsys.readouterr().out
    assert chat(chat_model, f"/load {file}") == 0
    out, err = capsys.readouterr()
    assert (out, err.endswith(f"> The dog\n{answer}" if has_template else f"The dog{answer}")) == ("", True)


def test_of_a_long_conversation_that_is_loaded_the_end_is_shown(chat, chat_model, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(chat_session, "MOST_SHOWN", 10)
    chat_model, file = without_template(chat_model), str(tmp_path / "talk.session")
    assert chat(chat_model, "The dog", f"/save {file}", options=["--temperature", "0", "-n", "20"]) == 0
    answer = capsys.readouterr().out.rstrip("\n")
    assert chat(chat_model, f"/load {file}") == 0
    assert capsys.readouterr().err.endswith(f"tokens\n... {answer[-10:]}\n")


def test_what_cannot_be_saved_or_loaded_is_one_line_and_the_talk_goes_on(chat, chat_model, tmp_path, capsys):
    place = tmp_path / "nowhere" / "talk.session"
    lines = ["/save talk", "The dog", "/save", f"/save {place}", f"/load {place}", "/load", "And then", "/stats"]
    assert chat(chat_model, *lines, options=["-n", "3"]) == 0
    err = capsys.readouterr().err
    assert err.count("error: ") == 5
    assert f"{place} cannot be read (No such file or directory); give the file of a saved session" in err
    assert re.search(r"exchanges +2\n", err)


def test_a_text_whose_beginning_was_forgotten_has_nothing_to_go_back_to(chat, chat_model, capsys):
    chat_model = without_template(chat_model)
    options = ["--context-limit", "shift", "--ignore-eos", "--seed", "1", "-n", "520"]
    assert chat(chat_model, "The dog", "/undo", "/stats", options=options) == 0
    err = capsys.readouterr().err
    assert "error: nothing was asked yet, or the beginning of the text was dropped" in err
    assert "undone: " not in err


def test_a_conversation_can_be_saved_right_after_its_system_prompt_changed(chat, chat_model, tmp_path, capsys):
    file = tmp_path / "talk.session"
    assert chat(chat_model, "The dog", "/system Brief.", f"/save {file}", f"/load {file}", "/undo", options=["-n", "3"]) == 0
    err = capsys.readouterr().err
    assert "3 messages" in err
    assert "error" not in err


def test_a_question_that_no_longer_fits_is_refused_and_nothing_is_lost(chat, chat_model, capsys):
    assert chat(chat_model, "The dog", "on and " * 600, "/stats", "and", options=["-n", "3"]) == 0
    err = capsys.readouterr().err
    assert re.search("error: the prompt has .*; /undo and /reset shorten the session\n", err)
    assert re.search(r"exchanges +1\n", err)


@pytest.mark.skipif(sys.platform == "win32", reason="Python has no readline there")
def test_the_history_is_kept_for_the_next_time_and_for_nobody_else(monkeypatch, tmp_path, terminal):
    import readline  # noqa: PLC0415

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv(line_input.HISTORY_VARIABLE, raising=False)
    file = tmp_path / "onnx-textgen" / "chat_history"
    with line_input.history():
        readline.add_history("The dog")
    assert "The" in file.read_text(encoding="utf-8")
    assert (stat.S_IMODE(file.stat().st_mode), stat.S_IMODE(file.parent.stat().st_mode)) == (0o600, 0o700)
    readline.clear_history()
    with line_input.history():
        assert readline.get_history_item(1) == "The dog"
    readline.clear_history()


def test_a_history_that_cannot_be_kept_is_no_error(monkeypatch, tmp_path, terminal):
    monkeypatch.setenv(line_input.HISTORY_VARIABLE, str(tmp_path))  # a folder
    with line_input.history():
        pass
    monkeypatch.setenv(line_input.HISTORY_VARIABLE, "")
    assert line_input.history_file() is None


def test_ctrl_c_at_the_prompt_says_how_to_end(chat, capsys, terminal):
    assert chat(CharacterModel(chat_template=TEMPLATE), KeyboardInterrupt(), "one") == 0
    assert "Ctrl-D ends" in capsys.readouterr().err


def test_the_help_names_every_command(chat, capsys):
    assert chat(CharacterModel(chat_template=TEMPLATE), "/help") == 0
    err = capsys.readouterr().err
    assert [name for name in ("system", "retry", "undo", "save", "load", "stats", "reset", "quit") if f"/{name}" not in err] == []
    assert max(map(len, err.splitlines())) <= 80


def test_a_conversation_changes_its_adapter_and_goes_on(chat, tmp_path, capsys):
    pytest.importorskip("onnx")
    from support.adapted_story import make_adapted_story  # noqa: PLC0415 - needs onnx

    model = onnx_textgen.load(make_adapted_story(tmp_path / "adapted", "french", "legal"), threads=1, device="cpu")
    lines = ["The dog", "/adapter french", "/undo", "The dog", "/adapter third", "/adapter", "/undo", "The dog", "/stats"]
    assert chat(model, *lines, options=["--temperature", "0", "-n", "9"]) == 0
    out, err = capsys.readouterr()
    first, adapted, last = out.splitlines()
    assert first == last != adapted
    assert adapted == model.generate("The dog", temperature=0, max_new_tokens=9, adapter="french").text
    assert "adapter french; there are also: legal" in err
    assert "error: story has no adapter 'third'; choose one of: french, legal" in err
    assert "no adapter; there are also: french, legal" in err
    assert re.search(r"adapter +none", err)


def test_variables_of_the_template_hold_for_every_turn(chat, story, tmp_path, capsys):
    template = "{% for m in messages %}{{ m.content }} {% endfor %}{{ mood }}"
    model = onnx_textgen.Model(story.folder, story.manifest, story.graph, chat_template=template)
    options = ["--temperature", "0", "-n", "4", "--chat-template-kwargs"]
    assert chat(model, "The dog", f"/save {tmp_path / 'talk'}", options=[*options, '{"mood": "was sad."}']) == 0
    wanted = model.generate(model.tokenizer.encode("The dog was sad.", add_special_tokens=False), temperature=0, max_new_tokens=4)
    assert capsys.readouterr().out == f"{wanted.text}\n"
    assert chat(model, "The dog", options=[*options, "{mood"]) == 2
    assert "--chat-template-kwargs should be JSON, found '{mood'" in capsys.readouterr().err
    assert chat(model, "The dog", options=[*options, "[1]"]) == 2
    assert "should be a JSON object" in capsys.readouterr().err


TOOLS = '''
def add(a: int, b: int) -> int:
    """Add."""
    return a + b

def fail(text: str) -> None:
    """Fail."""
    raise ValueError(text)

def _hidden(a: int) -> int:
    """No tool."""
    return a
'''


class CallingModel(CharacterModel):
    """Answers with the given tool calls, one answer after the other, then with text."""

    chats = SimpleNamespace(calls_tools=True)

    def __init__(self, *answers):
        super().__init__(chat_template=TEMPLATE)
        self.answers = list(answers)

    def session(self, **inputs):
        self.made = made = super().session()
        self.inputs = inputs
        made.stream_chat = lambda **_: self.stream_chat(made)
        return made

    def stream_chat(self, session):
        calls, thought = self.answers.pop(0) if self.answers else ((), "")
        text = "" if calls else "Done."
        message = ChatAnswer(text, thought, calls, "tool_calls" if calls else "eos", SimpleNamespace(stats=None))
        yield ChatChunk(reasoning=thought, token_ids=(5,))
        yield ChatChunk(text=text, token_ids=(6,))
        session.messages.append(message.message)
        yield ChatChunk(answer=message)


def call(name, **arguments):
    return (ToolCall("abc", name, arguments, "{}"),)


@pytest.fixture
def tools(tmp_path):
    file = tmp_path / "tools.py"
    file.write_text(TOOLS)
    return str(file)


@pytest.mark.parametrize(
    ("asked", "results"),
    [
        (["y", "n"], ["5", "the user did not allow this call"]),
        (["a"], ["5", "9"]),
        ([""], ["the user did not allow this call", "the user did not allow this call"]),
    ],
)
@pytest.mark.usefixtures("terminal")
def test_calls_run_only_after_asking(chat, tools, asked, results, capsys):
    model = CallingModel((call("add", a=2, b=3), ""), (call("add", a=4, b=5), ""))
    assert chat(model, "two and three?", *asked, *[""] * (2 - len(asked)), options=["--tools", tools]) == 0
    printed = capsys.readouterr()
    assert [each["content"] for each in model.made.messages if each["role"] == "tool"] == results
    assert "These functions can do whatever you can" in printed.err
    assert "add" in printed.err
    assert "a: 2" in printed.err
    assert "Done." in printed.out
    assert [tool.name for tool in model.inputs["tools"]] == ["add", "fail"]


def test_without_a_terminal_no_call_runs(chat, tools, capsys):
    assert chat(CallingModel((call("add", a=2, b=3), "")), "two and three?", options=["--tools", tools]) == 0
    assert "add was not run: calls are asked for, which needs a terminal" in capsys.readouterr().err


@pytest.mark.usefixtures("terminal")
def test_a_model_that_calls_without_end_is_stopped(chat, tools, capsys):
    model = CallingModel(*[(call("add", a=1, b=1), "")] * 50)
    assert chat(model, "count", "a", options=["--tools", tools]) == 0
    assert "the model has called tools 16 times for one question, and was stopped" in capsys.readouterr().err
    assert len(model.answers) == 50 - 17


def test_thinking_is_one_line_until_it_is_asked_for(chat, capsys):
    assert chat(CallingModel(((), "I think so.")), "so?", "/thinking", "/quit") == 0
    printed = capsys.readouterr()
    assert "I think so." not in printed.out
    assert printed.err.count("I think so.") == 1
    assert "/thinking shows it" in printed.err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "there is no file"),
        ("x = ", "cannot be run (SyntaxError"),
        ("def _hidden(): ...", "has no function to call"),
        ("def f(a): ...", "the argument a of f has no annotation"),
    ],
)
def test_a_file_that_has_no_tools_is_refused_in_one_line(chat, tmp_path, text, said, capsys):
    file = tmp_path / "tools.py"
    if text is not None:
        file.write_text(text)
    assert chat(CallingModel(), "a", options=["--tools", str(file)]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") <= 2


def test_a_model_without_a_template_takes_no_tools(chat, tools, capsys):
    assert chat(CharacterModel(), "a", options=["--tools", tools]) == 2
    assert "has no chat template, so it cannot call tools; leave --tools out" in capsys.readouterr().err


def test_a_model_whose_form_of_calls_is_not_known_is_said_to_be_one(chat, tools, capsys):
    model = CallingModel()
    assert chat(model, "a", options=["--tools", tools]) == 0
    assert "give --response-template FILE" not in capsys.readouterr().err
    model.chats = SimpleNamespace(calls_tools=False)
    assert chat(model, "a", options=["--tools", tools]) == 0
    assert "writes calls is not known, so they stay text; give --response-template FILE" in capsys.readouterr().err
