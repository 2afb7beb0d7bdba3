"""Values that a model's code reads out of tensors: noted in a trial run, and given again while the code is traced.

The code of many vision parts loops over sizes that it reads from a tensor, or picks rows by a mask, which a graph cannot follow. Of
pictures of one shape these values are always the same; of others, `grids` finds how they follow the size.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any, Self
from unittest import mock

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from ..errors import ExportError

Site = tuple[str, int, object]
"""File and line of the code that reads, and by which function."""
READING = frozenset(
    {
        *(Tensor.tolist, Tensor.item, Tensor.__int__, Tensor.__bool__, Tensor.__index__, Tensor.__float__),
        *(Tensor.nonzero, torch.nonzero, torch.unique, Tensor.unique),
    }
)
REPEATING = frozenset({torch.repeat_interleave, Tensor.repeat_interleave})
FEW = 16
"""Numbers that are repeated one by one."""
MAKING = frozenset({torch.arange, torch.zeros, torch.ones, torch.full, torch.linspace})
"""Functions that make a tensor from numbers, which may be tensors."""
SHAPING = frozenset(
    {Tensor.view, Tensor.reshape, Tensor.expand, Tensor.repeat, torch.reshape, torch.split, Tensor.split, functional.interpolate}
)
"""Functions that take sizes, which may be tensors."""


class ReadOutValues(TorchFunctionMode):
    """Within the context, values that are read out of tensors are noted, or those `known` are given in their order."""

    def __init__(self, known: Sequence[tuple[Site, Any]] | None = None) -> None:
        super().__init__()
        self.known = None if known is None else list(known)
        self.noted = list[tuple[Site, Any]]()
        self.patches = contextlib.ExitStack()

    def __enter__(self) -> Self:
        for kind in (FakeTensor, FunctionalTensor):  # which read their numbers one by one
            if self.known is not None:
                self.patches.enter_context(mock.patch.object(kind, "tolist", self.noting(kind.tolist)))
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *raised: Any) -> None:  # noqa: ANN401 - as a context manager gets it
        super().__exit__(*raised)  # type: ignore[no-untyped-call]
        self.patches.close()

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:  # noqa: ANN401 - the signature is PyTorch's
        given = kwargs or {}
        if func in READING:
            return self.value(func, lambda: func(*args, **given))
        if func is Tensor.__getitem__:
            return func(args[0], self.index(func, args[1]))
        if func in MAKING:
            return func(*(self.number(func, each) for each in args), **given)
        if func in SHAPING:
            sizes = {name: self.sizes(func, each) if name == "size" else each for name, each in given.items()}
            return func(args[0], *(self.sizes(func, each) for each in args[1:]), **sizes)
        if func in REPEATING and isinstance(times := args[1] if len(args) > 1 else given.get("repeats"), Tensor):
            rest = {name: value for name, value in given.items() if name != "repeats"}
            return repeated(args[0], self.value(func, times.tolist), rest)
        return func(*args, **given)

    def noting(self, own: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """`Tensor.tolist` of a class that has its own."""
        return lambda tensor: self.value(Tensor.tolist, lambda: own(tensor))

    def index(self, func: object, index: Any) -> Any:  # noqa: ANN401 - whatever a tensor is indexed with
        """An index without masks, and without tensors as the ends of slices."""
        made = list[Any]()
        for each in index if isinstance(index, tuple) else (index,):
            if isinstance(each, slice):
                made.append(slice(*(self.number(func, end) for end in (each.start, each.stop, each.step))))
            elif isinstance(each, Tensor) and each.dtype == torch.bool:
                made += self.value(func, functools.partial(each.nonzero, as_tuple=True))
            else:
                made.append(each)
        return tuple(made) if isinstance(index, tuple) or len(made) != 1 else made[0]

    def sizes(self, func: object, value: Any) -> Any:  # noqa: ANN401 - one size, or all of a shape
        """Sizes without tensors."""
        if isinstance(value, tuple | list):
            return type(value)([self.number(func, each) for each in value])
        return self.number(func, value)

    def number(self, func: object, value: object) -> Any:  # noqa: ANN401 - a number, or None
        """A number that may be a tensor, as the end of a slice."""
        return self.value(func, lambda: int(value)) if isinstance(value, Tensor) else value

    def value(self, func: object, read: Callable[[], Any]) -> Any:  # noqa: ANN401 - whatever is read
        """What is read, or was read at this place of the code."""
        site = self.site(func)
        if self.known is None:
            with torch._C.DisableTorchFunction():
                found = read()
            self.noted.append((site, found))
            return found
        place = next((place for place, (known, _) in enumerate(self.known) if known == site), None)
        return read() if place is None else self.known.pop(place)[1]

    @staticmethod
    def site(func: object) -> Site:
        """The line of the model's code that runs."""
        frame = sys._getframe(2)
        while frame.f_back is not None and ("/torch/" in frame.f_code.co_filename or frame.f_code.co_filename == __file__):
            frame = frame.f_back
        return frame.f_code.co_filename, frame.f_lineno, func


def repeated(values: Tensor, counts: Any, rest: dict[str, Any]) -> Tensor:  # noqa: ANN401 - numbers, or symbols of the tracer
    """Each entry of a tensor as often as its count says; `rest`: the other arguments of `torch.repeat_interleave`."""
    times = counts if isinstance(counts, list) else [counts]
    if values.ndim == 1 and len(times) == len(values) <= FEW:
        return torch.cat([values[index : index + 1].expand(count) for index, count in enumerate(times)])
    if not all(isinstance(each, int) for each in times):
        raise ExportError("its code repeats numbers in a way that is not known")
    return torch.repeat_interleave(values, torch.tensor(counts), **rest | {"output_size": sum(times)})
