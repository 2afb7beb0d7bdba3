"""What a graph takes and gives, in the decoder's words: read off the names, shapes and types of its inputs and outputs.

A graph that others exported may call its tensors otherwise, keep keys and values in one tensor, or leave a size open; what lies
beside it and tells so is in `Hints`. No table of model types is needed, and nothing here runs the graph.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Container, Iterable
from typing import Any, Literal

import numpy as np

from ..errors import PackageError

Values = dict[str, tuple[list[int | str], str]]
"""Shape and ONNX Runtime's type of inputs or outputs, by name."""

PAST = "past"
"""Begins the name of every input that carries something from run to run, unless hints name them."""
ELEMENT_TYPES: dict[str, np.dtype[Any]] = {
    "tensor(float)": np.dtype(np.float32),
    "tensor(float16)": np.dtype(np.float16),
    "tensor(double)": np.dtype(np.float64),
}
NUMBER_TYPES = ELEMENT_TYPES | {
    "tensor(int64)": np.dtype(np.int64),
    "tensor(int32)": np.dtype(np.int32),
    "tensor(bool)": np.dtype(np.bool_),
}
CACHE_TYPES = ELEMENT_TYPES | {"tensor(int8)": np.dtype(np.int8)}
ROLES = {
    "input_ids": ("i", "integers"),
    "attention_mask": ("ifb", "numbers"),
    "position_ids": ("i", "integers"),
    "logits_positions": ("i", "integers"),
    "num_logits_to_keep": ("i", "integers"),
    "use_cache_branch": ("b", "true or false"),
}
"""What a decoder can give a graph beside its cache, and as what kinds of numbers, in NumPy's letters and in words."""
LOGITS, HIDDEN_STATES = "logits", "hidden_states"
"""What a decoder can be asked for, beside its cache."""
ALIASES = {"logits_to_keep": "num_logits_to_keep"}
"""Other names of a role that are in use."""


@dataclasses.dataclass(frozen=True, slots=True)
class Hints:
    """What a graph's inputs and outputs do not tell; a package of ours needs none of it."""

    names: dict[str, str] = dataclasses.field(default_factory=dict)
    """The graph's own names of roles, of `logits` and of `hidden_states`, where they differ."""
    presents: dict[str, str] = dataclasses.field(default_factory=dict)
    """The output that takes the place of each past input, where they are named by a rule of their own."""
    kv_heads: int | None = None
    head_size: int | None = None
    """Sizes of the cache that a graph may leave open."""
    window: int = 1
    """Tokens that a shared cache has to have room for from the beginning, as a graph with a sliding window of its own may ask."""
    shares_cache: bool = False
    """Whether the graph updates a longer past in place though it names the two lengths differently."""
    pads_rows: bool = True
    """Whether it is known to leave out what the mask leaves out before the beginning of a shorter row."""


@dataclasses.dataclass(frozen=True, slots=True)
class CacheTensor:
    """One thing that a graph carries from run to run: an input `past` that the run's output `present` takes the place of."""

    past: str
    present: str
    shape: tuple[int | None, ...]
    """Sizes of the past; None for the batch and for the length."""
    length_axis: int | None
    """The dimension that counts tokens; None: the size is fixed, whatever the number of tokens."""
    kind: Literal["shared", "growing", "state", "paged"]
    """`shared`: updated in place. `growing`: the present is longer than the past. `state`: of fixed size. `paged`: in blocks."""
    dtype: np.dtype[Any]
    batch_axis: int = 0
    """1 where keys and values lie in one tensor."""

    def sized(self, rows: int, length: int) -> tuple[int, ...]:
        """The shape for `rows` sequences and room for `length` tokens."""
        return tuple(rows if axis == self.batch_axis else length if size is None else size for axis, size in enumerate(self.shape))

    def bytes_for(self, length: int) -> int:
        """What one sequence of `length` tokens takes."""
        return math.prod(self.sized(1, length)) * self.dtype.itemsize

    def part(self, rows: object, tokens: object) -> tuple[Any, ...]:
        """An index that takes some rows and some tokens: `array[tensor.part(slice(0, 1), slice(5))]`."""
        index = {self.batch_axis: rows} | ({} if self.length_axis is None else {self.length_axis: tokens})
        return tuple(index.get(axis, slice(None)) for axis in range(len(self.shape)))


@dataclasses.dataclass(frozen=True, slots=True)
class Input:
    """An input that is not part of the cache."""

    name: str
    shape: tuple[int | str, ...]
    dtype: np.dtype[Any]


