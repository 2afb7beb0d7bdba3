"""How a checkpoint embeds and reranks is read from its files; what a package cannot compute is refused, not computed otherwise."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import onnx_textgen
from onnx_textgen.errors import OptionError, PackageError
from onnx_textgen.package.retrieval import EmbeddingSettings, RerankingSettings
from onnx_textgen_export import export
from onnx_textgen_export.tokenization.retrieval_settings import read_retrieval_settings
from support.retrieval_checkpoints import (
    END,
    LETTERS,
    PROMPTS,
    RERANKER_TEMPLATE,
    write_embedding_model,
    write_json,
    write_reranker,
)


def embedding(folder: Path) -> EmbeddingSettings:
    """The settings of an embedding model's folder."""
    found, other = read_retrieval_settings(folder, None)
    assert found is not None
    assert other is None
    return found


def reranking(folder: Path, template: str | None = RERANKER_TEMPLATE) -> RerankingSettings:
    """The settings of a reranker's folder."""
    other, found = read_retrieval_settings(folder, template)
    assert found is not None
    assert other is None
    return found


def test_a_folder_without_modules_says_nothing(tmp_path: Path) -> None:
    assert read_retrieval_settings(tmp_path, None) == (None, None)
    write_json(tmp_path / "modules.json", {"type": "Pooling"})
    assert read_retrieval_settings(tmp_path, None) == (None, None)
    write_json(tmp_path / "modules.json", [1, "two", {"type": "sentence_transformers.models.Transformer", "path": ""}])
    assert read_retrieval_settings(tmp_path, None) == (None, None)
    (tmp_path / "modules.json").write_text("[")
    with pytest.raises(PackageError, match="is not valid JSON"):
        read_retrieval_settings(tmp_path, None)


@pytest.mark.parametrize(
    ("pooling", "reason"),
    [
        ({"pooling_mode_cls_token": True}, "its pooling is cls"),
        ({"pooling_mode_max_tokens": True}, "its pooling is max"),
        ({"pooling_mode_mean_sqrt_len_tokens": True}, "its pooling is mean_sqrt_len_tokens"),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True}, "its pooling is max and mean"),
        ({"pooling_mode": ["mean", "lasttoken"]}, "its pooling is mean and lasttoken"),
    ],
)
def test_a_pooling_that_a_decoder_cannot_give_is_refused(tmp_path: Path, pooling: dict[str, Any], reason: str) -> None:
    assert embedding(write_embedding_model(tmp_path, pooling=pooling)).refused == reason


def test_whatever_else_changes_the_vectors_is_refused(tmp_path: Path) -> None:
    folder = write_embedding_model(tmp_path)
    assert embedding(folder).refused == ""
    changed = {
        "1_Pooling/config.json": ({"pooling_mode": "mean", "include_prompt": False}, "leaves out the tokens of the prompt"),
        "sentence_bert_config.json": ({"do_lower_case": True}, "takes texts in lower case only"),
    }
    for name, (value, reason) in changed.items():
        kept = (folder / name).read_text()
        write_json(folder / name, value)
        assert reason in embedding(folder).refused
        (folder / name).write_text(kept)
    write_json(folder / "sentence_bert_config.json", {"modality_config": {"text": {}, "message": {}}})
    assert embedding(folder).refused == "it takes chats"
    modules = json.loads((folder / "modules.json").read_text())
    write_json(folder / "modules.json", [*modules, {"path": "3_Dense", "type": "sentence_transformers.models.Dense"}])
    assert embedding(folder).refused == "its modules are Transformer, Pooling, Normalize, Dense"
    shutil.rmtree(folder / "1_Pooling")
    write_json(folder / "modules.json", modules)
    assert embedding(folder).refused == "the settings of its pooling are missing"


def test_a_reranker_that_cannot_be_followed_is_refused(tmp_path: Path) -> None:
    folder = write_reranker(tmp_path)
    assert reranking(folder).refused == ""
    assert reranking(folder, None).refused == "it has no chat template"
    chat = "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}"
    assert reranking(folder, chat).refused == "its chat template shows no query and document"
    assert "fails on a query and a document" in reranking(folder, "{{ raise_exception('roles must alternate') }}").refused
    assert reranking(folder, "{{ messages[0].content[0].text }}{{ messages[1].content[0].text }}").refused != ""
    assert (
        "torch.nn.modules.activation.Tanh"
        in reranking(write_reranker(tmp_path, general={"activation_fn": "torch.nn.modules.activation.Tanh"})).refused
    )
    assert "my.own.Sigmoid" in reranking(write_reranker(tmp_path, general={"activation_fn": "my.own.Sigmoid"})).refused
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": 512})
    assert reranking(write_reranker_without_forms(folder)).refused == "it takes pairs of texts"


