"""Packages that several tests look at, each exported once."""

from pathlib import Path

import pytest

from onnx_textgen.artifact import Target
from onnx_textgen_export import export

TARGETS: tuple[Target, ...] = ("ort", "standard")


@pytest.fixture(scope="session")
def stories(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The trained stories260K checkpoint at both targets, by target."""
    folder = tmp_path_factory.mktemp("stories")
    checkpoint = shared / "checkpoints" / "stories260K"
    return {target: export(checkpoint, folder / target, target=target).folder for target in TARGETS}
