"""Snapshots of prompts in a folder, so that a long beginning is not computed again after a restart.

Each file is a saved session that holds one prompt (`session_file`), with its sha256. Models, versions and processes may share a
folder: a file is read only by a model, an adapter and an engine that are the same as when it was written. What cannot be read is
ignored and removed. A file is written by a background thread; prompts that come meanwhile wait for it, the latest one alone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import platform
import re
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ..backends.kernels import LIBRARY, instructions
from ..backends.plugins.known import PLUGINS
from ..errors import LOG, PackageError, first_line
from ..inference.decoder import Decoder
from ..inference.prefix_cache import PrefixStore
from ..kv_cache.snapshot import Origin, Snapshot
from ..requirements import version_of
from ..tasks.open_model import OpenModel
from .session_file import FORMAT, read_beginning, read_session, write_session

MOST_FILES = 256
"""Each file is looked at when a folder is opened."""
SHORTEST = 64
"""The fewest tokens that are worth reading from a file, or writing to one."""
GROWTH = 1.25
"""A prompt that begins like a saved one is saved if it is so much longer, so that a growing chat is not written at every turn."""
ABANDONED_SECONDS = 60
"""A partial file that nobody has written to for so long was left by a process that was killed."""
FILE = re.compile(r"prefix-[0-9a-f]{16}-[0-9a-f]{32}\.npz")
PARTIAL = re.compile(r"\.prefix-[0-9a-f]{16}-[0-9a-f]{32}\.npz\.partial-[0-9a-f]{8}")
CPUINFO = Path("/proc/cpuinfo")
CPU_FLAGS = re.compile(r"^(?:flags|Features)\s*:(.*)$", re.MULTILINE)


class PrefixFolder:
    """The saved snapshots of one open model; see `SavedPrefixes`. Safe to use from several threads."""

    def __init__(self, folder: Path, size_bytes: int, opened: OpenModel) -> None:
        """`size_bytes`: the most bytes of all files of the folder. Raises `PackageError` if the folder cannot be made."""
        self.folder, self.size_bytes = folder, size_bytes
        self.digest, self.adapters = engine_digest(opened), opened.adapter_digests
        self.index = PrefixStore(0)
        """The snapshots of all files, without their arrays."""
        self.paths = dict[Snapshot, Path]()
        self.seen = set[str]()
        """Names of the files that the index has, or that are not for this model."""
        self.pending: Snapshot | None = None
        self.is_writing = False
        self.lock = threading.RLock()
        """Reentrant, as that of `PrefixStore`."""
        self.writer = ThreadPoolExecutor(1, thread_name_prefix="onnx-textgen prefixes")
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise PackageError(f"prefixes cannot be saved in {folder} ({first_line(error)}); give another folder") from error
        self.make_room(0)

    def load(
        self, decoder: Decoder, token_ids: Sequence[int], origin: Origin, *, longer_than: int, most_bytes: int
    ) -> Snapshot | None:
        """See `SavedPrefixes`."""
        if len(token_ids) - longer_than < SHORTEST:
            return None
        self.refresh(decoder)
        with self.lock:
            found, length = self.index.find(token_ids, len(token_ids), origin)
            if found is None or length - longer_than < SHORTEST or decoder.bytes_of(len(found.token_ids)) > most_bytes:
                return None
            path = self.paths[found]
        try:
            _, _, snapshot = read_session(path, self.digest, decoder, adapters=self.adapters)
            if snapshot is None or self.path_of(snapshot) != path:
                raise PackageError(f"{path} has another prompt than its name says")
            os.utime(path)
        except (PackageError, OSError) as error:
            self.drop(path, error)
            return None
        return snapshot

    def offer(self, snapshot: Snapshot) -> None:
        """See `SavedPrefixes`."""
        count = len(snapshot.token_ids)
        if count < SHORTEST or snapshot.size_bytes > self.size_bytes or snapshot.origin.salt is not None:
            return
        with self.lock:
            _, covered = self.index.find(snapshot.token_ids, count, snapshot.origin)
            if count < covered + SHORTEST or count < covered * GROWTH:
                return
            self.pending = snapshot
            if not self.is_writing:
                with contextlib.suppress(RuntimeError):  # the process ends
                    self.writer.submit(self.write_pending)
                    self.is_writing = True

    def close(self) -> None:
        """See `SavedPrefixes`."""
        self.writer.shutdown()

    def write_pending(self) -> None:
        """Write snapshots until none is pending."""
        while True:
            with self.lock:
                snapshot, self.pending = self.pending, None
                self.is_writing = snapshot is not None
            if snapshot is None:
                return
            try:
                self.write(snapshot)
            except Exception as error:  # noqa: BLE001 - such as no memory: texts need no file
                LOG.warning("a prompt was not saved for later ones: %s", first_line(error))

    def write(self, snapshot: Snapshot) -> None:
        """Write one snapshot; files that it contains are removed, and the least recently used ones beyond `size_bytes`."""
        path = self.path_of(snapshot)
        self.make_room(snapshot.size_bytes)
        write_session(path, self.digest, (), (), snapshot, adapters=self.adapters)
        with self.lock:
            self.add(path, dataclasses.replace(snapshot, tensors={}, states={length: {} for length in snapshot.states}, windows=()))
            contained = {self.paths.pop(each) for each in list(self.paths) if each not in self.index}
            contained -= set(self.paths.values())
        for each in contained:
            remove(each)
        self.make_room(0)

    def path_of(self, snapshot: Snapshot) -> Path:
        """The file of a snapshot: its name has digests of the engine, and of the origin and the tokens."""
        adapter, engine, _ = snapshot.origin
        origin = [None if adapter is None else self.adapters[adapter], *([] if engine is None else [engine])]
        return self.folder / f"prefix-{self.digest[:16]}-{digest_of([*origin, *snapshot.token_ids])[:32]}.npz"

    def refresh(self, decoder: Decoder) -> None:
        """Read the beginnings of files that came since the last call, from other processes too, and forget those that are gone."""
        with self.lock:  # also while the folder is listed: a file that is written meanwhile would seem to be gone
            names = {path.name: path for path, _ in self.files() if path.name.startswith(f"prefix-{self.digest[:16]}-")}
            for snapshot, path in list(self.paths.items()):
                if path.name not in names:
                    self.forget(snapshot)
            new = names.keys() - self.seen
            self.seen |= new
        for name in new:  # without the lock, for which the step of all texts would wait in `offer`
            try:
                known = read_beginning(names[name], self.digest, decoder, adapters=self.adapters)
            except PackageError as error:
                self.drop(names[name], error)
                continue
            if known is not None:
                with self.lock:
                    self.add(names[name], known)

    def add(self, path: Path, snapshot: Snapshot) -> None:
        """Add a file to the index, instead of what is known of it."""
        for known in [each for each, place in self.paths.items() if place == path]:
            self.forget(known)
        self.index.add(snapshot)
        self.paths[snapshot] = path
        self.seen.add(path.name)

    def forget(self, snapshot: Snapshot) -> None:
        """Remove a file from the index."""
        self.index.discard(snapshot)
        self.seen.discard(self.paths.pop(snapshot).name)

    def drop(self, path: Path, error: Exception) -> None:
        """Remove a file that cannot be read."""
        LOG.warning("a saved prompt is ignored and removed: %s", first_line(error))
        remove(path)
        with self.lock:
            for snapshot in [each for each, known in self.paths.items() if known == path]:
                self.forget(snapshot)

    def files(self) -> list[tuple[Path, os.stat_result]]:
        """The files of all models in the folder, partial ones included, the least recently used first."""
        found = list[tuple[Path, os.stat_result]]()
        with contextlib.suppress(OSError):
            for path in self.folder.iterdir():
                if FILE.fullmatch(path.name) or PARTIAL.fullmatch(path.name):
                    with contextlib.suppress(OSError):  # another process has removed it
                        found.append((path, path.stat(follow_symlinks=False)))
        return sorted(found, key=lambda each: each[1].st_mtime)

    def make_room(self, size_bytes: int) -> None:
        """Remove abandoned partial files, and the least recently used files, so that `size_bytes` more are within the limit."""
        files, now = self.files(), time.time()
        partial = [path for path, stat in files if PARTIAL.fullmatch(path.name) and now - stat.st_mtime > ABANDONED_SECONDS]
        for path in partial:
            remove(path)
        left = [(path, stat) for path, stat in files if path not in partial]
        total, count = sum(stat.st_size for _, stat in left), len(left) + (size_bytes > 0)
        for path, stat in left:
            if total + size_bytes <= self.size_bytes and count <= MOST_FILES:
                break
            if FILE.fullmatch(path.name):
                remove(path)
                total, count = total - stat.st_size, count - 1


def engine_digest(opened: OpenModel) -> str:
    """A digest of the format, and of all that the bits of keys and values depend on, from the weights to the processor."""
    device = opened.graph.device
    plugins = [PLUGINS[device.kind].distribution] if device.kind in PLUGINS else []
    engines = ("onnxruntime", "onnxruntime-gpu", "openvino", *plugins)
    versions = [f"{name} {version}" for name in engines if (version := version_of(name)) is not None]
    products = hashlib.sha256(LIBRARY.read_bytes()).hexdigest() if instructions() is not None else None
    return digest_of([FORMAT, opened.digest, str(device), opened.graph.threads, os.cpu_count(), versions, processor(), products])


def processor() -> str:
    """The instructions of the processor, by which engines choose their kernels; its name where the system does not list them."""
    with contextlib.suppress(OSError):
        if found := CPU_FLAGS.search(CPUINFO.read_text(encoding="utf-8", errors="replace")):
            return found[1].strip()
    return f"{platform.machine()} {platform.processor()}"


def digest_of(values: Sequence[object]) -> str:
    """A sha256 of values, in hexadecimal."""
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()


def remove(path: Path) -> None:
    """Remove a file, if nobody has done so and nobody prevents it."""
    with contextlib.suppress(OSError):
        path.unlink()
