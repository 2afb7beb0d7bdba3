"""A full disk, two exports into one folder: the target folder is absent or complete. Kills: see tests/attacks/test_disk.py."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from onnx_textgen.package.reading import read_manifest
from onnx_textgen_export.package.folder import is_complete

PACKAGES = Path(__file__).parents[2] / "packages"
WRITER = Path(__file__).parents[2] / "support" / "folder_writer.py"
DECODER = """
import torch
from onnx_textgen_export import DecoderConfig, TinyTransformer


def build():
    torch.manual_seed(0)
    return TinyTransformer(DecoderConfig(vocab_size=96, width=32, layers=2, heads=2, kv_heads=1, context_length=64))
"""


def start(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, str(WRITER), *map(str, arguments)], stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("force", [False, True])
def test_of_two_writers_at_once_one_wins_and_the_other_gets_one_line(tmp_path: Path, force: bool) -> None:
    target = tmp_path / "package"
    flags = ["force"] if force else []
    with start(PACKAGES / "ort", target, *flags) as one, start(PACKAGES / "standard", target, *flags) as other:
        results = [process.communicate(timeout=60)[0].strip() for process in (one, other)]
    assert "written" in results
    assert is_complete(target)
    winner = "ort" if results[0] == "written" else "standard"
    if results != ["written", "written"]:  # with --force the second may begin when the first has ended
        loser = next(line for line in results if line != "written")
        assert loser.startswith(("another export is writing ", f"{target} exists already")) and "\n" not in loser
        assert read_manifest(target).target == winner
    else:
        assert force
    assert [path.name for path in tmp_path.iterdir()] == ["package"]


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("decoder") / "decoder.py"
    path.write_text(DECODER)
    return f"{path}:build"


def exporting(source: str, out: Path, **options: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "onnx_textgen.cli", "export", source, "--out", str(out), "--force"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, **options)  # type: ignore[call-overload, no-any-return]


def one_line(process: subprocess.Popen[str]) -> str:
    """The complaint of an export that fails, without the stages that were reported before."""
    lines = process.communicate()[1].splitlines()
    assert process.returncode == 1
    assert not any("Traceback" in line for line in lines)
    return lines[-1]


@contextlib.contextmanager
def small_disk(folder: Path, kilobytes: int) -> Iterator[None]:
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("only root may mount the small disk that this test fills")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.slow
def test_a_real_export_onto_a_full_disk_is_one_line_and_leaves_nothing(decoder: str, tmp_path: Path) -> None:
    with small_disk(tmp_path, 48):
        with exporting(decoder, tmp_path / "package") as process:
            line = one_line(process)
        assert "the disk is full" in line or "free some space" in line
        assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_real_export_that_may_write_no_large_file_is_one_line_and_leaves_nothing(decoder: str, tmp_path: Path) -> None:
    resource = pytest.importorskip("resource", reason="a limit of what a process may write is POSIX's")

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    with exporting(decoder, tmp_path / "package", preexec_fn=limit) as process:
        line = one_line(process)
    assert "cannot write" in line and "the disk is full (File too large)" in line
    assert list(tmp_path.iterdir()) == []
