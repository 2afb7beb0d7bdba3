"""Where a decoder's weights come from: the module itself, or files that are read one tensor at a time.

A large checkpoint is never in memory as a whole. The large parameters of its module are *unmaterialized*: they have a shape, but
memory that nothing has touched, which costs nothing. The tracer needs shapes only. The graph reads one tensor at a time from
`Weights`, and a forward pass in PyTorch runs inside `present`, which gives each block its weights while that block runs.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol

import torch
from torch import Tensor, nn

from ..sources.stored_form import StoredForm

UNMATERIALIZED_FROM = 65_536
"""Parameters of at least this many elements are left unmaterialized; smaller ones are read immediately."""


SMALLER_HALF = 1 / 4
"""The least of the parameters of the largest list of layers that another list has whose layers are streamed too."""
Change = Callable[[Tensor], None]
"""Changes a parameter's numbers in place."""


Forward = Callable[..., object]
StandIns = dict[tuple[int, torch.Size], nn.Parameter]
"""By the place of a parameter among those of its block, and by its shape."""
STAND_INS: contextvars.ContextVar[StandIns | None] = contextvars.ContextVar("stand_ins", default=None)
SPREAD = 0.02
"""Standard deviation of stand-ins, which is that of most models before training."""


@contextlib.contextmanager
def stand_ins() -> Iterator[None]:
    """Within the context all blocks run with the same random weights: for trials of code, whose time would go into reading."""
    token = STAND_INS.set({})
    try:
        yield
    finally:
        STAND_INS.reset(token)


def stand_in(known: StandIns, place: int, shape: torch.Size) -> nn.Parameter:
    """The stand-in for a block's parameter, by its place among them."""
    if (place, shape) not in known:
        numbers = torch.randn(shape, generator=torch.Generator().manual_seed(len(known)))
        known[place, shape] = nn.Parameter(numbers.mul_(SPREAD), requires_grad=False)
    return known[place, shape]


class Weights(Protocol):
    """The weights of one module, in float32."""

    @property
    def stored(self) -> Mapping[str, StoredForm]:
        """How the source stored the parameters that it holds quantised, by every name that they have in the module."""
        ...

    def load(self, name: str, *, to_change: bool = False) -> Tensor:
        """A parameter by its name in the module; every call reads an unmaterialized one from its file.

        With `to_change` the tensor is a copy that the caller may write to.
        """
        ...

    def present(self, changes: Mapping[str, Change] | None = None) -> contextlib.AbstractContextManager[None]:
        """A context in which the module has its weights; `changes` are applied to the parameters that they name."""
        ...


def is_of_transformers(module: nn.Module) -> bool:
    """Return whether a module is a transformers model, without importing transformers (such a model has imported it already)."""
    library = sys.modules.get("transformers.modeling_utils")
    return library is not None and isinstance(module, library.PreTrainedModel)


class OwnWeights:
    """The weights of a module that is in memory."""

    stored: Mapping[str, StoredForm] = {}

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def load(self, name: str, *, to_change: bool = False) -> Tensor:
        """See `Weights.load`."""
        own = self.module.get_parameter(name).detach()
        return own.clone() if to_change else own

    def present(self, changes: Mapping[str, Change] | None = None) -> contextlib.AbstractContextManager[None]:
        """See `Weights.present`; by block for a transformers model, which calls its blocks as modules, as others may not."""
        by_block = is_of_transformers(self.module)
        return Loan(self.module, self, changes or {}).lent_to_module(blocks_of(self.module) if by_block else {})


