"""Tokenizers of every kind become a tokenizer.json with the original's ids, or the export stops and names a text that shows it."""

import io
import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors
from tokenizers import decoders as token_decoders

from onnx_textgen.text.stream_decoder import StreamDecoder
from onnx_textgen.text.tokenizer import TextTokenizer
from onnx_textgen_export import ExportError
from onnx_textgen_export.tokenization.conversion import convert_tokenizer
from onnx_textgen_export.tokenization.equivalence import ByteLevelBPE, prove_tokenizer
from onnx_textgen_export.tokenization.probe_texts import PROBES
from onnx_textgen_export.tokenization.sentencepiece import convert_sentencepiece

CORPUS = [
    "Once upon a time, there was a little girl named Lily. She liked to play outside in the park with her dog, Max!",
    "The quick brown fox (it's 12 years old) jumps over 3 lazy dogs - doesn't it? \"Yes,\" said Tom; e.g. x = [1, 2] * 0x41 <b>.",
    "日本語のテスト、你好世界。 Привет, мир! café naïve ① ﬁ © 2024 😀",
    "def f(x):  return x ** 2  # {done} @home a_b/c\\d ~`^&%$+|",
]
EXACT = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}
"""As Llama's and Gemma's models were trained."""
KINDS = {
    "llama": {"model_type": "bpe", "byte_fallback": True, **EXACT},
    "gemma": {
        "model_type": "bpe",
        "byte_fallback": True,
        "add_dummy_prefix": False,
        "user_defined_symbols": ["<end_of_turn>", "\n\n"],
    }
    | EXACT,
    "bpe with NFKC": {"model_type": "bpe"},
    "bpe with case folding": {"model_type": "bpe", "normalization_rule_name": "nmt_nfkc_cf"},
    "unigram": {"model_type": "unigram"},
    "unigram with bytes": {"model_type": "unigram", "byte_fallback": True, **EXACT},
}
VECTORS = {
    "llama2": ("llama-spm", ["tokenizer.model"]),
    "phi-3": ("phi-3", ["tokenizer.json", "tokenizer_config.json"]),
    "phi-3-mini": ("phi-3", ["tokenizer.json", "tokenizer_config.json"]),
    "gpt2": ("gpt-2", ["vocab.json", "merges.txt"]),
    "bert-base-uncased": ("bert-bge", ["vocab.txt"]),
}


def train(path: Path, *, corpus: list[str] = CORPUS, **options: object) -> Path:
    sentencepiece = pytest.importorskip("sentencepiece")
    model, options = io.BytesIO(), {"vocab_size": 420, **options}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus * 4), model_writer=model, minloglevel=2, hard_vocab_limit=False, **options
    )
    path.write_bytes(model.getvalue())
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("sentencepiece")
    return {kind: train(folder / f"{index}.model", **options) for index, (kind, options) in enumerate(KINDS.items())}


def folder_with(tmp_path: Path, model: Path, **settings: object) -> Path:
    shutil.copy(model, tmp_path / "tokenizer.model")
    if settings:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    return tmp_path


def converted(folder: Path) -> Tokenizer:
    tokenizer = convert_tokenizer(folder)
    assert tokenizer is not None
    return tokenizer


@pytest.mark.parametrize("kind", KINDS)
def test_a_sentencepiece_model_keeps_its_ids_and_its_decoding(trained: dict[str, Path], tmp_path: Path, kind: str) -> None:
    tokenizer = TextTokenizer(converted(folder_with(tmp_path, trained[kind])).to_str())
    _, original = convert_sentencepiece(trained[kind], {})
    for text in PROBES:
        if not any(token in text for token in ("<s>", "</s>", "<unk>")):
            ids = tokenizer.encode(text, add_special_tokens=False)
            assert ids == original.encode(text)
            assert original.decode(ids) in (None, tokenizer.decode(ids))


