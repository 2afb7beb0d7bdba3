"""Mixtures of experts: one function for transformers' experts interface, for running and for tracing.

In PyTorch it computes expert by expert. While tracing, a layer becomes `onnx_textgen::Experts` if the target is ONNX Runtime and
its operator knows the layer's gate, else two `onnx_textgen::ExpertProduct` (one product each, rows sorted by expert);
`passes/experts` turns both into existing operators. Each token is multiplied only by its selected experts, so memory is O(tokens),
not O(tokens x experts). Which gate a layer has is found by trying it, not by its name.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.onnx.ops as onnx_ops
from torch import Tensor, nn
from torch.nn import functional as F

from onnx_textgen.package.manifest import Target

EXPERTS = "onnx_textgen"
DOMAIN = "onnx_textgen"
"""Domain of the operators that represent experts between the trace and `passes/experts`."""
NEVER, SMALLEST = -1e30, -80.0
"""Logarithms of the weight of an unselected expert, and of the smallest selected one: e^-80 vanishes in float32."""
FAR, NO_LIMIT = 1e4, 9e3
"""A value beyond any limit of a gate, and the least that an unlimited gate leaves of it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Gate:
    """`G * sigmoid(alpha * G) * (U + beta)`, where G is the gate and U the up projection, both limited (SwiGLU, Shazeer 2020)."""

    alpha: float
    beta: float
    limit: float | None
    """Upper limit of gate and up projection, and lower limit of the up projection."""
    interleaved: bool
    """Outputs of gate and up projection alternate; else all gates come first."""

    def __call__(self, gate: Tensor, up: Tensor) -> Tensor:
        """The activation of gate and up projection."""
        if self.limit is not None:
            gate, up = gate.clamp(max=self.limit), up.clamp(-self.limit, self.limit)
        return gate * torch.sigmoid(self.alpha * gate) * (up + self.beta)


TARGET: ContextVar[Target | None] = ContextVar("onnx_textgen_experts_target", default=None)
GATES: WeakKeyDictionary[nn.Module, Gate | None] = WeakKeyDictionary()
"""The gate of each layer, found when it last ran in PyTorch: a trace has no numbers to try it with."""


@contextlib.contextmanager
def experts_for(target: Target) -> Iterator[None]:
    """Within the context, experts are traced for a target."""
    token = TARGET.set(target)
    try:
        yield
    finally:
        TARGET.reset(token)


