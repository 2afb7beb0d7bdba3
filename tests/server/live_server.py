"""A server in a thread of the test's own process."""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from onnx_textgen import Model
from onnx_textgen.cli.hosts import in_url, listen
from onnx_textgen_server.app import Settings, make_app
from onnx_textgen_server.process import PromptServer, make_config


@contextlib.contextmanager
def served(models: dict[str, Model], host: str = "127.0.0.1", **settings: Any) -> Iterator[tuple[str, Any]]:
    """The address of a live server, and what its routes share."""
    listeners = listen(host, 0)
    app = make_app(models, Settings(**settings))
    config = make_config(app)
    config.timeout_graceful_shutdown = 1
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)
    server = PromptServer(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": listeners}, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    try:
        yield f"http://{in_url(host)}:{listeners[0].getsockname()[1]}", app.state.server
    finally:
        server.should_exit = True
        thread.join(10)


def wait_until(holds: Callable[[], bool], seconds: float = 60) -> bool:
    """Whether something comes true in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if holds():
            return True
        time.sleep(0.01)
    return holds()
