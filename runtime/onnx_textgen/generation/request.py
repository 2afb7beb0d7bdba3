"""One text that a caller waits for: what is asked, what has come of it so far, and how the caller hears of it."""

from __future__ import annotations

import collections
import contextlib
import threading
from collections.abc import Callable, Iterator

from ..cancellation import Watch
from ..inference.decoder import Logits
from ..inference.prefill import Progress
from ..results import Chunk
from .continuation import Continuation


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
    ) -> None:
        """`streams`: whether the caller wants each chunk as it comes, and not only the end.

        `caller`: the same for all texts that one caller wants; None where this is the only one.
        """
        self.continuation, self.watch, self.on_progress, self.streams = continuation, watch, on_progress, streams
        self.caller = self if caller is None else caller
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
