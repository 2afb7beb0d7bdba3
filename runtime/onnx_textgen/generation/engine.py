"""Where the threads of all callers meet: each waits for its own text, and one of them runs the graph for all."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence

from ..encoders.encoder import Encoder
from ..inference.decoder import Decoder
from ..inference.prefix_cache import PrefixStore
from ..inference.prompt_engine import PromptEngine
from ..options.defaults import ROWS
from ..results import Chunk
from .preparation import Preparation
from .request import Request
from .scheduler import Scheduler
from .turn_taking import TurnTaking


class Engine:
    """The requests of one model. Safe to use from several threads."""

    def __init__(
        self,
        new_decoder: Callable[[int], Decoder],
        store: PrefixStore,
        *,
        rows: int = ROWS,
        encoder: Encoder | None = None,
        prompt_engine: PromptEngine | None = None,
    ) -> None:
        """`new_decoder` makes a decoder with the given number of rows; `encoder` and `prompt_engine`: what it has."""
        lock = threading.RLock()  # a signal handler may need it while its own thread has it
        self.preparation = Preparation(new_decoder, store, encoder, prompt_engine)
        self.scheduler = Scheduler(new_decoder, store, rows=rows, lock=lock)
        self.turns = TurnTaking(self.scheduler, lock)

    def chunks(self, request: Request) -> Generator[Chunk, None, None]:
        """Submit a request and yield its chunks; when the iterator is closed, the request is released."""
        self.submit(request)
        try:
            while True:
                self.turns.wait_for(request)
                is_done = request.is_done  # read before the chunks are taken: the last one may come in between
                while request.progress and request.on_progress is not None:
                    request.on_progress(request.progress.popleft())
                while request.chunks:
                    yield request.chunks.popleft()
                if request.error is not None:
                    raise request.error
                if is_done:
                    return
        finally:
            self.turns.leave([request])

    def submit(self, request: Request) -> None:
        """Prepare a request in this thread, and add it to those that wait for a row; raises `BusyError` if too many do."""
        self.scheduler.check_waiting()
        self.preparation.prepare(request, lambda: self.scheduler.sources)
        self.scheduler.submit(request)

    def finish(self, requests: Sequence[Request]) -> None:
        """Wait until all requests end; raises the error of the first that failed. Only a few of many are submitted at a time."""
        submitted, window = 0, 2 * self.scheduler.most_rows
        try:
            for index, request in enumerate(requests):
                while submitted < min(len(requests), index + window):
                    self.submit(requests[submitted])
                    submitted += 1
                self.turns.wait_for(request)
                if request.error is not None:
                    raise request.error
        finally:
            self.turns.leave(requests)
