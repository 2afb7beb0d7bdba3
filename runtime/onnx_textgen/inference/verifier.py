"""A second session of the graph over the same cache, which computes each token of a run as a run of one token does."""

from __future__ import annotations

from ..backends.onnxruntime_run import BoundRun
from ..backends.onnxruntime_session import OnnxRuntimeSession
from ..backends.variants.single_attention import MOST_TOKENS, links_for, present_of_link
from ..kv_cache.shared import SharedCache


class Verifier:
    """The graph that computes each token of a run as if it were alone."""

    most_tokens = MOST_TOKENS
    """Tokens of one run."""

    def __init__(self, session: OnnxRuntimeSession) -> None:
        self.session = session

    def begin(self, cache: SharedCache, row: int, new: int) -> BoundRun:
        """Prepare a run of `new` tokens over a row of a cache, with memory for them."""
        links = links_for(new)
        presents = {each.present: [present_of_link(each.present, link) for link in range(links)] for each in cache.by_token}
        return cache.begin_elsewhere(self.session, row, new, presents)
