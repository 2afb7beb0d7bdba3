"""A second engine that computes long prompts; `hand_over` moves their keys and values to the graph that continues the texts.

One engine may be faster at prompts, another one at single tokens. A prompt of at least `SHORTEST` tokens is computed by the second
engine, and each other one by the graph itself. The length alone decides. So a text does not depend on what ran before it or with
it; and keys and values are reused only by prompts that the same engine computes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from ..backends.cache_codes import NO_SCALES, CacheScales
from ..backends.protocol import Graph
from ..errors import LOG, ModelError
from ..package.manifest import Geometry

SHORTEST = 64
"""Tokens of the shortest prompt for the second engine.

At 32 tokens of a model of 135 M parameters it takes from 0.6 of the graph's time to the same, by processor: so little is saved that
it would not repay in a hundred prompts the one to three seconds in which the engine is opened.
"""


class PromptEngine:
    """The second engine of a model, opened at the first long prompt. Safe to use from several threads."""

    def __init__(
        self,
        device: str,
        open_graph: Callable[[], Graph],
        geometry: Geometry,
        *,
        scales: CacheScales = NO_SCALES,
        shortest: int = SHORTEST,
    ) -> None:
        """`device`: its name; `open_graph` opens the package's graph there, which may take seconds.

        `scales`: those of the cache that takes keys and values over, if it holds them at 8 bits.
        """
        self.device, self.geometry, self.scales, self.shortest = device, geometry, scales, shortest
        self._open_graph: Callable[[], Graph] | None = open_graph
        self._graph: Graph | None = None
        self._lock = threading.RLock()  # a signal handler may need it while its own thread has it

    def computes(self, tokens: int) -> bool:
        """Return whether it computes a prompt of `tokens` tokens."""
        return tokens >= self.shortest

    def graph(self) -> Graph:
        """Return the package's graph on the second engine, which is opened now if it was not.

        Raises `PackageError` if it cannot be opened.
        """
        with self._lock:
            if self._graph is None:
                if self._open_graph is None:
                    raise ModelError("this model was closed; load it again")
                start = time.perf_counter()
                self._graph = self._open_graph()
                LOG.info("%s opened in %.1f s, for long prompts", self.device, time.perf_counter() - start)
            return self._graph

    def close(self) -> None:
        """Release the second engine; it opens no more."""
        with self._lock:
            self._graph = self._open_graph = None
