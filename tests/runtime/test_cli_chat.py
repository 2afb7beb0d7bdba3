"""`onnx-textgen chat`: turns, the growing text, and the commands with a slash."""

import pytest

import onnx_textgen
from cli_model import BOS, CharacterModel
from onnx_textgen.cli import run
from onnx_textgen.errors import PromptError

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
            if isinstance(line, BaseException):
                raise line
            return line

        monkeypatch.setattr("builtins.input", read)
        monkeypatch.setattr(onnx_textgen, "load", lambda package, **options: model)
        return run(["chat", *options])

    return talk


def prompts(model):
    return ["".join(map(chr, prompt)) for prompt, _ in model.calls]


def test_each_line_is_a_turn_and_the_template_renders_the_whole_conversation(chat, capsys):
    model = CharacterModel(("Hi", "!"), chat_template=TEMPLATE)
    assert chat(model, "one", "two") == 0
    assert prompts(model) == ["<s>[user]one[assistant]", "<s>[user]one[assistant]Hi![user]two[assistant]"]
    assert capsys.readouterr().out == "Hi!\nHi!\n"


def test_all_turns_share_one_context(chat, monkeypatch):
    model, contexts = CharacterModel(chat_template=TEMPLATE), []
    speak = CharacterModel.stream
    monkeypatch.setattr(
        CharacterModel, "stream", lambda self, *args, context, **options: contexts.append(context) or speak(self, *args)
    )
    assert chat(model, "one", "/reset", "two") == 0
    assert contexts[0] is contexts[1] is not None


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


def test_options_reach_every_turn(chat):
    model = CharacterModel(chat_template=TEMPLATE)
    assert chat(model, "one", "two", options=["-n", "9", "--seed", "4"]) == 0
    assert [options for _, options in model.calls] == [{"max_new_tokens": 9, "seed": 4}] * 2