@pytest.mark.parametrize("kind", ["llama", "gemma", "unigram with bytes"])
@given(text=st.text(alphabet=st.one_of(st.sampled_from(" ▁\n\t.<0x4A>aeiounlyTh😀é"), st.characters(exclude_categories=["Cs"]))))
def test_any_text_gets_the_ids_of_sentencepiece(trained: dict[str, Path], kind: str, text: str) -> None:
    text = text.replace("\0", "")  # SentencePiece's own input ends there
    tokenizer, original = convert_sentencepiece(trained[kind], {})
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert ids == original.encode(text)
    assert tokenizer.decode(ids, skip_special_tokens=False) == original.decode(ids) or original.unknown_id in ids


@pytest.mark.parametrize(
    "options",
    [{"model_type": "unigram", "treat_whitespace_as_suffix": True}, {**KINDS["llama"], "user_defined_symbols": ["<sep>"]}],
    ids=["spaces behind words", "prefix space and symbols of its own"],
)
def test_a_model_without_an_exact_form_is_refused_with_the_text_and_both_lists(tmp_path: Path, options: dict[str, object]) -> None:
    train(tmp_path / "tokenizer.model", **options)
    with pytest.raises(ExportError, match=r"cannot be converted exactly: '.+' ids \[.*\] where the original gives \[.*\]") as error:
        convert_tokenizer(tmp_path)
    assert "\n" not in str(error.value)


def test_begin_and_end_tokens_are_added_as_the_settings_say(trained: dict[str, Path], tmp_path: Path) -> None:
    body = converted(folder_with(tmp_path, trained["llama"])).encode("Lily", add_special_tokens=False).ids
    for settings, want in [
        ({}, [1, *body]),
        ({"add_bos_token": False}, body),
        ({"add_bos_token": True, "add_eos_token": True, "eos_token": {"content": "</s>"}}, [1, *body, 2]),
        ({"add_bos_token": False, "add_eos_token": True}, [*body, 2]),
    ]:
        assert converted(folder_with(tmp_path, trained["llama"], x=0, **settings)).encode("Lily").ids == want


def test_added_tokens_get_the_ids_and_flags_of_the_settings(trained: dict[str, Path], tmp_path: Path) -> None:
    size = converted(folder_with(tmp_path, trained["llama"])).get_vocab_size()
    tokens = {
        "2": {"content": "<|over|>", "special": True, "normalized": False},
        str(size): {"content": "<|end|>", "special": True, "rstrip": True, "normalized": False},
    }
    folder = folder_with(tmp_path, trained["llama"], added_tokens_decoder=tokens, eos_token="<|over|>")
    tokenizer = converted(folder)
    assert tokenizer.token_to_id("<|over|>") == 2
    assert tokenizer.encode("<|end|>\n\n<|over|>", add_special_tokens=False).ids == [size, 2]
    tokens[str(size + 5)] = tokens.pop(str(size))
    with pytest.raises(ExportError, match=rf"gives the added token '<\|end\|>' the id {size} and its settings say {size + 5}"):
        converted(folder_with(tmp_path, trained["llama"], added_tokens_decoder=tokens))


def test_without_the_legacy_flag_text_after_a_special_token_gets_no_prefix_space(trained: dict[str, Path], tmp_path: Path) -> None:
    tokenizer = converted(folder_with(tmp_path, trained["llama"], legacy=False))
    assert tokenizer.encode("</s>Lily", add_special_tokens=False).tokens[1] != "▁Lily"
    assert tokenizer.encode("Lily", add_special_tokens=False).tokens[0].startswith("▁")
    legacy = converted(folder_with(tmp_path, trained["llama"], legacy=True))
    assert "".join(legacy.encode("</s>Lily", add_special_tokens=False).tokens) == "</s>▁Lily"


