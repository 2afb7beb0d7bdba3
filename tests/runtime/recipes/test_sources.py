"""The readers of GGUF and safetensors find what their makers' libraries find, and steps give the numbers of gguf's own code."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnx_textgen.errors import PackageError
from onnx_textgen.recipes import k_quants
from onnx_textgen.recipes.sources import BLOCKS, SUPER_BLOCKS, WeightsFile
from onnx_textgen.recipes.steps import rotary_order, steps_of
from support.examples import examples
from support.recipes import write_safetensors

gguf = pytest.importorskip("gguf")
quantised = pytest.importorskip("support.gguf_files").quantised


def written(path: Path, seed: int = 0) -> Path:
    """A file with a tensor of each kind, and settings of each type."""
    writer, draw = gguf.GGUFWriter(path, "llama"), np.random.default_rng(seed)
    writer.add_head_count(4)
    writer.add_token_list(["a", "b"])
    writer.add_array("floats", [1.0, 2.0])
    for kind in ("F32", "F16", "BF16", *BLOCKS):
        values, number = draw.normal(size=(6, 64)).astype(np.float32), gguf.GGMLQuantizationType[kind]
        writer.add_tensor(kind, gguf.quantize(values, number), raw_dtype=number)
    for kind in SUPER_BLOCKS:
        values, number = draw.normal(size=(6, 512)).astype(np.float32), gguf.GGMLQuantizationType[kind]
        writer.add_tensor(kind, quantised(values, number), raw_dtype=number)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_gguf_file_has_the_tensors_and_the_numbers_of_its_own_library(tmp_path: Path) -> None:
    found = WeightsFile(written(tmp_path / "file.gguf"))
    assert found.heads == {4}
    for tensor in gguf.GGUFReader(tmp_path / "file.gguf").tensors:
        kind = found.tensors[tensor.name].kind
        assert kind == tensor.tensor_type.name
        rows = found.rows(tensor.name)
        assert rows.tobytes() == tensor.data.tobytes()
        expected = gguf.dequantize(tensor.data, tensor.tensor_type)
        assert np.array_equal(steps_of(kind)["float32"](rows, kind), expected)


@pytest.mark.parametrize(("kind", "bits"), [("Q4_0", 4), ("Q4_1", 4), ("Q5_0", 8), ("Q5_1", 8), ("Q8_0", 8)])
def test_codes_scales_and_offsets_are_the_numbers(tmp_path: Path, kind: str, bits: int) -> None:
    found, steps = WeightsFile(written(tmp_path / "file.gguf")), steps_of(kind)
    rows = found.rows(kind)
    codes = np.asarray(steps[f"codes of {bits} bits"](rows, kind)).reshape(len(rows), 2, -1)
    if bits == 4:
        codes = np.stack([codes & 15, codes >> 4], axis=-1).reshape(len(rows), 2, -1)
    scales = steps["positive float32 scales" if bits == 8 else "float32 scales"](rows, kind)
    middle = {"Q4_1": 0, "Q5_1": 128 - 16}.get(kind, 1 << (bits - 1))
    numbers = (codes.astype(np.float32) - np.float32(middle)) * np.asarray(scales)[:, :, None]
    if kind.endswith("_1"):
        numbers += np.asarray(steps["float32 offsets"](rows, kind))[:, :, None]
    assert np.array_equal(numbers.reshape(len(rows), -1), steps["float32"](rows, kind))


@examples(50)
@given(kind=st.sampled_from(sorted(SUPER_BLOCKS)), seed=st.integers(0, 2**32 - 1), is_reversed=st.booleans())
def test_blocks_of_k_quants_that_are_kept_give_every_number_back(kind: str, seed: int, is_reversed: bool) -> None:
    number = gguf.GGMLQuantizationType[kind]
    values = np.random.default_rng(seed).normal(size=(3, 512)).astype(np.float32)
    values[1, :40] = values[2, 300:] = 0
    rows = quantised(values, number)
    if is_reversed:
        rows[:, {"Q2_K": 81, "Q3_K": 109, "Q6_K": 209}.get(kind, 1)] ^= 0x80  # the sign of the first super-block's steps
    kept = k_quants.kept(rows, kind)
    whole = kept.codes.astype(np.float32) - k_quants.SHIFTS[kind]
    numbers = whole * kept.scales[:, :, None] + (0 if kept.offsets is None else kept.offsets[:, :, None])
    expected = gguf.dequantize(rows, number)
    assert np.allclose(numbers.reshape(3, -1), expected, rtol=1e-6, atol=1e-6 * np.abs(expected).max())
    assert kept.codes.max() < 2 ** k_quants.CODE_BITS[kind]
    assert kept.scales.min() >= 0


def test_rotary_order_is_the_one_by_which_transformers_reads_llamas_files() -> None:
    gguf_utils = pytest.importorskip("transformers.modeling_gguf_pytorch_utils")
    rows = np.arange(24)[:, None]
    reverse = gguf_utils.LlamaTensorProcessor()._reverse_permute_weights
    assert np.array_equal(rows[rotary_order(24, 3)], reverse(rows, 3, 3))


def test_a_safetensors_file_has_the_tensors_of_its_own_library(tmp_path: Path) -> None:
    library = pytest.importorskip("safetensors.numpy")
    draw = np.random.default_rng(0)
    tensors = {"a": draw.normal(size=(3, 5)).astype(np.float32), "b": draw.normal(size=(4,)).astype(np.float16)}
    library.save_file(tensors | {"whole": np.arange(3)}, tmp_path / "file.safetensors")
    found = WeightsFile(tmp_path / "file.safetensors")
    assert {name: found.rows(name).tobytes() for name in found.tensors} == {name: each.tobytes() for name, each in tensors.items()}


@given(cut=st.integers(0, 10**6), places=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=3))
@examples(60)
@pytest.mark.parametrize("ending", ["gguf", "safetensors"])
def test_a_damaged_file_is_read_within_its_bounds_or_refused(
    tmp_path_factory: pytest.TempPathFactory, ending: str, cut: int, places: list[tuple[int, int]]
) -> None:
    folder = tmp_path_factory.getbasetemp() / "damaged"
    folder.mkdir(exist_ok=True)
    whole = folder / f"whole.{ending}"
    if not whole.exists():
        if ending == "gguf":
            written(whole)
        else:
            write_safetensors(whole, {"a": ("F32", (2, 3), bytes(24)), "b": ("BF16", (), bytes(2))})
    content = bytearray(whole.read_bytes())
    for place, value in places:
        content[place % min(len(content), 2000)] = value  # the header
    path = folder / f"damaged.{ending}"
    path.write_bytes(content[: cut % len(content) + 1] if cut % 2 else content)
    try:
        found = WeightsFile(path)
    except PackageError as error:
        assert "\n" not in str(error)
        return
    for name, stored in found.tensors.items():
        rows = found.rows(name)
        for step in steps_of(stored.kind).values():
            with np.errstate(all="ignore"):
                step(rows, stored.kind)
