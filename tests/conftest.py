"""What every test may ask for."""

import collections
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from onnx_textgen.backends import onnxruntime_session
from support.examples import register_profiles
from support.processor import products_by_onnx_runtime

register_profiles()

if "PYTEST_XDIST_WORKER" in os.environ:  # workers share the cores
    os.environ["OMP_NUM_THREADS"] = "1"  # torch reads this when it is imported
    onnxruntime_session.threads_within_limits = lambda: 1

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell starts what runs in the background; tests of Ctrl-C press it
    signal.signal(signal.SIGINT, signal.default_int_handler)

for name in [name for name in os.environ if name.startswith("ONNX_TEXTGEN_") or name in ("NO_COLOR", "FORCE_COLOR")]:
    del os.environ[name]  # what a developer or a CI machine has set changes no test
os.environ["ONNX_TEXTGEN_CACHE"] = str(Path(tempfile.gettempdir()) / "no-models-of-onnx-textgen")  # not the user's own
os.environ["ONNX_TEXTGEN_HUGE_PAGES"] = "0"  # in a process with PyTorch, looking for new memory takes longer than opening a model

TESTS = Path(__file__).resolve().parent
LONGEST = (
    "export/test_trained_model.py",
    "export/extra_graphs/test_attention_maps.py",
    "export/huggingface/test_encoder_decoders.py",
    "export/exporting/test_adapters.py",
    "export/huggingface/test_architectures.py",
)
SHARED = TESTS.parents[1] / "shared" / "data"
BROWSERS = frozenset({"chromium", "browser"})
"""Fixtures that start one."""
QUICK_PAGE = TESTS / "demo" / "test_browser.py"
"""The file of tests in a browser that is not slow."""


@pytest.hookimpl(tryfirst=True)  # before pytest leaves out what is marked
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark attacks and tests in a browser as slow, put the longest files first, and mix those of all folders.

    So no long file is left alone when the others are done. The tests of pages wait for a browser most of the time, those of the
    exporter compute: next to each other they use the processor.
    """
    for item in items:
        in_browser = not BROWSERS.isdisjoint(getattr(item, "fixturenames", ())) and item.path != QUICK_PAGE
        if in_browser or item.path.is_relative_to(TESTS / "attacks"):
            item.add_marker(pytest.mark.slow)
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    folders = [path.relative_to(TESTS).parts[0] for path in files]
    seen: collections.Counter[str] = collections.Counter()
    places: dict[Path, float] = {}
    for path, folder in zip(files, folders, strict=True):
        places[path] = len(LONGEST) + seen[folder] / folders.count(folder)
        seen[folder] += 1
    places |= {TESTS / name: place for place, name in enumerate(LONGEST)}
    items[:] = [item for path in sorted(files, key=places.__getitem__) for item in files[path]]


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of corpora, trained checkpoints, tokenizers and golden outputs that lies beside the repository."""
    if not SHARED.is_dir():
        pytest.skip("needs the test data folder ../shared/data, which is not part of the repository")
    return SHARED


@pytest.fixture
def same_rounding() -> Iterator[None]:
    """For what compares texts with another runtime: this project's kernels sum in another order."""
    with products_by_onnx_runtime():
        yield


MOST_FILES = 30


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print which files take longest, with what their fixtures take, where `--durations` asks for times."""
    if not terminalreporter.config.getoption("durations"):
        return
    seconds: collections.Counter[str] = collections.Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds[report.location[0]] += report.duration
    terminalreporter.section(f"files that take longest, of {seconds.total():.0f} s in {len(seconds)}")
    for name, duration in seconds.most_common(MOST_FILES):
        terminalreporter.write_line(f"{duration:8.1f} s  {name}")


@pytest.fixture
def eventually():
    """Call it with a condition that must become true, however loaded the machine is."""

    def check(condition, seconds=300):
        deadline = time.monotonic() + seconds
        while not condition() and time.monotonic() < deadline:
            time.sleep(0.02)
        assert condition(), "still not so after waiting"

    return check
