"""What a request needs before it has a row, done in its caller's thread, so that the texts of others do not wait for it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable

from ..cancellation import CancelScope, InterruptedRunError
from ..encoders.encoder import Encoded, Encoder
from ..inference.decoder import Decoder
from ..inference.prefix_cache import PrefixStore
from ..inference.prompt_engine import PromptEngine
from ..kv_cache.snapshot import Origin
from .request import Request

WAKING_SECONDS = 0.05
"""How often a request that waits for the encoder looks whether it must end."""


class Preparation:
    """Reads sources and saved prefixes, and opens the second engine. Safe to use from several threads."""

    def __init__(
        self,
        new_decoder: Callable[[int], Decoder],
        store: PrefixStore,
        encoder: Encoder | None,
        prompt_engine: PromptEngine | None,
    ) -> None:
        self.new_decoder, self.store, self.encoder, self.prompt_engine = new_decoder, store, encoder, prompt_engine
        self.lock = threading.RLock()
        """Held while one request reads what others may be about to read too."""

    def prepare(self, request: Request, sources: Callable[[], Iterable[Encoded]]) -> None:
        """Prepare a request; `sources`: those that are read already. Raises `ModelError`, and `PackageError`."""
        continuation = request.continuation
        if continuation.source_ids:
            self.read_source(request, sources)
        tokens, device = len(continuation.prompt_ids), None
        if self.prompt_engine is not None and self.prompt_engine.computes(tokens):
            self.prompt_engine.graph()
            device = self.prompt_engine.device
        if self.store.saved is not None:
            origin = Origin(continuation.config.adapter, device, continuation.cache_salt)
            past = None if request.context is None else request.context.snapshot
            with self.lock:  # the next one finds it in the store
                self.store.recall(self.new_decoder(1), continuation.prompt_ids, origin, past=past)

    def read_source(self, request: Request, sources: Callable[[], Iterable[Encoded]]) -> None:
        """Let the encoder read the source of a text, unless it is that of another one; that time counts as its prompt's."""
        assert self.encoder is not None, "a decoder has no source"
        start, continuation = time.perf_counter(), request.continuation
        wanted = tuple(continuation.source_ids)
        scope = CancelScope(request.scope.cancel)  # another one: samples share theirs, and may be running
        scope.deadline = request.scope.deadline
        with contextlib.ExitStack() as stack:
            while not self.lock.acquire(timeout=WAKING_SECONDS):
                if scope.reason is not None:
                    return  # the scheduler ends the request
            stack.callback(self.lock.release)
            known = [*sources(), *([] if request.source is None else [request.source])]
            with contextlib.suppress(InterruptedRunError), scope.active():
                request.source = next((each for each in known if each.token_ids == wanted), None) or self.encoder.encode(
                    wanted, scope
                )
        continuation.prefill_seconds += time.perf_counter() - start
