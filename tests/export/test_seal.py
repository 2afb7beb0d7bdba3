"""Packages from before manifests had a sha256 of their own are given one."""

import shutil
from pathlib import Path

import pytest

from onnx_textgen.cli import run
from onnx_textgen.package.manifest import MANIFEST, WEIGHTS
from onnx_textgen.package.reading import read_manifest
from onnx_textgen_export.seal import main


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(Path(__file__).parents[1] / "packages" / "ort", tmp_path / "package"))


def test_a_sealed_manifest_says_what_it_said_and_damage_to_it_shows(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, files = read_manifest(folder), sorted(folder.iterdir())
    assert not before.sha256
    assert run(["verify", str(folder)]) == 0
    assert "manifest: damage to it would not be noticed" in capsys.readouterr().out
    main([str(folder)])
    assert (read_manifest(folder), sorted(folder.iterdir()), len(list(folder.parent.iterdir()))) == (before, files, 1)
    assert run(["verify", str(folder)]) == 0
    assert "manifest:" not in capsys.readouterr().out
    path = folder / MANIFEST
    path.write_text(path.read_text().replace('"name": "tiny-ort"', '"name": "tiny-art"'))
    assert run(["verify", str(folder)]) == 1
    assert "manifest.json is damaged" in capsys.readouterr().err


def test_a_package_that_is_damaged_is_not_sealed(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[::-1])
    with pytest.raises(SystemExit, match=r"error: .*model\.onnx\.data is damaged"):
        main([str(folder)])
    assert not read_manifest(folder).sha256
    assert len(list(folder.parent.iterdir())) == 1