def test_a_model_file_of_another_kind_is_one_line(trained: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_text("IQ== 0\nIg== 1\n")  # ranks of tiktoken
    with pytest.raises(ExportError, match=r"is not a SentencePiece model .* give a tokenizer\.json"):
        convert_tokenizer(tmp_path)


@pytest.mark.parametrize("name", ["MBart", "MBart50", "XLMRoberta", "Camembert", "M2M100"])
def test_pieces_that_the_tokenizer_class_numbers_otherwise_get_its_ids(name: str, trained: dict[str, Path], tmp_path: Path) -> None:
    transformers, spm = pytest.importorskip("transformers"), pytest.importorskip("sentencepiece")
    (tmp_path / "sentencepiece.bpe.model").write_bytes(trained["unigram"].read_bytes())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": f"{name}Tokenizer"}))
    if name == "M2M100":
        pieces = spm.SentencePieceProcessor(model_file=str(trained["unigram"]))
        names = ["<s>", "<pad>", "</s>", "<unk>", *(pieces.id_to_piece(index) for index in range(3, len(pieces)))]
        (tmp_path / "vocab.json").write_text(json.dumps({piece: index for index, piece in enumerate(names)}))
    made, theirs = convert_tokenizer(tmp_path), getattr(transformers, f"{name}Tokenizer").from_pretrained(tmp_path)
    assert made is not None
    for text in CORPUS[:2]:  # the class of mBART leaves out SentencePiece's normalisation, which the conversion has
        assert made.encode(text).ids == theirs(text)["input_ids"]
    assert made.get_vocab().items() >= theirs.get_vocab().items()


def test_a_class_that_cannot_number_the_pieces_is_one_line(trained: dict[str, Path], tmp_path: Path) -> None:
    folder = folder_with(tmp_path, trained["unigram"], tokenizer_class="M2M100Tokenizer")
    with pytest.raises(ExportError, match=r"transformers cannot open the tokenizer .* give a tokenizer\.json"):
        convert_tokenizer(folder)


TARGETS = [
    "Es war einmal ein kleines Mädchen namens Lily. Sie spielte gern draußen im Park mit ihrem Hund Max!",
    'Der schnelle braune Fuchs springt über 3 faule Hunde - nicht wahr? "Ja", sagte Tom.',
]


def marian_folder(folder: Path, source: Path, *, missing: int = 0, **settings: object) -> list[str]:
    """A folder as Marian's, with ids for the pieces of both its models but `missing` of the source's; returns these."""
    spm = pytest.importorskip("sentencepiece")
    target = train(folder / "target.spm", corpus=TARGETS, model_type="unigram", vocab_size=150)
    (folder / "source.spm").write_bytes(source.read_bytes())
    processors = [spm.SentencePieceProcessor(model_file=str(path)) for path in (source, target)]
    pieces, others = ([each.id_to_piece(index) for index in range(3, len(each))] for each in processors)
    longest = sorted((piece for piece in pieces if piece not in others), key=len)
    left_out = longest[len(longest) - missing :]
    names = ["</s>", "<unk>", ">>deu<<", *dict.fromkeys([*others, *pieces]), "<pad>"]
    vocabulary = [name for name in names if name not in left_out]
    (folder / "vocab.json").write_text(json.dumps({name: index for index, name in enumerate(vocabulary)}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "MarianTokenizer", **settings}))
    return left_out


WITHOUT_SACREMOSES = pytest.mark.filterwarnings("ignore:Recommended")  # which transformers' class does not need here


@WITHOUT_SACREMOSES
def test_marians_sources_and_targets_are_those_of_its_tokenizer(trained: dict[str, Path], tmp_path: Path) -> None:
    """Pieces of the target alone split no source, whatever characters they have, and are decoded."""
    transformers = pytest.importorskip("transformers")
    marian_folder(tmp_path, trained["unigram"])
    made, theirs = convert_tokenizer(tmp_path), transformers.MarianTokenizer.from_pretrained(tmp_path)
    assert made is not None and made.get_vocab_size() == len(theirs.get_vocab())
    for text in [*CORPUS, ">>deu<< Once upon a time", "", "  a  ", "war einmal", "die springt im park mit Max"]:
        assert made.encode(text).ids == theirs(text)["input_ids"]
    assert 1 in made.encode("Mädchen").ids, "a character that no piece of the source has"
    ours = TextTokenizer(made.to_str(), eos_ids=[0])
    for text in TARGETS:
        ids = theirs(text_target=text)["input_ids"]
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True) == text
        assert "".join(map(ours.piece, ids[:-1])).strip() == text
        assert b"".join(map(ours.piece_bytes, ids[:-1])).decode().strip() == text
        stream = StreamDecoder(ours)
        assert "".join([*map(stream.push, ids[:-1]), stream.flush()]) == text


