"""Weights in 8 and 4 bits: the rounding itself, the tensors it is stored in, and the graph that uses them."""

import functools
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator
from onnxruntime.capi._pybind_state import quantize_matmul_4bits, quantize_matmul_8bits
from onnxruntime.quantization.matmul_nbits_quantizer import HQQWeightOnlyQuantConfig, HQQWeightOnlyQuantizer
from onnxruntime.quantization.neural_compressor.weight_only import quant_tensor_k_quant_cpu

import onnx_textgen
from onnx_textgen_export import DecoderConfig, TinyTransformer, export
from onnx_textgen_export.errors import ExportError
from onnx_textgen_export.passes.quantization.layouts import SameBytes
from onnx_textgen_export.passes.quantization.options import DEFAULTS, Quantization
from onnx_textgen_export.passes.quantization.quantizers import Codes, blocks_of, importance, make_quantizer, with_row_scales
from onnx_textgen_export.passes.quantization.stored_matrices import quantize
from support.examples import examples

VOCABULARY, WIDTH, INNER = 1024, 64, 96


def dequantised(found: Codes, bits: int) -> np.ndarray:
    """The values that codes stand for."""
    zeros = found.zeros if found.zeros is not None else np.float32(1 << (bits - 1))
    return (found.codes - zeros) * found.scales


def random_blocks(seed: int, size: int = 32, count: int = 200) -> np.ndarray:
    """Blocks with outliers, of all magnitudes."""
    random = np.random.default_rng(seed)
    return (random.standard_t(4, (size, count)) * 10.0 ** random.integers(-3, 3, count)).astype(np.float32)


def weighted_error(blocks: np.ndarray, values: np.ndarray) -> np.ndarray:
    """What k-quant minimises, per block."""
    return (importance(blocks) * (values - blocks) ** 2).sum(axis=0)


@examples(50)
@given(st.integers(0, 2**32 - 1), st.sampled_from([4, 8]), st.sampled_from([16, 32, 128]), st.booleans())
def test_rounding_moves_no_value_by_more_than_a_step_and_keeps_zeros(seed, bits, size, symmetric) -> None:
    blocks = random_blocks(seed, size)
    blocks[::5] = 0
    found = make_quantizer(Quantization(bits, symmetric=symmetric, method="rtn"), bits)(blocks)
    values = dequantised(found, bits)
    assert (np.abs(values - blocks) <= np.abs(found.scales) * 1.0001).all()
    assert (values[::5] == 0).all()
    assert found.codes.min() >= 0
    assert found.codes.max() < 2**bits


@pytest.mark.parametrize("method", ["rtn", "k_quant", "hqq"])
@pytest.mark.parametrize("bits", [4, 8])
def test_a_block_of_zeros_stays_zero_and_a_constant_block_constant(method: str, bits: int) -> None:
    for symmetric in (True, False):
        if method == "hqq" and (symmetric or bits == 8):
            continue
        find = make_quantizer(Quantization(bits, symmetric=symmetric, method=method), bits)
        blocks = np.repeat(np.array([[0, 3, -3]], np.float32), 32, axis=0)
        np.testing.assert_allclose(dequantised(find(blocks), bits), blocks, rtol=1e-6)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("symmetric", [True, False])
