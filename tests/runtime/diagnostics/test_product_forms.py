"""The products of a package: read from its graph, in other forms, and as the graphs that are timed."""

import collections
import dataclasses
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnx_textgen.diagnostics import product_speed
from onnx_textgen.diagnostics.product_forms import Form, Product, form_in, other_forms, package_products, read_products
from onnx_textgen.diagnostics.product_graph import INPUT, product_model, random_weights
from onnx_textgen.diagnostics.product_speed import compare_forms, largest_shapes, open_model, summary
from onnx_textgen.errors import OptionError, PackageError
from onnx_textgen.files.onnx_graph import FLOAT, GRAPH, MODEL, make_graph, make_node
from onnx_textgen.files.onnx_wire import Message
from onnx_textgen.package.locate import find_package

PACKAGES = Path(__file__).parents[2] / "packages"
INT8 = Form(8, 32)
INT4 = Form(4, 32, "whole")

forms = st.builds(
    Form,
    bits=st.sampled_from([4, 8]),
    block_size=st.sampled_from([16, 32, 64, 128]),
    zeros=st.sampled_from(["none", "whole"]),
    accuracy_level=st.sampled_from([1, 4]),
)
products = st.builds(Product, st.integers(1, 200), st.integers(1, 40), forms)


def test_the_products_of_the_embedded_model_are_read_from_its_graph():
    found, manifest = package_products(find_package("story"))
    assert found == {
        Product(320, 448, INT8): 6,
        Product(320, 320, INT8): 6,
        Product(320, 1664, INT8): 6,
        Product(832, 320, INT8): 6,
        Product(320, 4096, INT8, is_head=True): 1,
    }
    assert manifest.geometry.hidden_size == 320
    assert largest_shapes(found)[0] == (320, 1664, False)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("ort", r"has no MatMulNBits; leave it out, or export with --precision int8"),
        ("standard", r"\(fp32, target standard\) has no MatMulNBits"),
        ("numbers", "this is an encoder-decoder"),
        ("optimum", "another exporter made this folder"),
    ],
)
def test_a_package_without_such_products_is_refused_in_one_line(name, said):
    with pytest.raises(OptionError, match=said):
        package_products(PACKAGES / name)


