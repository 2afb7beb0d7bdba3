"""The folder of a site: what it has, what its description says, and what is refused."""

import hashlib
import json
import re
import shutil
from pathlib import Path

import pytest

from onnx_textgen.errors import OptionError, PackageError
from onnx_textgen.files import replace as replacing
from onnx_textgen.package.locate import find_package
from onnx_textgen.package.manifest import MANIFEST, manifest_digest
from onnx_textgen.package.reading import read_manifest
from onnx_textgen.web_site import browser_graphs as graphs
from onnx_textgen.web_site import building
from onnx_textgen.web_site.answer_marks import answer_marks
from onnx_textgen.web_site.building import build_site
from onnx_textgen.web_site.libraries import read_libraries, web_folder
from support.site_page import with_file

TINY = Path(__file__).parents[2] / "packages" / "ort"


@pytest.fixture
def tiny(tmp_path):
    return Path(shutil.copytree(TINY, tmp_path / "tiny"))


def files_of(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def description(folder):
    return json.loads((folder / "site.json").read_text(encoding="utf-8"))


def test_a_site_has_only_the_files_of_the_model_that_a_browser_needs(tmp_path):
    out = build_site(find_package("story"), tmp_path / "site", cdn=True).folder
    model = {name for name in files_of(out) if name.startswith("model/")}
    used = {each["graph"] for each in description(out)["graphs"].values()}
    used |= {name for each in description(out)["graphs"].values() for name in each["data"].values()}
    assert model == {f"model/{name}" for name in {"manifest.json", "tokenizer.json", *used}}
    assert len(used) < len(read_manifest(find_package("story")).files) - 1  # not the graphs of other engines
    for name, each in description(out)["files"].items():
        content = (out / each["url"]).read_bytes()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (each["size"], each["sha256"]), name


def test_every_module_that_the_page_imports_is_there(tmp_path):
    out = build_site(TINY, tmp_path / "site", cdn=True).folder
    there = files_of(out)
    for name in sorted(there):
        if name.endswith(".js"):
            text = (out / name).read_text(encoding="utf-8")
            for imported in re.findall(r"""(?:^import .*?from |await import\()"([^"]+)\"""", text, re.MULTILINE):
                assert imported.startswith("."), f"{name} imports {imported}"
                assert (out / name).parent.joinpath(imported).resolve().relative_to(out.resolve()).as_posix() in there, name


def test_the_service_worker_keeps_every_file_of_the_page(tmp_path):
    out = build_site(TINY, tmp_path / "site", cdn=True).folder
    first = (out / "service_worker.js").read_text(encoding="utf-8").splitlines()[0]
    shell = json.loads(first.removeprefix("self.SHELL = ").removesuffix(";"))
    page = {name for name in files_of(out) if not name.startswith("model/")} - {".nojekyll", "service_worker.js"}
    assert set(shell["files"]) == page


def test_a_site_of_another_model_has_another_version(tmp_path, tiny):
    def version(package, name, **options):
        out = build_site(package, tmp_path / name, cdn=True, **options).folder
        return (out / "service_worker.js").read_text(encoding="utf-8").splitlines()[0]

    first = version(TINY, "one")
    assert version(TINY, "two") == first
    assert version(TINY, "three", prompts=["Hello"]) != first
    manifest = json.loads((tiny / MANIFEST).read_text(encoding="utf-8")) | {"source": "elsewhere"}
    (tiny / MANIFEST).write_text(json.dumps(manifest | {"sha256": manifest_digest(manifest)}), encoding="utf-8")
    assert version(tiny, "four") != first


def test_with_a_cdn_the_libraries_are_named_by_version_and_digest(tmp_path):
    out = build_site(TINY, tmp_path / "site", cdn=True).folder
    assert not (out / "lib").exists()
    wasm = description(out)["libraries"]["onnxruntime-wasm"]
    library = read_libraries()["onnxruntime-wasm"]
    assert wasm["url"] == f"https://cdn.jsdelivr.net/npm/onnxruntime-web@{library.version}/dist/ort.wasm.bundle.min.mjs"
    assert (wasm["size"], wasm["sha256"]) == (library.size, library.sha256)


def test_a_damaged_model_becomes_no_site(tmp_path, tiny):
    weights = tiny / "model.onnx.data"
    weights.write_bytes(bytes([*weights.read_bytes()[:-1], 77]))
    with pytest.raises(PackageError, match=r"model\.onnx\.data is damaged"):
        build_site(tiny, tmp_path / "site", cdn=True)
    assert not (tmp_path / "site").exists()


def test_a_folder_that_is_no_site_is_not_replaced(tmp_path):
    out = tmp_path / "mine"
    out.mkdir()
    for name, text in [("letter.txt", "Dear"), ("site.json", '{"title": "mine"}')]:
        (out / name).write_text(text, encoding="utf-8")
        for replace in (False, True):
            with pytest.raises(
                OptionError, match=r"exists and is not a site of onnx-textgen, which has no (letter\.txt|site\.json)"
            ):
                build_site(TINY, out, cdn=True, replace=replace)
    assert files_of(out) == {"letter.txt", "site.json"}


@pytest.mark.parametrize("name", ["thesis.txt", ".git/config", "textgen/mine.js", "model/other.onnx"])
def test_a_site_with_a_file_that_no_site_has_is_not_replaced(tmp_path, name):
    out = build_site(TINY, tmp_path / "site", cdn=True).folder
    (out / name).parent.mkdir(exist_ok=True)
    (out / name).write_text("mine", encoding="utf-8")
    with pytest.raises(OptionError, match=f"is not a site of onnx-textgen, which has no {re.escape(name)}; choose another folder"):
        build_site(TINY, out, cdn=True, replace=True)
    assert (out / name).read_text(encoding="utf-8") == "mine"


def test_an_older_site_is_replaced_only_by_request(tmp_path):
    out = tmp_path / "site"
    build_site(TINY, out, cdn=True)
    shell, program = (out / "service_worker.js").read_text(encoding="utf-8").split("\n", 1)
    listed = json.loads(shell.removeprefix("self.SHELL = ").removesuffix(";"))
    listed["files"].append("old.js")  # which the page had then
    (out / "service_worker.js").write_text(f"self.SHELL = {json.dumps(listed)};\n{program}", encoding="utf-8")
    (out / "old.js").write_text("old", encoding="utf-8")
    with pytest.raises(OptionError, match=r"has a site already; .* --force"):
        build_site(TINY, out, cdn=True)
    build_site(TINY, out, cdn=True, replace=True)
    assert "old.js" not in files_of(out)
    assert [path.name for path in tmp_path.iterdir()] == ["site"]


def test_a_link_stays_a_link_and_the_site_it_points_to_is_replaced(tmp_path):
    build_site(TINY, tmp_path / "real", cdn=True)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    build_site(TINY, tmp_path / "link", cdn=True, replace=True, prompts=["Hello"])
    assert (tmp_path / "link").is_symlink()
    assert description(tmp_path / "real")["prompts"] == ["Hello"]
    assert {path.name for path in tmp_path.iterdir()} == {"real", "link"}


@pytest.mark.parametrize("at_once", [True, False], ids=["in one step", "in two steps"])
def test_an_older_site_stays_if_the_new_one_cannot_take_its_place(tmp_path, monkeypatch, at_once):
    out = build_site(TINY, tmp_path / "site", cdn=True).folder
    before, rename = files_of(out), Path.rename

    def failing(self, other):
        if ".partial-" in self.name:
            raise PermissionError(13, "Permission denied")
        return rename(self, other)

    def exchange(*_):
        if at_once:
            raise PermissionError(13, "Permission denied")
        return False  # as where the system has no such step

    monkeypatch.setattr(Path, "rename", failing)
    monkeypatch.setattr(replacing, "exchange", exchange)
    with pytest.raises(PermissionError):
        build_site(TINY, out, cdn=True, replace=True)
    assert files_of(out) == before
    assert [path.name for path in tmp_path.iterdir()] == ["site"]


def test_the_model_folder_is_never_the_place_of_the_site(tiny):
    for out in (tiny, tiny.parent):
        with pytest.raises(OptionError, match="is the model folder or contains it"):
            build_site(tiny, out, cdn=True, replace=True)


def test_an_older_site_stays_if_the_new_one_fails(tmp_path, monkeypatch):
    out = build_site(TINY, tmp_path / "site", cdn=True).folder
    before = files_of(out)

    def fail(*_):
        raise OSError("the disk is full")

    monkeypatch.setattr(building, "write_page", fail)
    with pytest.raises(OSError, match="the disk is full"):
        build_site(TINY, out, cdn=True, replace=True)
    assert files_of(out) == before
    assert [path.name for path in tmp_path.iterdir()] == ["site"]


def test_a_graph_finds_its_weights_relative_to_its_own_folder(tmp_path, tiny):
    """The layout with the weights in `onnx`: for WebAssembly the graph that unpacks them, for WebGPU the portable one."""
    onnx = pytest.importorskip("onnx")
    (tiny / "onnx").mkdir()
    (tiny / "model.onnx.data").rename(tiny / "onnx" / "model.onnx_data")
    model = onnx.load(tiny / "model.onnx", load_external_data=False)
    for name, location in {"model.onnx": "onnx/model.onnx_data", "onnx/model.onnx": "model.onnx_data"}.items():
        for tensor in model.graph.initializer:
            for entry in tensor.external_data:
                if entry.key == "location":
                    entry.value = location
        onnx.save(model, tiny / name)
    shutil.copy(tiny / "onnx" / "model.onnx", tiny / "onnx" / "model_wasm.onnx")
    manifest = json.loads((tiny / MANIFEST).read_text(encoding="utf-8"))
    manifest["files"] = {name: {"size": (tiny / name).stat().st_size, "sha256": "0" * 64} for name in files_of(tiny) - {MANIFEST}}
    manifest["sha256"] = manifest_digest(manifest)
    (tiny / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
    found = graphs.browser_graphs(tiny, read_manifest(tiny))
    assert found == {
        "wasm": graphs.BrowserGraph("onnx/model_wasm.onnx", {"model.onnx_data": "onnx/model.onnx_data"}),
        "webgpu": graphs.BrowserGraph("onnx/model.onnx", {"model.onnx_data": "onnx/model.onnx_data"}),
    }


def test_a_file_too_large_for_browsers_is_refused_with_its_size(tmp_path, monkeypatch):
    monkeypatch.setattr(graphs, "LARGEST_FILE", 100_000)
    with pytest.raises(PackageError, match=r"model\.onnx\.data has 0\.0 GB, and browsers hold at most 0\.0 GB in one piece"):
        build_site(TINY, tmp_path / "site", cdn=True)


def test_the_javascript_has_no_address_of_another_host():
    """All but one namespace, that of the libraries' own documentation, would be a request."""
    for path in sorted((web_folder() / "site").iterdir()):
        urls = re.findall(r"https?://[^\s\"'`)]+", path.read_text(encoding="utf-8"))
        assert urls == [], path.name


def test_the_site_lists_what_the_model_writes_around_its_thinking_and_its_calls(tmp_path):
    package = Path(shutil.copytree(TINY, tmp_path / "package"))
    call = {"open": "<tool_call>", "close": "</tool_call>", "content": "json"}
    fields = {"reasoning_content": {"open": "<think>", "close": "</think>"}, "tool_calls": call, "content": {}}
    with_file(package, "response_template.json", json.dumps({"start_anchor": "<assistant>", "fields": fields}))
    assert answer_marks(package, read_manifest(package)) == {
        "thinking": {"open": ["<think>"], "close": ["</think>"]},
        "call": {"open": ["<tool_call>"], "close": ["</tool_call>"]},
    }
    fields["tool_calls"] = {"open_pattern": "<[a-z]+>", "close": "</x>"}
    with_file(package, "response_template.json", json.dumps({"start_anchor": "<assistant>", "fields": fields}))
    assert "call" not in answer_marks(package, read_manifest(package))
