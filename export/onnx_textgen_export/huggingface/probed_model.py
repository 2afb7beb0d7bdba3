"""A transformers model, what a probe found out about it, and how it is run over a cache."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from ..layers.eager_attention import CacheLayout, probe_cache, with_own_convolutions
from ..layers.experts import EXPERTS, expert_outputs
from ..layers.recurrent_functions import own_recurrences
from ..layers.rotary_scaling import traceable_rotary
from ..layers.torch_substitutes import OnnxSubstitutes

ALL_EXPERTS_FUNCTIONS.register(EXPERTS, expert_outputs)


@dataclasses.dataclass(frozen=True, slots=True)
class Model:
    """A transformers model, and what a probe found out about it."""

    module: PreTrainedModel
    layout: CacheLayout
    named: frozenset[str]
    """The arguments of its forward."""
    owns_recurrences: bool = False
    """Whether its recurrent layers run by `own_recurrences`, so that a run takes several tokens, and in PyTorch at least two."""

    @property
    def has_states(self) -> bool:
        """Whether a layer keeps a state besides keys and values."""
        return any(tensor.name.startswith(("past_conv", "past_recurrent")) for tensor in self.layout.tensors)

    @property
    def one_token(self) -> bool:
        """Whether the cache has a recurrent state that transformers advances, token by token."""
        return not self.owns_recurrences and any(tensor.name.startswith("past_recurrent") for tensor in self.layout.tensors)

    def with_own_recurrences(self) -> Model:
        """The same model with `own_recurrences`, and the states in their layout; raises whatever its code raises over them."""
        with own_recurrences(self.module):
            layout = probe_cache(self.module, tuple(self.named))
        return dataclasses.replace(self, layout=with_own_convolutions(layout), owns_recurrences=True)

    def empty_pasts(self, rows: int) -> list[Tensor]:
        """The cache tensors before the first token."""
        lengths = {"batch": rows, "length": 0}
        return [
            torch.zeros([lengths[size] if isinstance(size, str) else size for size in tensor.shape])
            for tensor in self.layout.tensors
        ]

    def logits(self, input_ids: Tensor, cache: Cache, attention: str, **options: object) -> Tensor:
        """Logits of the model over a cache, with the named attention implementation and traceable experts."""
        given = {name: value for name, value in options.items() if name in self.named}
        with (
            self.layout.lent(self.module, cache) as given[self.layout.argument],
            attention_as(self.module, attention),
            experts_as(self.module, EXPERTS),
            traceable_rotary(self.module),
            OnnxSubstitutes(),
            own_recurrences(self.module) if self.owns_recurrences else contextlib.nullcontext(),
        ):
            logits: Tensor = self.module(input_ids=input_ids, use_cache=True, **given).logits
        return logits


@contextlib.contextmanager
def attention_as(model: PreTrainedModel, name: str) -> Iterator[None]:
    """Within the context, `model` uses another attention implementation."""
    before = model.config._attn_implementation
    model.set_attn_implementation(name)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


@contextlib.contextmanager
def experts_as(model: PreTrainedModel, name: str) -> Iterator[None]:
    """Within the context, `model` uses another implementation of its experts, if it has any."""
    if not model._can_set_experts_implementation():
        yield
        return
    before = model.get_experts_implementation()
    model.set_experts_implementation(name)
    try:
        yield
    finally:
        model.set_experts_implementation(before)
