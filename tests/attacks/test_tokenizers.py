"""Hostile tokenizers: files that are none, blow a text up, go back and forth without end, or say odd things of their ids."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from onnx_textgen.text.stream_decoder import StreamDecoder
from onnx_textgen.text.tokenizer import TextTokenizer
from support.examples import examples

from .law import PACKAGE, Cell, Verdict, Violation, judged
from .values import Spot, with_other_values

TEXTS = ("", "a", "a b ab", "a" * 31 + "b", "ab" * 3_000, "é🙂\u202e\0\x1b", "<s></s>[UNK]", " \n\t" * 500)
Spec = dict[str, Any]
FLAGS = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
"""That an added token has to have."""


def spec(**changes: Any) -> Spec:
    """A small tokenizer with some parts of its own."""
    model = {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, " ": 3}, "merges": ["a b"]}
    parts = dict.fromkeys(["normalizer", "pre_tokenizer", "post_processor", "decoder"])
    return {"version": "1.0", "added_tokens": [], **parts, "model": model, **changes}


def bpe(**changes: Any) -> Spec:
    """One with a model of its own."""
    return spec(model={"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"], **changes})


def unigram(vocab: list[Any], unknown: int) -> Spec:
    """One with words of scores."""
    return spec(model={"type": "Unigram", "unk_id": unknown, "vocab": vocab})


def word_piece(vocab: dict[str, int], longest: int) -> Spec:
    """One with words and their ends."""
    ends = {"unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": longest}
    return spec(model={"type": "WordPiece", "vocab": vocab, **ends})


def around(single: list[Any], special: dict[str, Any]) -> Spec:
    """One that puts tokens around a text."""
    return spec(post_processor={"type": "TemplateProcessing", "single": single, "pair": [], "special_tokens": special})


def replace(pattern: dict[str, str], content: object) -> dict[str, Any]:
    """A part that replaces text."""
    return {"type": "Replace", "pattern": pattern, "content": content}


def split(regex: str) -> Spec:
    """One that splits texts by an expression."""
    return spec(pre_tokenizer={"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False})


def added(token_id: Any, content: Any = "x", **more: Any) -> Spec:
    """One with an added token."""
    return spec(added_tokens=[{"id": token_id, "content": content, "special": True, **FLAGS, **more}])


def in_sequences(kind: str, children: str, depth: int) -> Spec:
    """A part in lists of parts."""
    part: Spec = (
        replace({"String": "a"}, "b")
        if kind == "normalizer"
        else {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    )
    for _ in range(depth):
        part = {"type": "Sequence", children: [part]}
    return spec(**{kind: part})


REGEXES = (
    *("(a+)+$", "(a|a)*$", "(a|aa)+$", "(.*a){20}", "((a*)*)*$", "(?:a?){40}a{40}", r"(\w+\s?)*$", "a{0,100000}", "(?>a+)+$"),
    *("(" * 5_000 + ")" * 5_000, "[" * 1_000, r"\p{Nothing}", "(?<=a+)b", "(?R)", r"\g<0>", r"(?<n>a|b\g<n>c)", "", "^", "$"),
    *(r"\b", "(?!)", "a" * 100_000, "|".join("ab" * n for n in range(500)), "(?i)" + "\u017f" * 1_000, r"(a)\1{99999}"),
    *("x*" * 1_000, "[^\\x00-\\U0010FFFF]", "(a{1000}){1000}"),
)  # fmt: skip
FILES: dict[str, Callable[[], str]] = {
    "is empty": lambda: "",
    "is no JSON": lambda: "{",
    "is a list": lambda: "[]",
    "is null": lambda: "null",
    "has no model": lambda: "{}",
    "is nested without end": lambda: "[" * 100_000,
    "is nested in its model without end": lambda: '{"model": ' * 50_000 + "1" + "}" * 50_000,
    "has two vocabularies": lambda: json.dumps(spec()).replace('"vocab":', '"vocab": {"a": 0}, "vocab":'),
    "is of another version": lambda: json.dumps(spec(version="9.9")),
    "is of no version": lambda: json.dumps(spec(version=None)),
    "has NaN for an id": lambda: json.dumps(bpe(vocab={"a": float("nan")}, merges=[])),
    "has an id of 5,000 digits": lambda: json.dumps(bpe(vocab={"a": 0}, merges=[])).replace('"a": 0', f'"a": {"9" * 5_000}'),
    "has half a character": lambda: json.dumps(bpe(vocab={"\ud800": 0}, merges=[])),
    "has the same merge 50,000 times": lambda: json.dumps(bpe(merges=["a b"] * 50_000)),
    "has a word of 1 MB": lambda: json.dumps(bpe(vocab={"a" * 2**20: 0, "a": 1}, merges=[])),
    "has 300,000 words": lambda: json.dumps(bpe(vocab={f"w{i}": i for i in range(300_000)}, merges=[])),
    "has a prefix of 1 MB": lambda: json.dumps(bpe(continuing_subword_prefix="x" * 2**20)),
    "has a suffix of 1 MB": lambda: json.dumps(bpe(end_of_word_suffix="x" * 2**20)),
    "has a Unigram with one word often": lambda: json.dumps(unigram([["a", 0.0]] * 5_000, 0)),
    "has an added token of 1 MB": lambda: json.dumps(added(4, "x" * 2**20)),
    "has 20,000 added tokens": lambda: json.dumps(
        spec(added_tokens=[{"id": 4 + i, "content": f"<{i}>", "special": False, **FLAGS} for i in range(20_000)])
    ),
    "lengthens a text by a pattern": lambda: json.dumps(spec(normalizer=replace({"Regex": "."}, "a" * 1_000))),
    "lengthens decoded text": lambda: json.dumps(spec(decoder=replace({"String": "a"}, "a" * 1_000))),
    "prepends much": lambda: json.dumps(spec(normalizer={"type": "Prepend", "prepend": "a" * 1_000})),
    "maps characters by much": lambda: json.dumps(spec(normalizer={"type": "Precompiled", "precompiled_charsmap": "/" * 40_000})),
    "puts ids around that are none": lambda: json.dumps(
        around([{"SpecialToken": {"id": "z", "type_id": 0}}], {"z": {"id": "z", "ids": [2**31] * 1_000, "tokens": ["z"] * 1_000}})
    ),
    "puts the text around itself": lambda: json.dumps(around([{"Sequence": {"id": "A", "type_id": 0}}] * 1_000, {})),
}
PADDING = {
    **{"strategy": {"Fixed": 2**40}, "direction": "Right", "pad_to_multiple_of": None},
    **{"pad_id": 0, "pad_type_id": 0, "pad_token": "a"},
}
DOUBLED = {"type": "Sequence", "normalizers": [{"type": "Sequence", "normalizers": [replace({"String": "a"}, "aa")] * 6}] * 2}
SPECS: tuple[Spec, ...] = (
    spec(padding=PADDING),
    spec(normalizer=DOUBLED),
    *(spec(truncation={"direction": "Right", "max_length": 0, "strategy": "LongestFirst", "stride": 9}), unigram([["a", 0.0]], 99)),
    *(bpe(vocab={"a": 0, "b": 1, "ab": 2, "aba": 3, "ba": 4}, merges=["a b", "ab a", "b a", "a ba"]), bpe(vocab={"a": 0, "b": 1})),
    *(spec(normalizer={"type": "Sequence", "normalizers": [replace({"String": "a"}, "a" * 10)] * 8}), word_piece({"a": 0}, 100)),
    spec(added_tokens=[{"id": 4, "content": text, "special": True, **FLAGS} for text in ("x", "y")]),
    bpe(merges=["", " ", "a", "a b c"]),
    *(spec(decoder={"type": "Strip", "content": "a", "start": 2**62, "stop": 2**62}), spec(normalizer=replace({"String": "a"}, 5))),
    *(spec(normalizer={"type": "Precompiled", "precompiled_charsmap": "/////wAA"}), bpe(vocab={"a": 2**24 - 1, "b": 0}, merges=[])),
    *(spec(model={"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "[UNK]"}), in_sequences("normalizer", "normalizers", 100)),
    *(added(4, "a", lstrip=True, rstrip=True, single_word=True, normalized=True), bpe(vocab={"": 0, "a": 1, "b": 2, "ab": 3})),
    *(spec(normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"}), spec(normalizer=replace({"Regex": ""}, "a" * 200))),
    *(spec(decoder={"type": "Strip", "content": "a", "start": -1, "stop": 0}), spec(normalizer=replace({"String": ""}, "a" * 200))),
    *(spec(normalizer={"type": "BertNormalizer", "clean_text": 5}), around([{"SpecialToken": {"id": "z", "type_id": 0}}], {})),
    *(unigram([["a", 1e308], ["b", -1e308], ["ab", 1e308]], 0), spec(pre_tokenizer={"type": "FixedLength", "length": 0})),
    *(spec(normalizer={"type": "Replace", "content": "a"}), in_sequences("pre_tokenizer", "pretokenizers", 100), added(4294967295)),
    *(spec(normalizer={"type": "Prepend", "prepend": 5}), spec(model={"type": "Bigram", "vocab": {"a": 0}}), bpe(dropout=0.5)),
    *(word_piece({"a": 0, "[UNK]": 1, "##a": 2}, 2**62), in_sequences("decoder", "decoders", 300), bpe(vocab={"a": -1}, merges=[])),
    *(bpe(vocab={"a": 4294967295}, merges=[]), bpe(byte_fallback=True, unk_token=None), bpe(merges=[["a", "b", "c"], 5, None])),
    *(bpe(vocab={"a": 0, "b": 0}, merges=[]), unigram([["", 0.0], ["a", -1.0]], 0), word_piece({"a": 0, "[UNK]": 1}, 0), added(-1)),
    *(spec(decoder={"type": "Sequence"}), bpe(vocab={"a": True}, merges=[]), bpe(vocab={"a": 0.5}, merges=[]), spec(decoder={})),
    *(bpe(vocab={"a": "0"}, merges=[]), bpe(vocab=["a", "b"], merges=[]), spec(model={"vocab": {"a": 0}}), bpe(ignore_merges=True)),
    *(spec(decoder={"type": "Shell"}), spec(decoder="ByteLevel"), bpe(merges=[["a", "b"]]), bpe(vocab={}, merges=[]), added(4, "")),
    *(bpe(unk_token="nothing"), bpe(dropout=7), spec(model=[]), unigram([], 0), added(0, "b"), added(4, 5), added("5")),
)  # fmt: skip


CASES: dict[str, Callable[[], str]] = {
    **FILES,
    **{f"{json.dumps(spec)}": functools.partial(json.dumps, spec) for spec in SPECS},
    **{f"splits by {regex!r:.30}": functools.partial(json.dumps, split(regex)) for regex in REGEXES},
    **{
        f"replaces {regex!r:.30}": functools.partial(json.dumps, spec(normalizer=replace({"Regex": regex}, "b")))
        for regex in REGEXES
    },
}


def there_and_back(tokenizer: TextTokenizer, text: str) -> None:
    """Encode, decode at once, and decode as the tokens come."""
    ids = tokenizer.encode(text)[:2_000]
    whole, stream = tokenizer.decode(ids), StreamDecoder(tokenizer)
    parts = "".join([stream.push(token_id) for token_id in ids]) + stream.flush()
    for token_id in (*ids[:20], 0, 2**24):
        tokenizer.piece(token_id)
        tokenizer.piece_bytes(token_id)
    if parts != whole:
        raise Violation(f"decoded piece by piece it gives {parts!r:.80}, at once {whole!r:.80}")


def use(_: Path, text: str) -> Verdict:
    """Read a tokenizer, and do with it all that a model does: any ids and text are harmless, if they are those of one another."""

    def every() -> object:
        tokenizer = TextTokenizer(text, eos_ids=(0,), bos_id=1)
        for each in TEXTS:
            judged(functools.partial(there_and_back, tokenizer, each))
        tokenizer.to_json()
        return tokenizer.difference_to(tokenizer)

    return judged(every, lambda difference: difference == "")


@examples(40)
@given(st.sampled_from(list(CASES)))
def test_a_hostile_tokenizer_is_refused_in_one_line_or_decodes_the_same_text_at_once_and_piece_by_piece(
    cell: Cell, name: str
) -> None:
    cell.hold(use, CASES[name]())


REAL = json.loads((PACKAGE / "tokenizer.json").read_text(encoding="utf-8"))
RICH = spec(
    normalizer={"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "_"}, replace({"String": " "}, "_")]},
    pre_tokenizer={"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}]},
    decoder={"type": "Sequence", "decoders": [replace({"String": "_"}, " "), {"type": "ByteFallback"}, {"type": "Fuse"}]},
)


def is_word(value: Any, spot: Spot) -> bool:
    """Whether a value is the id of a word but the first ones: there are too many."""
    model = value.get("model")
    return isinstance(model, dict) and spot[0] is model.get("vocab") and spot[1] not in list(spot[0])[:3]


@examples(40)
@given(st.sampled_from((REAL, RICH)).flatmap(lambda value: with_other_values(value, is_word)))
def test_a_tokenizer_with_random_values_is_refused_in_one_line_or_decodes_the_same_text_both_ways(cell: Cell, value: Any) -> None:
    cell.hold(use, json.dumps(value))
