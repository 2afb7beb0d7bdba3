"""Types of models that read pictures are exported with proof, or refused in one line; none gives other tokens."""

from __future__ import annotations

import dataclasses
import gc
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from PIL import Image
from transformers import PreTrainedTokenizerFast
from transformers.utils import is_torchvision_available

import onnx_textgen
from onnx_textgen_export import export
from onnx_textgen_export.errors import ExportError
from onnx_textgen_export.image_processors import tiling
from onnx_textgen_export.image_processors.pixel_steps import Operators
from onnx_textgen_export.image_processors.processors import Processor, own_processor
from onnx_textgen_export.images import opening
from onnx_textgen_export.images.vision import VisionPart
from support.costs import by_cost
from support.image_checkpoints import ALIKE, KINDS, REFUSED, noise, write_checkpoint

TEXTS = ("What is this? ", " Say it.", " And?")
"""Around pictures. After one at the end, transformers' `generate` counts positions on three axes otherwise than its forward."""
COUNT = 24


def by_transformers(model: Any, processor: Any, text: str, pictures: list[Any]) -> list[int]:
    """Greedy ids after a text with pictures, by transformers alone."""
    images = [Image.fromarray(each) for each in pictures]
    given = processor(text=[text], images=images, return_tensors="pt")
    with torch.no_grad():
        found = model.generate(**given, do_sample=False, max_new_tokens=COUNT, min_new_tokens=COUNT)
    ids: list[int] = found[0, given["input_ids"].shape[1] :].tolist()
    return ids


