"""The hidden states that enter modules while a decoder runs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, nn


@contextlib.contextmanager
def inputs_of(modules: Sequence[nn.Module]) -> Iterator[list[Tensor]]:
    """Within the context, collect the first input of each module, in the order of `modules`, as each of them runs once."""
    found: dict[int, Tensor] = {}
    taken = list[Tensor]()

    def note(index: int, given: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        found[index] = given[0] if given else next(iter(named.values()))
        if len(found) == len(modules):
            taken[:] = [found[each] for each in range(len(modules))]

    hooks = [
        module.register_forward_pre_hook(lambda _, given, named, index=index: note(index, given, named), with_kwargs=True)
        for index, module in enumerate(modules)
    ]
    try:
        yield taken
    finally:
        for hook in hooks:
            hook.remove()
