"""LoRA adapters that a package keeps: every way to generate with one, over every kind of cache, compared with NumPy."""

from __future__ import annotations

import dataclasses
import gc
import weakref
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnx")

import onnx_textgen
from onnx_textgen import OptionError, PackageError
from onnx_textgen.api.session_file import write_session
from onnx_textgen.backends.variants.adapter_file import write_adapter
from onnx_textgen.cancellation import CancelScope
from onnx_textgen.cli import run
from onnx_textgen.generation.request import Request
from onnx_textgen.inference.decoder import Decoder
from onnx_textgen.kv_cache.snapshot import Origin
from onnx_textgen.package.integrity import file_record
from onnx_textgen.package.manifest import GRAPH, MANIFEST, manifest_to_json
from onnx_textgen.package.reading import read_manifest
from support.adapted_story import make_adapted_story
from support.cache_graphs import GRAPHS, Attention, Tiny

PROMPTS = [[5, 9, 1, 0], [28], [3, 3, 7, 11, 2, 4, 8]]
LONG = [5, 9, 1, 0, 28, 3, 3, 7, 11, 2, 4, 8, 6, 6, 1, 2]
SHARED = Tiny((Attention(0, 2, shared=True), Attention(2, 1, 16, 16, shared=True)))
GREEDY = {"max_new_tokens": 12, "temperature": 0}

Case = tuple[dict[str | None, Tiny], onnx_textgen.Model]


def make(tiny: Tiny, folder: Path, **options: int) -> Case:
    """A model with two adapters of different ranks, one of which leaves some layers as they are; and the three in NumPy."""
    adapters = {"first": tiny.adapter(1, 3), "other": tiny.adapter(2, 5, only="qvd")}
    model = onnx_textgen.load(tiny.package(folder, adapters=adapters), device="cpu", threads=1, **options)
    return {None: tiny, **{name: tiny.adapted(each) for name, each in adapters.items()}}, model


@pytest.fixture(scope="module", params=GRAPHS)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return make(GRAPHS[request.param], tmp_path_factory.mktemp("package"))


@pytest.fixture(scope="module")
def shared_case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return make(SHARED, tmp_path_factory.mktemp("package"))


def test_every_text_is_that_of_numpy_with_the_adapter(case: Case) -> None:
    wanted, model = case
    assert tuple(model.manifest.adapters) == ("first", "other")
    for adapter, tiny in wanted.items():
        texts = [tuple(tiny.greedy(prompt, 12)) for prompt in PROMPTS]
        assert [each.token_ids for each in model.generate(PROMPTS, **GREEDY, adapter=adapter)] == texts
        assert [model.generate(prompt, **GREEDY, adapter=adapter).token_ids for prompt in PROMPTS] == texts
    assert len({tuple(tiny.greedy(LONG, 12)) for tiny in wanted.values()}) == 3, "the adapters make a difference"


def test_logits_are_those_of_numpy_and_to_the_last_bit_those_without_the_other_adapter(case: Case, tmp_path: Path) -> None:
    wanted, model = case
    tiny = wanted["other"]
    alone = onnx_textgen.load(dataclasses.replace(tiny, changes={}).package(tmp_path, adapters={"other": tiny.changes}), threads=1)
    found, same = (each.new_context(adapter="other").feed(LONG, every_position=True) for each in (model, alone))
    assert np.abs(found - tiny.logits(LONG)).max() < 1e-4
    assert np.array_equal(found, same)


