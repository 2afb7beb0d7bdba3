"""Long prompts on OpenVINO, text on ONNX Runtime: each text is the one that its request alone would get."""

import logging
import re
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import onnx_textgen
from onnx_textgen import Cancellation, Model
from onnx_textgen.backends import window
from onnx_textgen.errors import DeviceError, ModelError, PackageError
from onnx_textgen.inference.decoder import Decoder
from onnx_textgen.inference.hand_over import HandedOver
from onnx_textgen.inference.prefill import prefill
from onnx_textgen.inference.prompt_engine import SHORTEST
from onnx_textgen.installation import add_extra
from onnx_textgen.kv_cache.snapshot import Origin
from support.examples import examples
from support.processor import needs_avx512

pytest.importorskip("openvino", reason='the second engine needs pip install "onnx-textgen[openvino]"')
EXACT = Path(__file__).parents[2] / "packages" / "ort"
GREEDY = {"temperature": 0, "ignore_eos": True}
LONG = 150


def ids_of(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(2, 258, length).tolist()


@pytest.fixture(scope="module")
def plain() -> Model:
    return onnx_textgen.load(EXACT, device="cpu", threads=1)


@pytest.fixture(scope="module")
def hybrid() -> Model:
    return onnx_textgen.load(EXACT, device="hybrid", threads=1)


@pytest.fixture(scope="module")
def tale() -> Model:
    """The embedded model, whose 8-bit products each engine rounds in its own way: what is computed elsewhere shows."""
    return onnx_textgen.load(device="hybrid", threads=1, exact_history=True)


def alone(model: Model, prompt: list[int], **options: object) -> tuple[int, ...]:
    """The text of a request in a context of its own, with nothing to reuse."""
    context = model.new_context()
    chunks = model.stream(prompt, **GREEDY, **options, context=context)
    return tuple(token_id for chunk in chunks for token_id in chunk.token_ids)


def test_keys_values_and_logits_are_those_of_one_engine(plain: Model, hybrid: Model) -> None:
    for length in (SHORTEST, 65, 127, 150, 400):
        ours, theirs = hybrid.new_context(), plain.new_context()
        found, wanted = (prefill(context, ids_of(length)) for context in (ours, theirs))
        np.testing.assert_allclose(found, wanted, atol=1e-4)
        taken, expected = (context.cache.take(0, length) for context in (ours, theirs))
        for name, array in expected.items():
            np.testing.assert_allclose(taken[name], array, atol=1e-4)
        assert ours.origin(0) == Origin(engine="openvino") and ours.token_ids == theirs.token_ids
        for token_id in ids_of(20, seed=1):
            np.testing.assert_allclose(ours.feed([token_id]), theirs.feed([token_id]), atol=1e-4)


def test_short_prompts_are_those_of_the_cpu_to_the_last_bit_and_open_no_second_engine(story: Model) -> None:
    model = onnx_textgen.load(device="hybrid", threads=1)
    prompt = ids_of(SHORTEST - 1)
    found, wanted = (prefill(each.new_context(), prompt) for each in (model, story))
    assert np.array_equal(found, wanted)
    assert model.generate(prompt, max_new_tokens=80, **GREEDY).token_ids == alone(story, prompt, max_new_tokens=80)
    assert model.generator.opened.prompt_engine is not None and model.generator.opened.prompt_engine._graph is None
    assert model.device == "cpu, openvino"


def test_long_prompts_are_computed_by_openvino(tale: Model) -> None:
    """To the last bit, with 8-bit products, which the two engines round in different ways."""
    other = onnx_textgen.load(device="openvino", threads=1)
    prompt = ids_of(LONG)
    ours, theirs = tale.new_context(), other.new_context()
    assert np.array_equal(prefill(ours, prompt), prefill(theirs, prompt))
    taken, expected = (context.cache.take(0, LONG) for context in (ours, theirs))
    assert all(np.array_equal(taken[name], array) for name, array in expected.items())


Turns = list[tuple[int, int]]


@needs_avx512
@given(st.lists(st.tuples(st.integers(1, 120), st.integers(1, 12)), min_size=1, max_size=4), st.integers(0, 9))
@examples(15)
def test_a_continued_text_is_the_one_from_the_beginning(tale: Model, turns: Turns, seed: int) -> None:
    """Across the length at which the engine changes, with all that earlier examples left in the prefix cache."""
    session, given_ids = tale.session(), ids_of(480, seed)
    for start, (new, answer) in enumerate(turns):
        session.append(given_ids[start * 120 : start * 120 + new])
        prompt = list(session.token_ids)
        found = session.generate(max_new_tokens=answer, **GREEDY)
        assert found.token_ids == alone(tale, prompt, max_new_tokens=answer)


def test_what_the_graph_computes_after_a_prompt_is_not_reused_for_one(tale: Model) -> None:
    """Several tokens in one run, forced by a rule or guessed, look like a part of a prompt, and another engine computed them."""
    pytest.importorskip("llguidance")
    for options in ({"regex": "[a-z ]{3} and so it was that they went home together again"}, {"prompt_lookup_num_tokens": 8}):
        session = tale.session()
        session.append(ids_of(100))
        session.generate(max_new_tokens=40, temperature=0, draft_verification="fast", **options)
        snapshot = session.context.snapshot
        assert snapshot is not None and len(snapshot.token_ids) == 100
        session.append(ids_of(30, 1))
        prompt = list(session.token_ids)
        assert session.generate(max_new_tokens=12, **GREEDY).token_ids == alone(tale, prompt, max_new_tokens=12)


def test_a_hand_over_that_fails_is_an_error_of_its_text_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    model = onnx_textgen.load(device="hybrid", threads=1)
    wanted = model.generate(ids_of(20), max_new_tokens=30, **GREEDY).token_ids
    other = model.stream(ids_of(20), max_new_tokens=30, **GREEDY)
    first = next(other)
    with monkeypatch.context() as patch:
        patch.setattr(HandedOver, "__getitem__", lambda self, name: (_ for _ in ()).throw(MemoryError))
        with pytest.raises(ModelError):
            model.generate(ids_of(LONG), max_new_tokens=4, **GREEDY)
        cancel = Cancellation()
        stream = model.stream(ids_of(400), max_new_tokens=4, cancel=cancel, on_progress=lambda done: cancel.cancel())
        assert [chunk.finish_reason for chunk in stream][-1] == "cancelled"
    assert (*first.token_ids, *(token_id for chunk in other for token_id in chunk.token_ids)) == wanted
    assert model.generate(ids_of(LONG), max_new_tokens=4, **GREEDY).token_ids == alone(model, ids_of(LONG), max_new_tokens=4)


def test_texts_do_not_depend_on_their_company(tale: Model) -> None:
    prompts = [ids_of(150), ids_of(150)[:90], [*ids_of(80), *ids_of(60, 5)], ids_of(20), ids_of(64), ids_of(30, 3), ids_of(200, 4)]
    wanted = [alone(tale, prompt, max_new_tokens=12) for prompt in prompts]
    model = onnx_textgen.load(device="hybrid", threads=1, batch_size=3)
    assert [each.token_ids for each in model.generate(prompts, max_new_tokens=12, **GREEDY)] == wanted
    with ThreadPoolExecutor(len(prompts)) as pool:
        assert list(pool.map(lambda prompt: model.generate(prompt, max_new_tokens=12, **GREEDY).token_ids, prompts)) == wanted


def test_a_long_prompt_reuses_long_ones_and_a_short_one_short_ones(tale: Model) -> None:
    model = onnx_textgen.load(device="hybrid", threads=1)
    prompt = ids_of(LONG)
    reused = [
        model.generate(prompt[:length], max_new_tokens=1, **GREEDY).stats.reused_tokens for length in (50, 150, 150, 60, 120, 55)
    ]
    assert reused == [0, 0, 148, 50, 118, 52]


def test_samples_beams_and_drafts_start_from_the_same_prompt(hybrid: Model, plain: Model) -> None:
    prompt = ids_of(LONG)
    for options in (
        {"num_return_sequences": 3, "seed": 5},
        {"num_beams": 3},
        {"prompt_lookup_num_tokens": 4, "temperature": 0},
        {"context_limit": "shift", "max_new_tokens": 500, "temperature": 0, "ignore_eos": True},
    ):
        wanted, found = (model.generate(prompt, **{"max_new_tokens": 16, **options}) for model in (plain, hybrid))
        assert found.token_ids == wanted.token_ids, options


def test_a_cancelled_prompt_leaves_the_parts_that_were_fed(tale: Model) -> None:
    model, cancel = onnx_textgen.load(device="hybrid", threads=1), Cancellation()
    prompt, other = ids_of(400), model.stream(ids_of(10), max_new_tokens=300, **GREEDY)
    next(other)  # while a text waits, the parts of a prompt are short
    stream = model.stream(prompt, max_new_tokens=4, **GREEDY, cancel=cancel, on_progress=lambda done: cancel.cancel())
    assert [chunk.finish_reason for chunk in stream][-1] == "cancelled"
    other.close()
    again = model.generate(prompt, max_new_tokens=4, **GREEDY)
    assert 0 < again.stats.reused_tokens < 398
    assert again.token_ids == alone(tale, prompt, max_new_tokens=4)


def test_saved_sessions_and_prefixes_know_their_engine(tale: Model, story: Model, tmp_path: Path) -> None:
    session = tale.session()
    session.append(ids_of(LONG))
    session.generate(max_new_tokens=4, **GREEDY)
    session.save(tmp_path / "saved")
    for model, reused in ((tale, 150), (story, 0)):
        loaded = model.load_session(tmp_path / "saved")
        prompt = list(loaded.token_ids)
        found = loaded.generate(max_new_tokens=8, **GREEDY)
        assert found.token_ids == alone(model, prompt, max_new_tokens=8)
        assert found.stats.reused_tokens >= reused
    folder = tmp_path / "prefixes"
    with onnx_textgen.load(device="hybrid", threads=1, prefix_folder=folder) as model:
        wanted = model.generate(ids_of(LONG), max_new_tokens=8, **GREEDY)
    for device, reused in (("hybrid", 148), ("cpu", 0)):
        with onnx_textgen.load(device=device, threads=1, prefix_folder=folder) as model:
            found = model.generate(ids_of(LONG), max_new_tokens=8, **GREEDY)
            assert found.stats.reused_tokens == reused
            assert device == "cpu" or found.token_ids == wanted.token_ids


def test_windows_of_the_graph_get_the_end_of_a_prompt(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    from support.cache_graphs import Attention, Tiny  # noqa: PLC0415 - needs onnx

    for name, number in {"STEP": 8, "REACH": 12, "PART": 4}.items():
        monkeypatch.setattr(window, name, number)
    tiny = Tiny((Attention(0, shared=True, window=5), Attention(1, 1, 16, 16, shared=True), Attention(2, shared=True, window=3)))
    model = onnx_textgen.load(tiny.package(tmp_path), device="hybrid", threads=1, prefix_cache=0)
    engine = model.generator.opened.prompt_engine
    assert engine is not None and model.new_context().cache.windows.window is not None
    engine.shortest = 8
    draw, decoder = np.random.default_rng(0), model.new_context()
    for _ in range(30):
        held = decoder.token_ids[0]
        kept = decoder.nearest(int(draw.integers(0, len(held) + 1)))
        prompt = (held[:kept] + draw.integers(0, 29, int(draw.integers(2, 40))).tolist())[:90]
        np.testing.assert_allclose(prefill(decoder, prompt), tiny.logits(prompt)[-1], atol=2e-3)
        for token_id in draw.integers(0, 29, int(draw.integers(0, 6))).tolist():
            logits = decoder.feed([token_id])
            np.testing.assert_allclose(logits[-1], tiny.logits(decoder.token_ids[0])[-1], atol=2e-3)


def test_prompts_in_bfloat16_on_request_return_to_their_engine_unchanged() -> None:
    try:
        model = onnx_textgen.load(device="hybrid:bf16", threads=1)
    except DeviceError as error:
        assert "does not multiply in bfloat16; name the device without :bf16" in str(error)
        return
    first = model.generate(ids_of(LONG), max_new_tokens=8, **GREEDY)
    again = model.generate(ids_of(LONG), max_new_tokens=8, **GREEDY)
    assert again.stats.reused_tokens == 148 and again.token_ids == first.token_ids
    session = model.session()
    session.append(ids_of(70))
    session.generate(max_new_tokens=5, **GREEDY)
    session.append(ids_of(40, 1))
    prompt = list(session.token_ids)
    assert session.generate(max_new_tokens=8, **GREEDY).token_ids == alone(model, prompt, max_new_tokens=8)


def test_scores_embeddings_and_drafts_of_a_small_model_stay_on_the_graph(tale: Model, story: Model) -> None:
    text = ids_of(LONG)
    assert tale.score(text).logprobs == story.score(text).logprobs
    model = onnx_textgen.load(device="cpu", threads=1, assistant_model=onnx_textgen.load(device="hybrid", threads=1))
    found = model.generate(text, max_new_tokens=20, num_assistant_tokens=4, **GREEDY)
    assert found.token_ids == alone(story, text, max_new_tokens=20)
    assistant = model.generator.assistant
    assert assistant is not None and assistant.new_decoder().prompt_engine is None


def test_the_plan_counts_the_prompt_twice(tale: Model, story: Model) -> None:
    short, long = SHORTEST - 1, 300
    assert tale.memory(short, 2).total_bytes == story.memory(short, 2).total_bytes
    assert tale.memory(long, 2).total_bytes == story.memory(long, 3).total_bytes


def test_the_second_engine_opens_once_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    model = onnx_textgen.load(device="hybrid", threads=1)
    with caplog.at_level(logging.INFO, logger="onnx_textgen"):
        for seed in range(2):
            model.generate(ids_of(LONG, seed), max_new_tokens=1)
    assert sum("for long prompts" in record.message for record in caplog.records) == 1
    decoder: Decoder = model.new_context()
    model.close()
    with pytest.raises(ModelError, match="this model was closed; load it again"):
        prefill(decoder, ids_of(LONG))


def test_what_it_cannot_do_is_refused_when_the_model_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DeviceError, match="computes prompts of decoders that onnx-textgen exported for target ort"):
        onnx_textgen.load(EXACT.parent / "standard", device="hybrid")
    with pytest.raises(DeviceError, match=r"which .* is not; take the device cpu"):
        onnx_textgen.load(EXACT.parent / "optimum", device="hybrid")
    with pytest.raises(DeviceError, match=r"which .* is not; take the device cpu"):
        onnx_textgen.load(EXACT.parent / "numbers", device="hybrid")
    with monkeypatch.context() as patch, pytest.raises(DeviceError, match=r"takes about 0\.2 GB, and 0\.0 GB of memory are free"):
        patch.setattr("onnx_textgen.api.assembly.available_bytes", lambda: 1000)
        onnx_textgen.load(EXACT, device="hybrid")
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(DeviceError, match=re.escape(add_extra("openvino"))):
        onnx_textgen.load(EXACT, device="hybrid")


def test_files_that_change_before_the_second_engine_opens_are_noticed(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(EXACT, tmp_path / "copy"))
    model = onnx_textgen.load(folder, device="hybrid", threads=1)
    weights = folder / "model.onnx.data"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    with pytest.raises(PackageError, match=r"model\.onnx\.data"):
        model.generate(ids_of(LONG), max_new_tokens=1)
    assert model.generate(ids_of(20), max_new_tokens=1).token_ids


def test_answers_do_not_become_exact_when_the_second_engine_continues_them() -> None:
    with onnx_textgen.load(device="hybrid", threads=1) as model:
        session, ids = model.session(), list(range(100, 180))
        session.append(ids)
        for more in (ids, ids):
            session.generate(max_new_tokens=30, seed=1)
            held = session.context.snapshot
            assert held is not None
            assert held.exact_part(len(held.token_ids)) <= len(ids) < len(held.token_ids)
            session.append(more)
        assert session.generate(max_new_tokens=1, seed=1).stats.reused_tokens > 2 * len(ids), "and they are reused"
