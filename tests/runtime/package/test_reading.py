"""The model folder: everything that is not exactly as the manifest says is refused before ONNX Runtime opens a file."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import onnx_textgen
from onnx_textgen.api import opening
from onnx_textgen.errors import PackageError
from onnx_textgen.package.locate import embedded_packages, find_package
from onnx_textgen.package.manifest import manifest_from_json, manifest_to_json
from onnx_textgen.package.reading import read_manifest

WEIGHTS = "onnx/model_quantized.onnx_data"


@pytest.fixture(autouse=True)
def no_session(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged folder must be refused before a session is made."""

    def fail(*args: object, **kwargs: object) -> None:
        raise AssertionError("a session was opened on a folder that should have been refused")

    monkeypatch.setattr(opening, "open_session", fail)


def refusal(folder: Path) -> str:
    with pytest.raises(PackageError) as caught:
        onnx_textgen.load(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def edit(folder: Path, change: Callable[[dict], object]) -> None:
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest.pop("sha256", None)  # as someone who knows what he does
    change(manifest)
    path.write_text(json.dumps(manifest))


def test_a_missing_folder_and_one_without_a_manifest_are_named(tmp_path: Path) -> None:
    assert "is not a folder" in refusal(tmp_path / "nowhere")
    assert "has no manifest.json" in refusal(tmp_path)


@pytest.mark.parametrize("name", ["model.onnx", WEIGHTS, "tokenizer.json"])
def test_a_shorter_longer_or_missing_file_is_found(package: Path, name: str) -> None:
    path = package / name
    original = path.read_bytes()
    for damaged in (original[:-1], original + b"\0", b""):
        path.write_bytes(damaged)
        assert "is damaged" in refusal(package)
    path.unlink()
    assert f"{name} is missing" in refusal(package)


def test_an_unknown_key_is_refused_at_every_level(package: Path) -> None:
    edit(package, lambda manifest: manifest.update(custom_ops_library="evil.so"))
    assert "unknown key 'custom_ops_library'" in refusal(package)


@pytest.mark.parametrize("part", ["geometry", "golden"])
def test_an_unknown_key_inside_is_refused(package: Path, part: str) -> None:
    def add(manifest: dict) -> None:
        target = manifest[part] if part == "geometry" else manifest[part][0]
        target["session_options"] = {}

    edit(package, add)
    assert "unknown key 'session_options'" in refusal(package)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda m: m.update(format_version=99), "format version 99"),
        (lambda m: m.update(format_version="1"), "format version '1'"),
        (lambda m: m.update(format_version=0), "format version 0"),
        (lambda m: m.update(format_version=-3), "format version -3"),
        (lambda m: m.pop("geometry"), "lacks the key 'geometry'"),
        (lambda m: m.update(geometry=5), "geometry should be a JSON object, found 5"),
        (lambda m: m["geometry"].pop("layers"), "lacks the key 'layers'"),
        (lambda m: m["geometry"].update(layers=0), "geometry.layers should be at least 1"),
        (lambda m: m["geometry"].update(vocab_size=2**40), "geometry.vocab_size should be at least 1 and at most 16,777,216"),
        (lambda m: m["geometry"].update(context_length=10**400), "geometry.context_length should be at least 1 and at most"),
        (lambda m: m["geometry"].update(context_length=True), "geometry.context_length should be a whole number, found True"),
        (lambda m: m.update(eos_ids="all"), "eos_ids should be a list, found 'all'"),
        (lambda m: m.update(target="gpu"), "target should be"),
        (lambda m: m.update(files={}), "lists no model.onnx"),
        (lambda m: m.update(files=[]), "files should be a JSON object, found list"),
        (lambda m: m.update(eos_ids=[1, True]), "eos_ids[1] should be a whole number, found True"),
        (lambda m: m.update(eos_ids=[4096]), "eos_ids has the token id 4096"),
        (lambda m: m.update(eos_ids=[-1]), "eos_ids has the token id -1"),
        (lambda m: m.update(eos_ids=[10**4000]), f"eos_ids has the token id 1{'0' * 59}, outside"),
        (lambda m: m.update(golden=5), "golden should be a list, found 5"),
        (lambda m: m.update(golden=None), "golden should be a list, found None"),
        (lambda m: m["golden"][0].update(prompt_ids=[]), "golden[0] should have token ids"),
        (lambda m: m["golden"][0].update(new_ids=[]), "golden[0] should have token ids"),
        (lambda m: m["golden"][0].update(new_ids=[4096]), "golden[0] has the token id 4096"),
        (lambda m: m.update(generation=5), "generation should be a JSON object, found 5"),
        (lambda m: m.update(generation=None), "generation should be a JSON object, found None"),
        (lambda m: m.update(generation={"top_k": "9"}), "top_k should be a whole number of at least 0, found '9'; export"),
        (lambda m: m.update(certificate=[]), "certificate should be a JSON object, found list"),
        (lambda m: m.update(quantization=[4]), "quantization should be a JSON object, found list"),
        (lambda m: m.update(versions={"a\nb": 1}), "versions['a\\nb'] should be a string, found 1"),
        (lambda m: m.update(versions={"k" * 9999: 1}), f"versions['{'k' * 37}...'] should be a string, found 1"),
        (lambda m: m.update(precision="fp64"), "precision should be 'fp32' or 'fp16' or 'int8' or 'int4', found 'fp64'"),
        (lambda m: m.update(bos_id="x"), "bos_id should be a whole number or null, found 'x'"),
        (lambda m: m.update(pad_id=1.5), "pad_id should be a whole number or null, found 1.5"),
        (lambda m: m.update(name=5), "name should be a string, found 5"),
        (lambda m: m["files"]["model.onnx"].update(size="1"), "files['model.onnx'].size should be a whole number, found '1'"),
        (lambda m: m["files"].update({"../../etc/passwd": m["files"]["model.onnx"]}), "not a file of a model folder"),
        (lambda m: m["files"].update({"evil.so": m["files"]["model.onnx"]}), "not a file of a model folder"),
        (lambda m: m["files"]["model.onnx"].update(sha256="0"), "not a file of a model folder"),
    ],
)
def test_a_manifest_that_is_not_as_it_should_be_is_refused_with_the_reason(package: Path, change, expected: str) -> None:
    edit(package, change)
    assert expected in refusal(package)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '"x"', "[" * 100_000])
