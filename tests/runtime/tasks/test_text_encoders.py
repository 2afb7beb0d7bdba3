"""Text encoders make vectors of texts and score pairs, as NumPy does; what writes texts is refused in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnx")

from hypothesis import given
from hypothesis import strategies as st

import onnx_textgen
from onnx_textgen import Cancellation, Model
from onnx_textgen.cancellation import InterruptedRunError
from onnx_textgen.cli import run
from onnx_textgen.errors import ModelError, OptionError, PackageError, PromptError
from onnx_textgen.package.manifest import MANIFEST, manifest_digest
from onnx_textgen.package.retrieval import EmbeddingSettings
from onnx_textgen.tasks import embedder
from support.examples import examples
from support.text_encoder_package import MOST, WIDTH, WORDS, score, states, tokenizer, write_package

LETTERS = st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=20).map(" ".join)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_package(tmp_path_factory.mktemp("encoders") / "letters")


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return onnx_textgen.load(folder, device="cpu", threads=1)


@pytest.fixture(scope="module")
def scorer(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return onnx_textgen.load(write_package(tmp_path_factory.mktemp("scorers") / "pairs", scores=True), device="cpu", threads=1)


def ids_of(text: str, pair: str | None = None) -> tuple[list[int], list[int]]:
    """Ids and types by the library's own truncation."""
    made = tokenizer()
    made.enable_truncation(MOST)
    found = made.encode(text, pair)
    return found.ids, found.type_ids


def vector(text: str) -> np.ndarray:
    mean = states(ids_of(text)[0]).mean(axis=0)
    return mean / np.linalg.norm(mean)


