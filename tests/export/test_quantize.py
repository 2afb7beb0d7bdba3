"""Weights in 8 and 4 bits: the rounding itself, and the graph that uses it."""

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

import onnx_textgen
from onnx_textgen_export import DecoderConfig, TinyTransformer, export
from onnx_textgen_export.passes.quantize import BLOCK, quantize_blocks


def unpack(packed: np.ndarray, scales: np.ndarray, bits: int) -> np.ndarray:
    """The values that the operators compute with."""
    codes = packed.astype(np.int32)
    if bits == 4:
        codes = np.stack([codes & 15, codes >> 4], axis=-1).reshape(*packed.shape[:2], BLOCK)
    return ((codes - (1 << (bits - 1))) * scales[:, :, None]).reshape(len(packed), -1)


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 2**32 - 1), st.sampled_from([4, 8]), st.integers(1, 5), st.integers(1, 100))
def test_no_value_moves_by_more_than_one_step_and_the_extreme_of_each_block_is_exact(seed, bits, rows, columns) -> None:
    random = np.random.default_rng(seed)
    matrix = (random.standard_normal((rows, columns)) * 10.0 ** random.integers(-3, 3)).astype(np.float32)
    blocks = quantize_blocks(matrix, bits)
    got = unpack(blocks.packed, blocks.scales, bits)[:, :columns]
    step = np.abs(np.repeat(blocks.scales, BLOCK, axis=1)[:, :columns])
    assert (np.abs(got - matrix) <= step * 1.0001).all()
    extreme = np.abs(matrix).argmax(axis=1)[:, None]
    np.testing.assert_allclose(np.take_along_axis(got, extreme, 1), np.take_along_axis(matrix, extreme, 1), rtol=1e-6)


def test_a_block_of_zeros_stays_zero() -> None:
    blocks = quantize_blocks(np.zeros((2, 64), np.float32), 4)
    assert not unpack(blocks.packed, blocks.scales, 4).any()


@pytest.mark.parametrize("tied", [False, True])
def test_an_int8_package_is_close_to_pytorch_and_stores_tied_embeddings_once(tied: bool, tmp_path: Path) -> None:
    torch.manual_seed(4)
    config = DecoderConfig(vocab_size=2048, width=128, layers=2, tie_embeddings=tied, positions="rotary", norm="rms", bias=False)
    module = TinyTransformer(config).eval()
    made = export(module, tmp_path / "package", precision="int8")
    graph = onnx.load(tmp_path / "package" / "model.onnx", load_external_data=False).graph
    kinds = [node.op_type for node in graph.node]
    assert kinds.count("MatMulNBits") == 6 * config.layers + 1
    assert "MatMul" not in kinds
    assert kinds.count("GatherBlockQuantized") == 1
    tables = [i for i in graph.initializer if i.name.endswith(".blocks") and i.dims[0] == 2048]
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
