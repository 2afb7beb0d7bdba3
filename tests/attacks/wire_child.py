"""A server of the tiny model, with and without a chat template, in a process of its own; run by `test_wire`.

python -m tests.attacks.wire_child SECONDS [FILES]     prints its port

SECONDS: how long it waits for headers, for bodies, and for clients that read nothing; FILES: how many files it may have open.
"""

import logging
import os
import resource
import socket
import sys
import threading
from pathlib import Path

import onnx_textgen
from onnx_textgen import Model
from onnx_textgen.hosts import listen
from onnx_textgen_server.app import make_app
from onnx_textgen_server.pool.model_pool import ModelPool
from onnx_textgen_server.pool.sources import OpenSource
from onnx_textgen_server.state import Settings
from onnx_textgen_server.transport import connections
from onnx_textgen_server.transport.process import run_server

PACKAGE = Path(__file__).parents[1] / "packages" / "ort"
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
MOST_SECONDS = 1.0
"""Of a text: one that would go on for ever ends here."""
MOST_TEXTS = 16
"""That run or wait."""
UNREAD_BYTES = 4096
"""That the kernel keeps of an answer; it would keep megabytes, and take a client that reads nothing for one that reads."""


def end_with_stdin() -> None:
    """End this process when the one that asks has ended, whatever ended it."""
    sys.stdin.read()
    os._exit(0)


def main() -> None:
    """Serve until the process is ended."""
    seconds = float(sys.argv[1])
    for files in map(int, sys.argv[2:]):
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    connections.HEADER_SECONDS = connections.SEND_SECONDS = seconds
    plain = onnx_textgen.load(PACKAGE, threads=1, device="cpu")
    chatty = Model(plain.folder, plain.manifest, plain.graph, chat_template=TEMPLATE)
    listeners = listen("127.0.0.1", 0)
    listeners[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, UNREAD_BYTES)
    logging.basicConfig(level=logging.WARNING)
    print(listeners[0].getsockname()[1], flush=True)
    pool = ModelPool([OpenSource("plain", plain), OpenSource("chatty", chatty)])
    app = make_app(pool, Settings(max_texts=MOST_TEXTS, max_seconds=MOST_SECONDS, max_body_seconds=seconds))
    threading.Thread(target=end_with_stdin, daemon=True).start()
    run_server(app, listeners)


if __name__ == "__main__":
    main()
