"""Text encoders are exported with proof: vectors and scores are those of transformers, and what differs is refused in one line."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st

import onnx_textgen
from onnx_textgen import Model
from onnx_textgen.cli import run
from onnx_textgen.errors import OnnxTextgenError
from onnx_textgen_export import export
from onnx_textgen_export.encoders import proof
from onnx_textgen_export.errors import ExportError
from onnx_textgen_export.exporting.options import Budget, Quantization
from onnx_textgen_export.sources.tiny_transformer import DecoderConfig, TinyTransformer
from support.examples import examples
from support.text_encoder_checkpoints import MOST, SIZES, random_weights, write_embedder, write_encoder

TEXTS = ["A dog.", "where does the sun go at night? nobody in the village knew, and they asked the old man", "z"]
QUERY, DOCUMENTS = "what barks?", ["a dog barks.", "the sun goes down at night, and nobody in the village knew where", "b"]


def reference(folder: Path, text: str) -> np.ndarray:
    """The vector of a text by transformers: the mean over its tokens, of length 1."""
    model = transformers.AutoModel.from_pretrained(folder).eval()
    tokens = transformers.AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt", truncation=True, max_length=MOST)
    with torch.no_grad():
        mean = model(**tokens).last_hidden_state[0].mean(0).numpy()
    return mean / np.linalg.norm(mean)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_embedder(tmp_path_factory.mktemp("embedder") / "bert")


@pytest.fixture(scope="module")
def model(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Model:
    made = export(checkpoint, tmp_path_factory.mktemp("package") / "bert")
    return onnx_textgen.load(made.folder, device="cpu", threads=1)


def test_vectors_are_those_of_transformers(model: Model, checkpoint: Path) -> None:
    wanted = [reference(checkpoint, text) for text in TEXTS]
    np.testing.assert_allclose(model.embed(TEXTS), wanted, atol=1e-5)
    assert len(model.encode(TEXTS[1])) == MOST
    assert model.embed(TEXTS[0]).dtype == np.float32


@given(st.lists(st.text(alphabet="abcdef .,?é", min_size=1, max_size=60), min_size=2, max_size=9))
@examples(30)
def test_a_vector_does_not_depend_on_the_texts_next_to_its_own(model: Model, texts: list[str]) -> None:
    np.testing.assert_allclose(model.embed(texts), np.stack([model.embed(text) for text in texts]), atol=2e-6)


def test_the_certificate_and_the_manifest_say_what_was_proved(model: Model) -> None:
    manifest = model.manifest
    assert manifest.text_encoder is not None and manifest.embedding is not None
    assert manifest.text_encoder.most_tokens == MOST and len(manifest.text_encoder.golden) == proof.GOLDEN
    assert (manifest.embedding.pooling, manifest.embedding.normalize, manifest.architecture) == ("graph", True, "encoder")
    names = [scenario["name"] for scenario in manifest.certificate["scenarios"]]
    assert {"one text", "two tokens", "texts of several lengths together", "a long text"} <= set(names)
    assert manifest.certificate["summary"]["cosine"] > 1 - 1e-6
    assert manifest.certificate["longest_text"] == 64
    assert run(["verify", str(model.folder)]) == 0


@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_other_precisions_keep_to_their_cosine(checkpoint: Path, tmp_path: Path, precision: Any) -> None:
    made = export(checkpoint, tmp_path / "package", precision=precision)
    found = onnx_textgen.load(made.folder, device="cpu", threads=1).embed(TEXTS)
    cosines = [float(one @ reference(checkpoint, text)) for one, text in zip(found, TEXTS, strict=True)]
    assert min(cosines) >= made.manifest.certificate["tolerance"]["cosine"]
    assert made.manifest.certificate["summary"]["cosine"] < 1 - 1e-7, "something was rounded"


def test_a_budget_in_cosine_takes_the_first_form_that_holds_it(tmp_path: Path) -> None:
    """The largest blocks first, as they take the least; a form that is named is taken as it is."""
    checkpoint = write_encoder(tmp_path / "model", hidden_size=256, intermediate_size=512, num_hidden_layers=3)

    def made(name: str, **options: Any) -> tuple[int, float]:
        manifest = export(checkpoint, tmp_path / name, precision="int8", **options).manifest
        return manifest.quantization["block_size"], manifest.certificate["summary"]["cosine"]

    forms = [Quantization(8, block_size=size) for size in (64, 32, 16)]
    named = [made(f"{form.block_size}", quantization=form, budget=Budget(min_cosine=0.5)) for form in forms]
    assert [size for size, _ in named] == [64, 32, 16]
    for index, (_, cosine) in enumerate(named):
        asked = cosine - 1e-6
        assert made(f"asked-{index}", budget=Budget(min_cosine=asked)) == next(each for each in named if each[1] >= asked)
    with pytest.raises(ExportError, match=r"int8 loses more than the limits of cosine .* so nothing was written; try --precision"):
        made("too-tight", budget=Budget(min_cosine=(1 + max(cosine for _, cosine in named)) / 2))
    assert not (tmp_path / "too-tight").exists()


@pytest.mark.parametrize("budget", [{"max_kl": 0.1}, {"target_bytes": 10**6}, {"strict_bits": True}])
def test_budgets_of_decoders_are_refused(checkpoint: Path, tmp_path: Path, budget: dict[str, Any]) -> None:
    with pytest.raises(ExportError, match="is for decoders, and the source is a text encoder; leave it out"):
        export(checkpoint, tmp_path / "package", precision="int8", budget=Budget(**budget))


def test_a_budget_in_cosine_is_for_text_encoders(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="--min-cosine is for text encoders, and the source writes texts; take --max-kl"):
        export(TinyTransformer(DecoderConfig()), tmp_path / "package", precision="int8", budget=Budget(min_cosine=0.9))
    with pytest.raises(ExportError, match=r"--min-cosine should be above 0 and below 1, found 1\.5"):
        Budget(min_cosine=1.5)


def test_the_standard_target_has_no_operators_of_onnx_runtime(checkpoint: Path, tmp_path: Path) -> None:
    import onnx  # noqa: PLC0415

    made = export(checkpoint, tmp_path / "package", target="standard")
    graph = onnx.load(made.folder / "model.onnx", load_external_data=False)
    assert {node.domain for node in graph.graph.node} == {""}
    found = onnx_textgen.load(made.folder, device="cpu", threads=1).embed(TEXTS)
    np.testing.assert_allclose(found, [reference(checkpoint, text) for text in TEXTS], atol=1e-5)


def test_attention_is_one_operator_where_the_model_allows_it(model: Model) -> None:
    import onnx  # noqa: PLC0415

    graph = onnx.load(model.folder / "model.onnx", load_external_data=False).graph
    assert sum(node.op_type == "MultiHeadAttention" for node in graph.node) == SIZES["num_hidden_layers"]


@pytest.mark.parametrize("activation", ["sigmoid", "identity"])
def test_scores_of_a_cross_encoder_are_those_of_transformers(tmp_path: Path, activation: str) -> None:
    named = {"sentence_transformers": {"activation_fn": f"torch.nn.modules.linear.{activation.title()}"}}
    folder = write_encoder(tmp_path / "model", kind="BertForSequenceClassification", **named)
    made = export(folder, tmp_path / "package")
    assert made.manifest.pair_scoring is not None and made.manifest.pair_scoring.activation == activation
    ours = onnx_textgen.load(made.folder, device="cpu", threads=1)
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    wanted = []
    for document in DOCUMENTS:
        with torch.no_grad():
            logit = theirs(**tokenizer(QUERY, document, return_tensors="pt", truncation=True)).logits[0, 0]
        wanted.append(float(logit.sigmoid() if activation == "sigmoid" else logit))
    found = ours.rerank(QUERY, DOCUMENTS)
    assert [each.index for each in found] == sorted(range(3), key=lambda index: -wanted[index])
    np.testing.assert_allclose([each.relevance_score for each in found], sorted(wanted, reverse=True), atol=1e-5)


def test_a_module_is_exported_by_token_ids(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = transformers.RobertaModel(transformers.RobertaConfig(**(SIZES | {"pad_token_id": 1}))).eval()
    random_weights(module)
    ours = onnx_textgen.load(export(module, tmp_path / "package").folder, device="cpu", threads=1)
    assert ours.manifest.geometry.context_length == 62, "positions begin after the id of padding"
    ids = [5, 9, 2, 7, 30]
    with torch.no_grad():
        mean = module(torch.tensor([ids])).last_hidden_state[0].mean(0).numpy()
    np.testing.assert_allclose(ours.embed([ids], normalize=False)[0], mean, atol=1e-5)


def test_a_decoder_that_reads_both_ways_is_a_text_encoder(tmp_path: Path) -> None:
    """As EmbeddingGemma."""
    torch.manual_seed(0)
    sizes = SIZES | {"num_key_value_heads": 2, "head_dim": 16, "use_bidirectional_attention": True, "sliding_window": 8}
    module = transformers.Gemma3TextModel(transformers.Gemma3TextConfig(**sizes)).eval()
    random_weights(module)
    ours = onnx_textgen.load(export(module, tmp_path / "package").folder, device="cpu", threads=1)
    ids = [5, 9, 2, 7, 30, 31, 4, 8, 12, 6, 3, 20]
    with torch.no_grad():
        mean = module(torch.tensor([ids])).last_hidden_state[0].mean(0).numpy()
    np.testing.assert_allclose(ours.embed([ids, ids[:3]], normalize=False)[0], mean, atol=1e-4 * np.abs(mean).max())


def write_json(path: Path, **changes: object) -> None:
    """Change entries of a JSON file."""
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | changes), encoding="utf-8")


REFUSED: dict[str, tuple[Callable[[Path], Any], dict[str, Any], str]] = {
    "several classes": (
        lambda folder: write_encoder(folder, kind="BertForSequenceClassification", labels=3),
        {},
        "BertForSequenceClassification has 3 classes; a cross-encoder, which scores pairs, has one",
    ),
    "another activation": (
        lambda folder: write_encoder(
            folder, kind="BertForSequenceClassification", sentence_transformers={"activation_fn": "my.Own"}
        ),
        {},
        "its scores go through my.Own, which is not known here",
    ),
    "a pooling without the prompt": (
        lambda folder: write_embedder(folder, pooling={"pooling_mode_mean_tokens": True, "include_prompt": False}),
        {},
        "its pooling leaves out the tokens of the prompt",
    ),
    "an unknown module": (lambda folder: write_embedder(folder, more=["LSTM"]), {}, "its modules are Transformer, Pooling, LSTM"),
    "an unknown pooling": (
        lambda folder: write_embedder(folder, pooling={"pooling_mode": "median"}),
        {},
        "its pooling is median, which is not known here",
    ),
    "lower case": (lambda folder: write_embedder(folder, own={"do_lower_case": True}), {}, "takes texts in lower case only"),
    "a layer without settings": (
        lambda folder: (write_embedder(folder, more=["Dense"]) / "2_Dense" / "config.json").unlink(),
        {},
        "the settings of a module after its model lack 'in_features'",
    ),
    "a layer of other sizes": (
        lambda folder: write_json(write_embedder(folder, more=["Dense"]) / "2_Dense" / "config.json", out_features=31),
        {},
        "the modules after its model are damaged",
    ),
    "a layer that is no activation": (
        lambda folder: write_json(
            write_embedder(folder, more=["Dense"]) / "2_Dense" / "config.json",
            activation_function="torch.nn.modules.linear.Linear",
        ),
        {},
        "its Dense layer uses torch.nn.modules.linear.Linear, which is not known here",
    ),
    "attention maps": (write_embedder, {"attention_maps": True}, "--attention-maps is for decoders, and the source is a text"),
    "a cache": (write_embedder, {"int8_cache": True}, "--int8-cache is for decoders, and the source is a text encoder"),
    "end ids": (write_embedder, {"eos_ids": (3,)}, "--eos-id is for decoders, and the source is a text encoder; leave it out"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_exported_is_refused_in_one_line(tmp_path: Path, kind: str) -> None:
    write, options, what = REFUSED[kind]
    write(tmp_path / "model")
    with pytest.raises(OnnxTextgenError) as error:
        export(tmp_path / "model", tmp_path / "package", **options)
    assert what in str(error.value) and "\n" not in str(error.value)
    assert not (tmp_path / "package").exists()


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_a_graph_that_differs_is_not_written(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: Any
) -> None:
    """The reference has other weights than the graph, which no rounding hides."""
    reference_of = proof.TextEncoder.reference

    def other(self: Any, *given: Any) -> Any:
        return [each * 1.001 for each in reference_of(self, *given)]

    monkeypatch.setattr(proof.TextEncoder, "reference", other)
    with pytest.raises(ExportError, match=r"the export disagrees with PyTorch \(one text: error 1\.0e-03"):
        export(checkpoint, tmp_path / "package", precision=precision)
    assert not (tmp_path / "package").exists()


def test_a_model_whose_numbers_depend_on_padding_is_refused(tmp_path: Path) -> None:
    """Its convolutions read what comes after the end of a text."""
    torch.manual_seed(0)
    module = transformers.ConvBertModel(transformers.ConvBertConfig(**(SIZES | {"embedding_size": 48}))).eval()
    random_weights(module)
    with pytest.raises(ExportError, match="texts of several lengths together"):
        export(module, tmp_path / "package")


def test_a_recipe_rebuilds_it(checkpoint: Path, tmp_path: Path) -> None:
    recipe, weights = tmp_path / "bert.recipe", checkpoint / "model.safetensors"
    assert run(["export", str(checkpoint), "--out", str(tmp_path / "first"), "--recipe", str(recipe)]) == 0
    shutil.copy(weights, tmp_path / "model.safetensors")
    assert run(["build", str(recipe), str(tmp_path / "model.safetensors"), "--out", str(tmp_path / "second")]) == 0
    first, second = (onnx_textgen.load(tmp_path / name, device="cpu", threads=1) for name in ("first", "second"))
    np.testing.assert_array_equal(first.embed(TEXTS), second.embed(TEXTS))
