"""The output layer of a decoder: finding it, and computing logits only where they are asked for."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn


def find_head(module: nn.Module, run: Callable[[], Tensor]) -> nn.Module | None:
    """The linear layer whose unchanged output is what `run` returns."""
    outputs: list[tuple[Tensor, nn.Module]] = []  # the tensors themselves, because an id may be reused
    hooks = [
        part.register_forward_hook(lambda part, _, output: outputs.append((output, part)))
        for part in module.modules()
        if isinstance(part, nn.Linear)
    ]
    try:
        with torch.no_grad():
            logits = run()
        return next((part for output, part in outputs if output is logits), None)
    finally:
        for hook in hooks:
            hook.remove()


@contextlib.contextmanager
def only_these_positions(head: nn.Module | None, positions: Tensor) -> Iterator[list[Tensor]]:
    """Within the context, the output layer gets only these positions of its input, so that no other logits are computed.

    The list that it yields holds the input: hidden states [batch, positions, width].
    """
    taken = list[Tensor]()
    if head is None:
        yield taken
        return

    def take(_: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        taken.append(given[0][:, positions])
        return (taken[-1], *given[1:])

    hook = head.register_forward_pre_hook(take)
    try:
        yield taken
    finally:
        hook.remove()
