"""The cheapest mix of forms under a budget: more bits for the matrices where a byte reduces the loss most."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from ..passes.quantization.options import Bits


@dataclasses.dataclass(frozen=True, slots=True)
class Choice:
    """One way to round a matrix."""

    bits: Bits
    block_size: int
    bytes: int
    """Size of its tensors in the weights' file."""
    loss: float
    """Estimated contribution to the divergence from the unrounded model, in nats per token."""


Mix = dict[str, Choice]
"""A choice for each matrix, by its name."""


def cheapest_mix(choices: Mapping[str, Sequence[Choice]], *, most_loss: float = 0.0, most_bytes: int | None = None) -> Mix:
    """The smallest mix whose losses sum to at most `most_loss`; or the best one of at most `most_bytes`, if given.

    If even the widest choices lose more, they are all taken; if even the smallest take more bytes, those are.

    >>> both = [Choice(4, 32, 10, 0.3), Choice(8, 64, 20, 0.0)]
    >>> [each.bits for each in cheapest_mix({"a": both, "b": [Choice(4, 32, 10, 0.1), both[1]]}, most_loss=0.15).values()]
    [8, 4]
    """
    mix = {name: hull(each)[0] for name, each in choices.items()}
    size, loss = sum(each.bytes for each in mix.values()), sum(each.loss for each in mix.values())
    steps = [
        ((before.loss - after.loss) / (after.bytes - before.bytes), name, before, after)
        for name, each in choices.items()
        for before, after in zip(hull(each), hull(each)[1:], strict=False)
    ]
    for _, name, before, after in sorted(steps, key=lambda step: -step[0]):  # on a hull the first step saves most
        if most_bytes is None and loss <= most_loss:
            break
        if mix[name] is not before or (most_bytes is not None and size + after.bytes - before.bytes > most_bytes):
            continue
        mix[name] = after
        size, loss = size + after.bytes - before.bytes, loss + after.loss - before.loss
    return mix


def hull(choices: Sequence[Choice]) -> list[Choice]:
    """The choices on the lower convex hull of loss over bytes, from the smallest."""
    found: list[Choice] = []
    for choice in sorted(choices, key=lambda each: (each.bytes, each.loss)):
        if found and choice.loss >= found[-1].loss:
            continue
        while len(found) > 1 and slope(found[-1], choice) >= slope(found[-2], found[-1]):
            found.pop()
        found.append(choice)
    return found


def slope(one: Choice, other: Choice) -> float:
    """Loss saved per byte."""
    return (one.loss - other.loss) / (other.bytes - one.bytes)


def describe_mix(mix: Mix) -> dict[str, int]:
    """Bytes of each form: `{"int4 block 32": 41_000_000, ...}`."""
    sizes: dict[str, int] = {}
    for choice in mix.values():
        kind = f"int{choice.bits} block {choice.block_size}"
        sizes[kind] = sizes.get(kind, 0) + choice.bytes
    return dict(sorted(sizes.items()))
