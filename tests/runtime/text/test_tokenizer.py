"""Tokenizers of every kind: id for id what their makers' own programs give, and streaming that equals whole decoding.

GPT-2 and BERT come as vocabulary files from before `tokenizer.json`; `gpt2_json` and `bert_json` build one from them with the
`tokenizers` library. The small tokenizers are trained here, so that the laws hold their tests without any file.
"""

import base64
import codecs
import functools
import json
import math
import re
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from onnx_textgen.errors import PromptError, TokenizerError
from onnx_textgen.text.stream_decoder import StreamDecoder
from onnx_textgen.text.tokenizer import TextTokenizer, any_of
from onnx_textgen.text.tokenizer_json import Streaming
from support.added_tokens import with_added_tokens
from support.examples import examples

STORY = "Once upon a time, there was a small grey cat. She didn't like rain , but 'twas raining all day. café naïve 12.50 東京 🙂 "
SPECIAL = "<|end|>"


# Tokenizers of our own, one of each kind.


def byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator([STORY] * 3, trainers.BpeTrainer(vocab_size=330, initial_alphabet=alphabet, show_progress=False))
    return tokenizer


def sentencepiece_like(*, last: decoders.Decoder) -> Tokenizer:
    words = re.findall("\u2581?\\w", "\u2581" + STORY.replace(" ", "\u2581"))
    pieces = [
        "<unk>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        *sorted({*"\u2581abcdefghijklmnopqrstuvwxyz.,'", "\u2581\u2581", *words}),
    ]
    singles = [piece for piece in pieces[257:] if len(piece) == 1]
    merges = [("\u2581", single) for single in singles if "\u2581" + single in pieces]
    tokenizer = Tokenizer(
        models.BPE(vocab={p: i for i, p in enumerate(pieces)}, merges=merges, unk_token="<unk>", byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), last]
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def unigram(*, byte_fallback: bool) -> Tokenizer:
    characters = sorted({*"\u2581abcdefghijklmnopqrstuvwxyz.,'", *STORY.replace(" ", "\u2581")})
    words = [("\u2581" + word, -3.0) for word in set(STORY.split()) if len(word) > 1]
    bytes_ = [(f"<0x{byte:02X}>", -12.0) for byte in range(256)] if byte_fallback else []
    tokenizer = Tokenizer(models.Unigram([("<unk>", -20.0), *bytes_, *((c, -8.0) for c in characters), *words], 0, byte_fallback))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    metaspace = decoders.Metaspace()
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), metaspace]) if byte_fallback else metaspace
    return tokenizer