def test_a_manifest_that_is_no_json_object_is_refused(package: Path, text: str) -> None:
    (package / "manifest.json").write_text(text)
    assert "JSON" in refusal(package)


@pytest.mark.parametrize("name", ["name", "context_length"])
def test_a_key_that_is_there_twice_is_refused_as_it_has_two_meanings(package: Path, name: str) -> None:
    path = package / "manifest.json"
    path.write_text(re.sub(rf'"{name}": [^,\n]*', r"\g<0>, \g<0>", path.read_text(), count=1))
    assert f"the key '{name}' occurs twice" in refusal(package)


def test_a_manifest_of_more_than_a_few_megabytes_is_refused(package: Path) -> None:
    with (package / "manifest.json").open("a") as file:
        file.write(" " * 2**22)
    assert "manifest.json is larger than 4 MiB" in refusal(package)


@pytest.mark.parametrize("name", [WEIGHTS, "tokenizer.json"])
def test_a_file_that_the_manifest_does_not_list_is_refused_as_nothing_vouches_for_it(package: Path, name: str) -> None:
    edit(package, lambda manifest: manifest["files"].pop(name))
    assert f"does not list {name}" in refusal(package)


def test_a_path_that_the_file_system_refuses_is_a_package_error(tmp_path: Path) -> None:
    found = refusal(tmp_path / ("x" * 5000))
    assert "cannot be read (File name too long)" in found or "has that name" in found  # since Python 3.14


def test_a_link_in_place_of_a_file_is_judged_by_its_content(package: Path) -> None:
    kept = package.parent / "blob"
    (package / WEIGHTS).rename(kept)
    (package / WEIGHTS).symlink_to(kept)
    with pytest.raises(AssertionError, match="a session was opened"):
        onnx_textgen.load(package)
    kept.write_bytes(b"other")
    assert "is damaged" in refusal(package)


def test_a_manifest_survives_writing_and_reading() -> None:
    manifest = read_manifest(find_package())
    assert manifest_from_json(json.loads(manifest_to_json(manifest))) == manifest


def test_a_manifest_with_its_digest_may_be_laid_out_anew_and_one_from_before_there_was_any_loads() -> None:
    value = json.loads((find_package() / "manifest.json").read_text())
    wanted = manifest_from_json(value)
    assert manifest_from_json(json.loads(json.dumps(dict(reversed(value.items())), indent=7))) == wanted
    del value["sha256"]
    assert manifest_from_json(value) == wanted


def test_a_folder_called_like_an_embedded_model_is_meant_only_where_it_is_written_as_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "story").mkdir()
    monkeypatch.chdir(tmp_path)
    assert find_package("story") == embedded_packages()["story"]
    assert find_package("./story").resolve() == find_package(Path("story")).resolve() == tmp_path / "story"


def test_embedded_models_are_found_by_name_and_the_default_is_small() -> None:
    assert find_package("story") == find_package() == embedded_packages()["story"]
    assert sum(path.stat().st_size for path in find_package().rglob("*")) <= 10_000_000
