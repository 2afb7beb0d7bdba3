"""`verify --against`: the source a package came from agrees with it, another one does not."""

from pathlib import Path

import pytest
import torch

from onnx_textgen.cli import run
from onnx_textgen_export import DecoderConfig, TinyTransformer, export


def saved(folder: Path, seed: int, **options: object) -> Path:
    torch.manual_seed(seed)
    module = TinyTransformer(DecoderConfig(vocab_size=120, width=32, layers=1, context_length=64, **options)).eval()
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.3)
    module.save(folder)
    return folder


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("against")
    return export(saved(folder / "source", 1), folder / "package").folder


def test_the_source_agrees(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", str(package), "--against", str(package.parent / "source")]) == 0
    out = capsys.readouterr().out
    assert "long text" in out and "DIFFERENT" not in out


def test_other_weights_of_the_same_sizes_do_not(package: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", str(package), "--against", str(saved(tmp_path / "other", 2))]) == 1
    assert "DIFFERENT" in capsys.readouterr().out


def test_other_sizes_are_one_line(package: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", str(package), "--against", str(saved(tmp_path / "other", 2, heads=8))]) == 1
    err = capsys.readouterr().err
    assert "give the source that the package was exported from" in err
    assert run(["verify", str(package), "--against", str(tmp_path / "nowhere")]) == 1
    assert capsys.readouterr().err.splitlines()[-1].startswith("error: ")
