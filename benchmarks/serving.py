"""What HTTP costs: tokens per second and the server's CPU time per token, streamed and whole, beside the runtime alone.

    python benchmarks/serving.py [PACKAGE] [--clients 1 8] [--threads 1] [--rounds 5]

The server, and the runtime that generates the same texts without one, are processes of their own; this one is the client, over raw
sockets that only wait for the end of each answer. All forms take turns, so that the machine's other work reaches them alike. Prints
medians. With more than one thread, ONNX Runtime's threads wait busily, which counts as CPU time of the tokens. Linux only, whose
clocks it reads.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import selectors
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

NEW_TOKENS = 200
PROMPTS = ["Once upon a time", "The dog ran", "Lily and Tom", "It was dark", "One day a bird", "Mum said", "A big red", "The sun"]
OPTIONS = {"temperature": 0.8, "seed": 1, "ignore_eos": True, "loop_guard": "off"}
PATIENCE_SECONDS = 60

SERVER = "from onnx_textgen_server.cli import app; app()"
RUNTIME = """
import json, sys
import onnx_textgen
model = onnx_textgen.load(sys.argv[1], device="cpu", threads=int(sys.argv[2]))
print(flush=True)
for line in sys.stdin:
    prompts, options = json.loads(line)
    model.generate(prompts, **options)
    print(flush=True)
"""

Result = tuple[float, float]
"""Seconds of a round, and the CPU seconds of the process meanwhile."""


def cpu_seconds(process: subprocess.Popen[str]) -> float:
    """CPU time of a process so far, all its threads together."""
    # Linux's number of a process's CPU clock (`clock_getcpuclockid`), which is finer than the ticks of /proc.
    return time.clock_gettime((~process.pid << 3) | 2)


class Runtime:
    """The runtime alone, in a process of its own."""

    def __init__(self, package: str, threads: int) -> None:
        command = [sys.executable, "-c", RUNTIME, package, str(threads)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.wait()

    def wait(self) -> None:
        """Wait until it has done what it was asked for."""
        assert self.process.stdout, "a pipe was asked for"
        if not self.process.stdout.readline():
            raise SystemExit("the runtime's process ended; its message is above")

    def measure(self, prompts: list[str]) -> Result:
        """Generate all texts together."""
        assert self.process.stdin, "a pipe was asked for"
        cpu, start = cpu_seconds(self.process), time.perf_counter()
        self.process.stdin.write(json.dumps([prompts, OPTIONS | {"max_new_tokens": NEW_TOKENS}]) + "\n")
        self.process.stdin.flush()
        self.wait()
        return time.perf_counter() - start, cpu_seconds(self.process) - cpu


class Server:
    """A server in a process of its own."""

    def __init__(self, package: str, threads: int) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.address: tuple[str, int] = free.getsockname()
        command = [
            sys.executable,
            "-c",
            SERVER,
            package,
            "--device",
            "cpu",
            "--threads",
            str(threads),
            "--port",
            str(self.address[1]),
        ]
        self.process = subprocess.Popen(command, text=True, stderr=subprocess.DEVNULL)
        end = time.monotonic() + PATIENCE_SECONDS
        while self.process.poll() is None and time.monotonic() < end:
            with contextlib.suppress(ConnectionError):
                socket.create_connection(self.address).close()
                return
            time.sleep(0.1)
        raise SystemExit(f"nothing is served; try: {' '.join(command[:2])} {SERVER!r} {package}")

    def measure(self, prompts: list[str], *, streams: bool) -> Result:
        """Send one request for each text, all at once, and read until every answer has ended."""
        cpu, start = cpu_seconds(self.process), time.perf_counter()
        with contextlib.ExitStack() as stack, selectors.DefaultSelector() as selector:
            for prompt in prompts:
                connection = stack.enter_context(socket.create_connection(self.address, PATIENCE_SECONDS))
                connection.sendall(request(prompt, streams=streams))
                selector.register(connection, selectors.EVENT_READ, bytearray())
            while selector.get_map():
                for key, _ in selector.select():
                    if received := key.fileobj.recv(2**16):  # type: ignore[union-attr]  # a socket
                        key.data.extend(received)
                    else:
                        check(bytes(key.data), streams=streams)
                        selector.unregister(key.fileobj)
        return time.perf_counter() - start, cpu_seconds(self.process) - cpu


def request(prompt: str, *, streams: bool) -> bytes:
    """A request whose answer ends with the connection."""
    usage = {"stream_options": {"include_usage": True}} if streams else {}
    body = json.dumps({"prompt": prompt, "max_tokens": NEW_TOKENS, "stream": streams, **OPTIONS, **usage}).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nConnection: close\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def check(answer: bytes, *, streams: bool) -> None:
    """End the measurement if an answer has not all its tokens."""
    ends_well = b"data: [DONE]\n\n" in answer or not streams
    if not ends_well or b'"completion_tokens":%d' % NEW_TOKENS not in answer:
        raise SystemExit(f"the server did not answer as expected: {answer[:500]!r} ... {answer[-300:]!r}")


@contextlib.contextmanager
def ending(process: subprocess.Popen[str]) -> Iterator[None]:
    """End this process at the end."""
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def main() -> None:
    """Print a line for each number of clients and form."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", nargs="?", default="story")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    runtime = Runtime(arguments.package, arguments.threads)
    with ending(runtime.process):
        server = Server(arguments.package, arguments.threads)
        with ending(server.process):
            for clients in arguments.clients:
                prompts = [PROMPTS[number % len(PROMPTS)] for number in range(clients)]
                found = dict[str, list[Result]]()
                for number in range(arguments.rounds + 1):
                    results = {
                        "runtime alone": runtime.measure(prompts),
                        "streamed": server.measure(prompts, streams=True),
                        "whole": server.measure(prompts, streams=False),
                    }
                    for form, result in results.items() if number else ():  # the first round only warms up
                        found.setdefault(form, []).append(result)
                show(clients, found)


def show(clients: int, found: dict[str, list[Result]]) -> None:
    """Print the medians of each form."""
    tokens = clients * NEW_TOKENS
    for form in sorted(found):
        speed = statistics.median(tokens / seconds for seconds, _ in found[form])
        cost = statistics.median(cpu / tokens for _, cpu in found[form])
        print(f"{clients} x {form:16} {speed:7.0f} tokens/s {cost * 1000:6.3f} ms of CPU a token", flush=True)


if __name__ == "__main__":
    main()
