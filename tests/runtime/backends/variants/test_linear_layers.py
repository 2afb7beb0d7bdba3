"""The record of a graph's linear layers, and products of low rank placed by it."""

from __future__ import annotations

import json
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnx_textgen.backends.variants.adapter_file import LowRank
from onnx_textgen.backends.variants.adapter_graph import make_product
from onnx_textgen.backends.variants.linear_layers import KEY, LinearLayer, LinearLayers, from_runs, to_runs
from onnx_textgen.errors import PackageError

orders = st.integers(1, 40).flatmap(lambda size: st.permutations(range(size)))


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=60, unique=True))
def test_runs_hold_any_numbers(numbers: list[int]) -> None:
    assert from_runs(to_runs(np.array(numbers))).tolist() == numbers


def test_rotary_halves_and_whole_layers_take_few_runs() -> None:
    halves = np.concatenate([np.arange(0, 64, 2), np.arange(1, 64, 2)])
    assert to_runs(halves) == [[0, 2, 32], [1, 2, 32]]
    assert to_runs(np.arange(4096)) == [[0, 1, 4096]]


@given(orders, st.integers(1, 5), st.booleans(), st.integers(0, 99))
def test_a_product_is_that_of_the_parameters_in_the_order_of_the_graph(
    order: list[int], rank: int, smoothed: bool, seed: int
) -> None:
    """Two parameters in one product, cut and in any order: the change of each output is that of its parameter's output."""
    draw = np.random.default_rng(seed)
    size, inputs = len(order), 6
    cut = size // 2
    names = np.where(np.array(order) % 2 == 0, "a", "b")
    sizes = {"a": (size + 1) // 2, "b": size // 2}
    pieces = [
        (str(name), np.array([each // 2 for each in half if each % 2 == (name == "b")]))
        for half in (order[:cut], order[cut:])
        for name in ("a", "b")
    ]
    pieces = [(name, outputs) for name, outputs in pieces if len(outputs)]
    divisors = draw.uniform(0.5, 2, inputs).astype(np.float16).astype(np.float32) if smoothed else None
    output_divisors = draw.uniform(0.5, 2, size).astype(np.float16).astype(np.float32) if smoothed else None
    layers = LinearLayers((LinearLayer("x", "y", inputs, tuple(pieces), divisors, output_divisors),), "float32")
    layer = LinearLayers.from_metadata({KEY: layers.to_json()}).layers[0]
    changes = {
        name: LowRank(draw.normal(size=(inputs, rank)).astype(np.float32), draw.normal(size=(rank, sizes[name])).astype(np.float32))
        for name in ("a", "b")
        if sizes[name] and name in names
    }
    product = make_product(layer, [{}, changes])
    assert product is not None
    assert set(product.owners) == {1}
    x = draw.normal(size=inputs).astype(np.float32)
    given_x = x if divisors is None else x / divisors
    found = given_x @ product.narrow @ product.wide * (1 if output_divisors is None else output_divisors)
    wanted = np.concatenate([(x @ changes[name].narrow @ changes[name].wide)[outputs] for name, outputs in pieces])
    assert np.allclose(found, wanted, atol=1e-4)


def test_an_adapter_that_leaves_a_layer_alone_adds_nothing() -> None:
    layer = LinearLayer("x", "y", 4, (("a", np.arange(3)),))
    assert make_product(layer, [{}, {"b": LowRank(np.ones((4, 1), np.float32), np.ones((1, 3), np.float32))}]) is None


GOOD = {"input": "x", "output": "y", "inputs": 4, "parameters": [["a", [[0, 1, 3]]]]}


@pytest.mark.parametrize(
    "layer",
    [
        {**GOOD, "inputs": "four"},
        {**GOOD, "parameters": [["a", [[0, 1, 2]]], ["a", [[1, 1, 2]]]]},
        {**GOOD, "parameters": [["a", [[1, 1, 3]]]]},
        {**GOOD, "parameters": [["a", [[0, 1, 10**12]]]]},
        {**GOOD, "parameters": [["a", [[0, -1, 3]]]]},
        {**GOOD, "parameters": [["a", [[0.5, 1, 3]]]]},
        {**GOOD, "parameters": [["a", []]]},
        {**GOOD, "divisors": "AAAA"},
        {**GOOD, "divisors": "?"},
        {**GOOD, "output_divisors": "AAAAAAAA"},
        [],
        None,
    ],
)
def test_a_record_that_makes_no_sense_is_one_line(layer: object) -> None:
    entry = {"version": 1, "element_type": "float32", "layers": [layer]}
    with pytest.raises(PackageError, match="its graph's record of linear layers is damaged") as raised:
        LinearLayers.from_metadata({KEY: json.dumps(entry)})
    assert "\n" not in str(raised.value)


def test_a_record_of_more_outputs_than_any_model_takes_no_memory() -> None:
    layers = [{**GOOD, "parameters": [[f"a{number}", [[0, 1, 2**24 - 1]]]]} for number in range(60)]
    entry = {"version": 1, "element_type": "float32", "layers": layers}
    tracemalloc.start()
    try:
        with pytest.raises(PackageError, match="its graph's record of linear layers is damaged"):
            LinearLayers.from_metadata({KEY: json.dumps(entry)})
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()
