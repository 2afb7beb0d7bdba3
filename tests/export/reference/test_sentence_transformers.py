"""Packages of embedding models and rerankers give the vectors and the scores of sentence-transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import onnx_textgen
from onnx_textgen_export import export
from support.minilm import minilm_checkpoint
from support.retrieval_checkpoints import LETTERS, write_embedding_model, write_reranker
from support.text_encoder_checkpoints import write_embedder, write_encoder

TEXTS = ["A dog.", "Where does the sun go at night? Nobody in the village knew, and they asked the old man.", "é", "日本語 text"]
POOLINGS = {
    "last token, as Qwen3-Embedding": (None, "last"),
    "mean": ({"pooling_mode_mean_tokens": True}, "mean"),
    "weighted mean, as SGPT": ({"pooling_mode": "weightedmean"}, "weightedmean"),
}
QUERY = "What is the capital of France?"
DOCUMENTS = [
    "Paris.",
    "Bread is baked from flour, water, yeast and salt.",
    "The capital of France is Paris, and it lies on the Seine.",
]


@pytest.fixture(scope="module")
def library() -> Any:
    return pytest.importorskip("sentence_transformers", reason="compares with it; pip install sentence-transformers")


@pytest.mark.slow
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("kind", POOLINGS)
def test_vectors_equal_those_of_sentence_transformers(library: Any, tmp_path: Path, kind: str, normalize: bool) -> None:
    given, pooling = POOLINGS[kind]
    folder = write_embedding_model(tmp_path / "model", pooling=given, normalize=normalize)
    made = export(folder, tmp_path / "package")
    settings = made.manifest.embedding
    assert settings is not None
    assert (settings.pooling, settings.normalize, settings.similarity) == (pooling, normalize, "cosine")
    ours, theirs = onnx_textgen.load(made.folder, device="cpu", threads=1), library.SentenceTransformer(str(folder), device="cpu")
    np.testing.assert_allclose(ours.embed(TEXTS), theirs.encode(TEXTS), atol=1e-5)
    np.testing.assert_allclose(ours.embed(TEXTS, prompt_name="query"), theirs.encode_query(TEXTS), atol=1e-5)
    np.testing.assert_allclose(ours.embed(TEXTS, prompt="Q: "), theirs.encode(TEXTS, prompt="Q: "), atol=1e-5)
    short = theirs.encode(TEXTS, truncate_dim=24, normalize_embeddings=normalize)
    np.testing.assert_allclose(ours.embed(TEXTS, dimensions=24), short, atol=1e-5)
    ids = [theirs.tokenizer(text).input_ids for text in TEXTS]
    assert [ours.encode(text, new_tokens=0) for text in TEXTS] == ids
    np.testing.assert_allclose(ours.embed(ids), theirs.encode(TEXTS), atol=1e-5)


@pytest.mark.slow
def test_a_default_prompt_and_fewer_dimensions_are_those_of_the_checkpoint(library: Any, tmp_path: Path) -> None:
    general = {"default_prompt_name": "query", "truncate_dim": 16}
    folder = write_embedding_model(tmp_path / "model", normalize=False, general=general)
    ours = onnx_textgen.load(export(folder, tmp_path / "package").folder, device="cpu", threads=1)
    theirs = library.SentenceTransformer(str(folder), device="cpu")
    np.testing.assert_allclose(ours.embed(TEXTS), theirs.encode(TEXTS), atol=1e-5)
    assert ours.embed("A dog.").shape == (16,)


@pytest.mark.slow
def test_a_folder_that_sentence_transformers_writes_today_is_read_too(library: Any, tmp_path: Path) -> None:
    old = library.SentenceTransformer(str(write_embedding_model(tmp_path / "old")), device="cpu")
    old.save(str(tmp_path / "new"))
    manifest = export(tmp_path / "new", tmp_path / "package").manifest
    assert manifest.embedding is not None
    assert (manifest.embedding.pooling, manifest.embedding.normalize, manifest.embedding.refused) == ("last", True, "")
    ours = onnx_textgen.load(tmp_path / "package", device="cpu", threads=1)
    np.testing.assert_allclose(ours.embed(TEXTS), old.encode(TEXTS), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["two answers", "one answer", "no sigmoid"])
def test_scores_equal_those_of_a_cross_encoder(library: Any, tmp_path: Path, kind: str) -> None:
    score = {"false_token_id": None} if kind == "one answer" else None
    general = {"activation_fn": "torch.nn.modules.linear.Identity"} if kind == "no sigmoid" else None
    folder = write_reranker(tmp_path / "model", score=score, general=general)
    ours = onnx_textgen.load(export(folder, tmp_path / "package").folder, device="cpu", threads=1)
    theirs = library.CrossEncoder(str(folder), device="cpu")
    for given in ({}, {"prompt": "Is it short?"}, {"prompt_name": "web"}):
        want = theirs.rank(QUERY, DOCUMENTS, **given)
        got = ours.rerank(QUERY, DOCUMENTS, **given)
        assert [each.index for each in got] == [each["corpus_id"] for each in want]
        np.testing.assert_allclose([each.relevance_score for each in got], [each["score"] for each in want], atol=1e-4)


@pytest.mark.slow
def test_a_score_is_the_probability_of_yes_among_yes_and_no_in_pytorch(tmp_path: Path) -> None:
    folder = write_reranker(tmp_path / "model")
    ours = onnx_textgen.load(export(folder, tmp_path / "package").folder, device="cpu", threads=1)
    model, tokenizer = transformers.AutoModelForCausalLM.from_pretrained(folder), transformers.AutoTokenizer.from_pretrained(folder)
    wanted = []
    for document in DOCUMENTS:
        prompt = f"[I]Answer the question.[Q]{QUERY}[D]{document}[A]"
        with torch.no_grad():
            logits = model(tokenizer(prompt, add_special_tokens=False, return_tensors="pt").input_ids).logits[0, -1]
        wanted.append(torch.softmax(logits[[LETTERS.index("n"), LETTERS.index("y")]], dim=0)[1].item())
    got = ours.rerank(QUERY, DOCUMENTS)
    assert [each.index for each in got] == sorted(range(3), key=lambda index: -wanted[index])
    np.testing.assert_allclose([each.relevance_score for each in got], sorted(wanted, reverse=True), atol=1e-4)
    assert [each.text for each in ours.rerank(QUERY, DOCUMENTS, top_n=1)] == [got[0].text]
    alone = [ours.rerank(QUERY, [each.text])[0].relevance_score for each in got]
    assert alone == [each.relevance_score for each in got], "a score does not depend on the other documents"


ENCODERS: dict[str, dict[str, Any]] = {
    "mean, as MiniLM": {},
    "first token, as BGE": {"pooling": {"pooling_mode_cls_token": True}},
    "largest numbers": {"pooling": {"pooling_mode_max_tokens": True}, "more": []},
    "two poolings joined": {"pooling": {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}},
    "mean by the root": {"pooling": {"pooling_mode_mean_sqrt_len_tokens": True}, "more": []},
    "weighted mean": {"pooling": {"pooling_mode_weightedmean_tokens": True}},
    "last token": {"pooling": {"pooling_mode_lasttoken": True}},
    "two layers after it, as EmbeddingGemma": {"more": ["Dense", "Dense", "Normalize"]},
    "a norm after it": {"more": ["LayerNorm"]},
    "a length before a layer": {"more": ["Normalize", "Dense"]},
}
LONG = "the sun goes down at night, and nobody in the village knew where it went, so they asked the old man by the sea"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ENCODERS)
def test_vectors_of_text_encoders_equal_those_of_sentence_transformers(library: Any, tmp_path: Path, kind: str) -> None:
    general = {"prompts": {"query": "what is ", "document": ""}}
    folder = write_embedder(tmp_path / "model", general=general, **ENCODERS[kind])
    ours = onnx_textgen.load(export(folder, tmp_path / "package").folder, device="cpu", threads=1)
    theirs = library.SentenceTransformer(str(folder), device="cpu")
    texts = [*TEXTS, LONG]
    np.testing.assert_allclose(ours.embed(texts), theirs.encode(texts), atol=1e-5)
    np.testing.assert_allclose(ours.embed(texts, prompt_name="query"), theirs.encode_query(texts), atol=1e-5)
    is_normalized = ENCODERS[kind].get("more", ["Normalize"])[-1:] == ["Normalize"]
    short = theirs.encode(texts, truncate_dim=24, normalize_embeddings=is_normalized)
    np.testing.assert_allclose(ours.embed(texts, dimensions=24), short, atol=1e-5)


@pytest.mark.slow
def test_scores_of_text_encoders_equal_those_of_a_cross_encoder(library: Any, tmp_path: Path) -> None:
    folder = write_encoder(tmp_path / "model", kind="BertForSequenceClassification")
    ours = onnx_textgen.load(export(folder, tmp_path / "package").folder, device="cpu", threads=1)
    theirs = library.CrossEncoder(str(folder), device="cpu")
    documents = [*DOCUMENTS, LONG * 3]
    for query in (QUERY, LONG * 2):
        want, got = theirs.rank(query, documents), ours.rerank(query, documents)
        assert [each.index for each in got] == [each["corpus_id"] for each in want]
        np.testing.assert_allclose([each.relevance_score for each in got], [each["score"] for each in want], atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_vectors_of_a_trained_embedder_equal_those_of_sentence_transformers(library: Any, tmp_path: Path, precision: Any) -> None:
    folder = minilm_checkpoint(tmp_path / "model")
    ours = onnx_textgen.load(export(folder, tmp_path / "package", precision=precision).folder, device="cpu", threads=1)
    texts = [*TEXTS, LONG, LONG * 20]
    found, wanted = ours.embed(texts), library.SentenceTransformer(str(folder), device="cpu").encode(texts)
    if precision == "fp32":
        np.testing.assert_allclose(found, wanted, atol=1e-5)
    assert min((found * wanted).sum(axis=1)) > 0.995
