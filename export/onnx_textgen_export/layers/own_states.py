"""States that a model keeps elsewhere than in the layers of transformers' cache, and how they get there and back.

Three such places are known, and found by running the model: an attribute of its cache that holds the states by layer, attributes of
the layers themselves, and a list of tensors [batch, width, layers] that the model takes as `state`. While the model runs, the
states are where it looks for them; before and after, they are the recurrent states of the exporter's own cache.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any, Protocol, Self

from torch import Tensor, nn
from transformers.cache_utils import Cache


class OwnStates(Protocol):
    """A place where a model keeps states."""

    def tensors(self) -> dict[int, tuple[Tensor, ...]]:
        """The states that the probe left, by layer."""
        ...

    def lent(self, model: nn.Module, cache: Cache) -> contextlib.AbstractContextManager[object]:
        """Within the context, the states of `cache` are where the model looks for them; gives what the model takes as its cache."""
        ...


def states_of(layer: object) -> tuple[Tensor, ...]:
    """The recurrent states of a layer of the exporter's cache, in their order."""
    return tuple(getattr(layer, "recurrent_states", {}).values())


def keep(cache: Cache, index: int, states: Iterable[Tensor]) -> None:
    """Make these the recurrent states of a layer of the exporter's cache."""
    held: Any = cache.layers[index]
    held.recurrent_states = dict(enumerate(states))


def by_layer(held: object) -> dict[int, tuple[Tensor, ...]]:
    """The tensors of a list or a dict that has a tensor, or a tuple of tensors, for some layers; empty for anything else."""
    entries = dict(enumerate(held)) if isinstance(held, list) else held if isinstance(held, dict) else {}
    tuples = {index: (each,) if isinstance(each, Tensor) else each for index, each in entries.items()}
    return {
        index: each
        for index, each in tuples.items()
        if isinstance(each, tuple) and each and all(isinstance(one, Tensor) for one in each)
    }


@dataclasses.dataclass(frozen=True, slots=True)
class InCache:
    """In an attribute of the model's cache."""

    example: Any
    """The cache that the probe filled; others are copies of it."""
    attribute: str

    @classmethod
    def found(cls, made: object) -> Self | None:
        """In the cache that a model has made, if it holds states there."""
        names = (name for name, held in getattr(made, "__dict__", {}).items() if name != "layers" and by_layer(held))
        name = next(names, None)
        return None if name is None else cls(made, name)

    def tensors(self) -> dict[int, tuple[Tensor, ...]]:
        """See `OwnStates`."""
        return by_layer(getattr(self.example, self.attribute))

    @contextlib.contextmanager
    def lent(self, model: nn.Module, cache: Cache) -> Iterator[object]:
        """See `OwnStates`; the model may write into the states that it gets."""
        made, before = copy.copy(self.example), getattr(self.example, self.attribute)
        vars(made).update({name: value.clone() for name, value in vars(made).items() if isinstance(value, Tensor)})
        if hasattr(made, "layers"):
            made.layers = cache.layers
        entries = dict[int, Any]()
        for index in self.tensors():
            copies = tuple(state.clone() for state in states_of(cache.layers[index]))
            entries[index] = copies[0] if isinstance(before[index], Tensor) else copies
        filled = entries if isinstance(before, dict) else [entries.get(index, []) for index in range(len(cache.layers))]
        setattr(made, self.attribute, filled)
        yield made
        for index, states in by_layer(getattr(made, self.attribute)).items():
            keep(cache, index, states)


@dataclasses.dataclass(frozen=True, slots=True)
class InLayers:
    """In attributes of the model's layers."""

    places: tuple[tuple[int, str, str], ...]
    """Number of the layer, name of its part, and the attribute."""
    probed: dict[int, tuple[Tensor, ...]]

    @classmethod
    def found(cls, model: nn.Module, before: dict[tuple[str, str], object]) -> Self | None:
        """In the attributes that have other tensors than `before`; then they have their earlier values again."""
        places, probed = list[tuple[int, str, str]](), dict[int, tuple[Tensor, ...]]()
        for (name, attribute), held in attributes_of(model).items():
            numbers = [int(part) for part in name.split(".") if part.isdigit()]
            earlier = before.get((name, attribute))
            if isinstance(held, Tensor) and held is not earlier and numbers:
                places.append((numbers[0], name, attribute))
                probed[numbers[0]] = (*probed.get(numbers[0], ()), held)
                setattr(model.get_submodule(name), attribute, earlier)
        return cls(tuple(places), probed) if places else None

    def tensors(self) -> dict[int, tuple[Tensor, ...]]:
        """See `OwnStates`."""
        return self.probed

    @contextlib.contextmanager
    def lent(self, model: nn.Module, cache: Cache) -> Iterator[object]:
        """See `OwnStates`."""
        parts = [(index, model.get_submodule(name), attribute) for index, name, attribute in self.places]
        before = [getattr(part, attribute) for _, part, attribute in parts]
        left = {index: iter(states_of(cache.layers[index])) for index in self.probed}
        try:
            for index, part, attribute in parts:
                setattr(part, attribute, next(left[index]))
            yield cache
            for index in self.probed:
                keep(cache, index, [getattr(part, attribute) for number, part, attribute in parts if number == index])
        finally:
            for (_, part, attribute), value in zip(parts, before, strict=True):
                setattr(part, attribute, value)


def attributes_of(model: nn.Module) -> dict[tuple[str, str], object]:
    """The plain attributes of the parts of a model, by the part's name and their own; parameters and buffers are none."""
    return {(name, attribute): held for name, part in model.named_modules() for attribute, held in vars(part).items()}


@dataclasses.dataclass(frozen=True, slots=True)
class InArgument:
    """In a list of tensors [batch, width, layers] that the model takes and returns."""

    probed: list[Tensor]

    def tensors(self) -> dict[int, tuple[Tensor, ...]]:
        """See `OwnStates`."""
        return {index: tuple(each[..., index] for each in self.probed) for index in range(self.probed[0].shape[-1])}

    @contextlib.contextmanager
    def lent(self, model: nn.Module, cache: Cache) -> Iterator[object]:
        """See `OwnStates`."""
        yield [OfEveryLayer(cache.layers, number) for number in range(len(self.probed))]


class OfEveryLayer:
    """One state of every layer, indexed as a tensor [batch, width, layers] would be."""

    def __init__(self, layers: list[Any], number: int) -> None:
        self.layers, self.number = layers, number

    def __getitem__(self, index: tuple[slice, slice, int]) -> Tensor:
        state: Tensor = self.layers[index[2]].recurrent_states[self.number]
        return state

    def __setitem__(self, index: tuple[slice, slice, int], state: Tensor) -> None:
        self.layers[index[2]].recurrent_states[self.number] = state