@given(products, st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_a_graph_that_is_written_is_read_again(product, copies):
    data = product_model(product, random_weights(product), copies=copies)
    assert read_from(data) == {product: copies}


def read_from(data: bytes) -> collections.Counter[Product]:
    """The products of a graph."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(data)
        return read_products(path)


@given(products, st.integers(1, 5))
@settings(max_examples=60, deadline=None)
def test_a_product_that_is_timed_is_the_one_of_its_dequantised_weights(product, tokens):
    arrays = random_weights(product)
    x = np.random.default_rng(1).normal(size=(tokens, product.inputs)).astype(np.float32)
    session = open_model(product_model(product, arrays, copies=2), threads=1)
    weights = dequantised(product, arrays)
    wanted = x @ weights.T
    step = 0 if product.form.accuracy_level == 1 else np.abs(x).max(axis=1, keepdims=True) / 127  # inputs become 8 bits
    allowed = (0.51 * step + 1e-5 * np.abs(x)) @ np.abs(weights).T + 1e-5
    for found in session.run(None, {INPUT: x}):
        assert found.shape == wanted.shape
        assert (np.abs(found - wanted) <= allowed).all()


def dequantised(product: Product, arrays: dict[str, np.ndarray]) -> np.ndarray:
    """[outputs, inputs]: `(code - zero) * scale`, by the operator's specification."""
    bits, middle = product.form.bits, 1 << (product.form.bits - 1)
    blocks = arrays["scales"].shape[1]
    codes = unpacked(arrays["codes"], bits).reshape(product.outputs, blocks, -1).astype(np.float32)
    zeros = unpacked(arrays["zeros"], bits)[:, :blocks].astype(np.float32) if "zeros" in arrays else np.float32(middle)
    zeros = np.broadcast_to(zeros, (product.outputs, blocks))
    whole = (codes - zeros[..., None]) * arrays["scales"][..., None]
    return whole.reshape(product.outputs, -1)[:, : product.inputs]


def unpacked(array: np.ndarray, bits: int) -> np.ndarray:
    """Numbers of that many bits, the low ones of a byte first."""
    return array if bits == 8 else np.stack([array & 15, array >> 4], axis=-1).reshape(*array.shape[:-1], -1)


def test_logits_that_two_products_make_together_are_both_the_head():
    product = Product(32, 8, INT8)
    graph = Message(product_model(product, random_weights(product), copies=3)).messages(MODEL.GRAPH)[0]
    graph.add(GRAPH.NODE, make_node("Concat", ["y.0", "y.1"], ["joined"], axis=-1), make_node("Tanh", ["joined"], ["logits"]))
    found = read_from(bytes(Message().add(MODEL.GRAPH, graph)))
    assert found == {dataclasses.replace(product, is_head=True): 2, product: 1}


@pytest.mark.parametrize("sizes", [{"K": 2**40}, {"N": 0}, {"bits": 5}, {"block_size": 7}, {"accuracy_level": 9}], ids=str)
def test_a_graph_with_impossible_sizes_is_refused(sizes):
    node = make_node("MatMulNBits", ["x"], ["y"], **({"K": 32, "N": 8, "bits": 4, "block_size": 32} | sizes))
    with pytest.raises(PackageError, match="with sizes that none has"):
        read_from(bytes(Message().add(MODEL.GRAPH, make_graph([node], ["y"], FLOAT))))


def test_the_forms_compared_are_those_of_an_export_that_change_something():
    found = [form.describe() for form in other_forms(collections.Counter({Product(576, 576, INT4): 2}), 576)]
    assert found == [
        "int4, blocks of 32",
        "int4, blocks of 64",
        "int4, blocks of 64, zero points",
        "int8, blocks of 32",
        "int8, blocks of 64",
    ], "blocks of 128 do not divide an embedding of 576"
    exact = collections.Counter({Product(128, 128, Form(8, 64, accuracy_level=0)): 1})
    assert {form.accuracy_level for form in other_forms(exact, 128)} == {0}
    assert all(form.export_options.endswith("--exact") for form in other_forms(exact, 128))


def test_what_a_budget_gave_8_bits_keeps_them_in_forms_of_4():
    mix = collections.Counter({Product(64, 64, INT4): 3, Product(64, 32, INT8): 1})
    four, eight = Form(4, 64), Form(8, 64)
    assert [form_in(product, four, mix) for product in mix] == [four, INT8]
    assert [form_in(product, eight, mix) for product in mix] == [eight, eight]
    assert form_in(Product(64, 32, INT8), four, [Product(64, 32, INT8)]) == four


def test_the_times_of_forms_are_compared_over_all_products(monkeypatch):
    """Forms of 64 take half the time for text, and the same for prompts; 8 bits take three times as long for both."""
    mix = collections.Counter({Product(64, 640, INT4): 3, Product(64, 64, INT4): 1})
    asked = []

    def time_shape(product, needed, threads):
        asked.append((product.outputs, threads))
        text = {form: (0.5 if form.block_size == 64 else 1.0) * (3 if form.bits == 8 else 1) for form in needed}
        return {form: np.array([[text[form]] * 4, [3.0 if form.bits == 8 else 1.0] * 4]) for form in needed}

    monkeypatch.setattr(product_speed, "time_shape", time_shape)
    found = compare_forms(mix, 64, threads=2)
    assert asked == [(640, 2)], "the other shape has 3 % of the weights"
    assert (found.package, found.text_ms, found.prompt_ms) == ("int4, blocks of 32, zero points", 3000, 3000)
    assert not found.disturbed
    by_name = {each.form: each for each in found.forms}
    finer = by_name["int4, blocks of 64"]
    assert (finer.text, finer.prompt, finer.faster_for) == (2.0, 1.0, ("text",))
    assert finer.size == pytest.approx((0.5 + 1 / 64) / (0.5 + 1.5 / 32))
    assert by_name["int8, blocks of 32"].faster_for == ()
    assert found.fastest("text") in (finer, by_name["int4, blocks of 64, zero points"])
    assert found.fastest("prompts") is None


def test_a_form_counts_as_faster_only_if_both_halves_of_the_rounds_say_so():
    times = summary(np.array([[1.0, 2.0, 3.0, 4.0], [5.0, 5.0, 1.0, 9.0]]))
    assert times.tolist() == [[1, 1, 2, 2.5], [1, 1, 5, 5]]
    ratios = np.array([[1.2, 1.2, 1.05, 1.2], [1.2, 1.1, 1.3, 0.5]])
    assert product_speed.compared(Form(4, 64), ratios, 1.0, disturbed=False).faster_for == ("prompts",)
    assert product_speed.compared(Form(4, 64), ratios, 1.0, disturbed=True).faster_for == ()


def test_products_are_timed_in_their_forms(monkeypatch):
    monkeypatch.setattr(product_speed, "SECONDS", 0)
    product = Product(64, 4096, INT4)
    head = dataclasses.replace(product, is_head=True)
    for each in (product, head):
        times = product_speed.time_shape(each, [INT4, Form(8, 64)], threads=1)
        assert {seconds.shape for seconds in times.values()} == {(2, product_speed.LEAST_ROUNDS)}
        assert all((seconds > 0).all() for seconds in times.values())
    assert all((seconds[0] == seconds[1]).all() for seconds in times.values()), "of a prompt, the head computes one token"
