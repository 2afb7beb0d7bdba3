"""Served pages, and one browser for all tests."""

import asyncio
import contextlib
import socket
from importlib.util import find_spec
from pathlib import Path
from unittest import mock

import pytest

import onnx_textgen
from support.scripted_model import TINY_PACKAGE, ScriptedModel

HERE = Path(__file__).parent
MISSING = [name for name in ("gradio", "selenium") if find_spec(name) is None]
collect_ignore_glob = ["test_*.py", "chat/test_*.py", "conversation/test_*.py"] if MISSING else []

if not MISSING:
    from onnx_textgen_demo.app import make_page
    from onnx_textgen_demo.models import ModelRegistry
    from onnx_textgen_demo.serving.server import serve
    from support import browser as browser_tools


def pytest_terminal_summary(terminalreporter):
    if MISSING:
        terminalreporter.write_line(f"tests/demo left out: needs {' and '.join(MISSING)}; pip install -e .[dev]")


def pytest_collection_modifyitems(items):
    # Gradio's server runs inside the test process; what it and pandas deprecate between themselves is not ours to mend.
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.filterwarnings("ignore::DeprecationWarning"))
            item.add_marker(pytest.mark.filterwarnings("error::DeprecationWarning:onnx_textgen"))


@contextlib.contextmanager
def closed_loops():
    """Closes the event loops that Gradio makes while it builds a page and forgets."""
    loops = []
    make_loop = asyncio.new_event_loop
    with mock.patch.object(asyncio, "new_event_loop", lambda: loops.append(make_loop()) or loops[-1]):
        yield
    asyncio.set_event_loop(None)
    for loop in loops:
        if not loop.is_running():
            loop.close()


@contextlib.contextmanager
def served_page(*models, opener_of=None, own=None, **more):
    """The address of a page for these models, each under its own name; `more` goes to `serve`, the others to `make_page`."""
    with closed_loops():
        page = make_page(registry_of(*models), opener_of=opener_of, own=own)
        served = serve(page, host="127.0.0.1", port=PORT if is_free(PORT) else 0, **more)
        try:
            yield served.address
        finally:
            served.close()


def registry_of(*models):
    if isinstance(models[0], ModelRegistry):
        return models[0]
    return ModelRegistry({model.manifest.name: lambda model=model: model for model in models})


def find_free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


PORT = find_free_port()
"""Where one page after the other is served, as the browser keeps Gradio's scripts of an address compiled."""


def is_free(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


@pytest.fixture
def free_port():
    return find_free_port()


@pytest.fixture
def served(request):
    """Call it with models to serve their page; gives the address."""
    with contextlib.ExitStack() as stack:
        yield lambda *models, **more: stack.enter_context(served_page(*models, **more))
        if "chromium" in request.fixturenames:
            browser_tools.leave_page(request.getfixturevalue("chromium"), f"http://127.0.0.1:{PORT}")


@pytest.fixture
def page_of():
    """Call it with models; gives their page, not served."""
    with closed_loops():
        yield lambda *models: make_page(registry_of(*models))


@pytest.fixture
def page(page_of):
    """A page for a scripted model, not served."""
    return page_of(ScriptedModel())


@pytest.fixture(scope="module")
def tiny_address():
    """The page of a real, tiny model, one for all tests of a module."""
    with served_page(onnx_textgen.load(TINY_PACKAGE)) as address:
        yield address


@pytest.fixture(scope="session")
def chromium():
    if None in browser_tools.programs():
        pytest.skip("needs chromium and chromedriver: apt-get install chromium chromium-driver")
    with browser_tools.chromium() as driver:
        yield driver


@pytest.fixture
def marks(tmp_path):
    """Call it for the marks that the function `mark` left."""
    return lambda: (tmp_path / "marks").read_text().split() if (tmp_path / "marks").exists() else []
