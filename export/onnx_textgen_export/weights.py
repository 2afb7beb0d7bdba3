"""Where a decoder's numbers come from: the module itself, or files that are read one tensor at a time.

A large checkpoint never lies in memory as a whole. Its module is *hollow*: big parameters have a shape but memory that nobody has
touched, which costs nothing. The tracer looks at shapes only. Whoever needs numbers asks `Weights`: the graph for one tensor at a
time, and a forward pass in PyTorch through `present`, which lends each block its numbers for as long as it runs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Protocol

from torch import Tensor, nn

HOLLOW_FROM = 65_536
"""Elements from which on a parameter is left hollow; smaller ones are read at once."""


class Weights(Protocol):
    """The numbers of one module, in float32."""

    def load(self, name: str) -> Tensor:
        """A parameter by its name in the module; a hollow one is read anew by every call."""
        ...

    def present(self) -> contextlib.AbstractContextManager[None]:
        """Within it the module computes with real numbers."""
        ...


class OwnWeights:
    """The numbers that a module in memory has anyway."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def load(self, name: str) -> Tensor:
        """See `Weights.load`."""
        return self.module.get_parameter(name).detach()

    def present(self) -> contextlib.AbstractContextManager[None]:
        """See `Weights.present`."""
        return contextlib.nullcontext()


class StreamedWeights:
    """Numbers read from files when they are asked for; `read` gives a parameter's tensor by the name it has in the module."""

    def __init__(self, module: nn.Module, read: Callable[[str], Tensor]) -> None:
        self.module, self.read = module, read

    def load(self, name: str) -> Tensor:
        """See `Weights.load`."""
        parameter = self.module.get_parameter(name)
        return self.read(name).float() if is_hollow(parameter) else parameter.detach()

    @contextlib.contextmanager
    def present(self) -> Iterator[None]:
        """See `Weights.present`: what lies outside the blocks stays for the whole time, each block only for its own forward."""
        blocks = blocks_of(self.module)
        inside = {id(parameter) for block in blocks.values() for parameter in block.parameters()}
        names: dict[int, list[str]] = {}
        for name, parameter in self.module.named_parameters(remove_duplicate=False):
            if is_hollow(parameter):
                names.setdefault(id(parameter), []).append(name)
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.lent([each for number, each in names.items() if number not in inside]))
            for block in blocks.values():
                own = [names[id(parameter)] for parameter in block.parameters() if is_hollow(parameter)]
                stack.enter_context(self.lent_while_running(block, own))
            yield

    @contextlib.contextmanager
    def lent_while_running(self, block: nn.Module, names: list[list[str]]) -> Iterator[None]:
        """Lend a block its numbers whenever its forward runs."""
        running: list[contextlib.AbstractContextManager[None]] = []

        def begin(*_: object) -> None:
            lent = self.lent(names)
            lent.__enter__()
            running.append(lent)

        def end(*_: object) -> None:
            if running:
                running.pop().__exit__(None, None, None)

        handles = (block.register_forward_pre_hook(begin), block.register_forward_hook(end, always_call=True))
        try:
            yield
        finally:
            end()
            for handle in handles:
                handle.remove()

    @contextlib.contextmanager
    def lent(self, names: list[list[str]]) -> Iterator[None]:
        """Real numbers in the place of hollow parameters, each given by all of its names."""
        hollow = [(each, self.module.get_parameter(each[0])) for each in names]
        try:
            for each, _ in hollow:
                put_parameter(self.module, each, nn.Parameter(self.load(each[0]), requires_grad=False))
            yield
        finally:
            for each, parameter in hollow:
                put_parameter(self.module, each, parameter)


def is_hollow(parameter: Tensor) -> bool:
    """Whether a parameter of a streamed module is left without numbers."""
    return parameter.numel() >= HOLLOW_FROM


def put_parameter(module: nn.Module, names: list[str], parameter: nn.Parameter) -> None:
    """Set a parameter under all of its dotted names."""
    for name in names:
        parent, _, own = name.rpartition(".")
        setattr(module.get_submodule(parent), own, parameter)


def blocks_of(module: nn.Module) -> dict[str, nn.Module]:
    """The repeated layers by name: the members of the `ModuleList` that holds the most parameters."""
    lists = {name: part for name, part in module.named_modules() if isinstance(part, nn.ModuleList)}
    if not lists:
        return {}
    largest = max(lists, key=lambda name: (sum(p.numel() for p in lists[name].parameters()), -len(name)))
    return {f"{largest}.{index}": block for index, block in enumerate(lists[largest])}
