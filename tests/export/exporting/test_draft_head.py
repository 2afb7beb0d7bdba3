"""A draft head in a package guesses what the authors' formula says, and changes no text."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import pytest
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import onnx_textgen
from onnx_textgen import Model
from onnx_textgen.errors import PackageError
from onnx_textgen.package.manifest import DRAFT_HEAD_GRAPH, DRAFT_HEAD_WEIGHTS, MANIFEST, shared_graph
from onnx_textgen.speculation.draft_head import DraftHead
from onnx_textgen_export import export
from onnx_textgen_export.errors import ExportError
from onnx_textgen_export.huggingface.eagle_head import open_eagle_head
from onnx_textgen_export.passes.quantization.options import Quantization
from onnx_textgen_export.sources.tiny_transformer import DecoderConfig, TinyTransformer
from onnx_textgen_export.tracing.opening import as_source, open_source
from support.eagle_heads import LAYERS, VOCAB_SIZE, Formula, HeadForm, small_model, write_head

READ = (2, LAYERS // 2, LAYERS - 3)
PRECISIONS: dict[str, dict[str, Any]] = {
    "fp32": {},
    "int8": {"precision": "int8", "quantization": Quantization(8, block_size=32)},
    "int4": {"precision": "int4", "quantization": Quantization(4, block_size=32, symmetric=False)},
    "int8 tied": {"precision": "int8"},
    "fp16": {"precision": "fp16"},
    "standard": {"target": "standard"},
}
TEXT = st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=2, max_size=40)
CHOICE = st.one_of(
    st.just({"temperature": 0}),
    st.fixed_dictionaries({"temperature": st.sampled_from([0.3, 1.0]), "seed": st.integers(0, 9), "top_k": st.just(20)}),
)
FEW = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
UNSURE = {"assistant_confidence_threshold": 1e-9}
"""Random weights are never sure of anything."""


@pytest.fixture(scope="module")
def source() -> transformers.PreTrainedModel:
    """The model that the heads belong to."""
    return small_model()


@pytest.fixture(scope="module")
def head(source: transformers.PreTrainedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint of a head."""
    return write_head(tmp_path_factory.mktemp("head") / "head", source)


