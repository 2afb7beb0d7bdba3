"""`verify` finds a package, or a machine, that computes something else."""

import dataclasses

import numpy as np
import pytest

import onnx_textgen
from onnx_textgen.cli import run as run_command
from onnx_textgen.inference.hand_over import HandedOver
from onnx_textgen.package.manifest import GoldenRun
from onnx_textgen.tasks.golden_runs import replay


def replays(model: onnx_textgen.Model) -> list[bool]:
    return [replay(model.new_context(), model.manifest, run).is_right for run in model.manifest.golden]


def test_an_intact_package_replays(exact: onnx_textgen.Model, story: onnx_textgen.Model) -> None:
    assert all(replays(exact))
    assert all(replays(story))


def test_a_cache_that_forgets_is_found(exact: onnx_textgen.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = type(exact.new_context().cache)
    begin = cache.begin

    def forgetful(self, rows, new, active=()):
        values = self.buffers if hasattr(self, "buffers") else self.per_row[rows.start]
        for value in values.values():
            value.update_inplace(np.zeros(value.shape(), np.float32))
        return begin(self, rows, new, active)

    monkeypatch.setattr(cache, "begin", forgetful)
    assert not all(replays(exact))


def test_another_token_is_found_even_in_an_int8_package(story: onnx_textgen.Model) -> None:
    run = story.manifest.golden[1]
    chunks = list(story.stream(list(run.prompt_ids), max_new_tokens=len(run.new_ids), temperature=0, logprobs=8))
    for place in range(0, len(chunks), 5):
        new_ids = list(run.new_ids)
        new_ids[place] = chunks[place].alternatives[0][7].token_id  # the eighth-best there
        changed = GoldenRun(run.prompt_ids, tuple(new_ids[: place + 1]))
        assert replay(story.new_context(), story.manifest, changed).first_difference == place


@pytest.mark.parametrize("error", ["x", None, [1], True, -1, float("nan"), 10**400], ids=repr)
def test_a_certificate_whose_error_is_no_number_is_refused(exact: onnx_textgen.Model, error: object) -> None:
    damaged = dataclasses.replace(exact.manifest, certificate={"largest_logits_error": error})
    with pytest.raises(
        onnx_textgen.PackageError, match="damaged certificate: its largest_logits_error should be a number"
    ) as refused:
        replay(exact.new_context(), damaged, exact.manifest.golden[0])
    assert len(str(refused.value)) < 200


def test_a_hand_over_between_engines_is_replayed_and_a_wrong_one_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("openvino", reason="the second engine")
    model = onnx_textgen.load(device="hybrid", threads=1)

    def found() -> list[bool]:
        runs = model.manifest.golden
        return [replay(model.new_context(), model.manifest, run, hands_over=True).is_right for run in runs]

    assert found() == [True] * 3
    assert run_command(["verify", "--device", "hybrid"]) == 0
    assert capsys.readouterr().out.count("prompt and half of the text by openvino") == 3
    take = HandedOver.__getitem__
    monkeypatch.setattr(HandedOver, "__getitem__", lambda self, name: -take(self, name))
    assert not any(found())
    assert run_command(["verify", "--device", "hybrid"]) == 1
