"""A live server, and the official client."""

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest

import onnx_textgen
from onnx_textgen import Model

MISSING = [name for name in ("fastapi", "uvicorn", "prometheus_client", "openai") if find_spec(name) is None]
collect_ignore_glob = ["test_*.py"] if MISSING else []
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"

if not MISSING:
    import openai

    from support.live_server import served


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if MISSING:
        terminalreporter.write_line(f"tests/server left out: needs {' and '.join(MISSING)}; pip install -e .[dev]")


@pytest.fixture(scope="session")
def story() -> Model:
    """With an exact history, so that no answer depends on what earlier tests asked."""
    return onnx_textgen.load(threads=1, device="cpu", exact_history=True)


@pytest.fixture(scope="session")
def chatty(story: Model) -> Model:
    return Model(story.folder, story.manifest, story.graph, chat_template=TEMPLATE, exact_history=True)


@pytest.fixture(scope="session")
def live(story: Model, chatty: Model) -> Iterator[tuple[str, Any]]:
    """A server of two models."""
    with served({"story": story, "chatty": chatty}) as found:
        yield found


@pytest.fixture
def client(live: tuple[str, Any]) -> Iterator[Any]:
    """OpenAI's own client."""
    with openai.OpenAI(base_url=f"{live[0]}/v1", api_key="unused", max_retries=0) as found:
        yield found
