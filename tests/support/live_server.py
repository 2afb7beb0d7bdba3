"""A server in a thread of the test's own process."""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from onnx_textgen import Model
from onnx_textgen.hosts import in_url, listen
from onnx_textgen_server.app import make_app
from onnx_textgen_server.pool.model_pool import ModelPool
from onnx_textgen_server.pool.sources import OpenSource
from onnx_textgen_server.state import Settings
from onnx_textgen_server.transport.process import FastShutdownServer, make_config
from support.patient_http import LONGEST_WAIT

LOOPS: dict[str, asyncio.AbstractEventLoop] = {}
"""Of each server, by its address."""


def served(models: dict[str, Model], host: str = "127.0.0.1", **settings: Any) -> AbstractContextManager[tuple[str, Any]]:
    """The address of a live server of open models, and what its routes share."""
    return served_pool(ModelPool([OpenSource(*each) for each in models.items()]), host, **settings)


@contextlib.contextmanager
def served_pool(pool: ModelPool, host: str = "127.0.0.1", **settings: Any) -> Iterator[tuple[str, Any]]:
    """The address of a live server of a pool, and what its routes share."""
    listeners = listen(host, 0)
    app = make_app(pool, Settings(**settings))
    config = make_config(app)
    config.timeout_graceful_shutdown = 1
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)
    server = FastShutdownServer(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": listeners}, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    url = f"http://{in_url(host)}:{listeners[0].getsockname()[1]}"
    LOOPS[url] = server.servers[0].get_loop()
    try:
        yield url, app.state.server
    finally:
        server.should_exit = True
        thread.join(LONGEST_WAIT)


@contextlib.contextmanager
def held(url: str) -> Iterator[None]:
    """Within it the server does nothing: what clients send meanwhile is there, whole, when it looks."""
    is_held, go_on = threading.Event(), threading.Event()
    LOOPS[url].call_soon_threadsafe(lambda: (is_held.set(), go_on.wait(LONGEST_WAIT)))
    assert is_held.wait(LONGEST_WAIT)
    try:
        yield
    finally:
        go_on.set()


def wait_until(holds: Callable[[], bool]) -> bool:
    """Whether something comes true, however loaded the machine is."""
    end = time.monotonic() + LONGEST_WAIT
    while time.monotonic() < end:
        if holds():
            return True
        time.sleep(0.01)
    return holds()