def test_rows_with_different_adapters_are_decoded_in_one_run_as_alone(case: Case) -> None:
    _, model = case
    adapters = ["first", "other", "first"]

    def fed(rows: int, adapters: list[str]) -> tuple[Decoder, list[np.ndarray]]:
        decoder = model.generator.opened.new_rows(rows, "first")
        for row, adapter in enumerate(adapters):
            decoder.set_adapter(adapter, row=row)
        logits = [decoder.feed(LONG[: 5 + row], row=row) for row in range(rows)]
        steps = [decoder.step([7 + step] * rows, [True] * rows) for step in range(4)]
        return decoder, [np.concatenate([logits[row], *(step[row : row + 1] for step in steps)]) for row in range(rows)]

    together = fed(3, adapters)[1]
    for row, adapter in enumerate(adapters):
        decoder = model.new_context(adapter=adapter)
        alone = [decoder.feed(LONG[: 5 + row]), *(decoder.feed([7 + step]) for step in range(4))]
        # Rows of a growing cache are padded, with and without adapters, and sums of another length round differently.
        tolerance = 1e-5 if any(tensor.kind == "growing" for tensor in decoder.cache.tensors) else 0
        assert np.abs(together[row] - np.concatenate(alone)).max() <= tolerance, adapter


def test_requests_of_different_adapters_share_the_engine(shared_case: Case) -> None:
    wanted, model = shared_case
    names = ["first", "other", "other", "first", "other"]
    generator = model.generator.for_adapter("first")
    assert generator is model.generator.for_adapter("other")
    texts = [generator.begin(LONG[: 4 + n], model.generator.config({**GREEDY, "adapter": name})) for n, name in enumerate(names)]
    generator.engine.finish([Request(text, CancelScope(None, None), streams=False) for text in texts])
    for n, (name, text) in enumerate(zip(names, texts, strict=True)):
        assert text.token_ids == wanted[name].greedy(LONG[: 4 + n], 12)


def test_a_prompt_is_reused_by_texts_of_its_own_adapter_alone(tmp_path: Path) -> None:
    wanted, model = make(SHARED, tmp_path)
    for name in ("first", None, "other"):
        assert model.generate(LONG, **GREEDY, adapter=name).stats.reused_tokens == 0
    for name, tiny in wanted.items():
        again = model.generate([*LONG, 4], **GREEDY, adapter=name)
        assert again.stats.reused_tokens >= len(LONG) - 2
        assert list(again.token_ids) == tiny.greedy([*LONG, 4], 12)


def test_a_session_may_change_its_adapter_and_knows_which_made_its_keys(tmp_path: Path) -> None:
    wanted, model = make(SHARED, tmp_path, prefix_cache=0)
    session, ids, reused = model.session(), list(LONG), []
    session.append(ids)
    for name in ("first", "first", None, "other"):
        found = session.generate(max_new_tokens=4, temperature=0, adapter=name)
        assert list(found.token_ids) == wanted[name].greedy(ids, 4)
        ids += found.token_ids
        reused.append(found.stats.reused_tokens)
    assert reused[1] > 0
    assert [reused[0], *reused[2:]] == [0, 0, 0]


def test_a_saved_session_keeps_its_cache_only_for_the_adapter_that_made_it(tmp_path: Path) -> None:
    wanted, model = make(SHARED, tmp_path, prefix_cache=0)
    session = model.session()
    session.append(LONG)
    session.generate(max_new_tokens=2, temperature=0, adapter="other")
    session.save(tmp_path / "saved")
    ids = list(session.token_ids)
    loaded = model.load_session(tmp_path / "saved").generate(max_new_tokens=3, temperature=0, adapter="other")
    assert (list(loaded.token_ids), loaded.stats.reused_tokens > 0) == (wanted["other"].greedy(ids, 3), True)
    (tmp_path / "changed").mkdir()
    changed = onnx_textgen.load(SHARED.package(tmp_path / "changed", adapters={"other": SHARED.adapter(9)}), prefix_cache=0)
    loaded = changed.load_session(tmp_path / "saved").generate(max_new_tokens=3, temperature=0, adapter="other")
    assert (list(loaded.token_ids), loaded.stats.reused_tokens) == (SHARED.adapted(SHARED.adapter(9)).greedy(ids, 3), 0)


