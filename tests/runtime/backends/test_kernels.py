"""The kernels compute what ONNX Runtime's MatMulNBits computes, and the same whichever instructions do it."""

import hashlib
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from onnx_textgen.backends import kernels
from onnx_textgen.backends.onnxruntime_session import open_session
from onnx_textgen.diagnostics import devices

needs_kernels = pytest.mark.skipif(kernels.instructions() is None, reason="this build, or this processor, has no kernels")
FORMS = ("avx512-vnni", "avx-vnni", "avx2")


def product(rng, *, inner, columns, bits, block, points="none", scales="float32", **changes):
    """A graph of one MatMulNBits, made as packages have them."""
    blocks = inner // block
    codes = rng.integers(0, 256, (columns, blocks, block * bits // 8), dtype=np.uint8)
    nodes, tensors = [], {"codes": codes}
    if scales == "codes":
        tensors["scale_codes"] = rng.integers(1, 256, (columns, blocks), dtype=np.uint8)
        tensors["factors"] = rng.uniform(1e-5, 1e-4, (columns, 1)).astype(np.float32)
        nodes += [
            helper.make_node("Cast", ["scale_codes"], ["wide"], to=TensorProto.FLOAT),
            helper.make_node("Mul", ["wide", "factors"], ["scales"]),
        ]
    else:
        values = rng.uniform(0.005, 0.015, (columns, blocks)).astype(scales)
        tensors["scales" if scales == "float32" else "halves"] = values
        if scales == "float16":
            nodes.append(helper.make_node("Cast", ["halves"], ["scales"], to=TensorProto.FLOAT))
    inputs = ["numbers", "codes", "scales"]
    if points == "columns":
        tensors["points"] = rng.integers(0, 256, (columns, (blocks * bits + 7) // 8), dtype=np.uint8)
        inputs.append("points")
    attributes = {"K": inner, "N": columns, "bits": bits, "block_size": block, "accuracy_level": 4} | changes
    nodes.append(helper.make_node("MatMulNBits", inputs, ["products"], domain="com.microsoft", **attributes))
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("numbers", TensorProto.FLOAT, ["batch", "rows", inner])],
        [helper.make_tensor_value_info("products", TensorProto.FLOAT, ["batch", "rows", columns])],
        [numpy_helper.from_array(array, name) for name, array in tensors.items()],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def with_kernels(content):
    return kernels.with_kernels(content, Path())


def opened(content, *, threads=2):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    if b"onnx_textgen" in content:
        options.register_custom_ops_library(str(kernels.LIBRARY))
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def computed(session, numbers):
    return session.run(None, {"numbers": numbers})[0]


PRODUCTS = st.fixed_dictionaries(
    {
        "blocks": st.integers(1, 6),
        "columns": st.integers(1, 130),
        "bits": st.sampled_from([4, 8]),
        "block": st.sampled_from(kernels.BLOCKS),
        "points": st.sampled_from(["none", "columns"]),
        "scales": st.sampled_from(["float32", "float16", "codes"]),
    }
)


@needs_kernels
@settings(deadline=None, max_examples=60)
@given(PRODUCTS, st.integers(1, 40), st.integers(0, 2**31))
def test_products_are_those_of_onnx_runtime(sizes, rows, seed):
    rng = np.random.default_rng(seed)
    inner = sizes.pop("blocks") * sizes["block"]
    content = product(rng, inner=inner, **sizes).SerializeToString()
    numbers = rng.standard_normal((1, rows, inner)).astype(np.float32) * rng.choice([1e-3, 1.0, 100.0], (1, rows, 1)).astype(
        np.float32
    )
    expected = computed(opened(content), numbers)
    session = opened(with_kernels(content))
    found = computed(session, numbers)
    most = np.abs(numbers).sum(axis=2, keepdims=True) * 2 ** sizes["bits"] * 0.03  # no sum of products' sizes is larger
    assert (np.abs(found - expected) <= 1e-6 * most).all()
    alone = np.concatenate([computed(session, numbers[:, row : row + 1]) for row in range(rows)], axis=1)
    np.testing.assert_array_equal(found, alone)


def definition(model, numbers):
    """Each block of a row rounded to 8 bits by its largest number, times the weights of the codes, in double precision."""
    tensors = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
    codes, scales = tensors["codes"], tensors["scales"].astype(np.float64)
    weights = np.stack([codes & 15, codes >> 4], axis=-1).reshape(*codes.shape[:2], -1).astype(np.float64) - 8
    weights = (weights * scales[..., None]).reshape(len(codes), -1)
    blocks = numbers.reshape(len(numbers), codes.shape[1], -1)
    steps = np.abs(blocks).max(axis=2, keepdims=True) / np.float32(127)
    rounded = np.rint(blocks / np.where(steps == 0, 1, steps)) * steps.astype(np.float64)
    return rounded.reshape(len(numbers), -1) @ weights.T


@needs_kernels
def test_the_arithmetic_is_the_one_that_is_documented():
    rng = np.random.default_rng(1)
    model = product(rng, inner=256, columns=70, bits=4, block=32)
    numbers = rng.integers(-127, 128, (9, 256)).astype(np.float32)  # no block is rounded half up or half down
    numbers[:, ::32] = 127
    numbers[4] = 0
    found = computed(opened(with_kernels(model.SerializeToString())), numbers[None])[0]
    np.testing.assert_allclose(found, definition(model, numbers), rtol=1e-5, atol=1e-4)
    assert not found[4].any()


@needs_kernels
@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_is_not_rounded_to_one(wrong):
    rng = np.random.default_rng(2)
    session = opened(with_kernels(product(rng, inner=64, columns=40, bits=8, block=32).SerializeToString()))
    numbers = rng.standard_normal((1, 3, 64)).astype(np.float32)
    numbers[0, 1, 37] = wrong
    found = computed(session, numbers)[0]
    assert not np.isfinite(found[1]).any()
    assert np.isfinite(found[[0, 2]]).all()


@needs_kernels
def test_no_rows_are_no_products():
    session = opened(with_kernels(product(np.random.default_rng(3), inner=64, columns=40, bits=4, block=32).SerializeToString()))
    assert computed(session, np.zeros((2, 0, 64), np.float32)).shape == (2, 0, 40)


DIGEST = """
import sys
import numpy as np
sys.path[:0] = sys.argv[1:]
from runtime.backends import test_kernels
used = test_kernels.kernels.instructions()  # None: the processor lacks those that are asked for
print(used, used and test_kernels.digest())
"""


def digest():
    """A hash of many products."""
    rng, found = np.random.default_rng(4), hashlib.sha256()
    for bits in (4, 8):
        for block, points in ((16, "columns"), (32, "none"), (128, "columns")):
            content = product(rng, inner=384, columns=150, bits=bits, block=block, points=points).SerializeToString()
            session = opened(with_kernels(content))
            for rows in (1, 5, 12, 13, 64):
                numbers = rng.standard_normal((1, rows, 384)).astype(np.float32)
                numbers[0, 0, :32] *= 1e-38
                found.update(computed(session, numbers).tobytes())
    return found.hexdigest()


@needs_kernels
def test_all_instructions_compute_the_same_bits():
    tests = str(Path(__file__).parents[2])
    found = {}
    for form in FORMS:
        environment = os.environ | {kernels.VARIABLE: form}
        done = subprocess.run([sys.executable, "-c", DIGEST, tests], env=environment, capture_output=True, text=True, check=False)
        used, *rest = done.stdout.split() or ["", done.stderr]
        if used != "None":
            assert used == form, rest
            found[form] = rest
    assert found and len({str(value) for value in found.values()}) == 1, found


@pytest.mark.parametrize(
    "changes",
    [{"accuracy_level": 0}, {"accuracy_level": 1}, {"bits": 2, "codes": 2}, {"block_size": 512}],
    ids=lambda changes: "-".join(f"{name}={value}" for name, value in changes.items()),
)
def test_other_products_stay_as_they_are(changes):
    model = product(np.random.default_rng(5), inner=512, columns=8, bits=4, block=32)
    (node,) = (node for node in model.graph.node if node.op_type == "MatMulNBits")
    for attribute in node.attribute:
        attribute.i = changes.get(attribute.name, attribute.i)
    assert with_kernels(model.SerializeToString()) is None


@pytest.mark.parametrize("name", ["codes", "scales"])
def test_weights_that_a_caller_may_give_stay_as_they_are(name):
    model = product(np.random.default_rng(6), inner=64, columns=8, bits=4, block=32)
    (tensor,) = (tensor for tensor in model.graph.initializer if tensor.name == name)
    model.graph.input.append(helper.make_tensor_value_info(name, tensor.data_type, tensor.dims))
    assert with_kernels(model.SerializeToString()) is None


def test_a_bias_or_an_order_stays_as_it_is():
    model = product(np.random.default_rng(7), inner=64, columns=8, bits=4, block=32)
    (node,) = (node for node in model.graph.node if node.op_type == "MatMulNBits")
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(8, np.float32), "bias"))
    node.input.extend(["", "", "bias"])
    assert with_kernels(model.SerializeToString()) is None


def test_scales_that_something_else_reads_are_computed_for_it():
    model = product(np.random.default_rng(8), inner=64, columns=8, bits=4, block=32, scales="float16")
    model.graph.node.append(helper.make_node("Identity", ["scales"], ["copy"]))
    model.graph.output.append(helper.make_tensor_value_info("copy", TensorProto.FLOAT, [8, 2]))
    changed = onnx.load_model_from_string(with_kernels(model.SerializeToString()))
    assert [node.op_type for node in changed.graph.node] == ["Cast", "MatMulNBits", "Identity"]
    model = product(np.random.default_rng(8), inner=64, columns=8, bits=4, block=32, scales="codes")
    changed = onnx.load_model_from_string(with_kernels(model.SerializeToString()))
    assert [node.op_type for node in changed.graph.node] == ["MatMulNBits"]


def test_products_of_float16_stay_as_they_are():
    """Their scales are float16 without a cast; the kernels take float32 numbers only."""
    model = product(np.random.default_rng(12), inner=64, columns=8, bits=4, block=32, scales="float16")
    model.graph.node.remove(next(node for node in model.graph.node if node.op_type == "Cast"))
    model.graph.node[0].input[2] = "halves"
    assert with_kernels(model.SerializeToString()) is None


@pytest.mark.parametrize("sizes", [(), (1,), (8,), (1, 8), (8, 8)], ids=str)
def test_factors_that_are_not_of_columns_stay_as_they_are(sizes):
    model = product(np.random.default_rng(13), inner=256, columns=8, bits=4, block=32, scales="codes")
    (tensor,) = (tensor for tensor in model.graph.initializer if tensor.name == "factors")
    tensor.CopyFrom(numpy_helper.from_array(np.ones(sizes, np.float32), "factors"))
    assert with_kernels(model.SerializeToString()) is None


@needs_kernels
def test_the_order_of_nodes_does_not_matter():
    model = product(np.random.default_rng(14), inner=64, columns=8, bits=4, block=32, scales="codes")
    model.graph.node.append(helper.make_node("Mul", ["later", "numbers"], ["other"]))
    model.graph.node.append(helper.make_node("Cast", ["products"], ["later"], to=TensorProto.FLOAT))
    model.graph.node[3].input[1] = "products"
    model.graph.output.append(helper.make_tensor_value_info("other", TensorProto.FLOAT, ["batch", "rows", 8]))
    found = opened(with_kernels(model.SerializeToString())).run(None, {"numbers": np.ones((1, 2, 64), np.float32)})
    np.testing.assert_array_equal(found[1], found[0] * found[0])


@pytest.mark.parametrize("kept", [0, 1, 2])
def test_a_product_without_its_inputs_is_left_to_onnx_runtime(kept):
    model = product(np.random.default_rng(15), inner=64, columns=8, bits=4, block=32)
    del model.graph.node[0].input[kept:]
    assert with_kernels(model.SerializeToString()) is None


@needs_kernels
def test_sizes_beyond_all_memory_are_refused():
    model = product(np.random.default_rng(16), inner=64, columns=8, bits=8, block=16)
    for tensor, sizes in zip(model.graph.initializer, ((8, 0, 16), (8, 0)), strict=True):
        del tensor.dims[:]
        tensor.dims.extend(sizes)
        tensor.raw_data = b""
    (node,) = model.graph.node
    for attribute in node.attribute:
        attribute.i = 2**61 if attribute.name == "K" else attribute.i
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "any"
    with pytest.raises(onnxruntime.capi.onnxruntime_pybind11_state.RuntimeException, match="do not fit"):
        opened(with_kernels(model.SerializeToString()))


@needs_kernels
def test_nodes_of_other_sizes_share_nothing(tmp_path):
    rng, path = np.random.default_rng(17), tmp_path / "model.onnx"
    model = product(rng, inner=2048, columns=64, bits=8, block=32)
    onnx.save_model(model, path, save_as_external_data=True, location="weights.data", size_threshold=1024)
    first = open_session(path, device="cpu")
    for tensor in model.graph.initializer:
        tensor.dims[0] = 16
        (length,) = (entry for entry in tensor.external_data if entry.key == "length")
        length.value = str(int(length.value) // 4)
    model.graph.output[0].type.tensor_type.shape.dim[2].dim_value = 16
    next(each for each in model.graph.node[0].attribute if each.name == "N").i = 16
    (tmp_path / "fewer.onnx").write_bytes(model.SerializeToString())
    fewer = open_session(tmp_path / "fewer.onnx", device="cpu")
    numbers = rng.standard_normal((1, 3, 2048)).astype(np.float32)
    np.testing.assert_array_equal(computed(fewer.ort, numbers), computed(first.ort, numbers)[..., :16])


@needs_kernels
def test_weights_in_a_file_are_given_back(tmp_path):
    """A repacked matrix would otherwise be in memory twice."""
    model = product(np.random.default_rng(9), inner=2048, columns=4096, bits=8, block=32, scales="float16")
    numbers, path = np.random.default_rng(1).standard_normal((1, 2, 2048)).astype(np.float32), tmp_path / "model.onnx"
    expected = computed(opened(model.SerializeToString()), numbers)
    onnx.save_model(model, path, save_as_external_data=True, location="weights.data", size_threshold=1024)
    session = open_session(path, device="cpu")
    np.testing.assert_allclose(session.ort.run(None, {"numbers": numbers})[0], expected, atol=1e-3)
    if Path("/proc/self/smaps").exists():
        resident = re.findall(r"weights\.data\n(?:.*\n)*?Rss: +(\d+) kB", Path("/proc/self/smaps").read_text())
        assert sum(map(int, resident)) < 2048, resident


OPEN_TWICE = """
import re, sys
from pathlib import Path
from onnx_textgen.backends.onnxruntime_session import open_session
def resident():
    return int(re.search(r"RssAnon:\\s+([0-9]+) kB", Path("/proc/self/status").read_text())[1]) * 1024
before = resident()
first = open_session(Path(sys.argv[1]), device="cpu", threads=1)
once = resident()
second = open_session(Path(sys.argv[1]), device="cpu", threads=1)
print(once - before, resident() - once)
"""


@needs_kernels
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux tells how much memory is whose")
def test_sessions_share_their_weights_until_the_file_changes(tmp_path):
    rng, path = np.random.default_rng(11), tmp_path / "model.onnx"
    options = {"save_as_external_data": True, "location": "weights.data", "size_threshold": 1024}
    onnx.save_model(product(rng, inner=4096, columns=4096, bits=8, block=32), path, **options)
    numbers = rng.standard_normal((1, 2, 4096)).astype(np.float32)
    done = subprocess.run([sys.executable, "-c", OPEN_TWICE, str(path)], capture_output=True, text=True, check=True)
    first, second = map(int, done.stdout.split())
    assert first > 4096 * 4096
    assert second < 0.2 * first
    session = open_session(path, device="cpu")
    expected = session.ort.run(None, {"numbers": numbers})[0]
    (tmp_path / "weights.data").unlink()
    onnx.save_model(product(rng, inner=4096, columns=4096, bits=8, block=32), path, **options)
    other = open_session(path, device="cpu")
    assert not np.array_equal(other.ort.run(None, {"numbers": numbers})[0], expected)
    np.testing.assert_array_equal(session.ort.run(None, {"numbers": numbers})[0], expected)


@needs_kernels
def test_a_graph_with_its_weights_inside_has_them_too(tmp_path):
    model = product(np.random.default_rng(10), inner=64, columns=8, bits=4, block=32)
    onnx.save_model(model, tmp_path / "model.onnx")
    session = open_session(tmp_path / "model.onnx", device="cpu", threads=1)
    assert b"onnx_textgen" in with_kernels((tmp_path / "model.onnx").read_bytes())
    assert computed(session.ort, np.ones((1, 1, 64), np.float32)).shape == (1, 1, 8)


def test_without_kernels_onnx_runtime_computes_all(monkeypatch):
    monkeypatch.setenv(kernels.VARIABLE, "0")
    assert kernels.instructions.__wrapped__() is None
    monkeypatch.delenv(kernels.VARIABLE)
    monkeypatch.setattr(kernels, "LIBRARY", Path("none.so"))
    assert kernels.instructions.__wrapped__() is None


IS_COMPILED_HERE = (sys.platform, platform.machine()) == ("linux", "x86_64")
SAID = {
    ("avx2", "", True): "by onnx-textgen's kernels (avx2)",
    (None, "0", True): "by its own kernels: ONNX_TEXTGEN_KERNELS is '0'",
    (None, "", True): "by its own kernels: this processor has no AVX2",
    (None, "", False): "install g++" if IS_COMPILED_HERE else "for Linux on x86-64 only",
}


@pytest.mark.parametrize("case", SAID, ids=str)
def test_doctor_says_what_multiplies_and_why(monkeypatch, tmp_path, case):
    found, variable, is_built = case
    monkeypatch.setenv(kernels.VARIABLE, variable)
    monkeypatch.setattr(kernels, "LIBRARY", Path(__file__) if is_built else tmp_path / "none")
    monkeypatch.setattr(kernels, "instructions", lambda: found)
    assert SAID[case] in devices.products()
