"""What a request needs before it has a row, done in its caller's thread, so that the texts of others do not wait for it."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable

from ..cancellation import CancelScope, InterruptedRunError
from ..inference.decoder import Decoder
from ..inference.encoder import Encoder
from ..inference.prefix_cache import PrefixStore
from ..inference.prompt_engine import PromptEngine
from ..kv_cache.snapshot import Origin
from .request import Request


@dataclasses.dataclass(frozen=True, slots=True)
class Preparation:
    """Reads sources and saved prefixes, and opens the second engine. Safe to use from several threads."""

    new_decoder: Callable[[int], Decoder]
    store: PrefixStore
    encoder: Encoder | None
    prompt_engine: PromptEngine | None

    def prepare(self, request: Request, others: Iterable[Request]) -> None:
        """Prepare a request; `others`: those whose sources are read already. Raises `ModelError`, and `PackageError`."""
        continuation = request.continuation
        if continuation.source_ids:
            self.read_source(request, others)
        tokens, device = len(continuation.prompt_ids), None
        if self.prompt_engine is not None and self.prompt_engine.computes(tokens):
            self.prompt_engine.graph()
            device = self.prompt_engine.device
        if self.store.saved is not None:
            origin = Origin(continuation.config.adapter, device, continuation.cache_salt)
            self.store.recall(self.new_decoder(1), continuation.prompt_ids, origin)

    def read_source(self, request: Request, others: Iterable[Request]) -> None:
        """Let the encoder read the source of a text, unless it is that of another one; that time counts as its prompt's."""
        assert self.encoder is not None, "a decoder has no source"
        start, continuation = time.perf_counter(), request.continuation
        wanted = tuple(continuation.source_ids)
        known = (each.source for each in others if each.source is not None and each.source.token_ids == wanted)
        scope = CancelScope(request.scope.cancel)  # another one: samples share theirs, and may be running
        scope.deadline = request.scope.deadline
        try:
            with scope.active():
                request.source = next(known, None) or self.encoder.encode(wanted, scope)
        except InterruptedRunError:
            return  # the scheduler ends the request
        finally:
            continuation.prefill_seconds += time.perf_counter() - start
