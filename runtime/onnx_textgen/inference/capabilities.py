"""Capabilities of a graph, read from its inputs, outputs and cache; a graph that is no decoder is refused before it runs."""

from __future__ import annotations

import dataclasses
from typing import Self

from ..backends.protocol import Graph
from ..backends.signature import ELEMENT_TYPES, LOGITS
from ..errors import PackageError
from ..kv_cache.factory import check_cache
from ..package.manifest import Geometry

SHORTEST_PART = 16
"""Tokens of a part if each takes a separate run; else the fewest tokens of a part."""
MOST_LOGITS = 2**25
"""The most logits of a run, if a graph returns those of every token: 128 MiB."""


@dataclasses.dataclass(frozen=True, slots=True)
class Capabilities:
    """Facts about a graph that a `Decoder` needs; they hold for one of the graph's outputs."""

    takes_single_tokens: bool
    """Whether a run takes a single token, as in recurrent models."""
    has_states: bool
    """Whether the graph carries recurrent states, which can return only to lengths that were kept."""
    appends: bool
    """Whether a run takes several new tokens over a past. In a graph with two branches, the one with a past takes one token."""
    gives_last_only: bool
    """Whether a run returns the logits of its last token only."""
    rope_switch_length: int | None
    """The length of a text beyond which all its keys are rotated differently, so that keys of a shorter text cannot be kept."""
    can_batch_decode: bool
    """Whether one run takes a token of every row: if their lengths differ, that needs a mask."""
    can_batch_prefill: bool
    """Whether one run takes the whole prompts of several rows, the shorter ones padded."""
    is_batch_invariant: bool
    """Whether a row gets the same numbers in a run of several rows as alone, to the last bit; not so on OpenVINO."""
    part_size: int
    """Tokens that a caller should feed at a time: as many as the graph takes over a past and memory has logits for."""
    short_part_size: int
    """Tokens of a prompt's part while other rows wait: fewer, unless rows would have to be joined and split between the parts."""
    width: int
    """Numbers per token in the output."""
    most_tokens: int | None = None
    """See `Graph.most_tokens`."""

    @property
    def can_verify_drafts(self) -> bool:
        """Whether drafts can be fed, compared with the logits of each token, and rolled back."""
        rolls_back = not self.has_states and self.rope_switch_length is None
        return rolls_back and self.appends and not (self.takes_single_tokens or self.gives_last_only)

    def uses_long_rope(self, length: int) -> bool:
        """Return whether keys of a text of this length are rotated as for long texts."""
        return self.rope_switch_length is not None and length > self.rope_switch_length

    def is_batch_invariant_run(self, new: int) -> bool:
        """Return whether a run of `new` tokens leaves the same keys and values as any prompt with these tokens, to the last bit.

        If each part of a prompt starts at an even offset and has at least two tokens, the result does not depend on how the prompt
        is split. Attention over a single token rounds differently, and so do 4-bit products in blocks of 64 weights for a token
        without a partner (tokens are computed in pairs). So keys and values are reused only as far as such runs fed them; then a
        continued text equals one that is computed from scratch.
        """
        return new > 1 or self.takes_single_tokens

    def aligned_to_pairs(self, length: int) -> int:
        """The longest even length up to `length`; `length` itself for single tokens or states, whose lengths need not be even."""
        return length if self.takes_single_tokens or self.has_states else length - length % 2

    def most_reusable(self, length: int) -> int:
        """The most tokens of a prompt of `length` that can be reused: the last one or two are fed for the logits."""
        if not self.appends:
            return 0
        return max(0, length - (1 if self.takes_single_tokens or self.has_states else 2))

    @classmethod
    def of(cls, graph: Graph, geometry: Geometry, output: str = LOGITS) -> Self:
        """Read them from a graph; raises `PackageError` if a `Decoder` cannot use it."""
        check_graph(graph, geometry)
        check_rows(graph, output)
        roles, kinds = graph.roles, {tensor.kind for tensor in graph.cache_tensors}
        batch, tokens = roles["input_ids"].shape
        shape = graph.outputs[graph.name_of(output)][0]
        single, appends, last_only = tokens == 1 or graph.hints.takes_single_tokens, "use_cache_branch" not in roles, shape[1] == 1
        any_batch, has_mask = not isinstance(batch, int) and graph.joins_rows, "attention_mask" in roles
        pads = has_mask and ("growing" not in kinds or graph.hints.pads_rows)
        in_place = kinds in ({"shared"}, {"paged"}) and has_mask and graph.rotary_switch is None
        part_size = graph.part_size
        if not (last_only or roles.keys() & {"logits_positions", "num_logits_to_keep"}):
            part_size = min(part_size, max(SHORTEST_PART, MOST_LOGITS // geometry.vocab_size // 2 * 2))
        part_size = SHORTEST_PART if single else part_size if appends else geometry.context_length
        short_part_size = part_size if "growing" in kinds or not appends else min(graph.short_part_size, part_size)
        width = shape[-1] if isinstance(shape[-1], int) else geometry.vocab_size if output == LOGITS else geometry.hidden_size
        return cls(
            takes_single_tokens=single,
            has_states="state" in kinds,
            appends=appends,
            gives_last_only=last_only,
            rope_switch_length=graph.rotary_switch,
            can_batch_decode=any_batch and (pads or kinds == {"state"}),
            can_batch_prefill=any_batch and in_place and "logits_positions" in roles and not isinstance(tokens, int),
            is_batch_invariant="paged" not in kinds,
            part_size=part_size,
            short_part_size=short_part_size,
            width=width,
            most_tokens=graph.most_tokens,
        )


def check_graph(session: Graph, geometry: Geometry) -> None:
    """Raise `PackageError` if a graph's inputs, outputs, types or sizes are not those that a `Decoder` uses."""
    check_cache(session)
    roles = session.roles
    logits = session.name_of(LOGITS)
    if "input_ids" not in roles or logits not in session.outputs:
        raise PackageError("the graph lacks input_ids or logits, which every decoder needs; export the model again")
    for role in ("input_ids", "attention_mask", "position_ids"):
        taken = roles[role].shape if role in roles else ()
        if role in roles and (len(taken) != 2 or (isinstance(taken[1], int) and taken[1] != 1)):
            raise PackageError(f"the graph takes {role} as {list(taken)}, not [batch, tokens]; export the model again")
    shape, size = session.outputs[logits][0], geometry.vocab_size
    if len(shape) != 3 or (isinstance(shape[-1], int) and shape[-1] != size):
        raise PackageError(
            f"the graph's logits have the shape {shape}, the manifest's geometry requires [any, any, {size}]; "
            "export the model again"
        )
    check_rows(session, LOGITS)


def check_rows(session: Graph, output: str) -> None:
    """Raise `PackageError` unless the output has a vector of real numbers per token."""
    shape, element = session.outputs[session.name_of(output)]
    if len(shape) != 3 or element not in ELEMENT_TYPES:
        raise PackageError(
            f"the graph's {output.replace('_', ' ')} are {element} {shape}, not float, float16 or double [batch, tokens, width]; "
            "export the model again"
        )
