"""Hostile tokenizers: files that are none, blow a text up, go back and forth without end, or say odd things of their ids."""

from __future__ import annotations

import copy
import functools
import json
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from onnx_textgen.text.stream_decoder import StreamDecoder
from onnx_textgen.text.tokenizer import TextTokenizer

from .law import Case, Law, Verdict, Violation, judged, spread
from .manifests import PACKAGE, any_value, spots

TEXTS = ("", "a", "a b ab", "a" * 31 + "b", "ab" * 3_000, "é🙂\u202e\0\x1b", "<s></s>[UNK]", " \n\t" * 500)
Spec = dict[str, Any]


def spec(**changes: Any) -> Spec:
    """A small tokenizer with some parts of its own."""
    model = {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, " ": 3}, "merges": ["a b"]}
    parts = dict.fromkeys(["normalizer", "pre_tokenizer", "post_processor", "decoder"])
    return {"version": "1.0", "added_tokens": [], **parts, "model": model, **changes}


def bpe(**changes: Any) -> Spec:
    """One with a model of its own."""
    return spec(model={"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"], **changes})


def replace(pattern: dict[str, str], content: str) -> dict[str, Any]:
    """A part that replaces text."""
    return {"type": "Replace", "pattern": pattern, "content": content}


def split(regex: str) -> Spec:
    """One that splits texts by an expression."""
    return spec(pre_tokenizer={"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False})


def added(token_id: Any, content: Any = "x", **more: Any) -> Spec:
    """One with an added token."""
    return spec(added_tokens=[{"id": token_id, "content": content, "special": True, **more}])


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
    *(
        "(a+)+$",
        "(a|a)*$",
        "(a|aa)+$",
        "(.*a){20}",
        "((a*)*)*$",
        "(?:a?){40}a{40}",
        r"(\w+\s?)*$",
        "a{0,100000}",
        "(a{1000}){1000}",
    ),
    *(
        "(" * 5_000 + ")" * 5_000,
        "[" * 1_000,
        r"\p{Nothing}",
        "(?<=a+)b",
        "(?R)",
        r"\g<0>",
        r"(?<n>a|b\g<n>c)",
        "",
        "^",
        "$",
        r"\b",
        "(?!)",
        "a" * 100_000,
    ),
    *(
        "|".join("ab" * n for n in range(500)),
        "(?i)" + "\u017f" * 1_000,
        r"(a)\1{99999}",
        "[^\\x00-\\U0010FFFF]",
        "(?>a+)+$",
        "x*" * 1_000,
    ),
)
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
}
SPECS: dict[str, Callable[[], Spec]] = {
    "has a merge longer than any word": lambda: bpe(vocab={"a": 0, "b": 1}),
    "has a merge of nothing": lambda: bpe(merges=["", " ", "a", "a b c"]),
    "has merges that go round": lambda: bpe(
        vocab={"a": 0, "b": 1, "ab": 2, "aba": 3, "ba": 4}, merges=["a b", "ab a", "b a", "a ba"]
    ),
    "has the same merge 50,000 times": lambda: bpe(merges=["a b"] * 50_000),
    "has merges of other types": lambda: bpe(merges=[["a", "b", "c"], 5, None]),
    "has merges of lists": lambda: bpe(merges=[["a", "b"]]),
    "has two words with one id": lambda: bpe(vocab={"a": 0, "b": 0}, merges=[]),
    "has a negative id": lambda: bpe(vocab={"a": -1}, merges=[]),
    "has a huge id": lambda: bpe(vocab={"a": 4294967295}, merges=[]),
    "has an id of 24 bits": lambda: bpe(vocab={"a": 2**24 - 1, "b": 0}, merges=[]),
    "has an id that is a fraction": lambda: bpe(vocab={"a": 0.5}, merges=[]),
    "has an id that is true": lambda: bpe(vocab={"a": True}, merges=[]),
    "has an id that is text": lambda: bpe(vocab={"a": "0"}, merges=[]),
    "has no words": lambda: bpe(vocab={}, merges=[]),
    "has a list of words": lambda: bpe(vocab=["a", "b"], merges=[]),
    "has a word of 1 MB": lambda: bpe(vocab={"a" * 2**20: 0, "a": 1}, merges=[]),
    "has a word of nothing": lambda: bpe(vocab={"": 0, "a": 1, "b": 2, "ab": 3}),
    "has 300,000 words": lambda: bpe(vocab={f"w{i}": i for i in range(300_000)}, merges=[]),
    "drops out": lambda: bpe(dropout=0.5),
    "drops out more than all": lambda: bpe(dropout=7),
    "has an unknown token that is none": lambda: bpe(unk_token="nothing"),
    "has a prefix of 1 MB": lambda: bpe(continuing_subword_prefix="x" * 2**20),
    "has a suffix of 1 MB": lambda: bpe(end_of_word_suffix="x" * 2**20),
    "falls back to bytes that are none": lambda: bpe(byte_fallback=True, unk_token=None),
    "ignores merges": lambda: bpe(ignore_merges=True),
    "has an unknown model": lambda: spec(model={"type": "Bigram", "vocab": {"a": 0}}),
    "has a model that is a list": lambda: spec(model=[]),
    "has a model of no type": lambda: spec(model={"vocab": {"a": 0}}),
    "has a Unigram of no words": lambda: spec(model={"type": "Unigram", "unk_id": 0, "vocab": []}),
    "has a Unigram with an unknown beyond the end": lambda: spec(model={"type": "Unigram", "unk_id": 99, "vocab": [["a", 0.0]]}),
    "has a Unigram with odd scores": lambda: spec(
        model={"type": "Unigram", "unk_id": 0, "vocab": [["a", 1e308], ["b", -1e308], ["ab", 1e308]]}
    ),
    "has a Unigram with one word often": lambda: spec(model={"type": "Unigram", "unk_id": 0, "vocab": [["a", 0.0]] * 5_000}),
    "has a Unigram with a word of nothing": lambda: spec(model={"type": "Unigram", "unk_id": 0, "vocab": [["", 0.0], ["a", -1.0]]}),
    "has a WordPiece without its unknown": lambda: spec(
        model={
            "type": "WordPiece",
            "vocab": {"a": 0},
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
        }
    ),
    "has a WordPiece of no length": lambda: spec(
        model={
            "type": "WordPiece",
            "vocab": {"a": 0, "[UNK]": 1},
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "",
            "max_input_chars_per_word": 0,
        }
    ),
    "has a WordPiece of any length": lambda: spec(
        model={
            "type": "WordPiece",
            "vocab": {"a": 0, "[UNK]": 1, "##a": 2},
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 2**62,
        }
    ),
    "has a WordLevel without its unknown": lambda: spec(model={"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "[UNK]"}),
    "has a huge added id": lambda: added(4294967295),
    "has a negative added id": lambda: added(-1),
    "has an added id that is text": lambda: added("5"),
    "has an added token of nothing": lambda: added(4, ""),
    "has an added token of 1 MB": lambda: added(4, "x" * 2**20),
    "has an added token that is a number": lambda: added(4, 5),
    "has an added token that takes spaces": lambda: added(4, "a", lstrip=True, rstrip=True, single_word=True, normalized=True),
    "has two added tokens of one id": lambda: spec(
        added_tokens=[{"id": 4, "content": text, "special": True} for text in ("x", "y")]
    ),
    "has an added token with the id of another": lambda: added(0, "b"),
    "has 20,000 added tokens": lambda: spec(
        added_tokens=[{"id": 4 + i, "content": f"<{i}>", "special": False} for i in range(20_000)]
    ),
    "has an unknown decoder": lambda: spec(decoder={"type": "Shell"}),
    "has a decoder without a type": lambda: spec(decoder={}),
    "has a decoder that is text": lambda: spec(decoder="ByteLevel"),
    "has a list of decoders without a list": lambda: spec(decoder={"type": "Sequence"}),
    "strips more than there is": lambda: spec(decoder={"type": "Strip", "content": "a", "start": 2**62, "stop": 2**62}),
    "strips before the beginning": lambda: spec(decoder={"type": "Strip", "content": "a", "start": -1, "stop": 0}),
    "lengthens a text without end": lambda: spec(
        normalizer={"type": "Sequence", "normalizers": [replace({"String": "a"}, "a" * 10)] * 8}
    ),
    "lengthens a text by a pattern": lambda: spec(normalizer=replace({"Regex": "."}, "a" * 1_000)),
    "lengthens a text where nothing is": lambda: spec(normalizer=replace({"String": ""}, "a" * 200)),
    "lengthens a text between all characters": lambda: spec(normalizer=replace({"Regex": ""}, "a" * 200)),
    "lengthens a text in lists of lists": lambda: spec(
        normalizer={
            "type": "Sequence",
            "normalizers": [{"type": "Sequence", "normalizers": [replace({"String": "a"}, "aa")] * 6}] * 2,
        }
    ),
    "lengthens decoded text": lambda: spec(decoder=replace({"String": "a"}, "a" * 1_000)),
    "prepends much": lambda: spec(normalizer={"type": "Prepend", "prepend": "a" * 1_000}),
    "prepends a number": lambda: spec(normalizer={"type": "Prepend", "prepend": 5}),
    "replaces by a number": lambda: spec(normalizer=replace({"String": "a"}, 5)),
    "replaces nothing by a pattern": lambda: spec(normalizer={"type": "Replace", "content": "a"}),
    "maps characters by bytes that are none": lambda: spec(normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"}),
    "maps characters by much": lambda: spec(normalizer={"type": "Precompiled", "precompiled_charsmap": "/" * 40_000}),
    "maps characters by a wrong length": lambda: spec(normalizer={"type": "Precompiled", "precompiled_charsmap": "/////wAA"}),
    "strips accents off the wrong type": lambda: spec(normalizer={"type": "BertNormalizer", "clean_text": 5}),
    "is a list of lists of normalizers": lambda: in_sequences("normalizer", "normalizers", 100),
    "is a list of lists of splits": lambda: in_sequences("pre_tokenizer", "pretokenizers", 100),
    "is a long list of lists of decoders": lambda: in_sequences("decoder", "decoders", 300),
    "splits by a length of nothing": lambda: spec(pre_tokenizer={"type": "FixedLength", "length": 0}),
    "puts a token around that it lacks": lambda: spec(
        post_processor={
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "z", "type_id": 0}}],
            "pair": [],
            "special_tokens": {},
        }
    ),
    "puts ids around that are none": lambda: spec(
        post_processor={
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "z", "type_id": 0}}],
            "pair": [],
            "special_tokens": {"z": {"id": "z", "ids": [2**31] * 1_000, "tokens": ["z"] * 1_000}},
        }
    ),
    "puts the text around itself": lambda: spec(
        post_processor={
            "type": "TemplateProcessing",
            "single": [{"Sequence": {"id": "A", "type_id": 0}}] * 1_000,
            "pair": [],
            "special_tokens": {},
        }
    ),
    "cuts texts to no token": lambda: spec(
        truncation={"direction": "Right", "max_length": 0, "strategy": "LongestFirst", "stride": 9}
    ),
    "fills texts up": lambda: spec(
        padding={
            "strategy": {"Fixed": 2**40},
            "direction": "Right",
            "pad_to_multiple_of": None,
            "pad_id": 0,
            "pad_type_id": 0,
            "pad_token": "a",
        }
    ),
}