def write_reranker_without_forms(folder: Path) -> Path:
    """A reranker whose settings say nothing of chats."""
    write_reranker(folder)
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": 512})
    return folder


def test_a_template_may_take_the_contents_as_lists_of_parts(tmp_path: Path) -> None:
    folder = write_reranker(tmp_path)
    settings = json.loads((folder / "sentence_bert_config.json").read_text())
    template = "{% for m in messages %}{{ m.content[0].text }}{% endfor %}"
    for form in ("structured", "auto"):
        settings["modality_config"]["message"]["format"] = form
        write_json(folder / "sentence_bert_config.json", settings)
        found = reranking(folder, template)
        assert (found.has_parts, found.refused) == (True, "")


@pytest.mark.slow
def test_the_package_of_a_refused_model_gives_vectors_only_by_a_pooling_of_the_callers(tmp_path: Path) -> None:
    folder, said = write_embedding_model(tmp_path / "model", pooling={"pooling_mode_max_tokens": True}), list[str]()
    made = export(folder, tmp_path / "package", report=said.append)
    assert [each for each in said if each.startswith("vectors:")] == [
        "vectors: those of this model are not supported (its pooling is max); embed needs a pooling as an argument"
    ]
    model = onnx_textgen.load(made.folder, device="cpu", threads=1)
    with pytest.raises(PackageError, match=r"not supported \(its pooling is max\); give a pooling to get other vectors"):
        model.embed("A dog.")
    assert model.embed("A dog.", pooling="mean").shape == (made.manifest.geometry.hidden_size,)
    with pytest.raises(OptionError, match="no reranker, so a prompt cannot take effect"):
        model.rerank("a", ["b"], prompt="c")
    assert len(model.rerank("a", ["b"])) == 1


@pytest.mark.slow
def test_the_end_that_the_tokenizer_appends_is_embedded_and_the_prefix_of_the_weights_may_be_missing(tmp_path: Path) -> None:
    """Qwen3-Embedding's weights are those of the model without its output layer."""
    folder = write_embedding_model(tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    bare = {name.removeprefix("model."): each for name, each in tensors.items() if not name.startswith("lm_head")}
    save_file(bare, folder / "model.safetensors", metadata={"format": "pt"})
    made = export(folder, tmp_path / "package")
    assert made.manifest.embedding == EmbeddingSettings(pooling="last", normalize=True, prompts=PROMPTS, similarity="cosine")
    model = onnx_textgen.load(made.folder, device="cpu", threads=1)
    ids = model.encode("A dog.")
    assert model.tokenizer.piece(ids[-1]) == END
    reference = transformers.AutoModel.from_pretrained(folder).eval()
    for given, text in (({}, "A dog."), ({"prompt_name": "query"}, PROMPTS["query"] + "A dog.")):
        with torch.no_grad():
            state = reference(torch.tensor([model.encode(text)])).last_hidden_state[0, -1].numpy()
        np.testing.assert_allclose(model.embed("A dog.", **given), state / np.linalg.norm(state), atol=1e-5)
    with pytest.raises(OptionError, match="there is no prompt 'passage'; choose one of: query, document"):
        model.embed("A dog.", prompt_name="passage")
    with pytest.raises(OptionError, match="token ids were given; give the text, or leave the prompt out"):
        model.embed([1, 2], prompt_name="query")
    for dimensions in (0, 65, 1.5, True):
        with pytest.raises(OptionError, match="dimensions should be a whole number from 1 to 64"):
            model.embed("A dog.", dimensions=dimensions)


@pytest.mark.slow
def test_a_package_says_which_tokens_are_the_answers_and_one_outside_the_vocabulary_is_refused(tmp_path: Path) -> None:
    made = export(write_reranker(tmp_path / "model"), tmp_path / "package")
    assert made.manifest.reranking == RerankingSettings(
        true_id=LETTERS.index("y"),
        false_id=LETTERS.index("n"),
        add_generation_prompt=True,
        prompts={"web": "Answer the question."},
        default_prompt_name="web",
    )
    manifest = json.loads((made.folder / "manifest.json").read_text())
    manifest["reranking"]["true_id"] = 10**6
    del manifest["sha256"]
    (made.folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(PackageError, match="reranking has the token id 1000000, outside the vocabulary"):
        onnx_textgen.load(made.folder, device="cpu")
