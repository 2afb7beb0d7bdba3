"""A text over a caller's private context, which keeps its cache between texts: an engine of one row for each text."""

from __future__ import annotations

from collections.abc import Generator

from ..errors import OptionError
from ..inference.decoder import Decoder
from ..inference.prefix_cache import PrefixStore
from ..results import Chunk
from .engine import Engine
from .request import Request


def stream_over(context: Decoder, request: Request) -> Generator[Chunk, None, None]:
    """Yield the chunks of a text over a context; raises `OptionError` if another text has used the context in between."""
    encoder, prompt_engine = context.encoder, context.prompt_engine
    engine = Engine(lambda rows: context, PrefixStore(0), rows=1, encoder=encoder, prompt_engine=prompt_engine)
    request.source = context.runner.sources.rows[0]
    chunks, changes = engine.chunks(request), context.changes
    try:
        while (chunk := next(chunks, None)) is not None:
            changes = context.changes
            yield chunk
            if context.changes != changes:
                raise OptionError("another stream used this context meanwhile; give each stream its own context: new_context()")
    finally:
        if context.changes != changes:
            request.continuation.verified.clear()  # the cache no longer holds the draft
        chunks.close()
