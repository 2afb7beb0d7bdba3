"""A text over a context of the caller's own, which keeps its cache between texts: an engine of one row while the text lasts."""

from __future__ import annotations

from collections.abc import Generator

from ..errors import OptionError
from ..inference.decoder import Decoder
from ..inference.prefix_cache import PrefixStore
from ..results import Chunk
from .engine import Engine
from .request import Request


def stream_over(context: Decoder, request: Request) -> Generator[Chunk, None, None]:
    """The chunks of a text that begins at what the context holds; raises `OptionError` once another text has used it meanwhile."""
    chunks, changes = Engine(lambda rows: context, PrefixStore(0), rows=1).chunks(request), context.changes
    try:
        while (chunk := next(chunks, None)) is not None:
            changes = context.changes
            yield chunk
            if context.changes != changes:
                raise OptionError("another stream used this context meanwhile; give each of them one of its own: new_context()")
    finally:
        if context.changes != changes:
            request.continuation.verified.clear()  # what was guessed is not there any more
        chunks.close()