def read_inputs(inputs: Values, hints: Hints, cache: Iterable[CacheTensor], has_default: Container[str] = ()) -> dict[str, Input]:
    """What the graph takes beside its cache, by role; raises `PackageError` for what no decoder here can give.

    Inputs that have a default, as weights may, need not be known.
    """
    roles = {own: role for role, own in hints.names.items() if own in inputs}
    pasts = {tensor.past for tensor in cache}
    found = dict[str, Input]()
    for name, (shape, element) in inputs.items():
        role = roles.get(name, ALIASES.get(name, name))
        if name in pasts or (role not in ROLES and name in has_default):
            continue
        if role not in ROLES:
            raise PackageError(f"the graph wants the input {name!r}, which no decoder here can give; export the model again")
        kinds, words = ROLES[role]
        if element not in NUMBER_TYPES or NUMBER_TYPES[element].kind not in kinds:
            raise PackageError(f"the graph takes {name} as {element}, not as {words}; export the model again")
        found[role] = Input(name, tuple(shape), NUMBER_TYPES[element])
    return found


def present_of(past: str, outputs: Iterable[str] = ()) -> str:
    """The output that a past input is next: `past_key_values.0.key -> present.0.key`, `past_conv.0 -> present_conv.0`.

    The first of the usual names that is among `outputs`; the very first where none is.

    >>> present_of("past_key_values.0.key", ["logits", "present_key_values.0.key"])
    'present_key_values.0.key'
    """
    rest = past[len(PAST) :]
    names = [f"present{rest}"]
    if rest.startswith("_key_values"):
        names.insert(0, f"present{rest.removeprefix('_key_values')}")
    there = set(outputs)
    return next((name for name in names if name in there), names[0])


def read_cache(inputs: Values, outputs: Values, hints: Hints) -> tuple[CacheTensor, ...]:
    """All that the graph carries from run to run, in the order of its inputs; raises `PackageError` where it is not whole."""
    pasts = [name for name, (shape, _) in inputs.items() if name.startswith(PAST) and len(shape) > 1]
    pairs = {name: present_of(name, outputs) for name in pasts} | hints.presents
    return tuple(read_cache_tensor(name, pairs[name], inputs, outputs, hints) for name in inputs if name in pairs)


def read_cache_tensor(past: str, present: str, inputs: Values, outputs: Values, hints: Hints) -> CacheTensor:
    """What a past input is, by its own shape and its present's; raises `PackageError` where the two do not go together."""
    shape, element = inputs[past]
    if present not in outputs:
        raise PackageError(f"the graph's cache is not whole: it lacks the output {present!r}; export the model again")
    if element not in CACHE_TYPES:
        raise PackageError(f"the graph's cache holds {element}, not float, float16, double or int8; export the model again")
    after, element_after = outputs[present]
    batch = 1 if len(shape) == 5 and shape[0] == 2 else 0
    sizes = [pair for axis, pair in enumerate(zip(shape, after, strict=False)) if axis != batch]
    fits = len(shape) == len(after) > 1 and all(not (isinstance(a, int) and isinstance(b, int)) or a == b for a, b in sizes)
    known = with_open_sizes(shape, batch, hints)
    lengths = [axis for axis, size in enumerate(known) if size is None and axis != batch]
    if not fits or element != element_after or len(lengths) > 1:
        raise PackageError(
            f"the graph's {past} is {element} {shape} and its {present} {element_after} {after}: one cannot take the place of the "
            "other; export the model again"
        )
    axis = lengths[0] if lengths else None
    kind: Literal["shared", "growing", "state"] = "state"
    if axis is not None:
        in_place = (isinstance(shape[axis], str) and shape[axis] == after[axis]) or (hints.shares_cache and batch == 0)
        kind = "shared" if in_place else "growing"
    return CacheTensor(past, present, known, axis, kind, CACHE_TYPES[element], batch)


def read_rotary_switch(found: str) -> int | None:
    """The graph's note of the length beyond which it turns keys by other frequencies; None where there is none."""
    return int(found) if re.fullmatch(r"[0-9]{1,9}", found) else None


def with_open_sizes(shape: list[int | str], batch: int, hints: Hints) -> tuple[int | None, ...]:
    """Sizes of a past; of [..., heads, tokens, head_size] the open ones as the hints have them, None for batch and tokens."""
    known = [size if isinstance(size, int) and axis != batch else None for axis, size in enumerate(shape)]
    if len(shape) >= 4 and known[-2] is None:
        known[-1] = known[-1] if known[-1] is not None else hints.head_size
        if batch != len(shape) - 3:
            known[-3] = known[-3] if known[-3] is not None else hints.kv_heads
    return tuple(known)