def word_piece() -> Tokenizer:
    letters = sorted(set(STORY) - {" "})
    pieces = ["[UNK]", *letters, *("##" + letter for letter in letters), "there", "##here", "cat", "n't", "##n't"]
    tokenizer = Tokenizer(models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def words_without_decoder() -> Tokenizer:
    tokenizer = Tokenizer(
        models.WordLevel({"<unk>": 0, **{word: i + 1 for i, word in enumerate(sorted(set(STORY.split())))}}, "<unk>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


def word_end_suffixes() -> Tokenizer:
    tokenizer = Tokenizer(
        models.BPE({"<unk>": 0, "a": 1, "b</w>": 2, "ab</w>": 3, "c": 4}, [], unk_token="<unk>", end_of_word_suffix="</w>")
    )
    tokenizer.decoder = decoders.BPEDecoder("</w>")
    return tokenizer


SMALL: dict[str, tuple[Callable[[], Tokenizer], Streaming]] = {
    "byte-level BPE": (byte_level, Streaming.BYTES),
    "SentencePiece-style BPE": (functools.partial(sentencepiece_like, last=decoders.Strip(" ", 1, 0)), Streaming.RUNS),
    "SentencePiece-style BPE without a dummy space": (
        functools.partial(sentencepiece_like, last=decoders.Strip(" ", 0, 0)),
        Streaming.RUNS,
    ),
    "SentencePiece-style BPE that mends spaces": (
        functools.partial(sentencepiece_like, last=decoders.Replace(" ,", ",")),
        Streaming.WHOLE,
    ),
    "Unigram": (functools.partial(unigram, byte_fallback=False), Streaming.TOKENS),
    "Unigram with bytes": (functools.partial(unigram, byte_fallback=True), Streaming.RUNS),
    "WordPiece": (word_piece, Streaming.TOKENS),
    "words without a decoder": (words_without_decoder, Streaming.TOKENS),
    "BPE with word ends": (word_end_suffixes, Streaming.NEXT),
}


@functools.cache
def small(kind: str) -> TextTokenizer:
    tokenizer = SMALL[kind][0]()
    tokenizer.add_special_tokens([SPECIAL])
    tokenizer.add_tokens([AddedToken("<tool>", normalized=False)])
    return TextTokenizer(tokenizer.to_str())


# The tokenizers of real models.


def gpt2_json(folder: Path) -> str:
    tokenizer = Tokenizer(models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt")))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>"])
    return str(tokenizer.to_str())


def bert_json(folder: Path) -> str:
    tokenizer = Tokenizer(models.WordPiece.from_file(str(folder / "vocab.txt"), unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 101), ("[SEP]", 102)]
    )
    return str(tokenizer.to_str())


REAL: dict[str, Callable[[Path], str]] = {
    "gpt2": lambda data: gpt2_json(data / "tokenizers/gpt2"),
    "llama2": lambda data: (data / "tokenizers/llama2/tokenizer.json").read_text(encoding="utf-8"),
    "phi-3": lambda data: (data / "tokenizers/phi-3/tokenizer.json").read_text(encoding="utf-8"),
    "phi-3-mini": lambda data: (data / "tokenizers/phi-3-mini/tokenizer.json").read_text(encoding="utf-8"),
    "stories260K": lambda data: (data / "checkpoints/stories260K/tokenizer.json").read_text(encoding="utf-8"),
    "t5-small": lambda data: (data / "tokenizers/t5-small/tokenizer.json").read_text(encoding="utf-8"),
    "bert-base-uncased": lambda data: bert_json(data / "tokenizers/bert-base-uncased"),
}


@functools.cache
def real(data: Path, name: str) -> TextTokenizer:
    return TextTokenizer(REAL[name](data))


@pytest.mark.parametrize(("name", "model"), [("llama2-32k", "llama2"), ("stories260K", "stories260K")])
def test_ids_and_text_equal_sentencepiece_on_every_golden_string(shared: Path, name: str, model: str) -> None:
    cases = json.loads((shared / "golden" / f"tokenizer_{name}.json").read_text(encoding="utf-8"))["cases"]
    tokenizer = real(shared, model)
    assert len(cases) == 640
    for case in cases:
        assert tokenizer.encode(case["text"], add_special_tokens=False) == case["ids"], case["text"]
        assert tokenizer.decode(case["ids"]) == case["decoded"]


@pytest.mark.parametrize(
    ("vectors", "model"), [("gpt-2", "gpt2"), ("llama-spm", "llama2"), ("phi-3", "phi-3"), ("bert-bge", "bert-base-uncased")]
)
def test_ids_equal_those_llama_cpp_expects(shared: Path, vectors: str, model: str) -> None:
    stem = shared / "tokenizers" / "llama.cpp-vectors" / f"ggml-vocab-{vectors}.gguf"
    texts = Path(f"{stem}.inp").read_bytes().decode("utf-8").split("\n__ggml_vocab_test__\n")[:-1]
    lines = Path(f"{stem}.out").read_text(encoding="utf-8").split("\n")
    expected = [[int(number) for number in line.split()] for line in lines[: len(texts)]]
    tokenizer = real(shared, model)
    assert len(texts) > 40
    assert [tokenizer.encode(text, add_special_tokens=False) for text in texts] == expected


def viterbi(pieces: dict[str, float], word: str) -> list[str]:
    """Split `word` into the pieces of the greatest total score: what a Unigram model is."""
    best: list[tuple[float, list[str]]] = [(0.0, [])]
    for end in range(1, len(word) + 1):
        splits = [(best[i][0] + pieces[word[i:end]], [*best[i][1], word[i:end]]) for i in range(end) if word[i:end] in pieces]
        best.append(max(splits, default=(-math.inf, [])))
    return best[-1][1]


def test_unigram_ids_are_the_likeliest_split(shared: Path) -> None:
    vocabulary = json.loads(REAL["t5-small"](shared))["model"]["vocab"]
    pieces, ids = dict(vocabulary), {piece: i for i, (piece, _) in enumerate(vocabulary)}
    tokenizer = real(shared, "t5-small")
    compared = ties = 0
    for text in json.loads((shared / "golden" / "strings.json").read_text(encoding="utf-8")):
        words = ["\u2581" + word for word in text.split()]
        plain = unicodedata.normalize("NFKC", text) == text and "\u2581" not in text
        if plain and all(character in pieces for word in words for character in word):
            best = [piece for word in words for piece in viterbi(pieces, word)]
            found = [vocabulary[i][0] for i in tokenizer.encode(text, add_special_tokens=False)]
            assert "".join(found) == "".join(best)
            assert math.isclose(sum(pieces[piece] for piece in found), sum(pieces[piece] for piece in best)), text
            assert tokenizer.decode([ids[piece] for piece in best]) == " ".join(text.split())
            compared, ties = compared + 1, ties + (found != best)
    assert compared > 300 and ties <= 2


def test_t5_gives_the_published_ids(shared: Path) -> None:
    ids = [13959, 1566, 12, 2968, 10, 37, 629, 19, 1627, 5, 1]
    assert real(shared, "t5-small").encode("translate English to German: The house is wonderful.") == ids
    assert real(shared, "t5-small").decode(ids) == "translate English to German: The house is wonderful."


def test_special_tokens_are_put_around_a_text_and_left_out_of_it(shared: Path) -> None:
    assert real(shared, "llama2").encode("Hi") == [1, 6324]
    assert real(shared, "bert-base-uncased").encode("Hi") == [101, 7632, 102]
    assert real(shared, "bert-base-uncased").decode([101, 7632, 102]) == "hi"
    assert real(shared, "gpt2").decode([17250, 50256]) == "Hi"


def test_the_models_own_end_is_left_out_even_if_the_file_does_not_call_it_special(shared: Path) -> None:
    path = shared / "tokenizers/phi-3-mini/tokenizer.json"
    ids = [6324, 2]
    assert TextTokenizer.from_file(path, eos_ids=(), bos_id=None).decode(ids) == "Hi</s>"
    assert TextTokenizer.from_file(path, eos_ids=(2,), bos_id=1).decode(ids) == "Hi"


# The law of streaming.

UNICODE = st.text(
    st.one_of(st.characters(exclude_categories=("Cs",)), st.sampled_from("ab .,'\n🙂👩\u200d👧東京e\u0301한ß\ufffd\u2581")),
    max_size=12,
)


ODD_BYTES = {"<0xC2>", "<0x80>", "<0x00>", "<0xE2>", "<0x82>"}
"""Tokens of bytes that are characters together in some orders only."""


def texts_and_ids(tokenizer: TextTokenizer) -> st.SearchStrategy[list[int]]:
    """Ids of texts with any ids between them: halves of characters, special tokens, ids outside the vocabulary."""
    known = UNICODE.map(lambda text: tokenizer.encode(text, add_special_tokens=False))
    special = st.sampled_from([[i] for i in range(max(0, tokenizer.vocab_size - 3), tokenizer.vocab_size + 1)])
    anything = st.lists(st.integers(0, min(tokenizer.vocab_size, 400)), max_size=4)
    odd = [i for i in range(min(tokenizer.vocab_size, 400)) if tokenizer.visible_token(i) in ODD_BYTES]
    parts = st.lists(
        st.one_of(known, special, anything, *([st.lists(st.sampled_from(odd), max_size=5)] if odd else [])), max_size=5
    )
    return parts.map(lambda lists: [token_id for ids in lists for token_id in ids])


def check_streaming(tokenizer: TextTokenizer, ids: list[int]) -> None:
    whole = tokenizer.decode(ids)
    decoder, shown = StreamDecoder(tokenizer), ""
    for token_id in ids:
        shown += decoder.push(token_id)
        assert whole.startswith(shown)
    assert shown + decoder.flush() == whole


@pytest.mark.parametrize("kind", SMALL)
@given(data=st.data())
@examples(60)
def test_pushes_and_flush_together_are_the_whole_text(kind: str, data: st.DataObject) -> None:
    check_streaming(small(kind), data.draw(texts_and_ids(small(kind))))


@pytest.mark.parametrize("name", REAL)
@given(data=st.data())
@examples(60)
def test_pushes_and_flush_together_are_the_whole_text_for_real_tokenizers(shared: Path, name: str, data: st.DataObject) -> None:
    tokenizer = real(shared, name)
    check_streaming(tokenizer, data.draw(texts_and_ids(tokenizer)))
    check_streaming(tokenizer, data.draw(st.lists(st.integers(0, tokenizer.vocab_size), max_size=20)))


def test_a_byte_does_not_join_an_odd_byte_at_the_beginning_of_the_text(shared: Path) -> None:
    check_streaming(real(shared, "stories260K"), [197, 197, 3, 131, 3])  # C2 C2 00 80 00


@pytest.mark.parametrize("name", REAL)
def test_every_golden_string_streams_to_its_whole_text(shared: Path, name: str) -> None:
    tokenizer = real(shared, name)
    for text in json.loads((shared / "golden" / "strings.json").read_text(encoding="utf-8")):
        check_streaming(tokenizer, tokenizer.encode(text))


@pytest.mark.parametrize("kind", SMALL)
@given(data=st.data())
@examples(60)
def test_a_stream_that_goes_on_after_a_prompt_joins_it(kind: str, data: st.DataObject) -> None:
    tokenizer = small(kind)
    prompt = tokenizer.encode("a cat" + data.draw(UNICODE) + "cat")
    ids = data.draw(texts_and_ids(tokenizer))
    decoder = StreamDecoder(tokenizer, after=prompt)
    text = "".join(decoder.push(token_id) for token_id in ids) + decoder.flush()
    if tokenizer.streaming is not Streaming.WHOLE:
        assert tokenizer.decode(prompt) + text == tokenizer.decode(prompt + ids)


@pytest.mark.parametrize("kind", SMALL)
def test_each_kind_is_recognized(kind: str) -> None:
    assert small(kind).streaming is SMALL[kind][1]


def test_text_appears_as_soon_as_it_is_certain() -> None:
    tokenizer = small("byte-level BPE")
    decoder = StreamDecoder(tokenizer)
    ids = tokenizer.encode("a𝄞b")
    assert [decoder.push(token_id) for token_id in ids] == ["a", "", "", "", "𝄞", "b"]


def test_a_word_appears_with_its_token_and_the_space_after_it_with_the_next() -> None:
    decoder = StreamDecoder(small("BPE with word ends"))
    assert [decoder.push(token_id) for token_id in (1, 2, 3, 4)] == ["a", "b", " ab", " c"]


@pytest.mark.parametrize("content", ["caf\u00e9", "\u00ab\u00bb", "\u0120x", "\u65e5"])
def test_an_added_token_is_its_own_text_under_a_byte_level_decoder(content: str) -> None:
    """Its letters are no bytes, though some stand for bytes in other tokens."""
    tokenizer = with_added_tokens([content])
    ids = tokenizer.encode(f"a {content}b")
    assert tokenizer.added_tokens[content] in ids
    decoder = StreamDecoder(tokenizer)
    assert tokenizer.decode(ids) == "".join(map(decoder.push, ids)) + decoder.flush() == f"a {content}b"


def test_a_character_of_byte_tokens_appears_with_its_last_byte() -> None:
    tokenizer = small("SentencePiece-style BPE")
    decoder = StreamDecoder(tokenizer)
    ids = tokenizer.encode("a👩\nß\tb")
    assert [decoder.push(token_id) for token_id in ids] == ["a", "", "", "", "👩", "\n", "", "ß", "\t", "b"]


@functools.cache
def ids_of_bytes(kind: str) -> list[int]:
    vocabulary = Tokenizer.from_str(small(kind).to_json()).get_vocab()
    return [vocabulary[f"<0x{byte:02X}>"] for byte in range(256)]


def one_by_one(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return "\ufffd", error.start + 1


@pytest.mark.parametrize("kind", [kind for kind in SMALL if SMALL[kind][1] is Streaming.RUNS])
@given(st.lists(st.one_of(st.binary(max_size=5), st.text(max_size=3).map(str.encode)), max_size=4).map(b"".join))
@examples(100)
def test_bytes_that_are_no_utf8_leave_the_characters_around_them_as_they_are(kind: str, data: bytes) -> None:
    codecs.register_error("one by one", one_by_one)
    tokenizer, text = small(kind), data.decode("utf-8", "one by one")
    word = tokenizer.encode("cat")
    ids = [*word, *(ids_of_bytes(kind)[byte] for byte in data), *word]
    library = Tokenizer.from_str(tokenizer.to_json()).decode(ids, skip_special_tokens=False)
    decoder = StreamDecoder(tokenizer)
    pushed = [decoder.push(token_id) for token_id in ids]
    assert "".join(pushed) + decoder.flush() == tokenizer.decode(ids)
    if "\ufffd" not in library:
        assert tokenizer.decode(ids) == library
    if "\u2581" not in text:
        assert (
            tokenizer.decode(ids) == tokenizer.decode(word) + text + tokenizer.decode([*word, *word])[len(tokenizer.decode(word)) :]
        )
    for place, byte in enumerate(data, len(word)):
        if byte < 0x80:
            assert pushed[place].endswith(chr(byte)), "complete, and so shown at once"


def test_half_a_character_at_the_end_becomes_a_replacement_character() -> None:
    tokenizer = small("byte-level BPE")
    decoder = StreamDecoder(tokenizer)
    assert "".join(decoder.push(token_id) for token_id in tokenizer.encode("a👩")[:-1]) == "a"
    assert decoder.flush() == "\ufffd"


def test_the_cost_of_a_token_does_not_grow_with_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []
    decode = TextTokenizer.decode
    monkeypatch.setattr(TextTokenizer, "decode", lambda self, ids: lengths.append(len(ids)) or decode(self, ids))
    for kind in SMALL:
        if SMALL[kind][1] is not Streaming.WHOLE:
            decoder = StreamDecoder(small(kind))
            for token_id in small(kind).encode(STORY) * 50:
                decoder.push(token_id)
    assert max(lengths) < 40


# What a person sees.


def test_a_piece_is_text_or_the_bytes_that_are_none() -> None:
    tokenizer = small("byte-level BPE")
    assert [tokenizer.piece(i) for i in tokenizer.encode("a 𝄞")] == ["a", " ", "<0xF0>", "<0x9D>", "<0x84>", "<0x9E>"]
    tokenizer = small("SentencePiece-style BPE")
    assert [tokenizer.piece(i) for i in tokenizer.encode("a b👩")] == [" a", " b", "<0xF0>", "<0x9F>", "<0x91>", "<0xA9>"]
    assert [small("Unigram").piece(i) for i in small("Unigram").encode("there was")] == [" there", " was"]
    assert [small("WordPiece").piece(i) for i in small("WordPiece").encode("cats")] == ["cat", "##s"]


def test_a_special_piece_and_an_id_of_no_token_can_be_shown() -> None:
    tokenizer = small("byte-level BPE")
    assert tokenizer.piece(tokenizer.vocab_size - 2) == SPECIAL
    assert tokenizer.piece(tokenizer.vocab_size) == f"<{tokenizer.vocab_size}>"


# Bad input.


def spec(**changes: Any) -> str:
    model = {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}
    parts = dict.fromkeys(["normalizer", "pre_tokenizer", "post_processor", "decoder"])
    return json.dumps({"version": "1.0", "added_tokens": [], **parts, "model": model, **changes})


def replace(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


TABLE_OF_4_GB = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(b"\xff" * 40).decode()}


@pytest.mark.parametrize("changes", [{"normalizer": TABLE_OF_4_GB}, {"decoder": {"type": []}}, {"decoder": {"type": {}}}])
def test_a_file_that_says_odd_things_of_its_parts_is_refused_in_one_line(changes: dict[str, Any]) -> None:
    """Many more: tests/attacks/test_tokenizers.py."""
    with pytest.raises(TokenizerError) as caught:
        TextTokenizer(spec(**changes))
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="cannot be read"):
        TextTokenizer.from_file(tmp_path / "tokenizer.json", eos_ids=(), bos_id=None)
    (tmp_path / "tokenizer.json").write_bytes(b"\xff")
    with pytest.raises(TokenizerError, match="is not UTF-8 text"):
        TextTokenizer.from_file(tmp_path / "tokenizer.json", eos_ids=(), bos_id=None)


def test_a_tokenizer_with_several_tokens_of_one_id_is_no_other_than_itself() -> None:
    """`tokenizers` gives added tokens the ids from the number of words on, also where words have those."""
    words = {"type": "BPE", "vocab": {"a": 0} | {chr(98 + number): 11 + number for number in range(10)}, "merges": []}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    tokens = [{"id": 1 + number, "content": f"<{number}>", "special": True, **flags} for number in range(10)]
    tokenizer, other = (TextTokenizer(spec(model=words, added_tokens=added)) for added in (tokens, tokens[:-1]))
    assert tokenizer.difference_to(tokenizer) == ""
    assert tokenizer.difference_to(other) == "id 20 is '<9>' in one and None in the other"


def test_a_pattern_that_backtracks_for_ever_is_an_error_and_not_a_crash() -> None:
    split = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
    tokenizer = TextTokenizer(spec(pre_tokenizer=split))
    with pytest.raises(TokenizerError, match="failed on this text"):
        tokenizer.encode("a" * 28 + "b")


@pytest.mark.parametrize("ids", [[-1], [2**40]])
def test_ids_that_are_no_ids_are_errors(ids: list[int]) -> None:
    with pytest.raises(TokenizerError, match="these ids"):
        small("byte-level BPE").decode(ids)
    with pytest.raises(TokenizerError, match="an id"):
        small("byte-level BPE").piece(ids[0])


@pytest.mark.parametrize("prompt", ["half \ud83d", b"bytes", None, ["a"]])
def test_a_prompt_that_is_no_text_is_refused(prompt: Any) -> None:
    with pytest.raises(PromptError):
        small("byte-level BPE").encode(prompt)


def test_truncation_and_padding_that_a_file_asks_for_are_left_out() -> None:
    tokenizer = Tokenizer.from_str(spec())
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=5)
    assert TextTokenizer(tokenizer.to_str()).encode("abba") == [2, 1, 0]