def test_rounding_is_that_of_onnx_runtimes_own_quantizer(bits: int, symmetric: bool) -> None:
    matrix = np.random.default_rng(3).standard_normal((48, 128)).astype(np.float32)  # [out, in]
    codes, scales = np.zeros((48, 4, 4 * bits), np.uint8), np.zeros((48, 4), np.float32)
    zeros = np.zeros((48, 4 * bits // 8), np.uint8)
    theirs = quantize_matmul_4bits if bits == 4 else quantize_matmul_8bits
    theirs(codes, np.ascontiguousarray(matrix.T), scales, zeros, 32, 48, 128, symmetric)
    found = make_quantizer(Quantization(bits, symmetric=symmetric, method="rtn"), bits)(
        blocks_of(matrix, 32, inputs_first=False).reshape(32, -1)
    )
    unpacked = np.stack([codes & 15, codes >> 4], axis=-1).reshape(-1, 32) if bits == 4 else codes.reshape(-1, 32)
    np.testing.assert_allclose(found.scales, scales.reshape(-1), rtol=1e-6)
    assert (unpacked == found.codes.T).mean() > 0.999  # a value half-way between two codes may go either way
    assert np.abs(found.codes.T - unpacked).max() <= 1


@examples(30)
@given(st.integers(0, 2**32 - 1), st.sampled_from([4, 8]), st.booleans())
def test_k_quant_is_never_worse_than_rounding_by_the_measure_it_minimises(seed, bits, symmetric) -> None:
    blocks = random_blocks(seed)
    plain, searched = (
        weighted_error(blocks, dequantised(make_quantizer(Quantization(bits, symmetric=symmetric, method=m), bits)(blocks), bits))
        / weighted_error(blocks, np.zeros_like(blocks))
        for m in ("rtn", "k_quant")
    )
    assert (searched <= plain * 1.001).mean() > 0.98  # a zero point half-way between two may be rounded either way
    assert searched.mean() < plain.mean()


def test_k_quant_leaves_less_error_than_onnx_runtimes() -> None:
    blocks = random_blocks(7, count=2000)
    codes, scales, zeros = quant_tensor_k_quant_cpu(blocks.T.copy(), 4, 32)
    theirs = weighted_error(blocks, ((codes - zeros) * scales).T) / np.square(blocks).sum(axis=0)
    found = make_quantizer(Quantization(4, symmetric=False), 4)(blocks)
    ours = weighted_error(blocks, dequantised(found, 4)) / np.square(blocks).sum(axis=0)
    assert ours.mean() < theirs.mean()


def test_hqq_is_no_worse_than_onnx_runtimes() -> None:
    matrix = np.random.default_rng(5).standard_t(4, (64, 128)).astype(np.float32)
    library = HQQWeightOnlyQuantizer(HQQWeightOnlyQuantConfig(block_size=32))
    codes, scales, zeros = library.quantize_internal(torch.from_numpy(matrix), bits=4, group_size=32)
    theirs = ((codes.reshape(64, 4, 32) - zeros[..., None]) * scales[..., None]).reshape(64, 128).numpy()
    blocks = blocks_of(matrix, 32, inputs_first=False).reshape(32, -1)
    ours = dequantised(make_quantizer(Quantization(4, symmetric=False, method="hqq"), 4)(blocks), 4)
    assert np.abs(ours - blocks).mean() <= np.abs(theirs - matrix).mean() * 1.001
    rounded = dequantised(make_quantizer(Quantization(4, symmetric=False, method="rtn"), 4)(blocks), 4)
    assert np.abs(ours - blocks).mean() < np.abs(rounded - blocks).mean()


class Weight:
    """A random matrix that counts how often it is read."""

    def __init__(self, name: str, *shape: int) -> None:
        self.array = np.random.default_rng(len(name) + sum(shape)).standard_normal(shape).astype(np.float32) / 8
        self.reads = 0
        lazy = ir.LazyTensor(self.read, dtype=ir.DataType.FLOAT, shape=ir.Shape(shape), name=name)
        self.value = ir.Value(name=name, const_value=lazy, shape=ir.Shape(shape), type=ir.TensorType(ir.DataType.FLOAT))

    def read(self) -> ir.TensorProtocol:
        self.reads += 1
        return ir.tensor(self.array)


def weight(name: str, *shape: int) -> ir.Value:
    """A weight in a graph; `source_of` finds the `Weight` again."""
    return Weight(name, *shape).value


def source_of(value: ir.Value) -> Weight:
    """Where a weight is read from."""
    return value.const_value.raw.__self__


def small_decoder(*, tied: bool = True) -> ir.Model:
    """Embedding, a feed-forward layer in every form a linear layer comes in, and an output layer; no attention."""
    ids = ir.Value(name="input_ids", shape=ir.Shape(["batch", "new"]), type=ir.TensorType(ir.DataType.INT64))
    table, head = weight("embed", VOCABULARY, WIDTH), weight("head", VOCABULARY, WIDTH)
    up, down, bias = weight("up", INNER, WIDTH), weight("down", INNER, WIDTH), weight("bias", INNER)
    gemm, flat, square = weight("gemm", WIDTH, INNER), ir.tensor(np.array([-1, WIDTH]), name="flat"), weight("square", WIDTH, WIDTH)
    flat_value = ir.Value(name="flat", const_value=flat, shape=ir.Shape([2]), type=ir.TensorType(ir.DataType.INT64))
    nodes = [
        gather := ir.node("Gather", [table, ids]),
        turned := ir.node("Transpose", [up], {"perm": [1, 0]}),
        first := ir.node("MatMul", [gather.outputs[0], turned.outputs[0]]),
        act := ir.node("Relu", first.outputs),
        second := ir.node("MatMul", [act.outputs[0], down]),
        rows := ir.node("Reshape", [second.outputs[0], flat_value]),
        third := ir.node("Gemm", [rows.outputs[0], gemm, bias]),
        fourth := ir.node("Gemm", [third.outputs[0], down]),
        fifth := ir.node("MatMul", [fourth.outputs[0], square]),
        head_turned := ir.node("Transpose", [table if tied else head], {"perm": [1, 0]}),
        last := ir.node("MatMul", [fifth.outputs[0], head_turned.outputs[0]]),
    ]
    gather.outputs[0].shape, gather.outputs[0].type = ir.Shape(["batch", "new", WIDTH]), ir.TensorType(ir.DataType.FLOAT)
    logits = last.outputs[0]
    logits.name, logits.shape, logits.type = "logits", ir.Shape(["tokens", VOCABULARY]), ir.TensorType(ir.DataType.FLOAT)
    weights = [table, up, down, bias, gemm, flat_value, square, *([] if tied else [head])]
    graph = ir.Graph([ids], [logits], nodes=nodes, initializers=weights, opset_imports={"": 23}, name="small")
    return ir.Model(graph, ir_version=11)


def run(model: ir.Model, ids: np.ndarray) -> np.ndarray:
    """Logits by ONNX Runtime."""
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(proto.SerializeToString(), options).run(None, {"input_ids": ids})[0]


def rounded_decoder(options: Quantization, bits: dict[str, int]) -> ir.Model:
    """The decoder with its weights rounded and stored as float32: what a quantised one must compute."""
    model = small_decoder(tied=True)
    for name, width in bits.items():
        source = source_of(model.graph.initializers[name])
        first = name in ("down", "gemm", "square")
        blocks = blocks_of(source.array, options.block_size, inputs_first=first)
        found = make_quantizer(options, width, gathered=name == "embed")(blocks.reshape(options.block_size, -1))
        scales, zeros = (None if each is None else each.reshape(blocks.shape[1:]) for each in (found.scales, found.zeros))
        values = dequantised(with_row_scales(blocks, Codes(found.codes, scales, zeros), width), width)
        matrix = values.transpose(1, 2, 0).reshape(blocks.shape[1], -1)
        inputs = source.array.shape[0 if first else 1]
        source.array = (matrix[:, :inputs].T if first else matrix[:, :inputs]).copy()
    return model


EXACT = functools.partial(Quantization, accuracy_level=1)
OPTIONS = [
    EXACT(8, method="rtn"),
    EXACT(8, 16, symmetric=False),
    EXACT(4),
    EXACT(4, 64, symmetric=False),  # the inner width of 96 is one block and a half
    EXACT(4, symmetric=False, method="hqq"),
    EXACT(4, head_bits=8),
    EXACT(4, symmetric=False, head_bits=8, sensitive_bits=8),
]
IDS = np.array([[5, 0, 1023], [17, 300, 2]])


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: options.describe())
@pytest.mark.parametrize("target", ["ort", "standard"])
def test_the_graph_computes_with_exactly_the_rounded_weights(options: Quantization, target: str) -> None:
    if target == "standard" and options.method == "hqq":
        with pytest.raises(ExportError, match="hqq has fractional zero points"):
            quantize(small_decoder(), options, "standard")
        return
    model = small_decoder()
    quantize(model, options, target)
    head = 8 if target == "standard" else options.head_bits or options.bits
    sensitive = options.sensitive_bits or options.bits
    bits = {"embed": head, "up": sensitive, "down": sensitive, "gemm": sensitive, "square": sensitive}
    if options.sensitive_bits:
        bits["up"] = options.bits  # the first of a chain ends no feed-forward layer
    want, got = run(rounded_decoder(options, bits), IDS), run(model, IDS)
    np.testing.assert_allclose(got, want, atol=1e-5 * np.abs(want).max())
    if target == "standard":
        exact = ReferenceEvaluator(ir.to_proto(model)).run(None, {"input_ids": IDS})[0]
        np.testing.assert_allclose(exact, want, atol=1e-5 * np.abs(want).max())


@pytest.mark.parametrize("target", ["ort", "standard"])
@pytest.mark.parametrize("tied", [True, False])
def test_each_weight_is_read_once_and_only_when_it_is_written(target: str, tied: bool) -> None:
    model = small_decoder(tied=tied)
    sources = {name: source_of(value) for name, value in model.graph.initializers.items() if name != "flat"}
    quantize(model, Quantization(4, symmetric=False, head_bits=8), target)
    assert [source.reads for source in sources.values()] == [0] * len(sources)
    for value in model.graph.initializers.values():
        if not isinstance(value.const_value, SameBytes):  # for which nothing is written
            assert len(value.const_value.tobytes()) == value.const_value.nbytes
    assert {source.reads for source in sources.values()} == {1}


def test_nothing_of_a_weight_stays_in_memory_once_it_is_written() -> None:
    model = small_decoder()
    quantize(model, Quantization(4, symmetric=False))
    codes = model.graph.initializers["up.codes"].const_value
    last = codes.raw.__closure__[[*codes.raw.__code__.co_freevars].index("last")].cell_contents
    for kind in ("codes", "scale_codes", "row_scales", "zeros"):
        model.graph.initializers[f"up.{kind}"].const_value.numpy()
    assert last.arrays == {}


def test_a_tied_table_is_stored_once_and_an_untied_one_beside_the_head() -> None:
    for tied in (True, False):
        for target in ("ort", "standard"):
            model = small_decoder(tied=tied)
            quantize(model, Quantization(4), target)
            tables = [v for n, v in model.graph.initializers.items() if n.endswith(".codes") and VOCABULARY in v.shape.numpy()]
            assert len(tables) == (1 if tied else 2)


def test_the_standard_target_uses_no_operator_outside_the_onnx_domain() -> None:
    model = small_decoder()
    quantize(model, Quantization(4), "standard")
    assert {node.domain for node in model.graph} == {""}
    assert set(model.opset_imports) == {""}


def test_experts_and_routers_are_left_as_they_are() -> None:
    hidden = ir.Value(name="hidden", shape=ir.Shape([4, WIDTH]), type=ir.TensorType(ir.DataType.FLOAT))
    router, experts, k = weight("router", WIDTH, 8), weight("experts", 8, WIDTH, WIDTH), ir.tensor(np.array([2]), name="k")
    k_value = ir.Value(name="k", const_value=k, shape=ir.Shape([1]), type=ir.TensorType(ir.DataType.INT64))
    scores = ir.node("MatMul", [hidden, router])
    soft = ir.node("Softmax", scores.outputs)
    top = ir.node("TopK", [soft.outputs[0], k_value], num_outputs=2)
    mixed = ir.node("MatMul", [hidden, experts])
    mixed.outputs[0].name = "logits"
    graph = ir.Graph(
        [hidden], [mixed.outputs[0], top.outputs[1]], nodes=[scores, soft, top, mixed],
        initializers=[router, experts, k_value], opset_imports={"": 23},
    )  # fmt: skip
    quantize(ir.Model(graph, ir_version=11), Quantization(8))
    assert [node.op_type for node in graph] == ["MatMul", "Softmax", "TopK", "MatMul"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"bits": 3}, "4 or 8 bits, found bits 3"),
        ({"bits": 4, "head_bits": 5}, "found head bits 5"),
        ({"bits": 4, "block_size": 48}, "16, 32, 64, 128 or 256 weights, found 48"),
        ({"bits": 4, "method": "gptq"}, "k_quant, rtn and hqq, found 'gptq'"),
        ({"bits": 4, "method": "hqq"}, "add --asymmetric"),
        ({"bits": 8, "method": "hqq", "symmetric": False}, "4 bits only"),
        ({"bits": 4, "accuracy_level": 3}, "0, 1 or 4, found 3"),
    ],
)
def test_options_that_make_no_sense_are_refused_in_one_line(options, said) -> None:
    with pytest.raises(ExportError, match=said) as caught:
        Quantization(**options)
    assert "\n" not in str(caught.value)


