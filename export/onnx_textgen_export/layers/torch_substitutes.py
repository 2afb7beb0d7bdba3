"""Substitutes for what models compute and ONNX lacks: complex numbers, and the inverse of the error function.

Rotary embeddings are sometimes complex products; here a complex tensor is a pair of real ones. Only the operations of such code are
supported: construction from a polar form or from pairs, multiplication, indexing, and conversion back to pairs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class ComplexPair:
    """A complex tensor, as its real and its imaginary part."""

    def __init__(self, real: Tensor, imaginary: Tensor) -> None:
        self.real, self.imag = real, imaginary

    @property
    def shape(self) -> torch.Size:
        """Shape of the complex tensor."""
        return self.real.shape

    @property
    def device(self) -> torch.device:
        """Device of the tensor."""
        return self.real.device

    def __mul__(self, other: ComplexPair | Tensor | float) -> ComplexPair:
        if isinstance(other, ComplexPair):
            return ComplexPair(self.real * other.real - self.imag * other.imag, self.real * other.imag + self.imag * other.real)
        return ComplexPair(self.real * other, self.imag * other)

    __rmul__ = __mul__

    def __getitem__(self, index: object) -> ComplexPair:
        chosen = cast(Any, index)
        return ComplexPair(self.real[chosen], self.imag[chosen])

    def unsqueeze(self, dim: int) -> ComplexPair:
        """Like `Tensor.unsqueeze`, for a dimension counted from the front."""
        return ComplexPair(self.real.unsqueeze(dim), self.imag.unsqueeze(dim))

    def to(self, *_: object, **__: object) -> ComplexPair:
        """The tensor itself: tracing runs on one device."""
        return self

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:  # noqa: ANN401 - the signature is PyTorch's
        if func is torch.view_as_real:
            return torch.stack([args[0].real, args[0].imag], dim=-1)
        if func in {torch.Tensor.mul, torch.Tensor.__mul__, torch.mul} and isinstance(args[1], ComplexPair):
            return args[1] * args[0]
        raise NotImplementedError(f"{getattr(func, '__name__', func)} of a complex tensor")


def inverse_error_function(x: Tensor) -> Tensor:
    """erfinv to the precision of float32, from functions that ONNX has: an approximation (Winitzki 2008), then Newton's method.

    >>> round(float(inverse_error_function(torch.tensor(0.9))), 5)
    1.16309
    """
    logarithm = torch.log((1 - x) * (1 + x))
    half = 2 / (math.pi * 0.147) + logarithm / 2
    guess = torch.sign(x) * torch.sqrt(torch.sqrt(half * half - logarithm / 0.147) - half)
    for _ in range(3):
        guess = guess - (torch.erf(guess) - x) * (math.sqrt(math.pi) / 2) * torch.exp(guess * guess)
    return guess


class OnnxSubstitutes(TorchFunctionMode):
    """Within the context, complex tensors are `ComplexPair`, and what the tracer cannot translate is computed otherwise."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:  # noqa: ANN401 - the signature is PyTorch's
        if func is torch.polar:
            absolute, angle = args
            return ComplexPair(absolute * torch.cos(angle), absolute * torch.sin(angle))
        if func is torch.view_as_complex:
            return ComplexPair(args[0][..., 0], args[0][..., 1])
        if func is torch.conv3d and (args[2] if len(args) > 2 else (kwargs or {}).get("bias")) is None:
            rest = {name: each for name, each in (kwargs or {}).items() if name != "bias"}
            args = (*args[:2], torch.zeros(args[1].shape[0]), *args[3:])  # without a bias its translation is wrong
            return func(*args, **rest)
        if func in {torch.squeeze, torch.Tensor.squeeze} and len(args) == 2 and args[0].shape[args[1]] != 1:
            return args[0]  # ONNX's operator fails where PyTorch's does nothing
        if func in {torch.erfinv, torch.Tensor.erfinv}:
            return inverse_error_function(args[0])
        return func(*args, **(kwargs or {}))
