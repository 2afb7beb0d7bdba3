"""Exports or session saves in processes that die, or whose disk fails, at a chosen touch of the disk; run by `test_disk`.

python -m tests.attacks.disk_child export
python -m tests.attacks.disk_child session

It reads a wish per line on stdin, makes a process of its own for each, and writes what became of it on stdout. What no touch of
the disk depends on is made once, before: PyTorch is imported, the model traced, the sessions written that are to be saved.

A touch is a call that changes what is on disk: opening a file for writing, writing, flushing, a new name, a new folder, a removal.
Files are opened as Python's own classes, with a `write` that counts; NumPy writes past them, after a `flush` that counts too.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import io
import json
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # a process that has threads should not fork

import onnx_textgen
from onnx_textgen.errors import OnnxTextgenError
from onnx_textgen.files import replace

PACKAGE = Path(__file__).parents[1] / "packages" / "ort"
CALLS = ("open", "fsync", "rename", "replace", "unlink", "remove", "mkdir", "rmdir", "truncate", "ftruncate")
"""Of the module `os`."""
Work = Callable[[dict[str, Any], "Disk"], Callable[[], object]]
"""Makes ready what a wish asks for, and gives what is to be done while the disk is watched."""
io_open = io.open


class Disk:
    """Counts touches, and does what was wished for at one of them."""

    def __init__(self, at: int, act: str) -> None:
        """`at`: from 1; 0 for none. `act`: `kill`, `tear` (half a write, then the end), or the name of an error."""
        self.at, self.act, self.touches = at, act, list[str]()

    def touch(self, name: str, path: object, half: Callable[[], object] = lambda: None) -> None:
        """Count a call that is about to be made; `half` does a part of it."""
        self.touches.append(name)
        if len(self.touches) != self.at:
            return
        if self.act != "kill":
            half()
        if self.act in ("kill", "tear"):
            os.kill(os.getpid(), signal.SIGKILL)
        number = getattr(errno, self.act)
        raise OSError(number, os.strerror(number), os.fsdecode(path) if isinstance(path, str | bytes | os.PathLike) else None)

    def watch(self) -> None:
        """Count from here on, in this process."""
        for name in CALLS:
            setattr(os, name, self.counted(name, getattr(os, name)))
        builtins.open = io.open = self.open  # type: ignore[assignment]

    def counted(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        """A function of `os` that counts, unless it only reads."""

        def call(*args: Any, **more: Any) -> Any:
            if name != "open" or args[1] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                self.touch(name, args[0])
            return real(*args, **more)

        return call

    def open(self, file: Any, mode: str = "r", buffering: int = -1, encoding: str | None = None, *args: Any, **more: Any) -> Any:
        """`open`, of files that count what is written to them."""
        if not set(mode) & set("wax+"):
            return io_open(file, mode, buffering, encoding, *args, **more)
        self.touch("open", file)
        raw = CountedFile(self, file, mode.replace("b", "").replace("t", ""))
        whole = FlushedWriter(self, raw) if "+" not in mode else io.BufferedRandom(raw)
        return whole if "b" in mode else io.TextIOWrapper(whole, encoding or "utf-8", *args, **more)


class CountedFile(io.FileIO):
    """A file whose every write counts."""

    def __init__(self, disk: Disk, file: Any, mode: str) -> None:
        super().__init__(file, mode)
        self.disk = disk

    def write(self, data: Any) -> int:
        piece = bytes(data)
        self.disk.touch("write", self.name, lambda: super(CountedFile, self).write(piece[: len(piece) // 2]))
        return super().write(piece)


class FlushedWriter(io.BufferedWriter):
    """Counts a flush as well: NumPy asks for one, and then writes by itself."""

    def __init__(self, disk: Disk, raw: CountedFile) -> None:
        super().__init__(raw)
        self.disk = disk

    def flush(self) -> None:
        if not self.closed:
            self.disk.touch("flush", self.raw.name)  # type: ignore[attr-defined]
        super().flush()


def exports() -> Work:
    """Exports of a decoder as small as one can be, all of the graph that is made of it here, once."""
    import torch  # noqa: PLC0415

    from onnx_textgen_export import DecoderConfig, TinyTransformer, export  # noqa: PLC0415
    from onnx_textgen_export.exporting import exporter  # noqa: PLC0415

    class TracedError(Exception):
        """Ends the export that the graph is taken from."""

    def keep(*args: Any, **more: Any) -> Any:
        made.append(optimized_graph(*args, **more))
        raise TracedError

    def work(wish: dict[str, Any], disk: Disk) -> Callable[[], object]:
        def exchange(one: Path, other: Path) -> bool:
            """A system that cannot change two names says so without an error."""
            try:
                disk.touch("exchange", one)
            except OSError:
                return False
            return not wish["in_two_steps"] and at_once(one, other)

        replace.exchange = exchange
        target, more = Path(wish["target"]), {"tokenizer": PACKAGE / "tokenizer.json", "eos_ids": (1,)}
        return lambda: export(decoder, target, name="new", force=wish["force"], **more)

    torch.set_num_threads(1)
    torch.manual_seed(0)
    sizes = {"vocab_size": 258, "width": 16, "layers": 1, "heads": 2, "kv_heads": 1, "feed_forward": 32, "context_length": 64}
    decoder = TinyTransformer(DecoderConfig(**sizes))
    made, optimized_graph, at_once = list[Any](), exporter.optimized_graph, replace.exchange
    exporter.optimized_graph = keep
    with tempfile.TemporaryDirectory() as where, contextlib.suppress(TracedError):
        export(decoder, Path(where) / "none")
    exporter.optimized_graph = lambda *_, **__: made[0]
    return work


def saves() -> Work:
    """Saves of sessions that begin with the texts which a wish may name."""
    model, sessions = onnx_textgen.load(PACKAGE, threads=1, device="cpu"), {}
    for text in ("old", "new"):
        sessions[text] = model.session()
        sessions[text].append(text)
        sessions[text].generate(max_new_tokens=3, temperature=0)
    return lambda wish, _: lambda: sessions[wish["text"]].save(wish["target"])


def in_a_process(wish: dict[str, Any], make_ready: Work) -> dict[str, Any]:
    """What became of a wish: how its process ended, the touches it came to, and the line that it told, if any."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        disk = Disk(wish["at"], wish["act"])
        told: dict[str, Any] = {"touches": disk.touches, "error": None, "traceback": None}
        try:
            work = make_ready(wish, disk)
            disk.watch()
            work()
        except OnnxTextgenError as error:
            told["error"] = str(error)
        except BaseException:  # noqa: BLE001 - told to the other side, whatever it is
            told["traceback"] = traceback.format_exc()
        written = json.dumps(told).encode()
        while written:
            written = written[os.write(writer, written) :]
        os._exit(0)
    os.close(writer)
    with io_open(reader, "rb") as pipe:
        received = pipe.read()
    _, status = os.waitpid(child, 0)
    return {"killed": os.WIFSIGNALED(status), **(json.loads(received) if received else {})}


def main() -> None:
    """Answer wishes until there are no more."""
    make_ready = {"export": exports, "session": saves}[sys.argv[1]]()
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        print(json.dumps(in_a_process(json.loads(line), make_ready)), flush=True)


if __name__ == "__main__":
    main()
