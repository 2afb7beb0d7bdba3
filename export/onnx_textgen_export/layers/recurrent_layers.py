"""Layers of transformers that compute a recurrence themselves, written with the functions of `sources/recurrence`.

Each function here takes the place of a method, found by the parts of its layer or by the method's parameters, and by no model's
name. The states are where the model keeps them; see `own_states`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..sources.recurrence import before, causal_convolution, decayed_sum, linear_attention, running_maximum


def lightning_attention(
    self: Any,  # noqa: ANN401 - a layer of transformers
    hidden_states: Tensor,
    position_embeddings: object = None,
    attention_mask: object = None,
    **given: Any,  # noqa: ANN401 - the cache among them, which transformers calls past_key_values before 5.24
) -> tuple[Tensor, Tensor]:
    """Linear attention with one decay per head that never changes (Qin et al. 2024, Lightning Attention)."""
    cache = given.get("cache", given.get("past_key_values"))
    packed = self.act_fn(self.qkv_proj(hidden_states)).unflatten(2, (self.num_attention_heads, 3 * self.head_dim))
    query, key, value = packed.split(self.head_dim, dim=3)
    state = None if cache is None else cache.get_linear_cache(self.layer_idx)
    if state is None:
        state = value.new_zeros(value.shape[0], value.shape[2], self.head_dim, self.head_dim)
    decay = -self.slope_rate.flatten().expand(value.shape[:3])
    output, state = linear_attention(query, key, value, state, decay=decay)
    if cache is not None:
        cache.set_linear_cache(self.layer_idx, state)
    gated = F.sigmoid(self.output_gate(hidden_states)) * self.norm(output.flatten(2))
    return self.out_proj(gated), state


def gated_recurrence(
    self: Any,  # noqa: ANN401 - a layer of transformers
    input_states: Tensor,
    position_ids: Tensor,
    attention_mask: object = None,
    use_cache: bool = True,
    **_: object,
) -> tuple[Tensor, None]:
    """The recurrent block of Griffin (De et al. 2024), over the state of its convolution [batch, channels, width - 1]."""
    if not use_cache:
        self.conv1d_state = self.rg_lru.recurrent_states = None
    x, gate, conv = self.linear_x(input_states), self.act_fn(self.linear_y(input_states)), self.conv_1d
    state = x.new_zeros(x.shape[0], conv.weight.shape[2] - 1, x.shape[2])
    if self.conv1d_state is not None:
        state = self.conv1d_state.transpose(1, 2)
    x, state = causal_convolution(x, state, conv.weight[:, 0], conv.bias)
    self.conv1d_state = state.transpose(1, 2)
    return self.linear_out(self.rg_lru(x, position_ids) * gate), None


def recurrence_of_channels(
    self: object, hidden_states: Tensor, recurrent_gate: Tensor, reset: Tensor, recurrent_states: Tensor | None, *_: object
) -> tuple[Tensor, Tensor]:
    """The real-gated linear recurrent unit; the first token resets a state that is zeros already."""
    state = torch.zeros_like(hidden_states[:, 0]) if recurrent_states is None else recurrent_states
    states = decayed_sum(hidden_states, recurrent_gate, state)
    return states, states[:, -1]


def matrix_memory(  # noqa: PLR0917 - the signature is the layer's
    self: Any,  # noqa: ANN401 - a layer of transformers
    query: Tensor,
    key: Tensor,
    value: Tensor,
    igate: Tensor,
    fgate: Tensor,
    c_initial: Tensor | None = None,
    n_initial: Tensor | None = None,
    m_initial: Tensor | None = None,
    **_: object,
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    """The mLSTM (Beck et al. 2024, xLSTM): linear attention whose normaliser is one more column of the state.

    Heads are [batch, heads, new, size], gates [batch, heads, new].
    """
    batch, heads, _new, size = query.shape
    query, key, value, igate, fgate = (each.transpose(1, 2) for each in (query * size**-0.5, key, value, igate, fgate))
    if c_initial is None or n_initial is None or m_initial is None:
        c_initial, n_initial = value.new_zeros(batch, heads, size, value.shape[3]), value.new_zeros(batch, heads, size)
        m_initial = value.new_zeros(batch, heads, 1)
    forget, largest = -F.softplus(-fgate), m_initial[..., 0]  # the logarithm of the gate
    maxima = running_maximum(igate, forget, largest)
    sums, state = linear_attention(
        query,
        key * (igate - maxima).exp()[..., None],
        torch.cat([value, torch.ones_like(value[..., :1])], dim=-1),
        torch.cat([c_initial, n_initial[..., None]], dim=-1),
        decay=before(largest, maxima) + forget - maxima,
    )
    normaliser = torch.maximum(sums[..., -1:].abs(), (-maxima).exp()[..., None]) + self.config.eps
    output = (sums[..., :-1] / normaliser).transpose(1, 2)
    return output, (state[..., :-1], state[..., -1], maxima[:, -1, :, None])


Method = Callable[..., Any]
BY_PARTS: tuple[tuple[frozenset[str], str, Method], ...] = (
    (frozenset({"qkv_proj", "output_gate", "out_proj", "norm", "slope_rate"}), "forward", lightning_attention),
    (frozenset({"linear_x", "linear_y", "linear_out", "conv_1d", "rg_lru"}), "forward", gated_recurrence),
)
"""The parts by which a layer is known, its method, and what replaces it."""
BY_PARAMETERS: tuple[tuple[frozenset[str], str, Method], ...] = (
    (frozenset({"hidden_states", "recurrent_gate", "reset", "recurrent_states"}), "_rnn_scan", recurrence_of_channels),
    (frozenset({"igate", "fgate", "c_initial", "n_initial", "m_initial"}), "forward", matrix_memory),
)
"""The parameters by which a method is known, and what replaces it."""


def methods_of(layer: nn.Module) -> Iterator[tuple[str, Method]]:
    """The methods of a layer's class to replace, by name, and what replaces them."""
    parts = {*layer._modules, *layer._buffers, *layer._parameters}
    yield from ((name, own) for known, name, own in BY_PARTS if known <= parts)
    for known, name, own in BY_PARAMETERS:
        method = vars(type(layer)).get(name)
        if method is not None and known <= inspect.signature(method).parameters.keys():
            yield name, own