@WITHOUT_SACREMOSES
def test_pieces_that_marian_has_no_ids_for_are_not_used(trained: dict[str, Path], tmp_path: Path) -> None:
    """A text is the likeliest sequence of the other pieces, found here over all of them; transformers makes the pieces unknown."""
    transformers, spm = pytest.importorskip("transformers"), pytest.importorskip("sentencepiece")
    left_out = marian_folder(tmp_path, trained["unigram"], missing=12)
    made, theirs = convert_tokenizer(tmp_path), transformers.MarianTokenizer.from_pretrained(tmp_path)
    assert made is not None
    ids, processor = json.loads((tmp_path / "vocab.json").read_text()), spm.SentencePieceProcessor(str(tmp_path / "source.spm"))
    scores = {processor.id_to_piece(index): processor.get_score(index) for index in range(3, len(processor))}
    for text in (CORPUS[0], CORPUS[0][18:60].strip(), "She liked the brown fox and her lazy dog"):
        spelled = "▁" + text.replace(" ", "▁")
        best: list[tuple[float, list[str]]] = [(0.0, [])]
        for end in range(1, len(spelled) + 1):
            parts = ((start, spelled[start:end]) for start in range(end))
            known = [(start, part) for start, part in parts if part in scores and part not in left_out]
            best.append(max((best[start][0] + scores[part], [*best[start][1], part]) for start, part in known))
        assert made.encode(text).ids == [*(ids[piece] for piece in best[-1][1]), 0]
    assert 1 in theirs(CORPUS[0])["input_ids"]
    marian_folder(tmp_path, trained["unigram"], missing=60)
    with pytest.raises(ExportError, match=r"source\.spm has 60 of [\d,]+ pieces without an id, such as .*; give a tokenizer\.json"):
        convert_tokenizer(tmp_path)


def test_two_vocabularies_are_one_line(trained: dict[str, Path], tmp_path: Path) -> None:
    marian_folder(tmp_path, trained["unigram"], separate_vocabs=True)
    (tmp_path / "target_vocab.json").write_bytes((tmp_path / "vocab.json").read_bytes())
    with pytest.raises(ExportError, match=r"one vocabulary for sources and one for targets; give a tokenizer\.json"):
        convert_tokenizer(tmp_path)


def test_truncation_and_padding_of_a_tokenizer_json_do_not_come_along(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0, "a": 1, "<pad>": 2}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=5, pad_id=2, pad_token="<pad>")
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 4}))
    assert converted(tmp_path).encode("a a a a a a a").ids == [1] * 7
    assert converted(tmp_path).encode("a").ids == [1]


