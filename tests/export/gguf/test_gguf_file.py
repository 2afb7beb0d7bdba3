"""A GGUF file is read within its bounds: a damaged one is refused in one line, and a whole one gives the numbers it stores."""

import random
import shutil
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnx_textgen_export import ExportError
from onnx_textgen_export.gguf.gguf_file import GGUFFile, dequantized, is_gguf
from support.gguf_files import quantised, tiny_model, write_gguf


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_gguf(path, tiny_model("llama"), "llama", kind="Q8_0")
    return path


def test_numbers_are_those_of_the_package_that_wrote_them(path: Path) -> None:
    file, reader = GGUFFile(path), gguf.GGUFReader(path)
    assert file.metadata["general.architecture"] == "llama"
    assert list(file.tensors) == [tensor.name for tensor in reader.tensors]
    for tensor in reader.tensors:
        assert np.array_equal(file.read(tensor.name), gguf.dequantize(tensor.data, tensor.tensor_type))


@given(
    kind=st.sampled_from(["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"]),
    rows=st.integers(1, 2000),
    blocks=st.integers(1, 3),
)
def test_numbers_do_not_depend_on_how_many_rows_are_dequantised_together(kind: str, rows: int, blocks: int) -> None:
    quantisation = gguf.GGMLQuantizationType[kind]
    values = np.random.default_rng(rows).standard_normal((rows, blocks * gguf.GGML_QUANT_SIZES[quantisation][0]))
    data = quantised(values.astype(np.float32), quantisation)
    assert np.array_equal(dequantized(data, quantisation), gguf.dequantize(data, quantisation))


KINDS = (st.integers(-(2**31), 2**31 - 1), st.floats(width=32, allow_nan=False), st.booleans(), st.text(max_size=9))


@given(
    st.dictionaries(
        st.from_regex(r"[a-z]{1,5}\.[a-z]{1,5}", fullmatch=True), st.one_of(*KINDS, *(st.lists(kind) for kind in KINDS))
    ),
    st.sampled_from(gguf.GGUFEndian),
)
def test_metadata_is_that_of_the_package_that_wrote_it(
    tmp_path_factory: pytest.TempPathFactory, given: dict, order: gguf.GGUFEndian
):
    path = tmp_path_factory.mktemp("metadata") / "any.gguf"
    writer = gguf.GGUFWriter(path, "llama", endianess=order)
    for key, value in given.items():
        add = {bool: writer.add_bool, int: writer.add_int32, float: writer.add_float32, str: writer.add_string}
        add.get(type(value), writer.add_array)(key, value)
    writer.add_tensor("one", np.ones(32, np.float32))
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        write()
    assert GGUFFile(path).metadata == {key: field.contents() for key, field in gguf.GGUFReader(path).fields.items()}


def opens_or_refuses(path: Path) -> None:
    """Open a file and read its tensors; an error is one line of ours."""
    try:
        file = GGUFFile(path)
        for name in file.tensors:
            file.read(name)
    except ExportError as error:
        assert "\n" not in str(error)


@given(st.data())
def test_a_truncated_file_is_refused(path: Path, data: st.DataObject) -> None:
    whole, end = path.read_bytes(), max(each.data_offset + each.n_bytes for each in gguf.GGUFReader(path).tensors)
    torn = path.with_name("torn.gguf")
    torn.write_bytes(whole[: data.draw(st.integers(4, end - 1))])
    with pytest.raises(ExportError, match="is no whole GGUF file"):
        GGUFFile(torn)


@given(st.integers(0, 2**32), st.integers(1, 8))
def test_a_damaged_file_is_refused_in_one_line_or_read(path: Path, seed: int, count: int) -> None:
    draw, damaged = random.Random(seed), bytearray(path.read_bytes())
    for _ in range(count):
        damaged[draw.randrange(4, 3000)] = draw.choice((0, 1, 0x7F, 0xFF, draw.randrange(256)))
    other = path.with_name("damaged.gguf")
    other.write_bytes(damaged)
    opens_or_refuses(other)


@pytest.mark.parametrize("counts", [(2**63, 0), (0, 2**63), (2**40, 2**40), (0, 0)])
def test_counts_that_no_file_can_hold_are_refused(tmp_path: Path, counts: tuple[int, int]) -> None:
    path = tmp_path / "huge.gguf"
    path.write_bytes(b"GGUF" + np.uint32(3).tobytes() + np.array(counts, np.uint64).tobytes() + bytes(64))
    with pytest.raises(ExportError, match=r"GGUF file|holds no tensors"):
        GGUFFile(path)


def test_a_part_needs_all_the_others(path: Path, tmp_path: Path) -> None:
    part = tmp_path / "m-00001-of-00002.gguf"
    shutil.copy(path, part)
    with pytest.raises(ExportError, match=r"one of 2 parts, and m-00002-of-00002\.gguf is not there"):
        GGUFFile(part)


def test_a_file_is_known_by_its_first_bytes(path: Path, tmp_path: Path) -> None:
    renamed = tmp_path / "model.bin"
    shutil.copy(path, renamed)
    assert is_gguf(renamed)
    assert not is_gguf(tmp_path)
    assert not is_gguf(tmp_path / "nothing.gguf")