def imports_torchvision(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor whose module imports torchvision, and uses nothing of it, can be loaded without it."""
    names = ["torchvision", "torchvision.transforms", "torchvision.transforms.v2", "torchvision.transforms.v2.functional"]
    is_torchvision_available()  # known from now on: transformers does not ask again
    for name in names:
        made: Any = ModuleType(name)
        made.__spec__, made.__path__ = ModuleSpec(name, None), []
        monkeypatch.setitem(sys.modules, name, made)
    sys.modules[names[2]].functional = sys.modules[names[3]]  # type: ignore[attr-defined]


@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning")
@pytest.mark.parametrize("model_type", by_cost([], slow=[each for each in KINDS if each not in ALIKE], rare=ALIKE))
def test_a_type_writes_what_transformers_writes(model_type: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if model_type == "mistral3":
        imports_torchvision(monkeypatch)
    module = write_checkpoint(model_type, tmp_path / "checkpoint", KINDS[model_type])
    ours = onnx_textgen.load(export(tmp_path / "checkpoint", tmp_path / "package").folder, device="cpu", threads=1)
    about = ours.manifest.images
    assert about is not None
    assert ours.manifest.certificate["pictures"]["greedy_tokens"] >= 40
    own: Any = own_processor(tmp_path / "checkpoint", module.config)
    own.tokenizer = PreTrainedTokenizerFast.from_pretrained(tmp_path / "checkpoint")  # some types have a class that reads no bytes
    picture = noise(40, 66)
    # The same numbers for both: a pixel that is rounded otherwise can change a token of a random model.
    sizes = ((42, 70), (56, 28)) if about.varies else ((28, 28), (28, 28))
    one, other = (
        np.asarray(Image.fromarray(picture[::step]).resize(size[::-1])) for size, step in zip(sizes, (1, -1), strict=True)
    )
    for pictures in ([one], [one, other]):
        text = about.placeholder.join(TEXTS[: len(pictures) + 1])
        wanted = by_transformers(module, own, text, pictures)
        found = ours.generate(ours.encode(text, images=pictures), temperature=0, max_new_tokens=COUNT, ignore_eos=True)
        assert list(found.token_ids) == wanted


@pytest.mark.slow
@pytest.mark.parametrize("model_type", REFUSED)
def test_other_types_are_refused_in_one_line(model_type: str, tmp_path: Path) -> None:
    kind, why = REFUSED[model_type]
    write_checkpoint(model_type, tmp_path / "checkpoint", kind)
    with pytest.raises(ExportError, match=why) as error:
        export(tmp_path / "checkpoint", tmp_path / "package")
    assert "\n" not in str(error.value) and "--text-only" in str(error.value)
    assert not (tmp_path / "package").exists()


@pytest.mark.slow
def test_without_pictures_the_text_part_is_exported(tmp_path: Path) -> None:
    kind = KINDS["gemma3"]
    write_checkpoint("gemma3", tmp_path / "checkpoint", kind)
    package = export(tmp_path / "checkpoint", tmp_path / "package", text_only=True)
    assert package.manifest.images is None and not (package.folder / "vision.onnx").exists()


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp16", "int8", "int4"])
def test_rounded_packages_are_proved_with_pictures(precision: Any, tmp_path: Path) -> None:
    write_checkpoint("llava", tmp_path / "checkpoint", KINDS["llava"])
    package = export(tmp_path / "checkpoint", tmp_path / "package", precision=precision)
    found = package.manifest.certificate
    assert max(each["logits_error"] for each in found["with_pictures"]) < (0.02 if precision == "fp16" else 1e-4)
    assert found["pictures"]["rows_cosine"] > 0.995
    model = onnx_textgen.load(package.folder, device="cpu", threads=1)
    assert model.generate(model.encode("x", images=[noise(30, 30)]), max_new_tokens=4).token_ids


@pytest.mark.slow
def test_the_proof_finds_a_wrong_order_of_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = VisionPart.forward

    def turned(part: VisionPart, pixels: torch.Tensor) -> torch.Tensor:
        rows = own(part, pixels)
        return rows.flip(0) if torch.compiler.is_exporting() else rows

    monkeypatch.setattr(VisionPart, "forward", turned)
    write_checkpoint("llava", tmp_path / "checkpoint", KINDS["llava"])
    with pytest.raises(ExportError, match="rows of pictures disagree"):
        export(tmp_path / "checkpoint", tmp_path / "package")


@pytest.mark.slow
def test_the_proof_finds_a_processor_that_computes_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = Processor.read

    def darker(processor: Processor, picture: Any) -> Any:
        return own(processor, (picture * 0.9).astype(np.uint8))

    monkeypatch.setattr(Processor, "read", darker)
    write_checkpoint("llava", tmp_path / "checkpoint", KINDS["llava"])
    with pytest.raises(ExportError, match="no known order of steps"):
        export(tmp_path / "checkpoint", tmp_path / "package")


@pytest.mark.slow
def test_a_processor_of_two_tensors_is_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = Processor.read

    def doubled(processor: Processor, picture: Any) -> Any:
        read = own(processor, picture)
        return dataclasses.replace(read, pixels=read.pixels | {"high_res_pixel_values": read.pixels["pixel_values"]})

    monkeypatch.setattr(Processor, "read", doubled)
    monkeypatch.setattr(opening, "open_vision", lambda *_: None)
    write_checkpoint("llava", tmp_path / "checkpoint", KINDS["llava"])
    with pytest.raises(ExportError, match=r"more than one tensor of a picture .*; add --text-only") as error:
        export(tmp_path / "checkpoint", tmp_path / "package")
    assert "\n" not in str(error.value)


@pytest.mark.slow
def test_text_needs_neither_rows_nor_offsets_of_positions(tmp_path: Path) -> None:
    write_checkpoint("qwen2_vl", tmp_path / "checkpoint", KINDS["qwen2_vl"])
    folder = export(tmp_path / "checkpoint", tmp_path / "package").folder
    ids = np.array([[5, 9, 77, 31, 8], [6, 3, 2, 90, 44]])
    bare = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    empty = {
        each.name: np.zeros([2 if size == "batch" else 5 if isinstance(size, str) else size for size in each.shape], np.float32)
        for each in bare.get_inputs()
        if each.name.startswith("past")
    }
    logits = bare.run(["logits"], {"input_ids": ids, "attention_mask": np.ones_like(ids), **empty})[0]
    ours = onnx_textgen.load(folder, device="cpu", threads=1)
    for row, found in zip(ids.tolist(), logits, strict=True):
        assert int(found[-1].argmax()) == ours.generate(row, temperature=0, max_new_tokens=1, ignore_eos=True).token_ids[0]


@pytest.mark.slow
def test_larger_pictures_are_made_as_small_as_asked(tmp_path: Path) -> None:
    write_checkpoint("lighton_ocr", tmp_path / "checkpoint", KINDS["lighton_ocr"])
    package = export(tmp_path / "checkpoint", tmp_path / "package", image_tokens=20)
    assert package.manifest.images is not None and package.manifest.images.tokens == 16  # a square of whole tokens
    model = onnx_textgen.load(package.folder, device="cpu", threads=1)
    assert [sum(each < 0 for each in model.encode("x", images=[noise(*size)])) for size in ((300, 300), (300, 150))] == [16, 8]


@pytest.mark.parametrize(("model_type", "most"), by_cost([], slow=[("qwen2_vl", 1)], rare=[("qwen2_5_vl", 6), ("lighton_ocr", 3)]))
def test_any_limit_of_tokens_may_be_asked_for(model_type: str, most: int, tmp_path: Path) -> None:
    write_checkpoint(model_type, tmp_path / "checkpoint", KINDS[model_type])
    package = export(tmp_path / "checkpoint", tmp_path / "package", image_tokens=most)
    model = onnx_textgen.load(package.folder, device="cpu", threads=1)
    assert 1 <= sum(each < 0 for each in model.encode("x", images=[noise(150, 140)])) <= most


@pytest.mark.slow
def test_the_proof_finds_a_processor_that_makes_large_pictures_smaller_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Processor.read

    def halved(processor: Processor, picture: Any) -> Any:
        return own(processor, picture[::2, ::2] if picture.shape[0] * picture.shape[1] > 700_000 else picture)

    monkeypatch.setattr(Processor, "read", halved)
    kind = dataclasses.replace(KINDS["lighton_ocr"], images={"size": {"longest_edge": 700}, "patch_size": 14})
    write_checkpoint("lighton_ocr", tmp_path / "checkpoint", kind)
    with pytest.raises(ExportError, match="large pictures"):
        export(tmp_path / "checkpoint", tmp_path / "package")


@pytest.mark.slow
def test_tiles_are_as_few_as_asked(tmp_path: Path) -> None:
    write_checkpoint("internvl", tmp_path / "checkpoint", KINDS["internvl"])
    said = list[str]()
    package = export(tmp_path / "checkpoint", tmp_path / "package", image_tokens=12, report=said.append)
    about = package.manifest.images
    assert about is not None and about.tokens == 12 and {each.tiles for each in about.tiles} == {1, 3}
    assert "images: cut into tiles of 4 tokens, at most 12 for a picture" in said
    model = onnx_textgen.load(package.folder, device="cpu", threads=1)
    assert [sum(each < 0 for each in model.encode("x", images=[noise(*size)])) for size in ((28, 28), (100, 400))] == [4, 12]


@pytest.mark.slow
def test_pictures_are_read_as_a_whole_where_the_way_of_tiles_is_not_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiling, "tile_steps_of", lambda settings: [])
    write_checkpoint("smolvlm", tmp_path / "checkpoint", KINDS["smolvlm"])
    said = list[str]()
    package = export(tmp_path / "checkpoint", tmp_path / "package", report=said.append)
    assert package.manifest.images is not None and not package.manifest.images.tiles
    assert any(line.startswith("images: read as a whole, without tiles, as 4 tokens each") for line in said)


@pytest.mark.slow
def test_tiles_in_another_order_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = Operators.op

    def turned(ops: Operators, name: str, *inputs: Any, **attributes: Any) -> Any:
        by_lines = attributes.get("perm") == [1, 3, 0, 2, 4]
        return own(ops, name, *inputs, **attributes | ({"perm": [3, 1, 0, 2, 4]} if by_lines else {}))

    monkeypatch.setattr(Operators, "op", turned)
    write_checkpoint("smolvlm", tmp_path / "checkpoint", KINDS["smolvlm"])
    said = list[str]()
    export(tmp_path / "checkpoint", tmp_path / "package", report=said.append)
    assert any("makes other numbers of tiles" in line for line in said)


@pytest.mark.slow
def test_a_text_goes_on_after_its_picture_is_forgotten(tmp_path: Path) -> None:
    write_checkpoint("qwen2_vl", tmp_path / "checkpoint", KINDS["qwen2_vl"])
    model = onnx_textgen.load(export(tmp_path / "checkpoint", tmp_path / "package").folder, device="cpu", threads=1)
    whole, cut = model.new_context(), model.new_context()
    ids = model.encode("a <image>c", images=[noise(42, 70)])
    wanted = whole.feed([*ids, 3, 4])
    cut.feed(ids)
    model._encoder.opened.images.rows.clear()  # type: ignore[union-attr]
    del ids
    gc.collect()
    assert np.allclose(cut.feed([3, 4]), wanted, atol=1e-4)


@pytest.mark.slow
def test_windows_are_refused_for_the_standard_target_by_its_name(tmp_path: Path) -> None:
    write_checkpoint("qwen2_5_vl", tmp_path / "checkpoint", KINDS["qwen2_5_vl"])
    with pytest.raises(ExportError, match=r"at the target standard; --target ort may take it; add --text-only"):
        export(tmp_path / "checkpoint", tmp_path / "package", target="standard")


@pytest.mark.slow
def test_a_processor_that_needs_torchvision_says_so() -> None:
    if is_torchvision_available():
        pytest.skip("torchvision is installed")
    # In a fresh process: another test may have loaded it with the stand-in.
    asked = "from onnx_textgen_export.image_processors.processors import processor_class; processor_class('PixtralProcessor')"
    found = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=False)
    assert "pip install torchvision" in found.stderr.splitlines()[-1]
