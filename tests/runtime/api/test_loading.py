"""What of a folder takes effect: of one of ours what its manifest lists and as it says, whoever else can write there."""

import dataclasses
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import onnx_textgen
from onnx_textgen.api import opening
from onnx_textgen.cli import run
from onnx_textgen.diagnostics.inventory import list_models
from onnx_textgen.errors import OnnxTextgenError, PackageError
from onnx_textgen.files.graph_file import external_files
from onnx_textgen.package.integrity import file_record
from onnx_textgen.package.locate import find_package
from onnx_textgen.package.manifest import (
    ATTENTION_GRAPH,
    CHAT_TEMPLATE,
    GRAPH,
    MANIFEST,
    WEIGHTS,
    manifest_to_json,
    weights_files,
)
from onnx_textgen.package.reading import read_manifest
from onnx_textgen.tasks import open_model
from onnx_textgen.text.tokenizer import TextTokenizer

INJECTED = "INJECTED {{ messages[0].content }}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of a tiny package, which has no chat template."""
    return Path(shutil.copytree(Path(__file__).parents[2] / "packages" / "ort", tmp_path / "package"))


def test_a_template_that_comes_after_the_files_were_checked_takes_no_effect(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checked, opened = opening.open_graph, []

    def late(*args, **options):
        (folder / CHAT_TEMPLATE).write_text(INJECTED)
        opened.append(args)
        return checked(*args, **options)

    monkeypatch.setattr(opening, "open_graph", late)
    assert onnx_textgen.load(folder, threads=1, device="cpu").chat_template is None
    assert opened


def test_a_tokenizer_that_is_replaced_after_the_files_were_checked_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = TextTokenizer.from_file

    def late(path, **options):
        path.write_text(path.read_text().replace("</s>", "</t>"))
        return read(path, **options)

    monkeypatch.setattr(TextTokenizer, "from_file", late)
    with pytest.raises(OnnxTextgenError, match=r"tokenizer.json is damaged: its sha256 is"):
        onnx_textgen.load(folder, threads=1, device="cpu")


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_a_package_without_its_manifest_is_refused_as_its_damage_would_not_be_noticed(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / MANIFEST).unlink()
    flip_a_bit(folder / WEIGHTS)
    missing = "was exported by onnx-textgen but its manifest.json is missing"
    for place in (folder, folder / GRAPH):
        with pytest.raises(PackageError, match=missing):
            onnx_textgen.load(place, threads=1, device="cpu")
    (entry,) = list_models(folder)
    assert missing in (entry.problem or "")
    for command in ("info", "verify"):
        assert run([command, str(folder)]) == 1
        assert "manifest.json" in capsys.readouterr().err


THINGS = {
    "a folder": lambda path: path.mkdir(),
    "a pipe": os.mkfifo,
    "a link to nowhere": lambda path: path.symlink_to("nowhere"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a device": lambda path: path.symlink_to(os.devnull),
}


@pytest.mark.parametrize("thing", THINGS)
def test_what_is_no_file_in_place_of_the_manifest_is_refused_in_a_folder_of_anybody(folder: Path, thing: str) -> None:
    theirs = Path(shutil.copytree(Path(__file__).parents[2] / "packages" / "optimum", folder.parent / "theirs"))
    (folder / MANIFEST).unlink()
    for each in (folder, theirs):
        THINGS[thing](each / MANIFEST)
        for place in (each, each / GRAPH):
            with pytest.raises(PackageError, match=r"manifest\.json is not a file"):
                onnx_textgen.load(place, threads=1, device="cpu")
        assert "is not a file" in (list_models(each)[0].problem or "")


def list_again(folder: Path, name: str) -> None:
    """Write into the manifest what a file is now."""
    manifest = read_manifest(folder)
    listed = dataclasses.replace(manifest, files=manifest.files | {name: file_record(folder / name)})
    (folder / MANIFEST).write_text(manifest_to_json(listed), encoding="utf-8")


@pytest.mark.parametrize("name", [GRAPH, ATTENTION_GRAPH])
def test_a_graph_that_reads_a_file_that_nobody_hashed_is_refused(tmp_path: Path, name: str) -> None:
    onnx = pytest.importorskip("onnx", reason="a graph is changed here")
    folder = Path(shutil.copytree(find_package("tiny-transformer"), tmp_path / "package"))
    model = onnx.load(folder / name, load_external_data=False)
    next(entry for entry in model.graph.initializer[0].external_data if entry.key == "location").value = "unlisted.bin"
    onnx.save(model, folder / name)
    shutil.copy(folder / weights_files(read_manifest(folder))[0], folder / "unlisted.bin")
    list_again(folder, name)
    with pytest.raises(PackageError, match=rf"{name} reads 'unlisted\.bin', which the manifest does not list"):
        onnx_textgen.load(folder, threads=1, device="cpu").attentions("a cat")


def test_the_files_of_weights_are_found_wherever_a_graph_can_name_them() -> None:
    onnx = pytest.importorskip("onnx", reason="a graph is made here")
    helper, names = onnx.helper, (f"file {number}" for number in range(100))

    def tensor() -> Any:
        entries = {"offset": "0", "location": next(names)}
        return onnx.TensorProto(
            data_type=1, dims=[1], external_data=[onnx.StringStringEntryProto(key=key, value=entries[key]) for key in entries]
        )

    def sparse() -> Any:
        return onnx.SparseTensorProto(values=tensor(), indices=tensor(), dims=[2])

    def graph(depth: int) -> Any:
        node = helper.make_node(
            "Anything", [], ["y"], one=tensor(), several=[tensor(), tensor()], few=sparse(), some=[sparse(), sparse()]
        )
        if depth:
            node.attribute.extend([helper.make_attribute("g", graph(depth - 1)), helper.make_attribute("h", [graph(depth - 1)])])
        return helper.make_graph([node], "g", [], [], [tensor()], sparse_initializer=[sparse()])

    content = helper.make_model(graph(2)).SerializeToString()
    found = sorted(external_files(content))
    assert found == sorted(f"file {number}" for number in range(7 * 12)) == sorted(set(found))


IMPORTS = """
import sys
before = set(sys.modules)  # an environment may import some at every start
import onnx_textgen
load = onnx_textgen.load
early = [name for name in ("api.model", "chat.chat_format", "generation.scheduler") if f"onnx_textgen.{name}" in sys.modules]
load(device="cpu", threads=1).generate("Once", max_new_tokens=2)
print(early, {"asyncio", "importlib.metadata", "jinja2", "openvino"} & (set(sys.modules) - before))
"""


def test_what_a_text_does_not_need_is_imported_while_the_graph_is_opened_or_never() -> None:
    """The first token of a new process waits for every import before the graph is opened."""
    done = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=True)
    assert done.stdout == "[] set()\n"


def test_the_graph_and_damage_are_told_first_whatever_else_fails_while_it_is_opened(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("something else")

    monkeypatch.setattr(open_model, "read_tokenizer", fail)
    with pytest.raises(RuntimeError, match="something else"):
        onnx_textgen.load(folder, threads=1, device="cpu")
    monkeypatch.setattr(opening, "open_session", fail)
    with pytest.raises(RuntimeError, match="something else"):
        onnx_textgen.load(folder, threads=1, device="cpu")
    flip_a_bit(folder / WEIGHTS)
    with pytest.raises(PackageError, match="is damaged: its sha256 is"):
        onnx_textgen.load(folder, threads=1, device="cpu")