def expert_outputs(module: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:  # noqa: ANN401 - any experts
    """transformers' experts signature: tokens [tokens, hidden], the experts [tokens, k] of each and their weights."""
    target = TARGET.get()
    if target is None:
        GATES[module] = find_gate(module) if weights_tell_all(top_k_index, top_k_weights) else None
        return one_by_one(module, hidden_states, top_k_index, top_k_weights)
    gate = GATES.get(module)
    if target == "ort" and gate is not None:
        return as_one_operator(module, gate, hidden_states, top_k_index, top_k_weights)
    return sorted_by_expert(module, hidden_states, top_k_index, top_k_weights)


def first_projection(module: Any) -> tuple[Tensor, Tensor | None]:  # noqa: ANN401
    """Weights and biases before the activation."""
    name = "gate_up_proj" if module.has_gate else "up_proj"
    return getattr(module, name), getattr(module, f"{name}_bias") if module.has_bias else None


def last_projection(module: Any) -> tuple[Tensor, Tensor | None]:  # noqa: ANN401
    """Weights and biases after the activation."""
    return module.down_proj, module.down_proj_bias if module.has_bias else None


def activated(module: Any, product: Tensor) -> Tensor:  # noqa: ANN401
    """The layer's own activation, gated or not."""
    made: Tensor = module._apply_gate(product) if module.has_gate else module.act_fn(product)
    return made


def one_by_one(module: Any, hidden: Tensor, index: Tensor, weights: Tensor) -> Tensor:  # noqa: ANN401
    """Run each expert on the tokens that selected it."""
    (first, first_bias), (last, last_bias) = first_projection(module), last_projection(module)
    out = torch.zeros_like(hidden)
    for expert in sorted({*index.flatten().tolist()}):
        rows, slots = torch.where(index == expert)

        def linear(x: Tensor, weight: Tensor, bias: Tensor | None, expert: int = expert) -> Tensor:
            matrix = weight[expert].T if module.is_transposed else weight[expert]
            return F.linear(x, matrix, None if bias is None else bias[expert])

        made = linear(activated(module, linear(hidden[rows], first, first_bias)), last, last_bias)
        if module.has_post_expert_norm:
            made = module.post_expert_norm(made)
        out.index_add_(0, rows, (made * weights[rows, slots, None]).to(out.dtype))
    return out


def weights_tell_all(index: Tensor, weights: Tensor) -> bool:
    """Return whether a row of weights over all experts is equivalent: no expert is chosen twice, and no weight is negative."""
    ordered = index.sort(dim=-1).values
    return bool((ordered.diff(dim=-1) != 0).all()) and bool((weights >= 0).all())


def find_gate(module: Any) -> Gate | None:  # noqa: ANN401
    """The gate of a layer of experts, if ONNX Runtime's operator supports it; found by trying values."""
    if not module.has_gate or module.has_post_expert_norm:
        return None
    for interleaved in (False, True):

        def run(gate: Tensor, up: Tensor, interleaved: bool = interleaved) -> Tensor:
            made: Tensor = module._apply_gate(torch.stack([gate, up], dim=-1 if interleaved else -2).flatten(-2))
            return made

        try:
            found = fit_gate(run, interleaved=interleaved)
        except Exception:  # noqa: BLE001 - a layer that fails at such a width has another gate
            found = None
        if found is not None:
            return found
    return None


def fit_gate(run: Callable[[Tensor, Tensor], Tensor], *, interleaved: bool) -> Gate | None:
    """alpha, beta and limit from single values, accepted only if small and large random values agree.

    `run` takes gate and up projection, both [rows, width].
    """

    def at(gate: float, up: float) -> float:
        return float(run(torch.full((1, 2), gate), torch.full((1, 2), up))[0, 0])

    none = at(1.0, 0.0)  # sigmoid(alpha) * beta
    slope = at(1.0, 1.0) - none  # sigmoid(alpha)
    if not 0 < slope < 1:
        return None
    far = (at(1.0, FAR) - none) / slope
    gate = Gate(
        alpha=round(math.log(slope / (1 - slope)), 4),
        beta=round(none / slope, 4),
        limit=None if far > NO_LIMIT else round(far, 4),
        interleaved=interleaved,
    )
    generator = torch.Generator().manual_seed(0)
    for scale in (1.0, 30.0):
        left, right = (scale * torch.randn(16, 8, generator=generator) for _ in range(2))
        if not torch.allclose(run(left, right), gate(left, right), rtol=1e-4, atol=1e-5):
            return None
    return gate


def as_one_operator(module: Any, gate: Gate, hidden: Tensor, index: Tensor, weights: Tensor) -> Tensor:  # noqa: ANN401
    """`onnx_textgen::Experts`; the operator's softmax of the weights' logarithms gives the weights divided by their sum."""
    (first, first_bias), (last, last_bias) = first_projection(module), last_projection(module)
    background = torch.full((hidden.shape[0], first.shape[0]), NEVER, dtype=hidden.dtype)
    logits = background.scatter(1, index, weights.to(hidden.dtype).log().clamp(min=SMALLEST))
    attributes: dict[str, Any] = {"k": index.shape[1], "alpha": gate.alpha, "beta": gate.beta}
    attributes |= {"interleaved": int(gate.interleaved), "transposed": int(module.is_transposed)}
    if gate.limit is not None:
        attributes["limit"] = gate.limit
    mixed: Tensor = onnx_ops.symbolic(
        f"{DOMAIN}::Experts",
        (hidden, logits, first, first_bias, last, last_bias),
        attributes,
        dtype=hidden.dtype,
        shape=hidden.shape,
        version=1,
    )
    return mixed * weights.sum(dim=1, keepdim=True).to(hidden.dtype)


def sorted_by_expert(module: Any, hidden: Tensor, index: Tensor, weights: Tensor) -> Tensor:  # noqa: ANN401
    """Two `onnx_textgen::ExpertProduct` around the layer's own activation; rows are pairs of a token and one of its experts."""
    (first, first_bias), (last, last_bias) = first_projection(module), last_projection(module)
    count, k = first.shape[0], index.shape[1]
    chosen, order = index.reshape(-1).sort()
    sizes = (chosen[:, None] == torch.arange(count)).sum(dim=0)
    tokens = torch.arange(hidden.shape[0])[:, None].expand(-1, k).reshape(-1).index_select(0, order)
    made = expert_product(hidden.index_select(0, tokens), sizes, first, transposed=module.is_transposed)
    if first_bias is not None:
        made = made + first_bias.index_select(0, chosen)
    made = expert_product(activated(module, made), sizes, last, transposed=module.is_transposed)
    if last_bias is not None:
        made = made + last_bias.index_select(0, chosen)
    if module.has_post_expert_norm:
        made = module.post_expert_norm(made)
    made = made * weights.reshape(-1, 1).index_select(0, order).to(made.dtype)
    back = torch.zeros_like(order).scatter(0, order, torch.arange(order.shape[0]))
    return made.index_select(0, back).view(-1, k, made.shape[1]).sum(dim=1).to(hidden.dtype)


def expert_product(rows: Tensor, sizes: Tensor, weight: Tensor, *, transposed: bool) -> Tensor:
    """`onnx_textgen::ExpertProduct`: the first sizes[0] rows times the first expert's matrix, and so on; [rows, out]."""
    made: Tensor = onnx_ops.symbolic(
        f"{DOMAIN}::ExpertProduct",
        (rows, sizes, weight),
        {"transposed": int(transposed)},
        dtype=rows.dtype,
        shape=(rows.shape[0], weight.shape[2 if transposed else 1]),
        version=1,
    )
    return made
