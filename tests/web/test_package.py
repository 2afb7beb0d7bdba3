"""Packages are read and checked in JavaScript as in Python: format version, digest of the manifest, size and sha256 of files."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

import onnx_textgen
from onnx_textgen.package.manifest import manifest_digest
from support.examples import examples
from support.node import Node, NodeError

STORY = Path(__file__).resolve().parents[2] / "artifacts" / "story"
WEIGHTS = "onnx/model_quantized.onnx_data"
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=15,
)


@given(value=st.dictionaries(st.text(), json_values, max_size=5), indent=st.sampled_from([None, 1]), ascii_only=st.booleans())
@examples(60)
def test_the_canonical_form_is_pythons(node: Node, value: dict[str, Any], indent: int | None, ascii_only: bool) -> None:
    given_value = value | {"sha256": "0"}
    text = json.dumps(given_value, indent=indent, ensure_ascii=ascii_only)
    wanted = json.dumps({key: item for key, item in given_value.items() if key != "sha256"}, sort_keys=True, separators=(",", ":"))
    assert node.call("canonical", text, "sha256") == wanted


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the embedded default to damage."""
    return Path(shutil.copytree(STORY, tmp_path / "package"))


def rewrite(package: Path, **changes: Any) -> dict[str, Any]:
    """Change a manifest and its digest."""
    value = json.loads((package / "manifest.json").read_text()) | changes
    value["sha256"] = manifest_digest(value)
    (package / "manifest.json").write_text(json.dumps(value, indent=1))
    return value


def test_the_embedded_manifests_are_read(node: Node) -> None:
    for folder in (STORY, STORY.parent / "tiny-transformer"):
        text = (folder / "manifest.json").read_text(encoding="utf-8")
        assert node.call("manifest", text) == json.loads(text)


def test_defaults_that_only_python_has_are_left_out(node: Node, package: Path) -> None:
    rewrite(package, generation={"temperature": 0, "num_beams": 4, "length_penalty": 2.0, "early_stopping": True})
    found = node.call("generate", node.call("open", "node", str(package)), [5, 9, 20], {"max_new_tokens": 8})
    ids = [chunk["token_id"] for chunk in found["chunks"] if chunk["token_id"] is not None]
    python = onnx_textgen.load(package).stream([5, 9, 20], max_new_tokens=8)
    assert ids == [token_id for chunk in python for token_id in chunk.token_ids]


def test_a_format_version_that_is_not_known_is_refused_in_one_line(node: Node, package: Path) -> None:
    rewrite(package, format_version=3)
    with pytest.raises(
        NodeError, match=r"^manifest.json has format version 3 and this library reads 1 to 2; take its newest"
    ) as caught:
        node.call("open", "node", str(package))
    assert caught.value.kind == "PackageError"


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"geometry": {"vocab_size": 0, "context_length": 9}}, "geometry.vocab_size in manifest.json should be from 1 to 16777216"),
        ({"eos_ids": [4096]}, "eos_ids in manifest.json should be token ids"),
        ({"bos_id": "0"}, "bos_id in manifest.json should be a token id or null"),
        ({"files": {"model.onnx": {"size": 1, "sha256": ""}}}, "should be a size and a sha256"),
        ({"golden": [{"prompt_ids": [], "new_ids": [1]}]}, r"golden\[0\] in manifest.json should be token ids"),
    ],
)
def test_a_manifest_with_unusable_values_is_refused(node: Node, package: Path, changes: dict[str, Any], line: str) -> None:
    rewrite(package, **changes)
    with pytest.raises(NodeError, match=line):
        node.call("manifest", (package / "manifest.json").read_text())


def test_damage_is_noticed_in_the_manifest_and_in_every_file_that_is_read(node: Node, package: Path) -> None:
    text = (package / "manifest.json").read_text()
    for damaged, line in [
        (text.replace('"layers": 6', '"layers": 7'), "is damaged: its content does not match its sha256"),
        (text[:-20], "manifest.json is not JSON"),
        ("[]", "has format version undefined"),
    ]:
        with pytest.raises(NodeError, match=line):
            node.call("manifest", damaged)
    for name in ("model.onnx", WEIGHTS, "tokenizer.json"):
        whole = (package / name).read_bytes()
        changed = bytearray(whole)
        changed[len(whole) // 2] ^= 1
        for content, line in [
            (bytes(changed), f"^{name} is damaged: its sha256 is "),
            (whole[:-1], f"^{name} is damaged: {len(whole) - 1} bytes, the manifest says {len(whole)}"),
            (whole + b"x", f"^{name} is damaged: more than {len(whole)} bytes"),
        ]:
            (package / name).write_bytes(content)
            with pytest.raises(NodeError, match=line):
                node.call("open", "node", str(package))
        (package / name).write_bytes(whole)
    (package / "tokenizer.json").unlink()
    with pytest.raises(NodeError, match=r"^tokenizer.json cannot be fetched \(status 404\)"):
        node.call("open", "node", str(package))


def test_the_bytes_of_a_file_are_counted_as_they_come(node: Node) -> None:
    size = (STORY / WEIGHTS).stat().st_size
    count, parts = node.call("bytes", str(STORY), WEIGHTS)
    assert count == size and [total for _, total in parts] == [size] * len(parts)
    loaded = [each for each, _ in parts]
    assert len(loaded) > 1 and loaded == sorted(set(loaded)) and loaded[-1] == size


def test_the_metadata_of_a_graph_is_read(node: Node, tmp_path: Path) -> None:
    model = onnx.load(STORY / "model.onnx", load_external_data=False)
    assert node.call("metadata", str(STORY / "model.onnx")) == {entry.key: entry.value for entry in model.metadata_props}
    onnx.helper.set_model_props(model, {"rotary_switch": "4096", "é": "x" * 300})
    onnx.save(model, tmp_path / "model.onnx")
    assert node.call("metadata", str(tmp_path / "model.onnx")) == {"rotary_switch": "4096", "é": "x" * 300}


def test_every_half_precision_number_is_read_exactly(node: Node) -> None:
    halves = np.arange(2**16, dtype=np.uint16)
    found = np.array(node.call("halves", halves.tolist()), dtype=object)
    np.testing.assert_array_equal(np.array([float(each) for each in found]), halves.view(np.float16).astype(np.float64))


def test_a_manifest_without_a_digest_is_read(node: Node, package: Path) -> None:
    value = {key: each for key, each in rewrite(package).items() if key != "sha256"}
    assert node.call("manifest", json.dumps(value))["name"] == "story"
