"""Prompts on OpenVINO for a cache of 8 bits: rounded as the graph with that cache rounds them, and handed over without loss."""

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from onnx import numpy_helper

import onnx_textgen
from onnx_textgen import Model
from onnx_textgen.backends.cache_codes import from_codes, read_scales, to_codes
from onnx_textgen.backends.onnxruntime_session import INT8_CACHE_MIN_VERSION
from onnx_textgen.errors import DeviceError, PackageError
from onnx_textgen.inference.hand_over import new_reader
from onnx_textgen.inference.prefill import prefill
from onnx_textgen.inference.prompt_engine import SHORTEST
from onnx_textgen.package.integrity import file_record
from onnx_textgen.package.manifest import GRAPH, INT8_CACHE_GRAPH, MANIFEST, manifest_to_json, weights_files
from onnx_textgen_export import Exported, export
from support.examples import examples

pytest.importorskip("openvino", reason='the second engine needs pip install "onnx-textgen[openvino]"')
pytestmark = pytest.mark.skipif(
    tuple(int(part) for part in onnxruntime.__version__.split(".")[:2]) < INT8_CACHE_MIN_VERSION,
    reason=f"onnxruntime {onnxruntime.__version__} has no attention over 8 bits",
)
GREEDY = {"temperature": 0, "ignore_eos": True}


