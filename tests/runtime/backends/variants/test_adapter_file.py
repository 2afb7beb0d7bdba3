"""The file of an adapter: what is written is read, and anything else is one line."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnx_textgen.backends.onnxruntime_session import AdapterFormat, OrtValue
from onnx_textgen.backends.variants.adapter_file import LowRank, read_adapter, write_adapter
from onnx_textgen.errors import PackageError


def low_rank(inputs: int, rank: int, outputs: int, seed: int) -> LowRank:
    draw = np.random.default_rng(seed)
    return LowRank(*(draw.normal(size=size).astype(np.float32) for size in ((inputs, rank), (rank, outputs))))


@given(
    sizes=st.dictionaries(st.text("ab.é_0", min_size=1, max_size=9), st.tuples(*[st.integers(1, 9)] * 4), min_size=1, max_size=4)
)
def test_what_is_written_is_read(sizes: dict[str, tuple[int, int, int, int]], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("adapter") / "own.onnx_adapter"
    changes = {name: low_rank(*each) for name, each in sizes.items()}
    write_adapter(path, changes)
    found = read_adapter(path)
    assert found.keys() == changes.keys()
    for name, each in changes.items():
        assert np.array_equal(found[name].narrow, each.narrow)
        assert np.array_equal(found[name].wide, each.wide)
        assert found[name].rank == each.rank


def test_a_damaged_file_is_read_or_one_line_and_ends_no_process(tmp_path: Path) -> None:
    path, draw = tmp_path / "own.onnx_adapter", random.Random(0)
    write_adapter(path, {f"layer.{number}": low_rank(12, 2, 8, number) for number in range(4)})
    content, refused = path.read_bytes(), 0
    for case in range(300):
        changed = bytearray(content)
        if case % 3 == 0:
            del changed[draw.randrange(len(changed)) :]
        for _ in range(1 if case % 3 == 1 else 8):
            if changed:
                changed[draw.randrange(len(changed))] = draw.randrange(256)
        path.write_bytes(changed)
        try:
            read_adapter(path)
        except PackageError as error:
            refused += 1
            assert "\n" not in str(error)
    assert refused > 100


@pytest.mark.parametrize(
    "arrays",
    [
        {},
        {"a.lora_A": np.ones((3, 2), np.float32)},
        {"a.lora_A": np.ones((3, 2), np.float32), "a.lora_B": np.ones((3, 2), np.float32)},
        {"a.lora_A": np.ones((3, 2), np.float64), "a.lora_B": np.ones((2, 3), np.float64)},
        {"a.lora_A": np.full((3, 2), np.nan, np.float32), "a.lora_B": np.ones((2, 3), np.float32)},
        {"a.lora_A": np.ones((3, 2), np.float32), "a.lora_B": np.ones((2, 3), np.float32), "b": np.ones(3, np.float32)},
    ],
)
def test_other_parameters_than_pairs_of_matrices_are_one_line(arrays: dict[str, np.ndarray], tmp_path: Path) -> None:
    file = AdapterFormat()
    file.set_parameters({name: OrtValue.ortvalue_from_numpy(array) for name, array in arrays.items()})
    file.export_adapter(str(tmp_path / "own.onnx_adapter"))
    with pytest.raises(PackageError, match=r"^own\.onnx_adapter .*; add the adapter again$"):
        read_adapter(tmp_path / "own.onnx_adapter")
