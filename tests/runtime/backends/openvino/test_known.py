"""What is said of a graph without OpenVINO is what OpenVINO says of it."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from onnx_textgen.backends.openvino.known import is_known
from onnx_textgen.backends.openvino.session import check_readable, read_graph
from onnx_textgen.errors import PackageError
from onnx_textgen.files.graph_file import map_model
from onnx_textgen.files.onnx_graph import GRAPH, MODEL, NODE
from onnx_textgen.files.onnx_wire import Message

pytest.importorskip("openvino", reason='the second engine needs pip install "onnx-textgen[openvino]"')

ROOT = Path(__file__).parents[4]
GRAPHS = [ROOT / "tests" / "packages" / "ort", ROOT / "artifacts" / "story", ROOT / "artifacts" / "tiny-transformer"]


def changed(folder: Path, operator: str, change: object) -> Path:
    """The graph of float32, after `change` got each node of the operator."""
    with map_model(GRAPHS[0] / "model.onnx") as content:
        model = Message(content[:])
    (graph,) = model.messages(MODEL.GRAPH)
    nodes = graph.messages(GRAPH.NODE)
    for node in nodes:
        if node.text(NODE.OPERATOR) == operator:
            change(node)  # type: ignore[operator]
    graph.replace(GRAPH.NODE, nodes)
    model.replace(MODEL.GRAPH, [graph])
    shutil.copy(GRAPHS[0] / "model.onnx.data", folder)
    path = folder / "model.onnx"
    path.write_bytes(bytes(model))
    return path


def with_attribute(name: str, value: int):
    return lambda node: node.add(NODE.ATTRIBUTE, Message().add(1, name).add(3, value).add(20, 2))


@pytest.mark.parametrize("folder", GRAPHS, ids=lambda folder: folder.name)
def test_graphs_of_this_repository_are_known_and_read(folder: Path) -> None:
    assert is_known(folder / "model.onnx")
    read_graph(folder / "model.onnx", device="openvino")


@pytest.mark.parametrize(
    ("operator", "change"),
    [
        ("Relu", lambda node: node.replace(NODE.OPERATOR, ["Softmax"])),
        ("Relu", lambda node: node.add(NODE.DOMAIN, "com.example")),
        ("GroupQueryAttention", with_attribute("smooth_softmax", 1)),
        ("GroupQueryAttention", with_attribute("softcap", 0)),
        ("GroupQueryAttention", with_attribute("rotary_interleaved", 1)),
        ("GroupQueryAttention", lambda node: node.replace(NODE.INPUT, [*node.texts(NODE.INPUT), "", "", "positions"])),
        ("RotaryEmbedding", lambda node: node.replace(NODE.ATTRIBUTE, [Message().add(1, "interleaved").add(3, 1).add(20, 2)])),
    ],
    ids=["operator", "domain", "sink", "softcap", "rotary pairs", "positions", "pairs"],
)
def test_of_other_operators_and_forms_nothing_is_said(tmp_path: Path, operator: str, change: object) -> None:
    assert not is_known(changed(tmp_path, operator, change))


def test_what_is_not_known_is_read_and_refused_as_ever(tmp_path: Path) -> None:
    with pytest.raises(PackageError, match=r"attention has no smooth_softmax; use the device cpu"):
        check_readable(changed(tmp_path, "GroupQueryAttention", with_attribute("smooth_softmax", 1)), device="openvino")


def test_a_known_graph_that_defines_functions_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes((GRAPHS[0] / "model.onnx").read_bytes() + bytes(Message().add(25, Message().add(1, "Relu"))))
    with pytest.raises(PackageError, match="defines functions"):
        check_readable(path, device="openvino")


def test_a_model_opens_for_hybrid_without_openvino_until_a_long_prompt() -> None:
    code = f"""
import sys, onnx_textgen
model = onnx_textgen.load({str(GRAPHS[0])!r}, device="hybrid", threads=1)
model.generate([1, 2, 3], max_new_tokens=2)
print("openvino" in sys.modules)
model.generate([number % 29 for number in range(80)], max_new_tokens=2)
print("openvino" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.split() == ["False", "True"]
