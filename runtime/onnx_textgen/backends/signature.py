"""Derives the roles of a graph's inputs and outputs from their names, shapes and types.

Another exporter's graph may name its tensors differently, keep keys and values in one tensor, or leave sizes dynamic; `Hints` holds
what the files next to the graph say about that. No table of model types is needed, and nothing here runs the graph.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Container, Iterable
from typing import Any, Literal

import numpy as np

from ..errors import PackageError
from .window import Window, window_of_length

Values = dict[str, tuple[list[int | str], str]]
"""Shape and ONNX Runtime's type of inputs or outputs, by name; a dynamic size is a string."""

PAST = "past"
"""Prefix of the name of every cache input, unless hints name it."""
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
ADAPTER_MASK = "adapter_mask"
"""The input [batch, 1, adapters] that says which adapter each row has; see `adapter_graph`."""
ENCODER_MASK, LAST_HIDDEN_STATE = "encoder_attention_mask", "last_hidden_state"
"""The mask of the source that an encoder-decoder's decoder takes, and the output of its encoder that is no key or value."""
ENCODER_STATES = "encoder_hidden_states"
"""What other exporters' decoders may take of an encoder, besides the keys and values of their cross-attention."""
IMAGE_EMBEDS = "image_embeds"
"""The input [rows, width] with the rows of images, which ids below 0 name: -1 the first, -2 the second."""
POSITION_OFFSETS = "position_offsets"
"""The input [3, batch, new] that says how far positions on three axes are from the places of tokens in a text with images."""
WINDOW_LENGTHS, WINDOW_TOTAL, WINDOW_POSITIONS = "window_lengths", "window_total", "window_positions"
"""The inputs that say where layers with a sliding window are in the text; see `windowed_graph`."""
ROLES = {
    "input_ids": ("i", "integers"),
    "attention_mask": ("ifb", "numbers"),
    "position_ids": ("i", "integers"),
    "logits_positions": ("i", "integers"),
    "num_logits_to_keep": ("i", "integers"),
    "use_cache_branch": ("b", "true or false"),
    ENCODER_MASK: ("ifb", "numbers"),
    ADAPTER_MASK: ("f", "numbers"),
    IMAGE_EMBEDS: ("f", "numbers"),
    POSITION_OFFSETS: ("i", "integers"),
    **dict.fromkeys((WINDOW_LENGTHS, WINDOW_TOTAL, WINDOW_POSITIONS), ("i", "integers")),
}
"""The inputs outside the cache that a decoder can provide, with their kinds of types, in NumPy's letters and in words."""
LOGITS, HIDDEN_STATES = "logits", "hidden_states"
"""The outputs outside the cache that a decoder can compute."""
ALIASES = {"logits_to_keep": "num_logits_to_keep"}
"""Names that some exporters use for a role."""


@dataclasses.dataclass(frozen=True, slots=True)
class Hints:
    """Facts about a graph that its inputs and outputs do not show; packages of this project need none."""

    names: dict[str, str] = dataclasses.field(default_factory=dict)
    """The graph's names of roles, `logits` and `hidden_states`, if they differ."""
    presents: dict[str, str] = dataclasses.field(default_factory=dict)
    """Name of the `present` output of each past input, if the names follow another rule than `present_of`."""
    kv_heads: int | None = None
    head_size: int | None = None
    """Sizes of the cache that the graph may leave dynamic."""
    window: int = 1
    """Minimum capacity of a shared cache, in tokens: some graphs with a sliding window need it from the start."""
    shares_cache: bool = False
    """Whether the graph updates keys and values in place although the lengths of past and present have different names."""
    pads_rows: bool = True
    """Whether the graph is known to ignore masked tokens before the start of a row, so that shorter rows can be left-padded."""
    takes_single_tokens: bool = False
    """Whether the graph was traced with a single new token, so that a run takes no more, whatever its input's shape says."""