def test_scores_ranks_and_beams_are_computed_with_the_adapter(shared_case: Case) -> None:
    wanted, model = shared_case
    for name, tiny in wanted.items():
        logits = tiny.logits(LONG).astype(np.float64)
        logprobs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        assert np.allclose(model.score(LONG, adapter=name).logprobs, logprobs[np.arange(len(LONG) - 1), LONG[1:]], atol=1e-4)
        beams = model.generate(LONG, num_beams=3, max_new_tokens=6, adapter=name)
        assert beams.score is not None
        picked = model.score([*LONG, *beams.token_ids], adapter=name).logprobs[-len(beams.token_ids) :]
        assert beams.score == pytest.approx(np.mean(picked), abs=1e-4)


@pytest.mark.parametrize("verification", ["exact", "fast"])
def test_drafts_change_no_text(shared_case: Case, verification: str) -> None:
    wanted, model = shared_case
    prompt = [5, 9, 1, 5, 9, 1, 5, 9, 1, 5, 9]
    options = {"max_new_tokens": 40, "temperature": 0, "prompt_lookup_num_tokens": 6, "draft_verification": verification}
    for name in ("first", "other"):
        found = model.generate(prompt, **options, adapter=name)
        assert list(found.token_ids) == wanted[name].greedy(prompt, 40)
        assert found.stats.drafted_tokens > 0


def test_a_context_of_the_callers_own_has_its_adapter(shared_case: Case) -> None:
    wanted, model = shared_case
    context = model.new_context(adapter="first")
    for name in ("first", "other"):
        text = [i for chunk in model.stream(LONG, **GREEDY, context=context, adapter=name) for i in chunk.token_ids]
        assert text == wanted[name].greedy(LONG, 12)
    with pytest.raises(OptionError, match="this context belongs to another model, or has another adapter"):
        model.stream(LONG, context=context)
    with pytest.raises(OptionError, match="this context belongs to another model, or has another adapter"):
        model.stream(LONG, context=model.new_context(), adapter="first")


def test_an_unknown_adapter_is_refused_with_the_names_that_there_are(shared_case: Case, tmp_path: Path) -> None:
    _, model = shared_case
    for call in (model.generate, model.stream, model.score):
        with pytest.raises(OptionError, match=r"^tiny has no adapter 'third'; choose one of: first, other$"):
            call(LONG, adapter="third")
    with pytest.raises(OptionError, match=r"^tiny has no adapter a list; choose one of: first, other$"):
        model.score(LONG, adapter=["first"])
    plain = onnx_textgen.load(SHARED.package(tmp_path))
    with pytest.raises(OptionError, match="tiny has no adapter 'first'; add one with: onnx-textgen adapter add"):
        plain.generate(LONG, adapter="first")


