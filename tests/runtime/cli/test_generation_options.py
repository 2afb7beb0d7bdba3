"""The options of generation on the command line: all of them, read once, and what they change."""

import json

import pytest

from onnx_textgen.cli import run
from onnx_textgen.cli.generation_options import OPTIONS
from onnx_textgen.options.generation_config import OPTION_NAMES

NOT_ON_THE_COMMAND_LINE = {"bad_words_ids", "logits_processor", "stopping_criterion"}
SCHEMA = {"type": "object", "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 99}}}
SCHEMA |= {"required": ["age"], "additionalProperties": False}


def answer(capsys, *arguments):
    assert run(["generate", "Once upon a time", "--json", "--seed", "3", "--threads", "1", *arguments]) == 0
    return json.loads(capsys.readouterr().out)


def test_every_option_of_a_generation_is_on_the_command_line():
    assert {*OPTIONS} | NOT_ON_THE_COMMAND_LINE == {*OPTION_NAMES}


def test_help_lists_them(capsys):
    assert run(["generate", "-h"]) == 0
    shown = capsys.readouterr().out
    for name, given in OPTIONS.items():
        assert (given.flags or (f"--{name.replace('_', '-')}",))[0] in shown


def test_a_schema_in_a_file_and_a_regex(capsys, tmp_path):
    pytest.importorskip("llguidance")
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA), encoding="utf-8")
    made = answer(capsys, "--json-schema", str(tmp_path / "schema.json"), "-n", "60")
    assert abs(json.loads(made["text"])["age"]) >= 0 and made["follows_rule"] is True
    assert answer(capsys, "--regex", "(yes|no)")["text"] in ("yes", "no")


def test_a_text_cut_off_before_its_rule_ends_is_an_error_and_is_written_all_the_same(capsys):
    pytest.importorskip("llguidance")
    assert run(["generate", "He said ", "--regex", "once upon a time there was a dog|no{40}", "-n", "2", "--threads", "1"]) == 1
    shown = capsys.readouterr()
    assert shown.out.strip() and "before its constraint was complete" in shown.err


def test_a_schema_that_cannot_be_read_names_the_file(capsys, tmp_path):
    assert run(["generate", "a", "--json-schema", str(tmp_path / "none.json")]) == 2
    assert "none.json" in capsys.readouterr().err


def test_log_probabilities_and_alternatives_are_in_the_json_where_asked(capsys):
    made = answer(capsys, "-n", "4", "--logprobs", "2")
    assert len(made["logprobs"]) == len(made["alternatives"]) == 4
    assert set(made["alternatives"][0][0]) == {"token_id", "text", "logprob"}
    assert "logprobs" not in answer(capsys, "-n", "4")


def test_several_texts_are_numbered_and_listed(capsys):
    made = answer(capsys, "-n", "5", "--num-return-sequences", "3")
    assert len(made["sequences"]) == 3 and made["sequences"][0]["token_ids"] == made["token_ids"]
    assert run(["generate", "Once", "-n", "5", "--num-beams", "2", "--num-return-sequences", "2", "--threads", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("[1] ") and any(line.startswith("[2] ") for line in lines)


def test_a_bias_is_read_and_a_wrong_one_is_one_line(capsys):
    token_id = answer(capsys, "-n", "1", "--temperature", "0")["token_ids"][0]
    assert answer(capsys, "-n", "1", "--temperature", "0", "--logit-bias", f"{token_id}=-100")["token_ids"][0] != token_id
    assert run(["generate", "a", "--logit-bias", "5:3"]) == 2
    assert "like 13=-100; found '5:3'" in capsys.readouterr().err


def test_choices_are_ranked_and_a_continuation_is_scored(capsys):
    assert run(["score", "The dog wagged its", "--choice", " tail", "--choice", " seven", "--json", "--threads", "1"]) == 0
    assert [one["text"] for one in json.loads(capsys.readouterr().out)] == [" tail", " seven"]
    assert run(["score", "The dog wagged its", "--choice", " tail", "--choice", " seven", "--threads", "1"]) == 0
    assert capsys.readouterr().out.index("tail") > 0
    assert run(["score", "The dog", "--continuation", " sat", "--logprobs", "2", "--json", "--threads", "1"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["prompt_tokens"] and made["continuation_logprob"] < 0 and len(made["alternatives"][0]) == 2
    assert run(["score", "The dog", "--logprobs", "2", "--threads", "1"]) == 0
    assert "most likely" in capsys.readouterr().out
