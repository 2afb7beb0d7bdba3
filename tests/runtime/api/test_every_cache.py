"""Whole model folders over every kind of cache: generated, scored, inspected, measured and replayed as any other."""

import dataclasses
import logging
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnx")

import onnx_textgen
from onnx_textgen.cli import run
from onnx_textgen.cli.terminal import screen
from onnx_textgen.diagnostics import benchmark as bench
from onnx_textgen.diagnostics.inspection import inspect_steps
from onnx_textgen.inference.decoder import Decoder
from onnx_textgen.kv_cache.recurrent_states import States
from onnx_textgen.options.generation_config import GenerationConfig
from onnx_textgen.package.manifest import GoldenRun
from onnx_textgen.tasks.golden_runs import replay
from support.cache_graphs import GRAPHS, Attention, Recurrent, Tiny

PROMPTS = [[5, 9, 1, 0], [28], [3, 3, 7, 11, 2, 4, 8]]

Case = tuple[Tiny, onnx_textgen.Model]


@pytest.fixture(scope="module", params=GRAPHS)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    tiny = GRAPHS[request.param]
    return tiny, onnx_textgen.load(tiny.package(tmp_path_factory.mktemp("package")), device="cpu", threads=1)


def test_texts_alone_and_in_a_list_are_those_of_numpy(case: Case) -> None:
    tiny, model = case
    wanted = [tuple(tiny.greedy(prompt, 15)) for prompt in PROMPTS]
    assert [model.generate(prompt, max_new_tokens=15, temperature=0).token_ids for prompt in PROMPTS] == wanted
    assert [result.token_ids for result in model.generate(PROMPTS, max_new_tokens=15, temperature=0)] == wanted


def test_a_row_that_ended_early_leaves_the_others_right(case: Case) -> None:
    tiny, model = case
    ends = tiny.greedy(PROMPTS[1], 3)[2]
    ending = onnx_textgen.Model(model.folder, dataclasses.replace(model.manifest, eos_ids=(ends,)), model.graph, chat_template=None)
    for result, prompt in zip(ending.generate(PROMPTS, max_new_tokens=15, temperature=0), PROMPTS, strict=True):
        wanted = tiny.greedy(prompt, 15)
        assert list(result.token_ids) == (wanted[: wanted.index(ends)] if ends in wanted else wanted)


def test_a_conversation_keeps_what_it_can_and_says_how_much(case: Case) -> None:
    tiny, model = case
    context, first = model.new_context(), [5, 9, 1, 0, 28]

    def turn(prompt: list[int]) -> tuple[list[int], int]:
        chunks = list(model.stream(prompt, max_new_tokens=4, temperature=0, context=context))
        assert chunks[-1].stats is not None
        return [i for chunk in chunks for i in chunk.token_ids], chunks[-1].stats.reused_tokens

    answer, kept = turn(first)
    assert (answer, kept) == (tiny.greedy(first, 4), 0)
    second, third = [*first, *answer, 7], [*first, 2]
    # All that was fed is kept (the answer's last token never was), up to an even place unless tokens are fed one by one; with
    # windows, what was fed as a prompt.
    can = context.capabilities
    known = (8, 9, 4) if can.takes_single_tokens or can.has_states else (4, 8, 4) if context.exact_history else (8, 8, 4)
    assert turn(second) == (tiny.greedy(second, 4), known[0])
    assert turn(second) == (tiny.greedy(second, 4), known[1])
    assert turn(third) == (tiny.greedy(third, 4), known[2])


def test_a_text_is_scored_by_the_logits_of_numpy(case: Case) -> None:
    tiny, model = case
    ids = PROMPTS[2]
    logits = tiny.logits(ids)[:-1].astype(np.float64)
    wanted = [row[i] - np.log(np.exp(row).sum()) for row, i in zip(logits, ids[1:], strict=True)]
    np.testing.assert_allclose(model.score(ids).logprobs, wanted, atol=1e-5)


def test_a_package_replays_and_one_that_forgets_its_states_does_not(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    _, model = case
    (golden,) = model.manifest.golden
    assert replay(model.new_context(), model.manifest, golden).is_right
    assert not replay(model.new_context(), model.manifest, GoldenRun(golden.prompt_ids, golden.new_ids[::-1])).is_right
    if not model.new_context().capabilities.has_states:
        return
    begin = States.begin

    def forgetful(self: States, row: int | None, active: object = ()) -> int:
        for buffers in self.buffers:
            for value in buffers.values():
                value.update_inplace(np.zeros_like(value.numpy()))
        return begin(self, row, active)  # type: ignore[arg-type]

    monkeypatch.setattr(States, "begin", forgetful)
    assert not replay(model.new_context(), model.manifest, golden).is_right


def test_what_is_shown_of_the_cache_is_what_the_graph_holds(case: Case) -> None:
    tiny, model = case
    step = inspect_steps(model, PROMPTS[0], config=GenerationConfig(temperature=0), steps=1).steps[0]
    per_token = sum(4 * one.heads * (one.key_size + one.value_size) for one in tiny.layers if isinstance(one, Attention))
    states = sum(4 * 3 * 8 for one in tiny.layers if isinstance(one, Recurrent))
    assert step.cache_bytes == len(PROMPTS[0]) * per_token + states
    shapes = (step.cache_shape, *step.other_cache_shapes)
    assert len(set(shapes)) == len(shapes)
    assert {shape[0] for shape in shapes} == {1}
    measured = bench.measure(model.folder, prompt_tokens=6, new_tokens=4, rounds=1, device="cpu", threads=1)
    assert measured.cache_mib * 2**20 == pytest.approx(10 * per_token + states)


def test_the_commands_work_on_it(case: Case, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    tiny, model = case
    monkeypatch.setenv("COLUMNS", "80")
    where = ["--model", str(model.folder), "--device", "cpu", "--threads", "1"]
    assert run(["verify", *where]) == 0
    assert "golden 1: 5 prompt tokens, 12 new tokens, all the same" in capsys.readouterr().out
    assert run(["inspect", "--token-ids", "5,9,1", *where, "--steps", "1", "--temperature", "0"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80
    assert run(["generate", "--token-ids", "5,9,1", *where, "--max-new-tokens", "3", "--temperature", "0", "--json"]) == 0
    assert f'"token_ids": {tiny.greedy([5, 9, 1], 3)}' in capsys.readouterr().out


def test_float16_on_the_cpu_is_told_once_and_only_there(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tiny = Tiny((Attention(0, 2, 6, 4),), element=np.float16)
    with caplog.at_level(logging.WARNING, logger="onnx_textgen"):
        model = onnx_textgen.load(tiny.package(tmp_path, precision="fp16"), device="cpu", threads=1)
        model.generate(PROMPTS[0], max_new_tokens=3)
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert "is float16, which is meant for GPUs and slow on the CPU; export it with" in caplog.text
        caplog.clear()
        onnx_textgen.load(device="cpu", threads=1)
    assert not caplog.records
    assert isinstance(model.new_context(), Decoder)


def test_info_tells_what_the_cache_takes_as_the_graph_has_it(case: Case, capsys: pytest.CaptureFixture[str]) -> None:
    _, model = case
    assert run(["info", str(model.folder)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    tensors = model.graph.cache_tensors
    states = sum(tensor.bytes_for(0) for tensor in tensors if tensor.length_axis is None)
    per_token = sum(tensor.bytes_for(1) for tensor in tensors if tensor.length_axis is not None and tensor.window is None)
    assert ("of state, however long the text" in shown) == (states > 0)
    assert not states or screen.size(states) in shown
    assert not per_token or f"{screen.size(per_token)} a token" in shown