class StreamedWeights:
    """Weights read from files on demand; `read` returns a parameter's tensor by its name in the module."""

    def __init__(self, module: nn.Module, read: Callable[[str], Tensor], stored: Mapping[str, StoredForm] | None = None) -> None:
        self.module, self.read, self.stored = module, read, stored or {}

    def load(self, name: str, *, to_change: bool = False) -> Tensor:
        """See `Weights.load`."""
        parameter = self.module.get_parameter(name)
        return (self.read(name) if is_unmaterialized(parameter) else parameter.detach()).to(torch.float32, copy=to_change)

    def present(self, changes: Mapping[str, Change] | None = None) -> contextlib.AbstractContextManager[None]:
        """See `Weights.present`: parameters outside the blocks are present throughout, those of a block only during its forward."""
        return Loan(self.module, self, changes or {}, is_missing=is_unmaterialized).lent_to_module(blocks_of(self.module))


@dataclasses.dataclass(frozen=True, slots=True)
class Loan:
    """Weights lent to a module for the length of a context, replacing unmaterialized and changed parameters."""

    module: nn.Module
    weights: Weights
    changes: Mapping[str, Change]
    is_missing: Callable[[Tensor], bool] = lambda parameter: False

    @contextlib.contextmanager
    def lent_to_module(self, blocks: Mapping[str, nn.Module]) -> Iterator[None]:
        """Lend every parameter; those of a block only while it runs."""
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
        """Lend a block its weights whenever its forward runs."""

        def lending(forward: Forward) -> Forward:
            @functools.wraps(forward)
            def run(*given: object, **named: object) -> object:
                with self.lent(names, STAND_INS.get()):
                    return forward(*given, **named)

            return run

        with forward_within(block, lending):
            yield

    @contextlib.contextmanager
    def lent(self, names: list[list[str]], known: StandIns | None = None) -> Iterator[None]:
        """Replace parameters, each given by all of its names, by materialized ones, or by stand-ins that are or become `known`."""
        before = [(each, self.module.get_parameter(each[0])) for each in names]
        try:
            for place, (each, parameter) in enumerate(before):
                for same in alike(each, self.changes):
                    made = self.made(same[0]) if known is None else stand_in(known, place, parameter.shape)
                    put_parameter(self.module, same, made)
            yield
        finally:
            for each, parameter in before:
                put_parameter(self.module, each, parameter)

    def made(self, name: str) -> nn.Parameter:
        """The materialized, possibly changed parameter."""
        change = self.changes.get(name)
        numbers = self.weights.load(name, to_change=change is not None)
        if change is not None:
            change(numbers)
        return nn.Parameter(numbers, requires_grad=False)


@contextlib.contextmanager
def forward_within(module: nn.Module, wrap: Callable[[Forward], Forward]) -> Iterator[None]:
    """Wrap a module's forward in another function."""
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
    """The names of one parameter, grouped by the change that applies to them."""
    groups: dict[Change | None, list[str]] = {}
    for name in names:
        groups.setdefault(changes.get(name), []).append(name)
    return groups.values()


def is_unmaterialized(parameter: Tensor) -> bool:
    """Return whether a parameter of a streamed module is left unmaterialized."""
    return parameter.numel() >= UNMATERIALIZED_FROM


def put_parameter(module: nn.Module, names: list[str], parameter: nn.Parameter) -> None:
    """Set a parameter under all of its dotted names."""
    for name in names:
        parent, _, own = name.rpartition(".")
        setattr(module.get_submodule(parent), own, parameter)


def blocks_of(module: nn.Module) -> dict[str, nn.Module]:
    """The repeated layers by name: the members of the `ModuleList` with the most parameters, or of both of an encoder-decoder."""
    sizes = {
        name: sum(p.numel() for p in part.parameters()) for name, part in module.named_modules() if isinstance(part, nn.ModuleList)
    }
    found, blocks = list[str](), dict[str, nn.Module]()
    for name in sorted(sizes, key=lambda name: (-sizes[name], len(name))):
        is_apart = not any(f"{name}.".startswith(f"{other}.") or f"{other}.".startswith(f"{name}.") for other in found)
        if not found or (is_apart and sizes[name] >= SMALLER_HALF * sizes[found[0]]):
            found.append(name)
    for name in found:
        blocks |= {f"{name}.{index}": block for index, block in enumerate(module.get_submodule(name).children())}
    return blocks
