"""Runs the recurrent layers of a transformers model over any number of tokens at once.

transformers computes most recurrences by functions whose parameters are those of the kernels that replace them on a GPU. Within
`own_recurrences` the functions with such parameters, in the modules that define a model's layers, are those of this file: they map
the kernel's arguments to `sources/recurrence`, and start from the states that the cache holds. `recurrent_layers` does the same for
layers that compute a recurrence themselves. Which of them fit is not known by a model's name: `path_choice` runs the model with
them, and compares it with the model itself.

The states have another layout than in transformers: [batch, heads, key, value] and [batch, width - 1, channels]. The functions for
a single token know only that of transformers and are not replaced, so in PyTorch a run takes two tokens or more.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence, Set
from contextvars import ContextVar
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.activations import ACT2FN

from ..errors import ExportError
from ..sources.recurrence import before, causal_convolution, decayed_sum, linear_attention, running_maximum, selective_scan
from .recurrent_layers import methods_of


class RecurrentRun:
    """One forward pass: the states of the layer that convolves next, or scans what it has convolved."""

    def __init__(self) -> None:
        self.convolving: tuple[dict[int, Any], int] | None = None
        """Where the state of the next convolution is held, if the cache holds one."""
        self.recurrent: Tensor | None = None
        """The layer's recurrent state before this run."""
        self.scans = 0
        """Scans that have started from it: a layer may scan its heads one by one."""

    def enter(self, conv_states: dict[int, Any], recurrent_states: dict[int, Any], index: int) -> None:
        """Called by the cache of the layer that comes next."""
        self.convolving, self.recurrent, self.scans = (conv_states, index), recurrent_states.get(index), 0


CURRENT: ContextVar[RecurrentRun | None] = ContextVar("onnx_textgen_recurrent_run", default=None)


def gated_delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    *_: object,
    initial_state: Tensor | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    **__: object,
) -> tuple[Tensor, Tensor]:
    """`chunk_gated_delta_rule` and `chunk_kda` of flash-linear-attention."""
    if use_qk_l2norm_in_kernel:
        query, key = (part * torch.rsqrt((part * part).sum(dim=-1, keepdim=True) + 1e-6) for part in (query, key))
    query = query * query.shape[-1] ** -0.5
    if initial_state is None:
        initial_state = value.new_zeros(value.shape[0], value.shape[2], key.shape[3], value.shape[3])
    return linear_attention(query, key, value, initial_state, decay=g, beta=beta)


def state_space_dual(
    hidden_states: Tensor,
    dt: Tensor,
    A: Tensor,  # noqa: N803
    B: Tensor,  # noqa: N803
    C: Tensor,  # noqa: N803
    *_: object,
    D: Tensor | None = None,  # noqa: N803
    dt_bias: Tensor | None = None,
    initial_states: Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    return_final_states: bool = False,
    **__: object,
) -> Tensor | tuple[Tensor, Tensor]:
    """`mamba_chunk_scan_combined` of mamba-ssm: Mamba 2, which is linear attention with one decay per head (Dao and Gu 2024)."""
    step = step_size(dt, dt_bias, softplus=dt_softplus)
    if tuple(dt_limit) != (0.0, float("inf")):
        step = step.clamp(*dt_limit)
    if initial_states is None:
        initial_states = hidden_states.new_zeros(hidden_states.shape[0], hidden_states.shape[2], B.shape[3], hidden_states.shape[3])
    output, state = linear_attention(C, B, hidden_states * step[..., None], initial_states, decay=A * step)
    if D is not None:
        output = output + hidden_states * D[:, None]
    return (output, state) if return_final_states else output


def selective_state_space(  # noqa: PLR0917 - the signature is the kernel's
    hidden_states: Tensor,
    dt: Tensor,
    A: Tensor,  # noqa: N803
    B: Tensor,  # noqa: N803
    C: Tensor,  # noqa: N803
    D: Tensor | None = None,  # noqa: N803
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
    return_last_state: bool = False,
    **_: object,
) -> Tensor | tuple[Tensor, Tensor]:
    """`selective_scan_fn` of mamba-ssm, which knows no state to start from; here it is the layer's."""
    x, step = hidden_states.transpose(1, 2), step_size(dt.transpose(1, 2), delta_bias, softplus=delta_softplus)
    run = CURRENT.get()
    state = run.recurrent if run is not None else None
    if run is None or state is None:
        state = x.new_zeros(x.shape[0], *A.shape)
    elif state.ndim > x.ndim:
        state, run.scans = state[:, run.scans], run.scans + 1
    output, after = selective_scan(x, step, state, rate=A, write=B.transpose(1, 2), read=C.transpose(1, 2))
    if D is not None:
        output = output + x * D
    output = output.transpose(1, 2)
    if z is not None:
        output = output * F.silu(z)
    return (output, after) if return_last_state else output


def step_size(dt: Tensor, bias: Tensor | None, *, softplus: bool) -> Tensor:
    """The step of a state space from what the layer projects."""
    step = dt if bias is None else dt + bias
    return F.softplus(step) if softplus else step


