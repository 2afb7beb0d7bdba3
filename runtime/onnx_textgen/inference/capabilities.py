"""What a graph can do, read once off its inputs, outputs and cache; a graph that is no decoder is refused before anything runs."""

from __future__ import annotations

import dataclasses
from typing import Self

from ..backends.protocol import Graph
from ..backends.signature import ELEMENT_TYPES, LOGITS
from ..errors import PackageError
from ..kv_cache.factory import check_cache
from ..package.manifest import Geometry

SHORT_CHUNK = 16
"""Tokens of a prompt at a time where each takes a run of its own."""
MOST_LOGITS = 2**25
"""Numbers of logits at a time, where a graph gives those of every token: 128 MiB."""


@dataclasses.dataclass(frozen=True, slots=True)
class Capabilities:
    """What a `Decoder` asks about a graph before it feeds it; all of it holds for one of the graph's outputs."""

    takes_single_tokens: bool
    """The graph takes one token at a time, as recurrent models do."""
    has_states: bool
    """It carries recurrent states, which go back only to places that were kept."""
    appends: bool
    """It takes several new tokens over a past. A graph of two branches made the one with a past from a single token."""
    gives_last_only: bool
    """It gives the logits of the last token and no others."""
    rope_switch_length: int | None
    """The length from which on keys are rotated otherwise, so that none of a shorter text can be kept."""
    steps_together: bool
    """One run can take a token of every row: keys and values of unequal length need a mask."""
    begins_together: bool
    """One run can take the whole prompts of several rows, short ones padded."""
    can_interrupt_prompts: bool
    """Feeding a prompt in short chunks costs little: rows need not be batched and split again in between."""
    chunk: int
    """Tokens that a caller should feed at a time: what the graph takes over a past, with logits that memory has room for."""
    width: int
    """Numbers that the output has for each token."""

    @property
    def can_verify_drafts(self) -> bool:
        """Whether drafts can be fed, judged by the logits of each, and rolled back."""
        rolls_back = not self.has_states and self.rope_switch_length is None
        return rolls_back and self.appends and not (self.takes_single_tokens or self.gives_last_only)

    def short_chunk(self, size: int) -> int:
        """Tokens of a prompt at a time where other rows wait: `size`, unless interrupting the prompt costs more than it helps."""
        return min(size, self.chunk) if self.can_interrupt_prompts else self.chunk

    def uses_long_rope(self, length: int) -> bool:
        """Whether keys of a text of that length are rotated as for long ones."""
        return self.rope_switch_length is not None and length > self.rope_switch_length

    def is_batch_invariant_run(self, new: int) -> bool:
        """Whether a run of `new` tokens leaves the keys and values that any prompt with these tokens leaves, to the last bit.

        Prefill chunks that start at an even offset and have at least two tokens are bit-identical however the prompt is split.
        Attention over a single token, and 4-bit products in blocks of 64 weights of a token without a partner, round differently.
        So cached keys are reused only as far as they were fed in such runs, and a continued text equals one computed from scratch.
        """
        return new > 1 or self.takes_single_tokens

    def aligned_to_pairs(self, length: int) -> int:
        """The longest even length up to `length`; the length itself where states say which lengths there can be."""
        return length if self.takes_single_tokens or self.has_states else length - length % 2

    def most_reusable(self, length: int) -> int:
        """How much of a prompt of `length` tokens need not be fed: the last logits are wanted, of a run as of any prompt."""
        if not self.appends:
            return 0
        return max(0, length - (1 if self.takes_single_tokens or self.has_states else 2))

    @classmethod
    def of(cls, graph: Graph, geometry: Geometry, output: str = LOGITS) -> Self:
        """Read them off a graph; raises `PackageError` for one that a `Decoder` cannot work with."""
        check_graph(graph, geometry)
        check_rows(graph, output)
        roles, kinds = graph.roles, {tensor.kind for tensor in graph.cache_tensors}
        batch, tokens = roles["input_ids"].shape
        shape = graph.outputs[graph.name_of(output)][0]
        single, appends, last_only = tokens == 1, "use_cache_branch" not in roles, shape[1] == 1
        any_batch, has_mask = not isinstance(batch, int), "attention_mask" in roles
        pads = has_mask and ("growing" not in kinds or graph.hints.pads_rows)
        in_place = kinds == {"shared"} and has_mask and graph.rotary_switch is None
        chunk = graph.part_size
        if not (last_only or roles.keys() & {"logits_positions", "num_logits_to_keep"}):
            chunk = min(chunk, max(SHORT_CHUNK, MOST_LOGITS // geometry.vocab_size // 2 * 2))
        width = shape[-1] if isinstance(shape[-1], int) else geometry.vocab_size if output == LOGITS else geometry.hidden_size
        return cls(
            takes_single_tokens=single,
            has_states="state" in kinds,
            appends=appends,
            gives_last_only=last_only,
            rope_switch_length=graph.rotary_switch,
            steps_together=any_batch and (pads or kinds == {"state"}),
            begins_together=any_batch and in_place and "logits_positions" in roles and not isinstance(tokens, int),
            can_interrupt_prompts="growing" not in kinds and appends,
            chunk=SHORT_CHUNK if single else chunk if appends else geometry.context_length,
            width=width,
        )


def check_graph(session: Graph, geometry: Geometry) -> None:
    """Refuse a graph whose inputs, outputs, types or sizes are not those that `Decoder` works with; raises `PackageError`."""
    check_cache(session)
    roles = session.roles
    logits = session.name_of(LOGITS)
    if "input_ids" not in roles or logits not in session.outputs:
        raise PackageError("the graph lacks input_ids or logits, which no decoder here can do without; export the model again")
    for role in ("input_ids", "attention_mask", "position_ids"):
        taken = roles[role].shape if role in roles else ()
        if role in roles and (len(taken) != 2 or (isinstance(taken[1], int) and taken[1] != 1)):
            raise PackageError(f"the graph takes {role} as {list(taken)}, not [batch, tokens]; export the model again")
    shape, size = session.outputs[logits][0], geometry.vocab_size
    if len(shape) != 3 or (isinstance(shape[-1], int) and shape[-1] != size):
        raise PackageError(
            f"the graph's logits have the shape {shape}, the manifest's geometry asks for [any, any, {size}]; "
            "export the model again"
        )
    check_rows(session, LOGITS)


def check_rows(session: Graph, output: str) -> None:
    """Refuse an output that is no row of real numbers for each token."""
    shape, element = session.outputs[session.name_of(output)]
    if len(shape) != 3 or element not in ELEMENT_TYPES:
        raise PackageError(
            f"the graph's {output.replace('_', ' ')} are {element} {shape}, not float, float16 or double [batch, tokens, width]; "
            "export the model again"
        )
