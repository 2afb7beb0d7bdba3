"""The graphs that other runtimes open: their form, and that they compute what the own graph computes."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

import onnx_textgen
from onnx_textgen.package.locate import find_package
from onnx_textgen.package.manifest import WASM_GRAPH, shared_graph
from onnx_textgen.package.reading import read_manifest
from onnx_textgen_export import ExportError, export
from onnx_textgen_export.exporting import graphs as exported_graphs
from onnx_textgen_export.extra_graphs.shared_graph import gather_by_standard_operators
from onnx_textgen_export.passes.quantization.options import Quantization
from support.processor import HAS_VNNI

EMBEDDED = ["story", "tiny-transformer"]


def shapes(values: list[onnx.ValueInfoProto]) -> dict[str, list[str | int]]:
    return {value.name: [size.dim_param or size.dim_value for size in value.type.tensor_type.shape.dim] for value in values}


def greedy(graph: Path, ids: list[int], new: int, **options: str) -> list[int]:
    """A greedy text by plain ONNX Runtime, over a cache that grows."""
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    for key, value in options.items():
        settings.add_session_config_entry(f"session.{key}", value)
    session = onnxruntime.InferenceSession(str(graph), settings)
    cache = {
        each.name: np.zeros((1, each.shape[1], 0, each.shape[3]), np.float32)
        for each in session.get_inputs()
        if each.name.startswith("past_")
    }
    text, chunk = list(ids), list(ids)
    for _ in range(new):
        feeds = {"input_ids": np.array([chunk]), "attention_mask": np.ones((1, len(text)), np.int64)}
        logits, *presents = session.run(None, feeds | cache)
        cache = dict(zip(cache, presents, strict=True))
        chunk = [int(logits[0, -1].argmax())]
        text += chunk
    return text[len(ids) :]


@pytest.mark.parametrize("name", EMBEDDED)
def test_the_graph_has_the_sizes_and_operators_that_browsers_know(name: str) -> None:
    folder = find_package(name)
    model = onnx.load(folder / str(shared_graph(read_manifest(folder))), load_external_data=False)
    found = shapes([*model.graph.input, *model.graph.output])
    assert found.keys().isdisjoint({"logits_positions"})
    assert {sizes[0] for sizes in found.values()} == {"batch_size"}, "transformers.js takes any other name for 0"
    assert found["past_key_values.0.key"][2] == "past_sequence_length"
    assert found["present.0.key"][2] == "total_sequence_length", "equal names let WebGPU share one buffer"
    assert found["logits"][1] == 1
    assert "GatherBlockQuantized" not in {node.op_type for node in model.graph.node}, "transformers.js has it for WebGPU only"


@pytest.mark.parametrize(
    ("bits", "symmetric", "width"), [(8, True, 64), (8, False, 64), (4, True, 64), (4, False, 64), (4, False, 96)]
)
def test_gathering_by_standard_operators_gives_the_rows_of_the_operator(bits: int, symmetric: bool, width: int) -> None:
    blocks, rows = width // 32, 1024
    rng = np.random.default_rng(bits + width)
    codes = rng.integers(0, 256, (rows, width * bits // 8), np.uint8)
    scales = rng.random((rows, blocks), np.float32)
    zeros = [] if symmetric else [rng.integers(0, 256, (rows, -(-blocks * bits // 8)), np.uint8)]
    arrays = dict(zip(["codes", "scales", "zeros"], [codes, scales, *zeros], strict=False))
    ids = onnx.helper.make_tensor_value_info("ids", onnx.TensorProto.INT64, ["batch", "length"])
    found = onnx.helper.make_tensor_value_info("found", onnx.TensorProto.FLOAT, ["batch", "length", width])
    given = ["codes", "ids", *list(arrays)[1:]]
    sizes = {"bits": bits, "block_size": 32, "gather_axis": 0, "quantize_axis": 1}
    node = onnx.helper.make_node("GatherBlockQuantized", given, ["found"], domain="com.microsoft", **sizes)
    stored = [onnx.numpy_helper.from_array(array, name) for name, array in arrays.items()]
    opsets = [onnx.helper.make_opsetid("", 23), onnx.helper.make_opsetid("com.microsoft", 1)]
    graph = onnx.helper.make_graph([node], "table", [ids], [found], stored)
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)
    changed = ir.from_proto(model)
    gather_by_standard_operators(changed.graph, next(iter(changed.graph)))
    assert {each.domain for each in changed.graph} == {""}
    chosen = {"ids": np.array([[0, 5, 1023], [7, 7, 512]])}
    one, other = (
        onnxruntime.InferenceSession(each.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, chosen)[0]
        for each in (model, ir.to_proto(changed))
    )
    assert np.array_equal(one, other)


@pytest.mark.parametrize("name", EMBEDDED)
def test_the_weights_are_on_disk_once(name: str) -> None:
    folder = find_package(name)
    sizes = {path.relative_to(folder).as_posix(): path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    (weights,) = (size for path, size in sizes.items() if path.endswith("_data"))
    assert sum(size for path, size in sizes.items() if path.endswith(".onnx")) < weights / 20


@pytest.mark.parametrize("name", EMBEDDED)
def test_every_graph_continues_as_the_manifest_says_and_that_for_wasm_in_exact_arithmetic(name: str) -> None:
    folder = find_package(name)
    manifest = read_manifest(folder)
    for run in manifest.golden:
        count = len(run.new_ids)
        if HAS_VNNI:
            assert greedy(folder / str(shared_graph(manifest)), list(run.prompt_ids), count) == list(run.new_ids)
        unpacked = greedy(folder / WASM_GRAPH, list(run.prompt_ids), count, disable_quant_qdq="1")
        assert unpacked == list(run.exact_ids or run.new_ids)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_exact_continuations_are_those_of_products_in_float32(precision: str, shared: Path, tmp_path: Path) -> None:
    source = shared / "checkpoints" / "stories260K"
    options = Quantization(8 if precision == "int8" else 4, method="k_quant")
    made, exact = (
        export(source, tmp_path / str(level), precision=precision, quantization=dataclasses.replace(options, accuracy_level=level))
        for level in (4, 0)
    )
    for usual, other in zip(made.manifest.golden, exact.manifest.golden, strict=True):
        assert (usual.exact_ids or usual.new_ids) == (other.exact_ids or other.new_ids)
        model = onnx_textgen.load(exact.folder, device="cpu", threads=1)
        assert model.generate(list(usual.prompt_ids), max_new_tokens=32, temperature=0, ignore_eos=True).token_ids == other.new_ids


@pytest.mark.slow
def test_a_graph_that_computes_something_else_is_refused(shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = exported_graphs.write_shared_graph

    def spoilt(folder: Path, settings: object) -> str:
        name = write(folder, settings)
        model = onnx.load(folder / name, load_external_data=False)
        attention = next(node for node in model.graph.node if node.op_type == "GroupQueryAttention")
        attention.attribute.append(onnx.helper.make_attribute("softcap", 0.5))
        onnx.save(model, folder / name)
        return name

    monkeypatch.setattr(exported_graphs, "write_shared_graph", spoilt)
    with pytest.raises(ExportError, match=r"onnx/model\.onnx disagrees with model\.onnx .* --no-other-runtimes"):
        export(shared / "checkpoints" / "stories260K", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_the_golden_continuations_of_older_manifests_are_read(tmp_path: Path) -> None:
    manifest = json.loads((Path(__file__).parents[2] / "packages" / "ort" / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["format_version"] == 1
    assert all(run.exact_ids == () for run in read_manifest(Path(__file__).parents[2] / "packages" / "ort").golden)
