"""What is said of a path that was given for a model and is none."""

import re
import shutil
from pathlib import Path

import pytest

import onnx_textgen
from onnx_textgen.cli import run
from onnx_textgen.errors import PackageError
from onnx_textgen.package.locate import find_package


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A folder with all kinds of things in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    shutil.copytree(find_package(), "models/my-model")
    for name, content in {
        "hf/config.json": b"{}",
        "hf/model.safetensors": b"",
        "old/config.json": b"{}",
        "old/pytorch_model.bin": b"",
        "my checkpoint/config.json": b"{}",
        "my checkpoint/model-00001-of-00002.safetensors": b"",
        "gguf/m.gguf": b"GGUF\3",
        "blobs/sha256-1": b"GGUF\3",
        "readme.txt": b"text",
        "weights.pt": b"",
        "empty/nothing": b"",
    }.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_bytes(content)


EXPORT = "onnx-textgen export SOURCE --out DIR"
LISTED = "onnx-textgen list shows the models at hand"
SAID = {
    "storyy": f"storyy is not a folder, .*; did you mean story[?] {LISTED}",
    "models/my-modle": "did you mean models/my-model[?]",
    "./models/my_model": "did you mean models/my-model[?]",
    "xyzzy": f"xyzzy is not a folder, and no model at hand has that name; {LISTED}, and this makes one: {EXPORT}$",
    "hf": "hf is a Hugging Face checkpoint, .*: onnx-textgen export hf --out hf-onnx$",
    "old": "onnx-textgen export old --out old-onnx$",
    "my checkpoint": "onnx-textgen export 'my checkpoint' --out 'my checkpoint-onnx'$",
    "hf/config.json": "is a file of a Hugging Face checkpoint; .* export hf --out hf-onnx$",
    "gguf": "gguf/m.gguf is a GGUF file; make a model folder from it",
    "gguf/m.gguf": "gguf/m.gguf is a GGUF file; .* onnx-textgen export gguf/m.gguf --out gguf/m-onnx$",
    "blobs/sha256-1": "blobs/sha256-1 is a GGUF file",
    "weights.pt": "weights.pt has weights but no graph; export the whole checkpoint",
    "readme.txt": "readme.txt is a file, but neither a model folder nor a graph",
    "models": "models has no manifest.json and no graph, but contains model folders; name one of them, such as models/my-model$",
    "models/my-model/tokenizer.json": "is a file of a model folder; give the folder: models/my-model$",
    "empty": f"empty has no manifest.json and no graph; {LISTED}, and this makes one: {EXPORT}$",
}


@pytest.mark.parametrize("name", SAID)
def test_a_path_that_is_no_model_is_named_as_what_it_is(name):
    with pytest.raises(PackageError) as caught:
        onnx_textgen.load(Path(name))
    assert re.search(SAID[name], str(caught.value))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("command", [["generate", "x", "-m"], ["info"], ["verify"], ["bench"], ["chat", "-m"]], ids=" ".join)
def test_no_command_tells_to_export_onto_the_checkpoint(command, capsys):
    assert run([*command, "hf"]) == 1
    assert re.search(SAID["hf"], capsys.readouterr().err.strip())


def test_a_checkpoint_that_one_stands_in_is_exported_beside_it(monkeypatch):
    monkeypatch.chdir("hf")
    with pytest.raises(PackageError, match=r"onnx-textgen export \. --out \.\./hf-onnx$"):
        onnx_textgen.load(".")


def test_a_name_that_could_be_one_on_the_hub_is_compared_with_folders_too():
    with pytest.raises(PackageError, match=r"did you mean models/my-model\? .* or take one of: onnx-textgen list$"):
        onnx_textgen.load("models/my-modle")
