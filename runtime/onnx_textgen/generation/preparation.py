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


class Preparation:
    """Reads sources, pictures and saved prefixes, and opens the second engine. Safe to use from several threads."""

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
        if continuation.images:
            self.read_images(request)
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
        """Let the encoder read the source of a text, unless it is that of another one."""
        encoder, wanted = self.encoder, tuple(request.continuation.source_ids)
        assert encoder is not None, "a decoder has no source"

        def read(scope: CancelScope) -> None:
            with scope.holding(self.lock):
                known = [*sources(), *([] if request.source is None else [request.source])]
                request.source = next((each for each in known if each.token_ids == wanted), None) or encoder.encode(wanted, scope)

        self.read_before_prefill(request, read)

    def read_images(self, request: Request) -> None:
        """Compute the rows of the pictures in a prompt, unless they are known."""

        def read(scope: CancelScope) -> None:
            for image in request.continuation.images:
                image.rows(scope)

        self.read_before_prefill(request, read)

    def read_before_prefill(self, request: Request, read: Callable[[CancelScope], None]) -> None:
        """Read something; that time counts as the prompt's. If the request has to end meanwhile, the scheduler ends it."""
        start = time.perf_counter()
        scope = CancelScope(request.scope.cancel)  # another one: samples share theirs, and may be running
        scope.deadline = request.scope.deadline
        with contextlib.suppress(InterruptedRunError), scope.active():
            read(scope)
        request.continuation.prefill_seconds += time.perf_counter() - start