def ids_of(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(2, 300, length).tolist()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """In float32, so that the engines differ by nothing but the order of their sums."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 3, "num_attention_heads": 4}
    config = transformers.LlamaConfig(**sizes, num_key_value_heads=2, vocab_size=300, max_position_embeddings=512)
    folder = tmp_path_factory.mktemp("int8-cache-hybrid") / "out"
    return export(transformers.LlamaForCausalLM(config).eval(), folder, int8_cache=True)


@pytest.fixture(scope="module")
def plain(made: Exported) -> Model:
    return onnx_textgen.load(made.folder / INT8_CACHE_GRAPH, device="cpu", threads=1)


@pytest.fixture(scope="module")
def hybrid(made: Exported) -> Model:
    return onnx_textgen.load(made.folder / INT8_CACHE_GRAPH, device="hybrid", threads=1)


def test_the_scales_are_those_of_the_graph(made: Exported) -> None:
    graph = onnx.load(made.folder / INT8_CACHE_GRAPH, load_external_data=False).graph
    wanted = {each.name: numpy_helper.to_array(each) for each in graph.initializer if each.name.endswith("_scale")}
    found = read_scales(made.folder / INT8_CACHE_GRAPH)
    assert len(found) == len(wanted) == 6
    assert {array.tobytes() for array in found.values()} == {array.tobytes() for array in wanted.values()}
    with pytest.raises(PackageError, match="keeps no keys and values at 8 bits"):
        read_scales(made.folder / GRAPH)


@given(st.integers(0, 2**32 - 1), st.floats(1e-6, 1e3))
def test_codes_come_back_unchanged(seed: int, size: float) -> None:
    random = np.random.default_rng(seed)
    scales = (size * random.uniform(1e-3, 1, (1, 2, 1, 8))).astype(np.float32)
    codes = random.integers(-128, 128, (1, 2, 50, 8)).astype(np.int8)
    np.testing.assert_array_equal(to_codes(from_codes(codes, scales), scales), codes)


def test_codes_and_logits_are_those_of_the_graph(plain: Model, hybrid: Model) -> None:
    for length in (SHORTEST - 1, SHORTEST, SHORTEST + 1, 150, 400):
        ours, theirs = hybrid.new_context(), plain.new_context()
        found, wanted = (prefill(context, ids_of(length)) for context in (ours, theirs))
        assert ours.origin(0).engine == ("openvino" if length >= SHORTEST else None)
        np.testing.assert_allclose(found, wanted, atol=5e-3 * np.abs(wanted).max())
        taken, expected = (context.cache.take(0, length) for context in (ours, theirs))
        for name, codes in expected.items():
            steps = np.abs(taken[name].astype(int) - codes)
            assert codes.dtype == taken[name].dtype == np.int8
            assert steps.max() <= 1
            assert (steps > 0).mean() < 0.01, "sums in another order make a step of now and then"


def test_openvino_attends_to_what_the_cache_holds(hybrid: Model) -> None:
    """Its own keys and values are the codes' numbers, to the last bit: what is handed over loses nothing."""
    engine = hybrid.generator.opened.prompt_engine
    assert engine is not None
    reader = new_reader(engine, 100)
    prefill(reader, ids_of(100))
    for name, numbers in reader.cache.take(0, 100).items():
        scales = engine.scales[name]
        np.testing.assert_array_equal(from_codes(to_codes(numbers, scales), scales), numbers)
        assert np.abs(numbers / scales).max() <= 128


@given(st.lists(st.tuples(st.integers(1, 110), st.integers(1, 10)), min_size=2, max_size=4), st.integers(0, 5))
@examples(12)
def test_a_continued_text_is_the_one_from_the_beginning(hybrid: Model, turns: list[tuple[int, int]], seed: int) -> None:
    session, given_ids = hybrid.session(), ids_of(480, seed)
    for start, (new, answer) in enumerate(turns):
        session.append(given_ids[start * 110 : start * 110 + new])
        prompt = list(session.token_ids)
        found = session.generate(max_new_tokens=answer, **GREEDY)
        chunks = hybrid.stream(prompt, max_new_tokens=answer, **GREEDY, context=hybrid.new_context())
        assert found.token_ids == tuple(token_id for chunk in chunks for token_id in chunk.token_ids)


def test_the_plan_counts_the_second_cache_in_float32(plain: Model, hybrid: Model) -> None:
    assert hybrid.memory(200).total_bytes == 5 * plain.memory(200).total_bytes
    assert hybrid.memory(20).total_bytes == plain.memory(20).total_bytes


def test_bfloat16_is_refused(made: Exported) -> None:
    with pytest.raises(DeviceError, match=r"at 8 bits, which bfloat16 would round again; take the device hybrid"):
        onnx_textgen.load(made.folder / INT8_CACHE_GRAPH, device="hybrid:bf16")


@pytest.mark.parametrize(
    ("last", "message"),
    [
        (b"", "has no scales for its cache of 8 bits"),
        *(
            (np.float32(value).tobytes(), "has scales that are no positive numbers")
            for value in (0, -1, np.nan, np.inf, 1e-40, 3e38)
        ),
    ],
)
def test_a_graph_whose_scales_cannot_be_used_is_refused(made: Exported, tmp_path: Path, last: bytes, message: str) -> None:
    model = onnx.load(made.folder / INT8_CACHE_GRAPH, load_external_data=False)
    for tensor in model.graph.initializer:
        if tensor.name.endswith("key_scale"):
            tensor.raw_data = tensor.raw_data[:-4] + last
    (tmp_path / INT8_CACHE_GRAPH).write_bytes(model.SerializeToString())
    with pytest.raises(PackageError, match=message):
        read_scales(tmp_path / INT8_CACHE_GRAPH)


def test_the_second_engines_graph_reads_listed_weights_only(made: Exported, tmp_path: Path) -> None:
    """It is another graph than the one that is opened, and its hash says nothing about what it reads."""
    folder = shutil.copytree(made.folder, tmp_path / "out")
    model = onnx.load(folder / GRAPH, load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = "other.bin"
    (folder / GRAPH).write_bytes(model.SerializeToString())
    shutil.copy(folder / weights_files(made.manifest)[0], folder / "other.bin")
    files = {**made.manifest.files, GRAPH: file_record(folder / GRAPH)}
    (folder / MANIFEST).write_text(manifest_to_json(dataclasses.replace(made.manifest, files=files)))
    with pytest.raises(PackageError, match=r"model.onnx reads 'other.bin', which the manifest does not list"):
        onnx_textgen.load(folder / INT8_CACHE_GRAPH, device="hybrid", threads=1)