def use(text: str) -> Verdict:
    """Read a tokenizer, and do with it all that a model does: any ids and text are harmless, if they are those of one another."""

    def every() -> object:
        tokenizer = TextTokenizer(text, eos_ids=(0,), bos_id=1)
        for each in TEXTS:
            judged(functools.partial(there_and_back, tokenizer, each))
        tokenizer.to_json()
        return tokenizer.difference_to(tokenizer)

    return judged(every, lambda difference: difference == "")


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


def written_down() -> Iterator[Case]:
    """The files above."""
    made: dict[str, Callable[[], str]] = {**FILES}
    made |= {name: functools.partial(lambda make: json.dumps(make()), make) for name, make in SPECS.items()}
    made |= {f"splits by {regex!r:.30}": functools.partial(json.dumps, split(regex)) for regex in REGEXES}
    made |= {
        f"replaces {regex!r:.30}": functools.partial(json.dumps, spec(normalizer=replace({"Regex": regex}, "b")))
        for regex in REGEXES[:8]
    }
    for name, make in made.items():
        yield Case(name, functools.partial(lambda make, _: use(make()), make))


CASES = list(written_down())


def hostile(count: int, _: random.Random) -> Sequence[Case]:
    """Some of them."""
    return spread(CASES, count)


def fuzzed(count: int, choose: random.Random) -> Iterator[Case]:
    """A real file in which some values are others."""
    real = json.loads((PACKAGE / "tokenizer.json").read_text(encoding="utf-8"))
    rich = spec(
        normalizer={"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "_"}, replace({"String": " "}, "_")]},
        pre_tokenizer={"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}]},
        decoder={"type": "Sequence", "decoders": [replace({"String": "_"}, " "), {"type": "ByteFallback"}, {"type": "Fuse"}]},
    )
    for number in range(count):
        value = copy.deepcopy(real if number % 2 else rich)
        names = []
        for _ in range(choose.choice((1, 1, 2))):
            parts = [spot for spot in spots(value) if spot[0] is not value["model"].get("vocab") or choose.random() < 0.01]
            holder, key = choose.choice(parts)
            holder[key] = any_value(choose)
            names.append(repr(key))
            if not isinstance(value.get("model"), dict):
                break
        text = json.dumps(value)
        yield Case(f"{number}: {' and '.join(names)}", functools.partial(lambda text, _: use(text), text))


LAWS = (
    Law(
        "A hostile tokenizer is refused in one line, or decodes the same text at once and piece by piece",
        hostile,
        whole=len(CASES),
        quick=40,
    ),
    Law("A tokenizer with random values is refused in one line, or decodes the same text both ways", fuzzed, whole=500, quick=40),
)