def test_a_long_text_takes_seconds_at_most() -> None:
    assert len(small("byte-level BPE").encode(STORY * 2_000)) > 50_000


def test_a_text_is_split_at_the_longest_control_tokens() -> None:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = [{"id": number, "content": f"<{number}>", "special": True, **flags} for number in range(1, 2000)]
    added.append({"id": 2000, "content": "<1><2>", "special": True, **flags})
    model = {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}
    tokenizer = TextTokenizer(json.dumps({"version": "1.0", "added_tokens": added, "model": model}))
    assert tokenizer.split_at_control_tokens("a<1><2><1999>b<3") == [("a", None), ("<1><2>", 2000), ("<1999>", 1999), ("b<3", None)]
    assert tokenizer.showing("<1>".__eq__).split_at_control_tokens("<1>a") == [("<1>", 1), ("a", None)]


# Which of a set of tokens a text has.


@given(st.lists(st.text("ab<", min_size=1, max_size=5), max_size=8), st.text("ab<c", max_size=30))
def test_the_longest_of_some_tokens_is_found_at_each_place(tokens: list[str], text: str) -> None:
    longest_first = sorted(tokens, key=len, reverse=True)
    wanted = re.findall("|".join(map(re.escape, longest_first)) or "(?!)", text)
    assert re.findall(any_of(tokens), text) == wanted


def test_tokens_within_one_another_and_thousands_of_them_are_found_too() -> None:
    many = [*("a" * length for length in range(1, 1000)), *(f"<unused{place}>" for place in range(6000))]
    assert re.findall(any_of(many), f"{'a' * 999}b{'a' * 7}<unused5999><unused6000>") == ["a" * 999, "a" * 7, "<unused5999>"]