@given(st.lists(LETTERS, min_size=1, max_size=9), st.integers(12, 60))
@examples(60)
def test_vectors_of_texts_of_any_lengths_are_those_of_numpy(model: Model, texts: list[str], most: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(embedder, "MOST_TOGETHER", most)
        found = model.embed(texts)
    np.testing.assert_allclose(found, [vector(text) for text in texts], atol=1e-6)
    np.testing.assert_allclose(model.embed(texts[0]), found[0], atol=1e-6)


@given(LETTERS, LETTERS)
@examples(100)
def test_texts_and_pairs_are_cut_as_the_library_of_tokenizers_cuts_them(model: Model, text: str, pair: str) -> None:
    assert model.tokenizer.encode_within(MOST, text) == ids_of(text)
    assert model.tokenizer.encode_within(MOST, text, pair) == ids_of(text, pair)
    assert model.encode(text) == ids_of(text)[0]


@given(LETTERS, st.lists(LETTERS, min_size=1, max_size=9))
@examples(40)
def test_scores_of_pairs_are_those_of_numpy_most_relevant_first(scorer: Model, query: str, documents: list[str]) -> None:
    found = scorer.rerank(query, documents)
    wanted = [1 / (1 + np.exp(-score(*ids_of(query, each)))) for each in documents]
    assert sorted(each.index for each in found) == [*range(len(documents))]
    np.testing.assert_allclose([each.relevance_score for each in found], sorted(wanted, reverse=True), atol=1e-6)
    assert all(each.text == documents[each.index] for each in found)
    assert all(each.prompt_tokens == len(ids_of(query, each.text)[0]) for each in found)
    assert scorer.rerank(query, documents, top_n=1) == found[:1]


@pytest.mark.parametrize(
    ("pooling", "pooled"),
    [
        ("mean", lambda own: own.mean(axis=0)),
        ("cls", lambda own: own[0]),
        ("last", lambda own: own[-1]),
        ("max", lambda own: own.max(axis=0)),
        ("weightedmean", lambda own: np.arange(1, len(own) + 1) @ own / np.arange(1, len(own) + 1).sum()),
    ],
)
def test_a_caller_may_pool_otherwise(model: Model, pooling: str, pooled: Callable) -> None:
    texts = ["a b c", "d", "e f g h"]
    found = model.embed(texts, pooling=pooling, normalize=False)  # type: ignore[arg-type]
    np.testing.assert_allclose(found, [pooled(states(ids_of(text)[0])) for text in texts], atol=1e-6)


def test_ids_dimensions_and_prompts(model: Model, tmp_path: Path) -> None:
    ids = ids_of("a b c")[0]
    np.testing.assert_array_equal(model.embed([ids]), model.embed(["a b c"]))
    short = model.embed("a b c", dimensions=3)
    assert short.shape == (3,) and np.linalg.norm(short) == pytest.approx(1)
    with pytest.raises(OptionError, match=f"dimensions should be a whole number from 1 to {WIDTH}"):
        model.embed("a", dimensions=WIDTH + 1)
    settings = EmbeddingSettings(pooling="graph", prompts={"query": "q ", "passage": "p "})
    prompted = onnx_textgen.load(write_package(tmp_path / "prompted", settings=settings), device="cpu", threads=1)
    np.testing.assert_allclose(prompted.embed("a", prompt_name="query"), vector("q a"), atol=1e-6)
    (found,) = prompted.rerank("a", ["b"])
    assert found.relevance_score == pytest.approx(float(vector("q a") @ vector("p b")), abs=1e-6)


def test_an_embedder_ranks_documents_by_their_cosine(model: Model) -> None:
    documents = ["a b", "x y z", "a c", "q"]
    found = model.rerank("a", documents)
    wanted = {index: float(vector("a") @ vector(each)) for index, each in enumerate(documents)}
    assert [each.index for each in found] == sorted(wanted, key=lambda index: -wanted[index])
    assert [each.relevance_score for each in found] == pytest.approx(sorted(wanted.values(), reverse=True), abs=1e-6)


WRITING: dict[str, Callable[[Model], object]] = {
    "generate": lambda model: model.generate("a"),
    "stream": lambda model: list(model.stream("a")),
    "chat": lambda model: model.chat([{"role": "user", "content": "a"}]),
    "session": lambda model: model.session(),
    "score": lambda model: model.score("a b"),
    "rank": lambda model: model.rank("a", ["b"]),
    "attentions": lambda model: model.attentions("a b"),
    "new_context": lambda model: model.new_context(),
    "encode_infill": lambda model: model.encode_infill("a", "b"),
}


@pytest.mark.parametrize("name", WRITING)
def test_what_writes_texts_is_refused_in_one_line(model: Model, scorer: Model, name: str) -> None:
    with pytest.raises(OptionError, match="letters is an encoder, which writes no text and makes vectors: call embed"):
        WRITING[name](model)
    with pytest.raises(OptionError, match="which writes no text and scores pairs of texts: call rerank"):
        WRITING[name](scorer)


def test_a_cross_encoder_makes_no_vectors_and_takes_no_prompt(scorer: Model) -> None:
    with pytest.raises(PackageError, match="letters scores pairs of texts and makes no vectors: call rerank"):
        scorer.embed("a")
    with pytest.raises(OptionError, match="leave prompt and prompt_name out"):
        scorer.rerank("a", ["b"], prompt="c")


def test_it_can_be_cancelled_and_closed(folder: Path) -> None:
    opened, cancel = onnx_textgen.load(folder, device="cpu", threads=1), Cancellation()
    cancel.cancel()
    with pytest.raises(InterruptedRunError):
        opened.embed(["a"], cancel=cancel)
    opened.close()
    with pytest.raises(ModelError, match="this model was closed"):
        opened.embed("a")


def test_verify_reads_the_golden_texts_again(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", str(folder)]) == 0
    assert "golden 1: the same numbers" in capsys.readouterr().out
    path = folder / MANIFEST
    before = path.read_text(encoding="utf-8")
    value = json.loads(before)
    value["text_encoder"]["golden"][0]["numbers"][2] += 0.01
    value["sha256"] = manifest_digest({key: item for key, item in value.items() if key != "sha256"})
    try:
        path.write_text(json.dumps(value), encoding="utf-8")
        assert run(["verify", str(folder)]) == 1
        assert "golden 1: DIFFERENT" in capsys.readouterr().out
    finally:
        path.write_text(before, encoding="utf-8")
    assert run(["verify", str(folder), "--against", "somewhere"]) == 2
    assert "is a text encoder; leave out --runtime and --against" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command", ["chat DIR", "generate a --model DIR", "bench DIR", "site DIR --out OUT", "inspect a --model DIR"]
)
def test_commands_that_write_texts_refuse_it(
    folder: Path, tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [word.replace("DIR", str(folder)).replace("OUT", str(tmp_path / "site")) for word in command.split()]
    assert run(words) != 0
    assert "is an encoder" in capsys.readouterr().err


def test_info_and_list_say_what_it_is(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["info", str(folder)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert f"reads texts of up to {MOST} tokens; longer ones are cut" in out and "vectors pooled by the graph; length 1" in out
    assert run(["list", str(folder.parent)]) == 0
    assert "no: encoder" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"most_tokens": 513}, "most_tokens should fit in the context"),
        ({"most_tokens": 0}, "most_tokens should fit in the context"),
        ({"golden": [{"token_ids": [len(WORDS)], "numbers": [1.0]}]}, "golden\\[0\\] has the token id 30"),
        ({"more": 1}, "unknown key"),
        ({"tolerance": float("inf")}, "tolerance should be from 0 to 1"),
        ({"golden": [{"token_ids": [], "numbers": [1.0]}]}, "golden\\[0\\] should have token_ids"),
        ({"golden": [{"token_ids": [1, 2], "numbers": [1.0], "type_ids": [0]}]}, "golden\\[0\\] should have token_ids"),
        ({"golden": [{"token_ids": [1], "numbers": [1.0], "type_ids": [2**70]}]}, "golden\\[0\\] should have token_ids"),
    ],
)
def test_a_manifest_that_no_encoder_has_is_refused(tmp_path: Path, change: dict, what: str) -> None:
    folder = write_package(tmp_path / "other")
    value = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    value["text_encoder"] |= change
    value["sha256"] = manifest_digest({key: item for key, item in value.items() if key != "sha256"})
    (folder / MANIFEST).write_text(json.dumps(value), encoding="utf-8")
    with pytest.raises(PackageError, match=what):
        onnx_textgen.load(folder, device="cpu")


