"""Tables of rotary positions as a formula: what it finds, and what a graph makes of it."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnx_textgen_export.passes.attention.rotary_formula import add_tables, find_formula
from support.examples import examples


def tables(frequencies: np.ndarray, length: int, factor: float) -> tuple[np.ndarray, np.ndarray]:
    angles = np.arange(length, dtype=np.float32)[:, None] * frequencies.astype(np.float32)
    return np.float32(factor) * np.cos(angles), np.float32(factor) * np.sin(angles)


def computed(cos: np.ndarray, sin: np.ndarray, spare: int = 0) -> list[np.ndarray]:
    """What a graph with the formula gives, in ONNX Runtime."""
    formula = find_formula(cos, sin)
    assert formula is not None
    graph = ir.Graph([], [], nodes=[ir.node("Identity", [ir.Value(name="none")])], opset_imports={"": 21})
    outputs = add_tables(graph, formula, len(cos), spare)
    graph.remove(graph[-1])
    graph.outputs.extend(outputs)
    model = ir.to_proto(ir.Model(graph, ir_version=10))
    return onnxruntime.InferenceSession(model.SerializeToString()).run(None, {})


@examples(40)
@given(
    base=st.floats(100, 1e7), pairs=st.integers(1, 64), length=st.integers(2, 20_000), factor=st.sampled_from([1.0, 1.1386294, 0.5])
)
def test_tables_of_frequencies_are_found_again_to_the_last_position(base: float, pairs: int, length: int, factor: float) -> None:
    wanted = tables(base ** -(np.arange(pairs) / pairs), length, factor)
    for got, want in zip(computed(*wanted), wanted, strict=True):
        assert np.abs(got - want).max() <= 1e-6


def test_at_the_end_of_a_long_context_angles_are_right() -> None:
    wanted = tables(500_000.0 ** -(np.arange(32) / 32), 131_072, 1.0)
    for got, want in zip(computed(*wanted), wanted, strict=True):
        assert np.abs(got - want).max() <= 1e-6


def test_spare_pairs_stand_still_whatever_the_factor() -> None:
    cos, sin = computed(*tables(np.array([0.5, 0.1]), 9, 1.25), spare=3)
    assert cos.shape == sin.shape == (9, 5)
    assert np.all(cos[:, 2:] == 1) and np.all(sin[:, 2:] == 0)


def test_tables_with_other_factors_and_sizes_stand_in_one_graph() -> None:
    """As of a model whose sliding and full layers turn by other rules (Gemma 3 with YaRN)."""
    graph = ir.Graph([], [], nodes=[ir.node("Identity", [ir.Value(name="none")])], opset_imports={"": 21})
    wanted = [*tables(np.array([0.5, 0.1]), 9, 1.25), *tables(np.array([0.7, 0.2, 0.01]), 9, 1.5)]
    for cos, sin in (wanted[:2], wanted[2:]):
        graph.outputs.extend(add_tables(graph, find_formula(cos, sin), 9, 0))
    graph.remove(graph[-1])
    model = ir.to_proto(ir.Model(graph, ir_version=10)).SerializeToString()
    for got, want in zip(onnxruntime.InferenceSession(model).run(None, {}), wanted, strict=True):
        assert np.abs(got - want).max() <= 1e-6


@pytest.mark.parametrize("spoilt", ["one number", "double precision", "a factor of its own", "not finite"])
def test_tables_that_follow_no_formula_are_left(spoilt: str) -> None:
    frequencies = 10_000.0 ** -(np.arange(16) / 16)
    cos, sin = tables(frequencies, 8_192, 1.0)
    if spoilt == "one number":
        cos[4_000, 3] += 1e-4
    elif spoilt == "double precision":  # angles that were not rounded to float32
        angles = np.arange(8_192)[:, None] * frequencies
        cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    elif spoilt == "a factor of its own":
        cos[:, 5] *= 2
        sin[:, 5] *= 2
    else:
        cos[0, 0] = np.nan
    assert find_formula(cos, sin) is None
