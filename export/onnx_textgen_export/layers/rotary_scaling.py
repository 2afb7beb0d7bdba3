"""Rotary scalings that depend on the length of the text: LongRoPE's switch, and dynamic NTK.

transformers recomputes such frequencies in every forward pass, by code that writes into the module and branches on tensors. Here
the two sets of LongRoPE become a choice inside the graph, row by row: long frequencies if a row's last position lies beyond the
switch. Keys that were cached before the switch were rotated by the short ones; the graph's metadata names the switch
(`rotary_switch`), so that a runtime recomputes the cache when a text crosses it. Dynamic NTK changes all keys with every token
beyond the trained length, which no cache can follow: contexts up to that length are exported, longer ones are refused.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from ..errors import ExportError

RotaryTables = Tensor | tuple[Tensor, ...]


def scaled_modules(model: nn.Module, kind: str) -> Iterator[tuple[nn.Module, str | None]]:
    """The rotary modules with a scaling of that kind, and the layer type it applies to (None if the module has one scaling)."""
    for module in model.modules():
        rope_type = getattr(module, "rope_type", None)
        if isinstance(rope_type, str) and kind in rope_type:
            yield module, None
        elif isinstance(rope_type, dict):
            for layer_type, name in rope_type.items():
                if kind in name:
                    yield module, layer_type


def parameters_of(module: nn.Module, layer_type: str | None) -> dict[str, Any]:
    """The config's rotary parameters."""
    parameters: dict[str, Any] = cast(Any, module).config.rope_parameters
    return parameters if layer_type is None else parameters[layer_type]


def check_dynamic(model: nn.Module, context_length: int) -> None:
    """Raise `ExportError` for a context in which dynamic NTK would change the frequencies."""
    for module, _ in scaled_modules(model, "dynamic"):
        trained = int(cast(Any, module).original_max_seq_len)
        if context_length > trained:
            raise ExportError(
                f"dynamic rotary scaling changes every cached key beyond {trained} tokens, which no key/value cache can follow; "
                f"export it with a context of at most {trained}"
            )


def switch_of(model: nn.Module, context_length: int) -> int | None:
    """The length beyond which LongRoPE switches its frequencies, if the context reaches it."""
    switches = {
        int(parameters_of(module, layer_type)["original_max_position_embeddings"])
        for module, layer_type in scaled_modules(model, "longrope")
    }
    if len(switches) > 1:
        raise ExportError(f"its layers switch their rotary frequencies at different lengths {sorted(switches)}")
    return next((switch for switch in switches if switch < context_length), None)


def where_long(long: Tensor, when_long: RotaryTables, when_short: RotaryTables) -> RotaryTables:
    """Choose per row; `long`: bool [batch]."""
    if isinstance(when_long, tuple):
        return tuple(
            cast(Tensor, where_long(long, one, other))
            for one, other in zip(when_long, cast("tuple[Tensor, ...]", when_short), strict=True)
        )
    short = cast(Tensor, when_short)
    return torch.where(long.reshape(-1, *[1] * (short.ndim - 1)), when_long, short)


def switching_forward(module: nn.Module, rope_type: str | dict[str, str]) -> Callable[..., RotaryTables]:
    """A rotary module's forward with LongRoPE's choice inside, instead of transformers' update of its frequencies."""
    plain = inspect.unwrap(type(module).forward)
    parts = cast(Any, module)
    long_frequencies = {
        layer_type: ROPE_INIT_FUNCTIONS["longrope"](
            parts.config,
            None,
            seq_len=parameters_of(module, layer_type)["original_max_position_embeddings"] + 1,
            **({} if layer_type is None else {"layer_type": layer_type}),
        )[0]
        for found, layer_type in scaled_modules(module, "longrope")
        if found is module
    }

    def forward(x: Tensor, position_ids: Tensor, layer_type: str | None = None) -> RotaryTables:
        options = {} if layer_type is None else {"layer_type": layer_type}
        kind = rope_type if isinstance(rope_type, str) else rope_type[str(layer_type)]
        prefix = "" if layer_type is None else f"{layer_type}_"
        with frequencies(module, f"{prefix}inv_freq", getattr(parts, f"{prefix}original_inv_freq")):
            short: RotaryTables = plain(module, x, position_ids, **options)
        if kind != "longrope":
            return short
        with frequencies(module, f"{prefix}inv_freq", long_frequencies[layer_type]):
            long: RotaryTables = plain(module, x, position_ids, **options)
        switch = parameters_of(module, layer_type)["original_max_position_embeddings"]
        return where_long(position_ids.amax(dim=-1) + 1 > switch, long, short)

    return forward


@contextlib.contextmanager
def frequencies(module: nn.Module, name: str, values: Tensor) -> Iterator[None]:
    """Context manager that replaces a rotary module's inverse frequencies."""
    before = getattr(module, name)
    setattr(module, name, values)
    try:
        yield
    finally:
        setattr(module, name, before)


@contextlib.contextmanager
def traceable_rotary(model: nn.Module) -> Iterator[None]:
    """Within the context, length-dependent rotary modules of `model` compute without changing their state."""
    changed = {module for kind in ("longrope", "dynamic") for module, _ in scaled_modules(model, kind)}
    forwards = {module: switching_forward(module, cast(Any, module).rope_type) for module in changed}
    try:
        for module, forward in forwards.items():
            cast(Any, module).forward = forward
        yield
    finally:
        for module in changed:
            vars(module).pop("forward", None)