@pytest.mark.parametrize("change", [{"text_encoder": None}, {"text_encoder": None, "embedding": None, "pair_scoring": {}}])
def test_settings_of_an_encoder_are_of_one(tmp_path: Path, change: dict) -> None:
    folder = write_package(tmp_path / "other")
    value = json.loads((folder / MANIFEST).read_text(encoding="utf-8")) | change
    value["sha256"] = manifest_digest({key: item for key, item in value.items() if key != "sha256"})
    (folder / MANIFEST).write_text(json.dumps(value), encoding="utf-8")
    with pytest.raises(PackageError, match="has settings of a text encoder, and is of none"):
        onnx_textgen.load(folder, device="cpu")


def test_a_graph_without_the_output_is_refused_when_it_is_opened(tmp_path: Path) -> None:
    folder = write_package(tmp_path / "other")
    value = json.loads((folder / MANIFEST).read_text(encoding="utf-8")) | {"pair_scoring": {"activation": "sigmoid"}}
    value["sha256"] = manifest_digest({key: item for key, item in value.items() if key != "sha256"})
    (folder / MANIFEST).write_text(json.dumps(value), encoding="utf-8")
    with pytest.raises(PackageError, match="the graph has no output logits"):
        onnx_textgen.load(folder, device="cpu")


def test_an_adapter_and_a_draft_model_are_refused(model: Model, scorer: Model, folder: Path) -> None:
    with pytest.raises(OptionError, match="letters has no adapter 'legal'"):
        model.embed("a", adapter="legal")
    with pytest.raises(OptionError, match="letters has no adapter 'legal'"):
        scorer.rerank("a", ["b"], adapter="legal")
    with pytest.raises(OptionError, match="is an encoder, which writes no text"):
        onnx_textgen.load(device="cpu", assistant_model=folder)


def test_of_a_huge_text_only_the_beginning_is_tokenised(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """As much as decides the tokens that are kept, whatever blanks there are."""
    for text in ("a b " * 50_000, " " * 5_000 + "a b " * 50_000, "a" + " " * 100_000 + "b"):
        assert model.encode(text) == ids_of(text)[0]
    tokenized = []
    encode = type(model.tokenizer._tokenizer).encode

    class Counted:
        def __getattr__(self, name: str) -> object:
            return getattr(inner, name)

        def encode(self, text: str, **given: object) -> object:
            tokenized.append(len(text))
            return encode(inner, text, **given)

    inner = model.tokenizer._tokenizer
    monkeypatch.setattr(model.tokenizer, "_tokenizer", Counted())
    model.embed("a b " * 500_000)
    assert sum(tokenized) < 2_000


def test_a_text_without_tokens_is_refused_in_one_line(tmp_path: Path) -> None:
    folder = write_package(tmp_path / "bare", has_marks=False)
    bare = onnx_textgen.load(folder, device="cpu", threads=1)
    for pooling in (None, "mean", "last"):
        with pytest.raises(PromptError, match="the text has no tokens; give one that is not blank"):
            bare.embed(["a", " "], pooling=pooling)  # type: ignore[arg-type]


def test_ids_beyond_the_graphs_vocabulary_are_refused(tmp_path: Path) -> None:
    folder = write_package(tmp_path / "small", vocab_size=len(WORDS) - 1)
    small = onnx_textgen.load(folder, device="cpu", threads=1)
    with pytest.raises(PromptError, match="token id 29 is outside the vocabulary"):
        small.embed("z")
