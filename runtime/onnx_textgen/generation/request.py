"""One text that a caller waits for: what is asked, what has come of it so far, and how the caller hears of it."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator

from ..cancellation import Watch
from ..inference.graph_runner import Logits
from ..inference.prefill import Progress
from ..kv_cache.snapshot import Snapshot
from ..results import Chunk
from .continuation import Continuation


@dataclasses.dataclass(slots=True)
class KeptContext:
    """The cache that a session keeps between its requests, each of which takes it up when it gets a row and leaves its own."""

    snapshot: Snapshot | None = None
    """What the last request's row held of its prompt; None before the first one, and while a request is at work with it."""

    def take(self) -> Snapshot | None:
        """The snapshot, for a row to start from; forgotten here, so that memory does not hold it twice."""
        taken, self.snapshot = self.snapshot, None
        return taken


class Request:
    """One text that a caller wants."""

    def __init__(
        self,
        continuation: Continuation,
        watch: Watch,
        *,
        on_progress: Callable[[Progress], None] | None = None,
        streams: bool = True,
        caller: object = None,
        context: KeptContext | None = None,
    ) -> None:
        """`streams`: whether the caller wants each chunk as it comes, and not only the end.

        `caller`: the same for all texts that one caller wants; None where this is the only one. `context`: what the row starts
        from, and where its cache is left for the caller's next request; None: the model's prefix cache keeps it for all.
        """
        self.continuation, self.watch, self.on_progress, self.streams = continuation, watch, on_progress, streams
        self.caller = self if caller is None else caller
        self.context = context
        self.chunks: collections.deque[Chunk] = collections.deque()
        """What the caller has not taken yet."""
        self.progress: collections.deque[Progress] = collections.deque()
        """How far its prompt is, for `on_progress`, which the caller's own thread calls."""
        self.error: BaseException | None = None
        self.parts: Iterator[Logits | None] | None = None
        """The rest of the prompt, while it is fed."""
        self.logits: Logits | None = None
        """[vocabulary], of the next token."""
        self.has_ended = False
        """Whether its last chunk is there to be taken, or was."""
        self.is_abandoned = False
        """Whether its caller is gone."""
        self.changed = threading.Event()
        self.work = contextlib.ExitStack()
        """What lasts as long as it has a row: its cancellation and its deadline reach the run that is under way."""

    @property
    def is_done(self) -> bool:
        """Whether nothing more will come."""
        return self.error is not None or self.has_ended

    @property
    def is_ready(self) -> bool:
        """Whether the caller has something to take."""
        return self.is_done or (self.streams and bool(self.chunks or self.progress))