@pytest.fixture(scope="module")
def packages(source: transformers.PreTrainedModel, head: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folder of each precision, made when it is asked for."""

    class Packages(dict[str, Path]):
        def __missing__(self, name: str) -> Path:
            out = tmp_path_factory.mktemp("package") / "out"
            model, of_model = source, head
            if name == "int8 tied":  # so many tokens that the table is quantised
                model = small_model(tie_word_embeddings=True, vocab_size=1100)
                of_model = write_head(out.parent / "head", model)
            self[name] = export(model, out, draft_head=of_model, eos_ids=(0,), **PRECISIONS[name]).folder
            return self[name]

    return Packages()


def opened(folder: Path, **options: Any) -> Model:
    """A model whose head counts as fast."""
    model = onnx_textgen.load(folder, device="cpu", threads=1, **options)
    assert model.generator.assistant is not None and model.generator.assistant.is_head
    object.__setattr__(model.generator.assistant, "cost", 0.01)
    if not model.generator.verification.verifier():
        object.__setattr__(model.manifest, "generation", model.manifest.generation | {"draft_verification": "fast"})
    return model


@contextlib.contextmanager
def guessing(right: list[int], share: float) -> Iterator[list[tuple[list[int], list[int]]]]:
    """Within the context, drafts are as long as they may be, and begin with a token or more of the text `right` in that share.

    The list that it yields has, for every draft, the text before it and the head's own guesses: its most likely tokens.
    """
    seen, real, random = list[tuple[list[int], list[int]]](), DraftHead.guess, np.random.default_rng(0)

    def guess(self: DraftHead, most: int, scope: Any) -> list[int]:
        self.chooser = cast(Any, Greedy())
        own = real(self, most, scope)
        seen.append((list(self.text), own))
        known = right[len(self.text) :][: random.integers(1, most + 1)] if random.random() < share else []
        return [*known, *own[len(known) :]] if own else []

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DraftHead, "guess", guess)
        patch.setattr(DraftHead, "update", lambda *_: None)
        yield seen


class Greedy:
    """Chooses the most likely token."""

    def choose(self, logits: np.ndarray, token_ids: list[int]) -> int:
        return int(logits.argmax())


@pytest.mark.parametrize("form", [HeadForm(), HeadForm({"norm_before_residual": True}, of_speculators=True)], ids=["own", "other"])
def test_it_guesses_what_the_formula_says(source: transformers.PreTrainedModel, form: HeadForm, tmp_path: Path) -> None:
    folder = write_head(tmp_path / "head", source, form)
    model = opened(export(source, tmp_path / "out", draft_head=folder).folder, prefix_cache=0)
    prompt, wanted = [3, 30, 21, 9, 12, 37, 5], {"max_new_tokens": 60, "temperature": 1.0, "seed": 3, "ignore_eos": True}
    plain = model.generate(prompt, num_assistant_tokens=0, **wanted).token_ids
    formula = Formula.of(folder)
    for share in (0.0, 0.7):  # accepted tokens are fed again with the model's states
        with guessing([*prompt, *plain], share) as seen:
            found = model.generate(prompt, **wanted, **UNSURE)
        assert found.token_ids == plain
        assert found.stats.accepted_tokens > 20 if share else found.stats.drafted_tokens > 100
        assert len({token_id for _, each in seen for token_id in each}) > 8
        for before, each in seen:
            assert each == formula.guesses(source, before, READ, len(each))
    assert model.manifest.certificate["draft_head"]["logits_error"] < 1e-5
    assert model.manifest.draft_head is not None and model.manifest.draft_head.layers == READ


@pytest.fixture(scope="module", params=PRECISIONS)
def model(request: pytest.FixtureRequest, packages: dict[str, Path]) -> Model:
    """The package of each precision."""
    return opened(packages[request.param], prefix_cache=0)


@FEW
@given(prompt=TEXT, choice=CHOICE, most=st.integers(1, 12))
def test_texts_are_those_without_a_head(model: Model, prompt: list[int], choice: dict[str, Any], most: int) -> None:
    wanted = {"max_new_tokens": 40, "ignore_eos": True, **choice}
    plain = model.generate(prompt, num_assistant_tokens=0, **wanted)
    assert plain.stats.drafted_tokens == 0
    drafts = {"num_assistant_tokens": most, **UNSURE}
    assert model.generate(prompt, **drafts, **wanted).token_ids == plain.token_ids
    with guessing([*prompt, *plain.token_ids], 0.7):
        found = model.generate(prompt, **drafts, **wanted)
    assert found.token_ids == plain.token_ids
    assert found.stats.drafted_tokens >= found.stats.accepted_tokens > 5


def test_it_goes_with_sessions_prefixes_shifts_rules_and_other_callers(packages: dict[str, Path]) -> None:
    model, plain = opened(packages["fp32"]), {"num_assistant_tokens": 0}
    prompt = [3, 30, 21, 9, 12, 37, 5, 8, 1, 2] * 3
    for options in ({"context_limit": "shift", "max_new_tokens": 180}, {"logprobs": 2}, {"stop": []}, {"repetition_penalty": 1.2}):
        wanted = {"max_new_tokens": 50, "seed": 2, "ignore_eos": True, **options}
        found = model.generate(prompt, **wanted, **UNSURE)
        assert found.token_ids == model.generate(prompt, **wanted, **plain).token_ids
        assert found.stats.drafted_tokens > 0
    again = model.generate(prompt, max_new_tokens=50, seed=2, ignore_eos=True, **UNSURE)
    assert again.stats.reused_tokens > 20 and again.stats.drafted_tokens > 0
    session = model.session()
    session.append(prompt)
    for turn in range(3):
        ids = list(session.token_ids)
        found = session.generate(max_new_tokens=12, seed=turn, ignore_eos=True, **UNSURE)
        assert found.token_ids == model.generate(ids, max_new_tokens=12, seed=turn, ignore_eos=True, **plain).token_ids
        session.append([7, 30])
    prompts, wanted = [prompt, [9, 8], prompt[:7]], {"max_new_tokens": 30, "seed": 1, "ignore_eos": True}
    together, alone = model.generate(prompts, **wanted, **UNSURE), model.generate(prompts, **wanted, **plain)
    assert [each.token_ids for each in together] == [each.token_ids for each in alone]


def test_the_models_embedding_is_not_stored_twice_and_others_see_no_head(packages: dict[str, Path]) -> None:
    for folder in (packages["fp32"], packages["int8 tied"]):
        graph = onnx.load(folder / DRAFT_HEAD_GRAPH, load_external_data=False).graph
        files = {entry.value: each.name for each in graph.initializer for entry in each.external_data if entry.key == "location"}
        assert files.pop(DRAFT_HEAD_WEIGHTS) and [name for name in files.values() if name.startswith("model.")]
        manifest = onnx_textgen.load(folder, device="cpu", threads=1).manifest
        others = shared_graph(manifest)
        assert others is not None
        assert "draft_states" not in {each.name for each in onnx.load(folder / others, load_external_data=False).graph.output}


def test_a_package_without_its_head_is_refused_and_an_assistant_replaces_it(packages: dict[str, Path], tmp_path: Path) -> None:
    folder = packages["fp32"]
    assisted = onnx_textgen.load(folder, device="cpu", threads=1, assistant_model=folder)
    assert assisted.generator.assistant is not None and not assisted.generator.assistant.is_head
    record = json.loads((folder / MANIFEST).read_text())
    del record["files"][DRAFT_HEAD_GRAPH]
    (tmp_path / MANIFEST).write_text(json.dumps(record | {"sha256": ""}))
    with pytest.raises(PackageError, match=r"describes a draft head, and lists no draft_head\.onnx"):
        onnx_textgen.load(tmp_path)


def test_a_head_of_another_model_is_refused(source: transformers.PreTrainedModel, tmp_path: Path) -> None:
    wide = write_head(tmp_path / "wide", source, read_width=200)
    with pytest.raises(ExportError, match=r"reads hidden states \[64, 200\] and the model has \[64, 192\]; it is the head of"):
        export(source, tmp_path / "out", draft_head=wide)
    other = small_model()
    other.get_input_embeddings().weight.data += 1
    foreign = write_head(tmp_path / "foreign", other, HeadForm(of_speculators=True))
    with pytest.raises(ExportError, match="has a token embedding that is not the model's"):
        export(source, tmp_path / "out", draft_head=foreign)
    source.save_pretrained(tmp_path / "model")
    with pytest.raises(ExportError, match=r"has no tensor fc\.weight; give the checkpoint of an EAGLE-3 head"):
        export(source, tmp_path / "out", draft_head=tmp_path / "model")
    far = write_head(tmp_path / "far", source, HeadForm({"eagle_aux_hidden_state_layer_ids": [1, 3, 7]}))
    with pytest.raises(ExportError, match=r"reads the inputs of the layers \[1, 3, 7\]; it needs 3 of the model's 7"):
        export(source, tmp_path / "out", draft_head=far)
    assert not (tmp_path / "out").exists()


def test_layers_are_named_by_their_inputs_or_by_their_outputs(source: transformers.PreTrainedModel, tmp_path: Path) -> None:
    for name, form in {
        "inputs": {"eagle_aux_hidden_state_layer_ids": [1, 3, 5]},
        "outputs": {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 2, 4]}},
    }.items():
        folder = write_head(tmp_path / name, source, HeadForm(form))
        with as_source(open_source(source), None) as opened_source:
            assert open_eagle_head(folder, opened_source).layers == (1, 3, 5)


def test_models_whose_cache_does_not_roll_back_get_no_head(head: Path, tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"vocab_size": VOCAB_SIZE, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8}
    mamba = transformers.MambaForCausalLM(transformers.MambaConfig(**sizes)).eval()
    with pytest.raises(ExportError, match="--draft-head is for decoders whose cache can be rolled back"):
        export(mamba, tmp_path / "out", draft_head=head, context_length=64)
    own = TinyTransformer(DecoderConfig(vocab_size=VOCAB_SIZE, context_length=64))
    with pytest.raises(ExportError, match="--draft-head is for transformers models"):
        export(own, tmp_path / "out", draft_head=head)