def weighted_key_values(  # noqa: PLR0917 - the signature is the kernel's
    time_decay: Tensor,
    time_first: Tensor,
    key: Tensor,
    value: Tensor,
    state: Sequence[Tensor] | None = None,
    return_state: bool = False,
) -> tuple[Tensor, list[Tensor]]:
    """The kernel `wkv` of RWKV 4: a mean of all values, weighted by exp(key), in which the newest has a separate weight.

    The state is the weighted sum of the values, the sum of the weights, both divided by the largest weight, and its logarithm.
    """
    total, weight, largest = state or [key.new_zeros(key.shape[0], key.shape[2])] * 3
    largest = torch.where(weight == 0, LEAST, largest)  # no token yet
    decay = -time_decay.exp()
    maxima = running_maximum(key, decay.expand_as(key), largest)
    earlier = before(largest, maxima)
    kept, added = (earlier + decay - maxima).exp(), (key - maxima).exp()
    totals, weights = decayed_sum(added * value, kept, total), decayed_sum(added, kept, weight)
    own = key + time_first
    top = torch.maximum(earlier, own)
    kept, added = (earlier - top).exp(), (own - top).exp()
    output = (kept * before(total, totals) + added * value) / (kept * before(weight, weights) + added)
    return output, [totals[:, -1], weights[:, -1], maxima[:, -1]]


def convolution(
    hidden_states: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str | None = None, **_: object
) -> Tensor:
    """`causal_conv1d_fn`, over the state of the layer whose cache was updated last; tensors are [batch, channels, new]."""
    run, x, width = CURRENT.get(), hidden_states.transpose(1, 2), weight.shape[-1]
    if run is None or run.convolving is None:
        output, _state = causal_convolution(x, x.new_zeros(x.shape[0], width - 1, x.shape[2]), weight, bias)
    else:
        (states, index), run.convolving = run.convolving, None
        if states[index].shape[1] != width - 1:
            raise ExportError(f"a convolution over {width} tokens has a state of {states[index].shape[1]}")
        output, states[index] = causal_convolution(x, states[index], weight, bias)
    made: Tensor = output if activation is None else ACT2FN[activation](output)
    return made.transpose(1, 2)


def without_mask(hidden_states: Tensor, attention_mask: Tensor | None) -> Tensor:
    """Return the hidden states unmasked: the runtime feeds a row's tokens without padding."""
    return hidden_states


LEAST = -1e38
"""A logarithm of zero, with which float32 can still compute."""
FUNCTIONS: tuple[tuple[frozenset[str], Callable[..., Any]], ...] = (
    (frozenset({"query", "key", "value", "g", "beta", "initial_state", "use_qk_l2norm_in_kernel"}), gated_delta_rule),
    (frozenset({"hidden_states", "dt", "A", "B", "C", "initial_states", "dt_limit", "return_final_states"}), state_space_dual),
    (frozenset({"hidden_states", "dt", "A", "B", "C", "delta_bias", "return_last_state"}), selective_state_space),
    (frozenset({"time_decay", "time_first", "key", "value", "state", "return_state"}), weighted_key_values),
    (frozenset({"hidden_states", "weight", "bias", "activation"}), convolution),
    (frozenset({"hidden_states", "attention_mask"}), without_mask),
)
"""The parameters by which a function of transformers is known, and what replaces it."""


def fits(parameters: frozenset[str], named: Set[str], own: Callable[..., Any]) -> bool:
    """Return whether a function has the parameters of a recurrence; one that `without_mask` replaces has no others."""
    return parameters == named if own is without_mask else parameters <= named and not named & (OTHERS - parameters)


OTHERS = frozenset({"state", "conv_state", "module", "self"})
"""Parameters of other functions: those for a single token, and those of layers."""


def replacement_of(function: object) -> Callable[..., Any] | None:
    """Return the replacement of a function whose parameters are those of a recurrence."""
    if not isinstance(function, FunctionType):
        return None
    named = inspect.signature(function).parameters.keys()
    return next((own for parameters, own in FUNCTIONS if fits(parameters, named, own)), None)


def recurrences_of(model: nn.Module) -> list[tuple[ModuleType | type, str, Callable[..., Any]]]:
    """The functions to replace in the modules that define a model's layers, and methods of the layers: owner, name, replacement."""
    kinds = {type(part): part for part in model.modules() if "transformers" in type(part).__module__}
    modules = [sys.modules[name] for name in sorted({kind.__module__ for kind in kinds})]
    found = [(module, name, replacement_of(value)) for module in modules for name, value in vars(module).items()]
    methods = [(kind, name, own) for kind, part in kinds.items() for name, own in methods_of(part)]
    return [*methods, *((module, name, own) for module, name, own in found if own is not None)]


@contextlib.contextmanager
def own_recurrences(model: nn.Module) -> Iterator[None]:
    """Within the context, the model's recurrences are those of this file."""
    replaced = recurrences_of(model)
    before = [getattr(module, name) for module, name, _ in replaced]
    token = CURRENT.set(RecurrentRun())
    try:
        for module, name, own in replaced:
            setattr(module, name, own)
        yield
    finally:
        for (module, name, _), function in zip(replaced, before, strict=True):
            setattr(module, name, function)
        CURRENT.reset(token)
