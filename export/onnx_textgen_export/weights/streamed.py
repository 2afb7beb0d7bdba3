"""Where a decoder's numbers come from: the module itself, or files that are read one tensor at a time.

A large checkpoint never lies in memory as a whole. Its module is *hollow*: big parameters have a shape but memory that nobody has
touched, which costs nothing. The tracer looks at shapes only. Whoever needs numbers asks `Weights`: the graph for one tensor at a
time, and a forward pass in PyTorch through `present`, which lends each block its numbers for as long as it runs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol

import torch
from torch import Tensor, nn

UNMATERIALIZED_FROM = 65_536
"""Elements from which on a parameter is left hollow; smaller ones are read at once."""


Change = Callable[[Tensor], None]
"""Changes a parameter's numbers in place."""


Forward = Callable[..., object]


class Weights(Protocol):
    """The numbers of one module, in float32."""

    def load(self, name: str, *, to_change: bool = False) -> Tensor:
        """A parameter by its name in the module; a hollow one is read anew by every call.

        With `to_change` it is nobody else's, and may be written to.
        """
        ...

    def present(self, changes: Mapping[str, Change] | None = None) -> contextlib.AbstractContextManager[None]:
        """Within it the module computes with real numbers, changed where `changes` has a parameter's name."""
        ...


def is_of_transformers(module: nn.Module) -> bool:
    """Whether it is a model of transformers; where that was not imported there can be none, and it is not imported to see."""
    library = sys.modules.get("transformers.modeling_utils")
    return library is not None and isinstance(module, library.PreTrainedModel)


class OwnWeights:
    """The numbers that a module in memory has anyway."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def load(self, name: str, *, to_change: bool = False) -> Tensor:
        """See `Weights.load`."""
        own = self.module.get_parameter(name).detach()
        return own.clone() if to_change else own

    def present(self, changes: Mapping[str, Change] | None = None) -> contextlib.AbstractContextManager[None]:
        """See `Weights.present`; a transformers model runs its blocks as modules, another may call parts of them."""
        by_block = is_of_transformers(self.module)
        return Loan(self.module, self, changes or {}).lent_to_module(blocks_of(self.module) if by_block else {})


class StreamedWeights:
    """Numbers read from files when they are asked for; `read` gives a parameter's tensor by the name it has in the module."""

    def __init__(self, module: nn.Module, read: Callable[[str], Tensor]) -> None:
        self.module, self.read = module, read

    def load(self, name: str, *, to_change: bool = False) -> Tensor:
        """See `Weights.load`."""
        parameter = self.module.get_parameter(name)
        return (self.read(name) if is_unmaterialized(parameter) else parameter.detach()).to(torch.float32, copy=to_change)

    def present(self, changes: Mapping[str, Change] | None = None) -> contextlib.AbstractContextManager[None]:
        """See `Weights.present`: what lies outside the blocks stays for the whole time, each block only for its own forward."""
        return Loan(self.module, self, changes or {}, is_missing=is_unmaterialized).lent_to_module(blocks_of(self.module))


@dataclasses.dataclass(frozen=True, slots=True)
class Loan:
    """Numbers lent to a module for a while, in the place of hollow parameters and of those that are changed."""

    module: nn.Module
    weights: Weights
    changes: Mapping[str, Change]
    is_missing: Callable[[Tensor], bool] = lambda parameter: False

    @contextlib.contextmanager
    def lent_to_module(self, blocks: Mapping[str, nn.Module]) -> Iterator[None]:
        """Lend everything; what belongs to a block only while that runs."""
        inside = {id(parameter) for block in blocks.values() for parameter in block.parameters()}
        names: dict[int, list[str]] = {}
        for name, parameter in self.module.named_parameters(remove_duplicate=False):
            names.setdefault(id(parameter), []).append(name)
        needed = {
            number: each
            for number, each in names.items()
            if self.is_missing(self.module.get_parameter(each[0])) or any(name in self.changes for name in each)
        }
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.lent([each for number, each in needed.items() if number not in inside]))
            for block in blocks.values():
                own = [needed[id(parameter)] for parameter in block.parameters() if id(parameter) in needed]
                stack.enter_context(self.lent_while_running(block, own))
            yield

    @contextlib.contextmanager
    def lent_while_running(self, block: nn.Module, names: list[list[str]]) -> Iterator[None]:
        """Lend a block its numbers whenever its forward runs."""

        def lending(forward: Forward) -> Forward:
            @functools.wraps(forward)
            def run(*given: object, **named: object) -> object:
                with self.lent(names):
                    return forward(*given, **named)

            return run

        with forward_within(block, lending):
            yield

    @contextlib.contextmanager
    def lent(self, names: list[list[str]]) -> Iterator[None]:
        """Real numbers in the place of parameters, each given by all of its names."""
        before = [(each, self.module.get_parameter(each[0])) for each in names]
        try:
            for each, _ in before:
                for same in alike(each, self.changes):
                    put_parameter(self.module, same, self.made(same[0]))
            yield
        finally:
            for each, parameter in before:
                put_parameter(self.module, each, parameter)

    def made(self, name: str) -> nn.Parameter:
        """What takes a parameter's place."""
        change = self.changes.get(name)
        numbers = self.weights.load(name, to_change=change is not None)
        if change is not None:
            change(numbers)
        return nn.Parameter(numbers, requires_grad=False)


@contextlib.contextmanager
def forward_within(module: nn.Module, wrap: Callable[[Forward], Forward]) -> Iterator[None]:
    """Let a module run its forward in another function."""
    before, own = module.forward, "forward" in vars(module)
    module.forward = wrap(before)
    try:
        yield
    finally:
        if own:
            module.forward = before
        else:
            del module.forward


def alike(names: Iterable[str], changes: Mapping[str, Change]) -> Iterable[list[str]]:
    """The names of one parameter, those together that are changed in the same way."""
    groups: dict[Change | None, list[str]] = {}
    for name in names:
        groups.setdefault(changes.get(name), []).append(name)
    return groups.values()


def is_unmaterialized(parameter: Tensor) -> bool:
    """Whether a parameter of a streamed module is left without numbers."""
    return parameter.numel() >= UNMATERIALIZED_FROM


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