def test_the_defaults_are_named_after_their_bits() -> None:
    assert {name: f"int{options.bits}" for name, options in DEFAULTS.items()} == {"int8": "int8", "int4": "int4"}


@pytest.mark.slow
@pytest.mark.parametrize("tied", [False, True])
def test_an_int8_package_is_close_to_pytorch_and_stores_tied_embeddings_once(tied: bool, tmp_path: Path) -> None:
    torch.manual_seed(4)
    config = DecoderConfig(vocab_size=2048, width=128, layers=2, tie_embeddings=tied, positions="rotary", norm="rms", bias=False)
    module = TinyTransformer(config).eval()
    made = export(module, tmp_path / "package", precision="int8")
    graph = onnx.load(tmp_path / "package" / "model.onnx", load_external_data=False).graph
    kinds = [node.op_type for node in graph.node]
    assert "MatMul" not in kinds
    assert kinds.count("MatMulNBits") >= 4 * config.layers + 1
    assert kinds.count("GatherBlockQuantized") == 1
    tables = [i for i in graph.initializer if i.name.endswith(".codes") and i.dims[0] == 2048]
    assert len(tables) == (1 if tied else 2)
    ids = np.random.default_rng(0).integers(0, 2048, 30).tolist()
    with torch.no_grad():
        want = module(torch.tensor([ids]))[0].numpy()
    got = onnx_textgen.load(made.folder).new_context().feed(ids, every_position=True)
    assert np.abs(got - want).max() < 0.05 * np.abs(want).max()


def test_the_linear_layers_of_gpt2_are_quantised_too(tmp_path: Path) -> None:
    torch.manual_seed(2)
    config = transformers.GPT2Config(
        vocab_size=2048, n_embd=64, n_layer=2, n_head=2, n_positions=128, bos_token_id=None, eos_token_id=None
    )
    export(transformers.GPT2LMHeadModel(config), tmp_path / "package", precision="int8")
    graph = onnx.load(tmp_path / "package" / "model.onnx", load_external_data=False).graph
    kinds = [node.op_type for node in graph.node]
    assert (kinds.count("MatMulNBits"), kinds.count("Gemm"), kinds.count("MatMul")) == (4 * 2 + 1, 0, 0)
