"""Pictures whose tokens see each other in both directions, at every way of feeding a prompt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

import onnx_textgen
from onnx_textgen import Model
from onnx_textgen.errors import PromptError
from onnx_textgen.inference.prefill import prefill
from onnx_textgen_export import export
from onnx_textgen_export.errors import ExportError
from onnx_textgen_export.images.decoder_arguments import is_bidirectional
from onnx_textgen_export.sources.onnx_attention import of_one_picture
from support.image_checkpoints import KINDS, noise, write_checkpoint

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("gemma3")
    write_checkpoint("gemma3", place / "checkpoint", KINDS["gemma3"])
    (place / "checkpoint" / "generation_config.json").write_text('{"eos_token_id": 255}')  # others open no model without one
    return export(place / "checkpoint", place / "package").folder


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return onnx_textgen.load(folder, device="cpu", threads=1)


@pytest.fixture(scope="module")
def ids(model: Model) -> list[int]:
    return model.encode("What are these: <boi>, then <boi>, and <boi>? Say it.", images=[noise(30, 30), noise(40, 20), noise(9, 9)])


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 13, 100])
def test_no_part_of_a_prompt_cuts_a_picture(size: int, model: Model, ids: list[int]) -> None:
    whole, parts = model.new_context(), model.new_context()
    wanted = whole.feed(ids)
    parts.part_size = size
    assert np.allclose(prefill(parts, ids), wanted[-1], atol=1e-4)


def test_a_part_of_a_picture_alone_is_refused(model: Model, ids: list[int]) -> None:
    context = model.new_context()
    first = next(index for index, each in enumerate(ids) if each < 0)
    with pytest.raises(PromptError, match="feed all of its tokens at once"):
        context.feed(ids[: first + 2])
    context.feed(ids[: first + 4])


def test_a_prompt_that_returns_into_a_picture_reads_it_right(model: Model, ids: list[int]) -> None:
    first = next(index for index, each in enumerate(ids) if each < 0)
    wanted, back = model.new_context().feed(ids), model.new_context()
    back.feed(ids)
    back.rewind(first + 2)  # the keys and values of the first two have seen the whole picture
    assert np.allclose(back.feed(ids[first + 2 :]), wanted, atol=1e-4)


def test_prompts_in_a_batch_are_read_as_alone(model: Model, ids: list[int]) -> None:
    prompts = [ids, model.encode("Only text."), model.encode("One <boi>.", images=[noise(30, 30)])]
    options: dict[str, Any] = {"temperature": 0, "max_new_tokens": 8, "ignore_eos": True}
    alone = [model.generate(each, **options).token_ids for each in prompts]
    assert [each.token_ids for each in model.generate(prompts, **options)] == alone


def test_pictures_are_read_again_from_the_prefix_cache(model: Model, ids: list[int]) -> None:
    options: dict[str, Any] = {"temperature": 0, "max_new_tokens": 8, "ignore_eos": True}
    again = [model.generate(ids, **options) for _ in range(2)]
    longer = [*ids, *again[0].token_ids, *model.encode(" And this? <boi>", images=[noise(50, 30)])]
    fresh = model.new_context()
    logits = fresh.feed(longer)[-1]
    assert again[0].token_ids == again[1].token_ids
    assert model.generate(longer, **options).token_ids[0] == int(logits.argmax())


def test_graphs_for_others_read_text_by_one_attention(folder: Path) -> None:
    own, others = ((folder / name).read_bytes() for name in ("model.onnx", "onnx/model.onnx"))
    assert b"bidirectional" in own and b"bidirectional" not in others
    onnxruntime.InferenceSession(folder / "onnx/model.onnx", providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("options", [{"target": "standard"}, {"precision": "fp16"}])
def test_other_forms_of_a_package_are_proved(options: dict[str, Any], folder: Path, tmp_path: Path) -> None:
    package = export(folder.parent / "checkpoint", tmp_path / "package", **options)
    limit = 5e-3 if "precision" in options else 1e-5
    assert max(each["logits_error"] for each in package.manifest.certificate["with_pictures"]) < limit


def test_a_cache_of_8_bits_is_refused_in_a_line(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"pictures are read in both directions; leave out --int8-cache"):
        export(folder.parent / "checkpoint", tmp_path / "package", int8_cache=True)


def test_only_neighbors_are_of_one_picture() -> None:
    of_picture = torch.tensor([[True, False, True, True], [False, True, True, False]])
    found = of_one_picture(of_picture).long()
    assert found.tolist() == [
        [[1, 0, 0, 0], [0, 0, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]],
        [[0, 0, 0, 0], [0, 1, 1, 0], [0, 1, 1, 0], [0, 0, 0, 0]],
    ]


def test_a_prompt_that_is_read_as_a_whole_is_refused() -> None:
    of_picture = torch.tensor([False, True, True, False])
    everything = torch.ones(1, 1, 4, 4, dtype=torch.bool)
    causal = everything.tril()
    picture = causal | (of_picture[:, None] & of_picture)
    assert not is_bidirectional("Any", causal, of_picture) and not is_bidirectional("Any", None, of_picture)
    assert is_bidirectional("Any", {"near": picture, "far": torch.where(picture, 0.0, -1e9)}, of_picture)
    with pytest.raises(ExportError, match="Any reads text with a picture in both directions"):
        is_bidirectional("Any", everything, of_picture)
    with pytest.raises(ExportError, match="in some of its layers"):
        is_bidirectional("Any", {"near": picture, "far": causal}, of_picture)
