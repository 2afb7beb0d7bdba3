"""Text that follows a rule: whatever a model prefers, what is allowed is valid, and what is forbidden has an infinite cost."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnx_textgen.errors import ModelError, OptionError
from onnx_textgen.options.generation_config import GenerationConfig
from onnx_textgen.package.locate import find_package
from onnx_textgen.package.manifest import TOKENIZER
from onnx_textgen.package.reading import read_manifest
from onnx_textgen.sampling.grammar import Constraint, Rules
from onnx_textgen.text.tokenizer import TextTokenizer
from support.added_tokens import with_added_tokens
from support.examples import examples

llguidance = pytest.importorskip("llguidance", reason='constraints need pip install "onnx-textgen[grammar]"')
jsonschema = pytest.importorskip("jsonschema", reason="what validates JSON here is jsonschema, of the development extra")

STORY = find_package("story")
(EOS,) = read_manifest(STORY).eos_ids
BOS = read_manifest(STORY).bos_id
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 150}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
SCHEMAS = {
    "true and false": {"type": "boolean"},
    "null": {"type": "null"},
    "a number": {"type": "number", "minimum": -2.5, "exclusiveMaximum": 7},
    "a whole number": {"type": "integer", "minimum": 3, "maximum": 4711},
    "a constant": {"const": {"a": [1, None, "x"]}},
    "a choice": {"enum": ["red", "green", 3, None, [1, 2]]},
    "a short text": {"type": "string", "minLength": 2, "maxLength": 5},
    "a pattern": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"},
    "a date": {"type": "string", "format": "date"},
    "an object": PERSON,
    "objects in an object": {
        "type": "object",
        "properties": {
            "who": PERSON,
            "where": {"type": "array", "items": {"type": "object", "properties": {}, "additionalProperties": False}, "maxItems": 2},
        },
        "required": ["who", "where"],
        "additionalProperties": False,
    },
    "few items": {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 2, "maxItems": 4},
    "a tuple": {"type": "array", "prefixItems": [{"type": "integer"}, {"const": "x"}], "items": False, "minItems": 2},
    "one of two": {"anyOf": [{"type": "integer"}, {"enum": ["many"]}]},
    "a reference": {"$defs": {"p": PERSON}, "type": "array", "items": {"$ref": "#/$defs/p"}, "minItems": 1, "maxItems": 2},
    "a tree": {
        "$defs": {
            "node": {
                "type": "object",
                "properties": {"v": {"enum": [0, 1]}, "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]}},
                "required": ["v", "next"],
                "additionalProperties": False,
            }
        },
        "$ref": "#/$defs/node",
    },
    "not required": {
        "type": "object",
        "properties": {"a": {"const": 1}, "b": {"const": 2}, "c": {"const": 3}},
        "required": ["b"],
        "additionalProperties": False,
    },
}
PATTERNS = [
    r"(yes|no|maybe)",
    r"[0-9]{3}-[0-9]{4}",
    r"(héllo|wörld|日本){1,3}",
    r"[a-c]{1,6}x?",
    r'"[^"\n]{0,9}"',
    r"once upon a time, there was a (dog|cat)\.",
]
SUM = """
start: product ("+" product){0,3}
product: NUMBER | "(" start ")"
NUMBER: /[0-9]{1,3}/
"""


CHAIN = "start: r0\n" + "\n".join(f'r{i}: "a" r{i + 1}' for i in range(2_999)) + '\nr2999: "b"'
"""Ends the process in llguidance 1.9.1 (a stack overflow)."""
REFERENCES = {
    "$defs": {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(3_000)} | {"d3000": {"type": "integer"}},
    "$ref": "#/$defs/d0",
}
"""So does this."""


@pytest.fixture(scope="module")
def tokenizer():
    return TextTokenizer.from_file(STORY / TOKENIZER, eos_ids=[EOS], bos_id=BOS)


@pytest.fixture(scope="module")
def rules(tokenizer):
    return Rules(tokenizer, vocab_size=tokenizer.vocab_size + 7, eos_ids=[EOS])


def constraint(rules: Rules, **rule) -> Constraint:
    made = rules.constraint(GenerationConfig(**rule))
    assert made is not None
    return made


def write(constraint: Constraint, rng: np.random.Generator, *, most: int = 600, force: bool = False) -> list[int]:
    """Draw tokens by random logits until the text is whole; the end of the text is likely where it is allowed."""
    ids: list[int] = []
    while not constraint.is_done and len(ids) < most:
        scores = rng.normal(size=constraint.vocab_size).astype(np.float32)
        scores[EOS] += 3
        constraint.mask(scores)
        token_id = int(scores.argmax())
        if token_id == EOS:
            break
        constraint.accept(token_id)
        ids.append(token_id)
        for forced in constraint.forced() if force else ():
            constraint.accept(forced)
            ids.append(forced)
    return ids


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("kind", SCHEMAS)
def test_json_is_valid_whatever_the_logits(kind, force, rules, tokenizer):
    schema = SCHEMAS[kind]
    for seed in range(20):
        made = constraint(rules, json_schema=schema)
        text = tokenizer.decode(write(made, np.random.default_rng(seed), force=force))
        assert made.is_satisfied, text
        jsonschema.validate(json.loads(text), schema)


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_text_matches_its_regular_expression_whatever_the_logits(pattern, force, rules, tokenizer):
    for seed in range(10):
        made = constraint(rules, regex=pattern)
        text = tokenizer.decode(write(made, np.random.default_rng(seed), force=force))
        assert made.is_satisfied
        assert re.fullmatch(pattern, text)


def test_text_follows_a_grammar_and_python_reads_the_sum(rules, tokenizer):
    for seed in range(10):
        text = tokenizer.decode(write(constraint(rules, grammar=SUM), np.random.default_rng(seed)))
        assert re.fullmatch(r"[0-9+()]+", text)
        assert text.count("(") == text.count(")")


@given(st.lists(st.text(st.characters(categories=["L", "N", "P", "Zs"]), min_size=1, max_size=12), min_size=1, max_size=5))
@examples(40)
def test_of_some_choices_one_is_written(choices):
    tokenizer = TextTokenizer.from_file(STORY / TOKENIZER, eos_ids=[EOS], bos_id=BOS)
    rules = Rules(tokenizer, vocab_size=tokenizer.vocab_size, eos_ids=[EOS])
    made = constraint(rules, json_schema={"enum": choices})
    assert json.loads(tokenizer.decode(write(made, np.random.default_rng(1)))) in choices


def test_a_mask_leaves_what_is_allowed_as_it_was_and_agrees_with_the_library(rules):
    made = constraint(rules, json_schema=PERSON)
    for token_id in write(constraint(rules, json_schema=PERSON), np.random.default_rng(0)):
        before = np.random.default_rng(3).normal(size=made.vocab_size).astype(np.float32)
        scores = before.copy()
        made.mask(scores)
        allowed = np.frombuffer(made.matcher.compute_logit_bias(), dtype=np.uint8)[: made.vocab_size] != 0
        np.testing.assert_array_equal(np.isfinite(scores), allowed)
        np.testing.assert_array_equal(scores[allowed], before[allowed])
        assert allowed[token_id]
        made.accept(token_id)


def test_ids_that_have_no_text_are_never_allowed(rules, tokenizer):
    made = constraint(rules, regex=r"(?s:.){0,40}")
    scores = np.zeros(made.vocab_size, np.float32)
    made.mask(scores)
    assert np.isneginf(scores[tokenizer.vocab_size :]).all()
    assert np.isneginf(scores[BOS])
    assert np.isfinite(scores[EOS]), "the empty text matches"


@pytest.mark.parametrize("eos_ids", [[EOS], []])
@pytest.mark.parametrize("force", [False, True])
def test_ids_without_a_logit_are_never_chosen(eos_ids, force, tokenizer):
    rows = tokenizer.vocab_size - 3000
    made = Rules(tokenizer, vocab_size=rows, eos_ids=eos_ids).constraint(GenerationConfig(json_schema=PERSON))
    rng, ids = np.random.default_rng(3), []
    while not (made.is_done or made.is_satisfied):
        scores = rng.normal(size=rows).astype(np.float32)
        made.mask(scores)
        made.accept(int(scores.argmax()))
        ids.append(int(scores.argmax()))
        for forced in made.forced() if force else ():
            made.accept(forced)
            ids.append(forced)
    assert max(ids) < rows
    jsonschema.validate(json.loads(tokenizer.decode(ids)), PERSON)


@pytest.mark.parametrize("text", ["<tool_call>\n{}\n</tool_call>", "a\n\n\nb", "</s> and <pad>", "e\u0301 \u212b", "a  b"])
@pytest.mark.parametrize("normalizer", [None, "NFC"])
@pytest.mark.parametrize("force", [False, True])
def test_a_rule_may_ask_for_any_text(text, normalizer, force):
    """Also where the tokenizer has tokens for parts of it that are no part of a text, or would write it in other characters."""
    given = with_added_tokens(["<tool_call>", "</tool_call>", "\n\n"], special=["<pad>"], normalizer=normalizer)
    rules = Rules(given, vocab_size=given.vocab_size, eos_ids=[EOS])
    for rule in ({"regex": re.escape(text)}, {"grammar": f"start: {json.dumps(text)}"}, {"json_schema": {"const": text}}):
        written = given.decode(write(constraint(rules, **rule), np.random.default_rng(0), force=force))
        assert (json.loads(written) if "json_schema" in rule else written) == text


def test_a_token_is_allowed_in_a_text_if_decoding_shows_it():
    given = with_added_tokens(["<tool_call>", "\n\n"], special=["<pad>"])
    mark, lines, pad = (given.encode(each)[-1] for each in ("<tool_call>", "\n\n", "<pad>"))
    rules = Rules(given, vocab_size=given.vocab_size, eos_ids=[EOS])
    scores = np.zeros(given.vocab_size, np.float32)
    constraint(rules, regex=r"(?s:.)*").mask(scores)
    assert np.isfinite(scores[[mark, lines]]).all()
    assert np.isneginf(scores[[pad, BOS]]).all()
    made = constraint(rules, regex="<tool_call>a")
    assert made.forced()[0] == mark, "the model was trained on the one token"


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"regex": "(["}, r"regex cannot be used: .*"),
        ({"grammar": "start: foo"}, r"grammar cannot be used: .*unknown name"),
        (
            {"json_schema": {"type": "object", "unevaluatedProperties": False}, "strict_schema": True},
            r"json_schema cannot be used: .*unevaluatedProperties",
        ),
        ({"json_schema": {"type": "zebra"}}, r"json_schema cannot be used: .*"),
        ({"json_schema": {"$ref": "https://example.com/schema.json"}}, r"json_schema cannot be used: .*"),
        ({"json_schema": {"enum": [str(i) for i in range(60_000)]}}, r"json_schema cannot be used: .*too big"),
        ({"grammar": CHAIN}, r"grammar cannot be used: it has about 3,001 rules, and 500 is the limit"),
        ({"json_schema": REFERENCES}, r"json_schema cannot be used: it has about 3,001 references"),
    ],
)
def test_a_rule_that_cannot_be_used_is_one_line_that_says_why(rule, message, rules):
    with pytest.raises(OptionError, match=message) as caught:
        rules.constraint(GenerationConfig(**rule))
    assert "\n" not in str(caught.value)


WIDER = {
    "uniqueItems": {"type": "array", "items": {"enum": [1, 2]}, "maxItems": 3, "uniqueItems": True},
    "not": {"type": "integer", "maximum": 9, "minimum": 0, "not": {"const": 4}},
    "oneOf": {"oneOf": [{"type": "integer", "maximum": 9, "minimum": 0}, {"type": "integer", "const": 4}]},
    "int32": {"type": "string", "maxLength": 4, "format": "int32"},
}
"""Schemas with a keyword that no grammar can follow."""


@pytest.mark.parametrize("keyword", WIDER)
def test_what_no_grammar_can_follow_has_no_effect_or_is_refused_by_its_name(keyword, rules, tokenizer, caplog):
    schema = {"type": "object", "properties": {"x": WIDER[keyword]}, "required": ["x"], "additionalProperties": False}
    with pytest.raises(OptionError, match=f"json_schema cannot be used: .*{keyword}"):
        rules.constraint(GenerationConfig(json_schema=schema, strict_schema=True))
    verdicts = set[bool]()
    for seed in range(30):
        made = constraint(rules, json_schema=schema)
        text = tokenizer.decode(write(made, np.random.default_rng(seed)))
        assert json.loads(text).keys() == {"x"}
        assert made.is_satisfied == made.fork().is_satisfied == jsonschema.Draft202012Validator(schema).is_valid(json.loads(text))
        verdicts.add(made.is_satisfied)
    assert verdicts == ({True} if keyword == "int32" else {True, False}), "the text is checked against all of the schema"
    assert keyword in caplog.text


def test_best_of_prefers_a_text_that_follows_all_of_its_schema(story):
    how = {"json_schema": WIDER["uniqueItems"] | {"minItems": 2, "maxItems": 2}, "max_new_tokens": 20, "temperature": 1.5}
    verdicts = set[bool]()
    for seed in range(12):
        drawn = story.generate("1", seed=seed, num_return_sequences=3, **how).sequences
        best = story.generate("1", seed=seed, best_of=3, **how)
        assert best.follows_rule is any(each.follows_rule for each in drawn)
        verdicts |= {each.follows_rule for each in drawn}
    assert verdicts == {True, False}


def test_a_package_without_a_tokenizer_says_so():
    with pytest.raises(OptionError, match="regex needs a tokenizer"):
        Rules(None, vocab_size=10, eos_ids=[]).constraint(GenerationConfig(regex="a"))


def test_without_a_rule_there_is_no_constraint_and_the_library_is_not_needed(tokenizer, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "llguidance", None)
    rules = Rules(tokenizer, vocab_size=tokenizer.vocab_size, eos_ids=[EOS])
    assert rules.constraint(GenerationConfig()) is None
    with pytest.raises(OptionError, match="regex needs llguidance, which is not installed; add it with: pip install"):
        rules.constraint(GenerationConfig(regex="a"))


def test_a_token_that_was_not_allowed_is_an_error_and_not_a_wrong_text(rules):
    made = constraint(rules, regex="a")
    with pytest.raises(ModelError, match="the regex cannot be followed further"):
        made.accept(EOS + 40)


@pytest.mark.parametrize(
    "options", [{"temperature": 0}, {"temperature": 1.5, "seed": 3}, {"temperature": 1, "top_k": 5, "seed": 4}]
)
@pytest.mark.parametrize("kind", ["an object", "few items", "a tree", "a pattern", "a choice"])
def test_a_model_writes_json_of_the_schema(kind, options, story):
    result = story.generate("Tim wrote: ", max_new_tokens=200, json_schema=SCHEMAS[kind], **options)
    assert result.finish_reason == "eos"
    jsonschema.validate(json.loads(result.text), SCHEMAS[kind])


def test_rows_of_a_list_streams_and_single_texts_write_the_same(story):
    options = {"max_new_tokens": 120, "json_schema": PERSON, "temperature": 1.2, "seed": 11}
    alone = story.generate("Tim wrote: ", **options)
    rows = story.generate(["Tim wrote: ", "The dog said: "], **options)
    assert rows[0].token_ids == alone.token_ids
    jsonschema.validate(json.loads(rows[1].text), PERSON)
    assert "".join(chunk.text for chunk in story.stream("Tim wrote: ", **options)) == alone.text
    with_logprobs = story.generate("Tim wrote: ", logprobs=1, **options)
    assert with_logprobs.token_ids == alone.token_ids, "forced tokens are the same when each takes a run of its own"


def test_forced_tokens_are_fed_in_one_run(story, monkeypatch):
    runs = []
    real = type(story.graph.ort).run_with_iobinding
    monkeypatch.setattr(type(story.graph.ort), "run_with_iobinding", lambda *given: (runs.append(1), real(*given))[1])
    text = "once upon a time there lived a very small dog"
    result = story.generate("He said: ", regex=f"({text}|{text.replace('dog', 'cat')})!", temperature=0)
    assert result.text in (f"{text}!", f"{text.replace('dog', 'cat')}!")
    assert len(runs) <= 4 < len(result.token_ids)


def test_what_is_allowed_anyway_is_chosen_as_without_a_rule(story):
    free = story.generate("Once upon a time", max_new_tokens=30, temperature=0)
    ruled = story.generate("Once upon a time", max_new_tokens=30, temperature=0, regex=r"(?s:.)*")
    assert ruled.token_ids == free.token_ids


def test_a_text_that_is_cut_off_says_so(story):
    result = story.generate("Tim wrote: ", max_new_tokens=3, json_schema=PERSON, temperature=0)
    assert result.finish_reason == "length"
    assert result.follows_rule is False
    assert story.generate("Tim wrote: ", max_new_tokens=90, json_schema=PERSON, temperature=0).follows_rule is True
    assert story.generate("Tim wrote: ", max_new_tokens=3, temperature=0).follows_rule is None


def test_beams_search_among_what_the_rule_allows(story):
    """The search finds nothing less likely than any text of the rule, as the tokenizer would write it.

    The search feeds single tokens and the ranking several, whose attention rounds in another way; where activations are rounded to
    8 bits after that, a score may differ by hundredths (0.03 without VNNI).
    """
    prompt, texts = "The dog was", [f" {a} and {b}" for a in ("happy", "sad", "red") for b in ("big", "small", "angry")]
    pattern = " (happy|sad|red) and (big|small|angry)"
    found = story.generate(prompt, regex=pattern, num_beams=9, num_return_sequences=4, length_penalty=0, max_new_tokens=20)
    best = story.rank(prompt, texts)[0]
    assert found.score is not None and found.score >= best.logprob - 0.1
    for one in found.sequences:
        assert re.fullmatch(pattern, one.text), one.text
        assert (one.finish_reason, one.follows_rule) == ("eos", True)
    assert len({one.text for one in found.sequences}) >= 2


def test_a_rule_that_was_refused_is_not_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """That a large rule is too large is found in a second, which each sample of each request would take."""
    rules, compiled = Rules(None, vocab_size=4, eos_ids=(EOS,)), list[str]()

    def refused(name: str, rule: str, is_strict: bool) -> None:
        compiled.append(rule)
        raise OptionError(f"{name} cannot be used")

    monkeypatch.setattr(rules, "matcher", refused)
    for rule in ("one", "one", "two", "one"):
        with pytest.raises(OptionError, match="regex cannot be used"):
            rules.compiled("regex", rule)
    assert compiled == ["one", "two"]