@dataclasses.dataclass(frozen=True, slots=True)
class CacheTensor:
    """A tensor that a graph carries from run to run: the output `present` of a run is the input `past` of the next run."""

    past: str
    present: str
    shape: tuple[int | None, ...]
    """Sizes of the past; None for the batch and for the length."""
    length_axis: int | None
    """The axis of tokens; None: the size does not depend on the number of tokens."""
    kind: Literal["shared", "growing", "state", "paged"]
    """`shared`: updated in place. `growing`: the present is longer than the past. `state`: of fixed size. `paged`: in blocks."""
    dtype: np.dtype[Any]
    batch_axis: int = 0
    """The axis of rows: 1 if keys and values are stacked in one tensor."""
    window: Window | None = None
    """Window of tokens that is held of a text; None: all of it."""

    def sized(self, rows: int, length: int) -> tuple[int, ...]:
        """The shape for a number of rows and a capacity of `length` tokens."""
        return tuple(rows if axis == self.batch_axis else length if size is None else size for axis, size in enumerate(self.shape))

    def held(self, length: int) -> int:
        """The tokens for which a row of `length` tokens needs memory."""
        return length if self.window is None else min(length, self.window.capacity)

    def bytes_for(self, length: int) -> int:
        """Bytes of one row of `length` tokens."""
        return math.prod(self.sized(1, self.held(length))) * self.dtype.itemsize

    def index(self, rows: object, tokens: object) -> tuple[Any, ...]:
        """Make an index that selects rows and tokens: `array[tensor.index(slice(0, 1), slice(5))]`."""
        index = {self.batch_axis: rows} | ({} if self.length_axis is None else {self.length_axis: tokens})
        return tuple(index.get(axis, slice(None)) for axis in range(len(self.shape)))


@dataclasses.dataclass(frozen=True, slots=True)
class Input:
    """An input outside the cache."""

    name: str
    shape: tuple[int | str, ...]
    dtype: np.dtype[Any]


def comes_from_encoder(name: str) -> bool:
    """Return whether an encoder gives the decoder's input of this name: keys and values of a cross-attention, or hidden states.

    >>> comes_from_encoder("past_key_values.0.encoder.key"), comes_from_encoder("past_key_values.0.decoder.key")
    (True, False)
    """
    return name == ENCODER_STATES or (name.startswith(PAST) and ".encoder." in name)


def read_encoder_inputs(inputs: Values) -> dict[str, Input]:
    """Find the inputs that an encoder gives, by name, in the graph's order; raises `PackageError` for one of another type."""
    found = {name: each for name, each in inputs.items() if comes_from_encoder(name)}
    for name, (shape, element) in found.items():
        if element not in ELEMENT_TYPES or len(shape) < 3:
            given = f"{name:.80} as {element} {shape}"
            raise PackageError(f"the graph takes {given}, not as an encoder gives it; export the model again")
    return {name: Input(name, tuple(shape), ELEMENT_TYPES[element]) for name, (shape, element) in found.items()}


def read_inputs(inputs: Values, hints: Hints, cache: Iterable[CacheTensor], has_default: Container[str] = ()) -> dict[str, Input]:
    """Find the inputs outside the cache, by role; raises `PackageError` for an input that the decoder cannot provide.

    Those that an encoder gives are left out, and so are unknown inputs with a default, such as weights.
    """
    roles = {own: role for role, own in hints.names.items() if own in inputs}
    pasts = {tensor.past for tensor in cache}
    found = dict[str, Input]()
    for name, (shape, element) in inputs.items():
        role = roles.get(name, ALIASES.get(name, name))
        if name in pasts or comes_from_encoder(name) or (role not in ROLES and name in has_default):
            continue
        if role not in ROLES:
            raise PackageError(f"the graph needs the input {name!r:.80}, which the decoder cannot provide; export the model again")
        kinds, words = ROLES[role]
        if element not in NUMBER_TYPES or NUMBER_TYPES[element].kind not in kinds:
            raise PackageError(f"the graph takes {name:.80} as {element}, not as {words}; export the model again")
        found[role] = Input(name, tuple(shape), NUMBER_TYPES[element])
    return found


