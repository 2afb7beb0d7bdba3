"""A trained checkpoint through both targets, against what llama2.c's own C program produced."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

import onnx_textgen
from onnx_textgen.inference.decoder import Decoder
from onnx_textgen_export.package.folder import records

CASES = range(7)


def golden(shared: Path, number: int) -> dict:
    return json.loads((shared / "checkpoints" / "stories260K" / "golden.json").read_text())["cases"][number]


@pytest.mark.slow
@pytest.mark.parametrize("target", ["ort", "standard"])
@pytest.mark.parametrize("number", CASES)
def test_greedy_text_equals_the_golden_continuation(stories: dict[str, Path], shared: Path, target: str, number: int) -> None:
    case = golden(shared, number)
    model = onnx_textgen.load(stories[target], threads=1)
    prompt = case["prompt"] or case["prompt_ids"]  # the empty text is the begin token alone
    assert model.encode(prompt) == case["prompt_ids"]
    wanted = case["ids"][len(case["prompt_ids"]) :]
    result = model.generate(prompt, max_new_tokens=len(wanted) + 1, temperature=0)
    assert list(result.token_ids[: len(wanted)]) == wanted
    assert (result.finish_reason == "eos") == case["ended_with_bos"]
    assert (case["prompt"] + result.text).startswith(case["text"])


@pytest.mark.parametrize("target", ["ort", "standard"])
def test_the_largest_logits_equal_the_golden_ones(stories: dict[str, Path], shared: Path, target: str) -> None:
    case = golden(shared, 1)
    model = onnx_textgen.load(stories[target], threads=1)
    logits = model.new_context().feed(case["ids"], every_position=True)
    for position, best in case["top5"].items():
        ids, values = zip(*best, strict=True)
        np.testing.assert_allclose(logits[int(position), list(ids)], values, atol=2e-3)
        assert logits[int(position)].argmax() == ids[0]


@pytest.mark.parametrize("target", ["ort", "standard"])
def test_the_graph_is_valid_and_carries_the_names_other_engines_read(stories: dict[str, Path], target: str) -> None:
    model = onnx.load(stories[target] / "model.onnx")
    if target == "standard":
        onnx.checker.check_model(str(stories[target] / "model.onnx"), full_check=True)
        assert {node.domain for node in model.graph.node} <= {"", "ai.onnx"}
    inputs, outputs = [i.name for i in model.graph.input], [o.name for o in model.graph.output]
    assert inputs[:3] == ["input_ids", "attention_mask", "logits_positions"]
    assert inputs[3:5] == ["past_key_values.0.key", "past_key_values.0.value"]
    assert outputs[:3] == ["logits", "present.0.key", "present.0.value"]
    assert "logits_positions" in {initializer.name for initializer in model.graph.initializer}, "optional for other engines"


def test_the_manifest_describes_the_files_and_tells_of_no_foreign_path(stories: dict[str, Path]) -> None:
    folder = stories["ort"]
    manifest = onnx_textgen.load(folder).manifest
    assert manifest.files == records(folder)
    assert manifest.eos_ids == (1, 2)
    assert manifest.certificate["scenarios"][0]["logits_error"] < 1e-4
    for path in filter(Path.is_file, folder.rglob("*")):
        assert str(Path.home()).encode() not in path.read_bytes(), "a path of the maker's machine"


def test_both_targets_give_the_same_logits_for_one_row_and_for_a_ragged_batch(stories: dict[str, Path]) -> None:
    texts = [[1, 403, 407], [1, 317, 269, 274, 287, 382], [1]]
    results = []
    for target in ("ort", "standard"):
        model = onnx_textgen.load(stories[target], threads=1)
        decoder = Decoder(model.graph, model.manifest.geometry, rows=3)
        for row, ids in enumerate(texts):
            decoder.feed(ids, row=row)
        results.append(np.stack([decoder.step([261, 276, 403], [True] * 3), decoder.step([378, 337, 407], [True] * 3)]))
    np.testing.assert_allclose(results[0], results[1], atol=1e-4)