def test_adapters_need_onnx_runtime(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    story = onnx_textgen.load(make_adapted_story(tmp_path / "adapted", "french"), device="openvino")
    with pytest.raises(OptionError, match=r"adapters run on ONNX Runtime, and .* is open on openvino; load it with device cpu"):
        story.generate("The dog", adapter="french")


def test_a_closed_model_has_no_adapters_either(tmp_path: Path) -> None:
    _, model = make(SHARED, tmp_path)
    model.generate(LONG, **GREEDY, adapter="first")
    begun = model.stream(LONG, **GREEDY, adapter="first")
    model.close()
    with pytest.raises(onnx_textgen.ModelError, match="this model was closed"):
        model.generate(LONG, **GREEDY, adapter="first")
    with pytest.raises(onnx_textgen.ModelError, match="this model was closed"):
        list(begun)


def test_a_model_that_nobody_holds_is_released_with_its_second_graph(tmp_path: Path) -> None:
    _, model = make(SHARED, tmp_path)
    model.generate(LONG, **GREEDY, adapter="first")
    graph = weakref.ref(model.generator.opened.adapted.graph)
    gc.disable()
    try:
        del model
        assert graph() is None
    finally:
        gc.enable()


def test_drafts_are_verified_with_the_adapters_that_the_manifest_lists(tmp_path: Path) -> None:
    _, model = make(SHARED, tmp_path)
    model.generate(LONG, **GREEDY, adapter="first")
    write_adapter(tmp_path / "first.onnx_adapter", SHARED.adapter(9))
    found = model.generate(LONG * 2, **GREEDY, adapter="first", prompt_lookup_num_tokens=6)
    assert found.stats.drafted_tokens == 0, "there is no verifier, so nothing is drafted"


def test_a_session_file_that_lies_about_its_adapter_brings_no_cache(shared_case: Case, tmp_path: Path) -> None:
    _, model = shared_case
    context = model.new_context(adapter="first")
    context.feed(LONG)
    lie = dataclasses.replace(context.snapshot(), origin=Origin("zzz"))
    write_session(tmp_path / "saved", model.generator.opened.digest, LONG, [], lie, adapters={"zzz": ""})
    session = model.load_session(tmp_path / "saved")
    session.save(tmp_path / "again")
    assert session.context.snapshot is None


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (Attention(7, 1, 16, 16, shared=True), "the adapter first changes 7k, which is no linear layer of this graph"),
        (Attention(2, 2, 16, 16, shared=True), "the adapter first changes 2k from 8 to 32 numbers, and this model has 8 and 16"),
    ],
)
def test_an_adapter_of_another_model_is_refused_by_names_and_shapes(other: Attention, message: str, tmp_path: Path) -> None:
    folder = SHARED.package(tmp_path, adapters={"first": SHARED.adapter(1)})
    write_adapter(folder / "first.onnx_adapter", Tiny((SHARED.layers[0], other)).adapter(1))
    manifest = read_manifest(folder)
    files = {**manifest.files, "first.onnx_adapter": file_record(folder / "first.onnx_adapter")}
    (folder / MANIFEST).write_text(manifest_to_json(dataclasses.replace(manifest, files=files)))
    with pytest.raises(PackageError, match=message):
        onnx_textgen.load(folder).generate(LONG, adapter="first")


def test_a_damaged_adapter_is_one_line(tmp_path: Path) -> None:
    folder = SHARED.package(tmp_path, adapters={"first": SHARED.adapter(1)})
    file = folder / "first.onnx_adapter"
    content = bytearray(file.read_bytes())
    content[-9] ^= 1
    file.write_bytes(content)
    with pytest.raises(PackageError, match=r"first\.onnx_adapter is damaged"):
        onnx_textgen.load(folder)
    file.unlink()
    with pytest.raises(PackageError, match=r"first\.onnx_adapter is missing"):
        onnx_textgen.load(folder)


def test_a_manifest_names_a_file_for_each_adapter(tmp_path: Path) -> None:
    folder = SHARED.package(tmp_path, adapters={"first": SHARED.adapter(1)})
    manifest = read_manifest(folder)
    wrong = dataclasses.replace(manifest, files={GRAPH: manifest.files[GRAPH]})
    (folder / MANIFEST).write_text(manifest_to_json(wrong))
    with pytest.raises(PackageError, match="has the adapter 'first', and lists no file of it"):
        onnx_textgen.load(folder)
    (folder / MANIFEST).write_text(manifest_to_json(dataclasses.replace(wrong, adapters={})))
    assert onnx_textgen.load(folder).manifest.adapters == {}, "a file that a killed adapter add left is no harm"


def test_the_command_line_generates_verifies_and_lists_with_adapters(shared_case: Case, capsys: pytest.CaptureFixture[str]) -> None:
    wanted, model = shared_case
    folder = str(model.folder)
    prompt = ",".join(map(str, LONG))
    arguments = ["generate", "--model", folder, "--token-ids", prompt, "--temperature", "0", "-n", "5", "--adapter", "other"]
    assert run(arguments) == 0
    assert capsys.readouterr().out.strip() == ",".join(map(str, wanted["other"].greedy(LONG, 5)))
    assert run(["verify", folder]) == 0
    assert "golden 1 with the adapter other: 5 prompt tokens, 12 new tokens, all the same" in capsys.readouterr().out
    assert run(["info", folder]) == 0
    assert "rank 3, 9 parameters; not compared with PyTorch" in capsys.readouterr().out
    assert run([*arguments[:-1], "third"]) == 2
    assert capsys.readouterr().err.strip().endswith("tiny has no adapter 'third'; choose one of: first, other")
