"""One text that a caller waits for: its continuation, its results so far, and how the caller is notified."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import threading
from collections.abc import Callable, Generator, Sequence

from ..cancellation import CancelScope
from ..encoders.encoder import Encoded
from ..inference.graph_runner import Logits
from ..inference.prefill import Progress
from ..kv_cache.snapshot import Snapshot
from ..results import Chunk
from .continuation import Continuation


@dataclasses.dataclass(slots=True)
class KeptContext:
    """The cache that a session keeps between requests: each request takes it when it gets a row, and leaves its own."""

    snapshot: Snapshot | None = None
    """What the row of the last request held; None before the first request, and while a request uses it."""

    def take(self) -> Snapshot | None:
        """Return the snapshot for a row to start from, and drop it here, so that memory does not hold it twice."""
        taken, self.snapshot = self.snapshot, None
        return taken


class Request:
    """One text that a caller wants."""

    def __init__(
        self,
        continuation: Continuation,
        scope: CancelScope,
        *,
        on_progress: Callable[[Progress], None] | None = None,
        on_chunks: Callable[[Sequence[Chunk]], None] | None = None,
        streams: bool = True,
        caller: object = None,
        context: KeptContext | None = None,
    ) -> None:
        """`streams`: whether the caller takes each chunk as it comes, or only waits for the end.

        `on_chunks`: called with the chunks of each step, in the thread that leads, so it must be quick; the caller then only waits
        for the end. It costs less than a thread that takes the chunks of one text.

        `caller`: the same object for all texts of one caller; None if this is its only text. `context`: the cache that the row
        starts from, replaced by the row's for the caller's next request; None: the model's prefix cache keeps it for all callers.
        """
        self.continuation, self.scope, self.on_progress = continuation, scope, on_progress
        self.on_chunks, self.streams = on_chunks, streams and on_chunks is None
        self.caller = self if caller is None else caller
        self.context = context
        self.chunks: collections.deque[Chunk] = collections.deque()
        """Chunks that the caller has not taken yet."""
        self.progress: collections.deque[Progress] = collections.deque()
        """Progress of its prompt, for `on_progress`, which the caller's thread calls."""
        self.source: Encoded | None = None
        """What the encoder has read for it, until it has a row."""
        self.error: BaseException | None = None
        self.parts: Generator[Logits | None, None, None] | None = None
        """Feeds the remaining parts of its prompt; None before the first and after the last."""
        self.logits: Logits | None = None
        """[vocabulary], for the next token; None if it is chosen already."""
        self.has_ended = False
        """Whether its last chunk was emitted."""
        self.is_abandoned = False
        """Whether its caller is gone."""
        self.changed = threading.Event()
        self.work = contextlib.ExitStack()
        """Open as long as it has a row: lets its cancellation and deadline end the run in progress."""

    @property
    def is_done(self) -> bool:
        """Whether no more chunks will come."""
        return self.error is not None or self.has_ended

    @property
    def is_ready(self) -> bool:
        """Whether the caller has something to take."""
        return self.is_done or (self.streams and bool(self.chunks or self.progress))