def present_of(past: str, outputs: Iterable[str] = ()) -> str:
    """Name of the `present` output that becomes this `past` input in the next run.

    `past_key_values.0.key` -> `present.0.key` or `present_key_values.0.key`, `past_conv.0` -> `present_conv.0`: the first of these
    names that is in `outputs`, else the first name.

    >>> present_of("past_key_values.0.key", ["logits", "present_key_values.0.key"])
    'present_key_values.0.key'
    """
    rest = past[len(PAST) :]
    names = [f"present{rest}"]
    if rest.startswith("_key_values"):
        names.insert(0, f"present{rest.removeprefix('_key_values')}")
    existing = set(outputs)
    return next((name for name in names if name in existing), names[0])


def read_cache(inputs: Values, outputs: Values, hints: Hints) -> tuple[CacheTensor, ...]:
    """Find the tensors that the graph carries from run to run, in the order of its inputs.

    Raises `PackageError` if an output of the cache is missing, or does not fit its input.
    """
    pasts = [
        name for name, (shape, _) in inputs.items() if name.startswith(PAST) and len(shape) > 1 and not comes_from_encoder(name)
    ]
    pairs = {name: present_of(name, outputs) for name in pasts} | hints.presents
    return tuple(read_cache_tensor(name, pairs[name], inputs, outputs, hints) for name in inputs if name in pairs)


def read_cache_tensor(past: str, present: str, inputs: Values, outputs: Values, hints: Hints) -> CacheTensor:
    """Make the `CacheTensor` of a pair of input and output; raises `PackageError` if their shapes or types do not match."""
    shape, element = inputs[past]
    if present not in outputs:
        raise PackageError(f"the graph's cache is incomplete: it lacks the output {present!r:.80}; export the model again")
    if element not in CACHE_TYPES:
        raise PackageError(f"the graph's cache holds {element}, not float, float16, double or int8; export the model again")
    after, element_after = outputs[present]
    batch = 1 if len(shape) == 5 and shape[0] == 2 else 0
    sizes = [pair for axis, pair in enumerate(zip(shape, after, strict=False)) if axis != batch]
    fits = len(shape) == len(after) > 1 and all(not (isinstance(a, int) and isinstance(b, int)) or a == b for a, b in sizes)
    known = sizes_of(shape, batch, hints)
    lengths = [axis for axis, size in enumerate(known) if size is None and axis != batch]
    if not fits or element != element_after or len(lengths) > 1:
        raise PackageError(
            f"the graph's output {present:.80} is {element_after} {after}, which does not fit "
            f"its input {past:.80}, {element} {shape}; export the model again"
        )
    axis = lengths[0] if lengths else None
    kind: Literal["shared", "growing", "state"] = "state"
    if axis is not None:
        in_place = (isinstance(shape[axis], str) and shape[axis] == after[axis]) or (hints.shares_cache and batch == 0)
        kind = "shared" if in_place else "growing"
    window = window_of_length(shape[axis]) if axis is not None and kind == "shared" else None
    return CacheTensor(past, present, known, axis, kind, CACHE_TYPES[element], batch, window)


def read_rotary_switch(entry: str) -> int | None:
    """Parse the metadata entry `rotary_switch`, see `Graph.rotary_switch`; None if the entry is missing."""
    return int(entry) if re.fullmatch(r"[0-9]{1,9}", entry) else None


def sizes_of(shape: list[int | str], batch: int, hints: Hints) -> tuple[int | None, ...]:
    """Sizes of a past [..., heads, tokens, head_size]: None for batch and tokens, other dynamic sizes from the hints."""
    known = [size if isinstance(size, int) and axis != batch else None for axis, size in enumerate(shape)]
    if len(shape) >= 4 and known[-2] is None:
        known[-1] = known[-1] if known[-1] is not None else hints.head_size
        if batch != len(shape) - 3:
            known[-3] = known[-3] if known[-3] is not None else hints.kv_heads
    return tuple(known)
