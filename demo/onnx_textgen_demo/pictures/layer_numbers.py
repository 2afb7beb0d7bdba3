"""What the layers of a run computed for its last token, as far as the graph returns it: the keys and values in the cache."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from .strips import Numbers, scale_legend, scale_of, strip

if TYPE_CHECKING:
    from onnx_textgen.backends.signature import CacheTensor
    from onnx_textgen.inference.decoder import Decoder

MOST_BYTES = 128 * 2**20
"""The cache of a longer text is not copied for a picture."""
TOKEN_AXIS = 2
"""Axis of tokens in a row that was gathered from blocks."""


@dataclasses.dataclass(frozen=True, slots=True)
class LayerNumbers:
    """Key and value of one token in one layer, of all its heads, as the cache stores them."""

    layer: int
    """0 = the first."""
    key: Numbers
    value: Numbers


def layer_numbers(decoder: Decoder) -> tuple[LayerNumbers, ...]:
    """Key and value of the last token in each layer that has them; empty if the cache is too large to copy, or names no layers."""
    length = decoder.cache.lengths[0]
    if not length or sum(tensor.bytes_for(length) for tensor in decoder.cache.tensors) > MOST_BYTES:
        return ()
    arrays = decoder.cache.take(0, length)
    found: dict[int, dict[str, Numbers]] = {}
    for tensor in decoder.cache.tensors:
        if tensor.past in arrays:
            axis = TOKEN_AXIS if tensor.kind == "paged" or tensor.length_axis is None else tensor.length_axis
            last = np.take(arrays[tensor.past], -1, axis).astype(np.float32)
            for layer, kind, numbers in named_parts(tensor, last):
                found.setdefault(layer, {})[kind] = numbers
    return tuple(LayerNumbers(layer, **parts) for layer, parts in sorted(found.items()) if parts.keys() == {"key", "value"})


def named_parts(tensor: CacheTensor, last: Numbers) -> Iterator[tuple[int, str, Numbers]]:
    """Layer, `key` or `value`, and the numbers, by the tensor's name; a tensor that stacks both has the key first."""
    number = re.search(r"\d+", tensor.past)
    if number is None:
        return
    kinds = [kind for kind in ("key", "value") if kind in tensor.past.removeprefix("past_key_values")]
    if len(kinds) == 1:
        yield int(number[0]), kinds[0], last.ravel()
    elif tensor.batch_axis == 1 and len(last) == 2:
        yield int(number[0]), "key", last[0].ravel()
        yield int(number[0]), "value", last[1].ravel()


def layers_table(layers: tuple[LayerNumbers, ...], piece: str) -> str:
    """A row for each layer, with a strip for key and value of a token, whose escaped piece is given."""
    if not layers:
        return ""
    keys, values = (scale_of(np.concatenate(rows)) for rows in ([one.key for one in layers], [one.value for one in layers]))
    rows = "".join(
        f'<tr><th scope="row">{one.layer + 1}</th><td>{strip(one.key, keys)}</td><td class="numbers">{length_of(one.key)}</td>'
        f'<td>{strip(one.value, values)}</td><td class="numbers">{length_of(one.value)}</td></tr>'
        for one in layers
    )
    return (
        f"<p>What each layer computed for the last token, <code>{piece}</code>, and put into the cache: its <b>key</b>, by which "
        "later tokens find it, and its <b>value</b>, which they then read. A cell for each number; ‖ ‖ is the length of the "
        "vector.</p>"
        f"{scale_legend(keys, 'keys')}{scale_legend(values, 'values')}"
        '<div class="scroll" tabindex="0"><table class="facts wide"><thead><tr><th>layer</th><th>key</th>'
        f'<th class="numbers">‖key‖</th><th>value</th><th class="numbers">‖value‖</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def length_of(numbers: Numbers) -> str:
    """The Euclidean norm.

    >>> length_of(np.array([3, 4], np.float32))
    '5.00'
    """
    return f"{float(np.linalg.norm(numbers)):,.2f}"