def byte_level(tmp_path: Path) -> Tokenizer:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {letter: index for index, letter in enumerate([*letters, "he", "Ġhe", "ll", "hell"])}
    merges = [("h", "e"), ("Ġ", "he"), ("l", "l"), ("he", "ll")]
    (tmp_path / "vocab.json").write_text(json.dumps(vocab))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "\n".join(" ".join(pair) for pair in merges) + "\n")
    tokenizer = Tokenizer(models.BPE(vocab, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = token_decoders.ByteLevel()
    return tokenizer


def test_a_wrong_conversion_is_caught(tmp_path: Path) -> None:
    tokenizer = byte_level(tmp_path)
    original = ByteLevelBPE(tmp_path, tokenizer)
    prove_tokenizer(tokenizer, original, "x")
    tokenizer.decoder = token_decoders.Fuse()
    with pytest.raises(ExportError, match="decodes to 'Ġ' where the original gives ' '"):
        prove_tokenizer(tokenizer, original, "x")
    (tmp_path / "merges.txt").write_text("#version: 0.2\nl l\nh e\n")
    with pytest.raises(ExportError, match=r"'hello' ids \[.+\] where the original gives"):
        prove_tokenizer(tokenizer, ByteLevelBPE(tmp_path, tokenizer), "x", ["hello"])


def test_vocabulary_files_without_any_settings_are_read_by_their_kind(tmp_path: Path) -> None:
    byte_level(tmp_path)
    tokenizer = converted(tmp_path)
    assert tokenizer.encode("hell he").tokens[:2] == ["hell", "Ġhe"]


def test_added_tokens_of_a_tokenizer_json_take_the_flags_of_its_settings(tmp_path: Path) -> None:
    tokenizer = byte_level(tmp_path)
    tokenizer.add_tokens([AddedToken("<|end|>", special=False)])
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    size = tokenizer.get_vocab_size()
    tokens = {
        str(size - 1): {"content": "<|end|>", "special": True, "rstrip": True},
        str(size): {"content": "<|new|>", "special": True},
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": tokens}))
    found = converted(tmp_path)
    assert found.get_added_tokens_decoder()[size - 1].special
    assert found.encode("<|end|>  \n<|new|>he").ids == [size - 1, size, found.token_to_id("he")]


def test_a_folder_without_a_tokenizer_has_none(tmp_path: Path) -> None:
    assert convert_tokenizer(tmp_path) is None


@pytest.mark.parametrize(
    ("source", "files", "golden"),
    [
        ("tokenizers/llama2", ["tokenizer.model"], "llama2-32k"),
        ("tokenizers/llama2", ["tokenizer.json"], "llama2-32k"),
        ("tokenizers/llama2", ["tokenizer.json", "tokenizer_config.json"], "llama2-32k"),
        ("checkpoints/stories260K", ["tokenizer.json", "tokenizer_config.json", "config.json"], "stories260K"),
    ],
)
def test_llama_vocabularies_give_sentencepiece_s_golden_ids(
    shared: Path, tmp_path: Path, source: str, files: list[str], golden: str
) -> None:
    for name in files:
        shutil.copy(shared / source / name, tmp_path)
    tokenizer = TextTokenizer(converted(tmp_path).to_str())
    cases = json.loads((shared / "golden" / f"tokenizer_{golden}.json").read_text())["cases"]
    assert len(cases) == 640
    for case in cases:
        assert tokenizer.encode(case["text"], add_special_tokens=False) == case["ids"]
        assert tokenizer.decode(case["ids"]) == case["decoded"]


@pytest.mark.parametrize("name", VECTORS)
def test_real_vocabularies_give_the_ids_of_llama_cpp(shared: Path, tmp_path: Path, name: str) -> None:
    vectors, files = VECTORS[name]
    for file in files:
        shutil.copy(shared / "tokenizers" / name / file, tmp_path)
    tokenizer = converted(tmp_path)
    stem = shared / "tokenizers" / "llama.cpp-vectors" / f"ggml-vocab-{vectors}.gguf"
    texts = stem.with_name(stem.name + ".inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")
    lists = stem.with_name(stem.name + ".out").read_text().split("\n")
    for text, ids in zip(texts, lists, strict=False):
        assert tokenizer.encode(text, add_special_tokens=False).ids == [int(token_id) for token_id in ids.split()]


def test_a_unigram_tokenizer_json_comes_through_as_it_is(shared: Path) -> None:
    folder = shared / "tokenizers" / "t5-small"
    raw = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer = converted(folder)
    for text in json.loads((shared / "golden" / "strings.json").read_text()):
        assert tokenizer.encode(text).ids == raw.encode(text).ids
