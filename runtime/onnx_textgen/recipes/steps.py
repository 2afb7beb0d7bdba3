"""The steps by which bytes of a source become bytes of a package: what is read of each row, and in which order rows come.

Every step computes rows alone, so that a matrix of any size is made in parts. ONNX Runtime's MatMulNBits has codes in blocks of 32,
two of 4 bits to a byte, the earlier in the lower half, around a middle code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from . import k_quants
from .sources import BLOCK, BLOCKS, SUPER_BLOCKS, Bytes

Step = Callable[[Bytes, str], npt.NDArray[np.generic]]
"""From rows of bytes [rows, bytes] of a tensor of some kind to rows of numbers."""


def blocks(rows: Bytes, kind: str, start: int, end: int) -> Bytes:
    """Some bytes of each block; [rows, blocks, bytes]."""
    return rows.reshape(len(rows), -1, BLOCKS[kind])[:, :, start:end]


def halves(rows: Bytes, kind: str, start: int) -> npt.NDArray[np.float16]:
    """A float16 number of each block; [rows, blocks]."""
    found: npt.NDArray[np.float16] = np.ascontiguousarray(blocks(rows, kind, start, start + 2)).view("<f2")[:, :, 0]
    return found


def four_bits(rows: Bytes, kind: str) -> Bytes:
    """Codes of 4 bits, two to a byte; the source has the first half of a block in the lower halves of its bytes."""
    packed = blocks(rows, kind, BLOCKS[kind] - BLOCK // 2, BLOCKS[kind])
    codes = np.concatenate([packed & 15, packed >> 4], axis=2)
    paired: Bytes = codes[:, :, 0::2] | codes[:, :, 1::2] << 4
    return paired


def whole_numbers(rows: Bytes, kind: str) -> npt.NDArray[np.float32]:
    """The number of steps that each weight of blocks is; [rows, blocks, 32]."""
    start = BLOCKS[kind] - BLOCK // 2
    if kind == "Q8_0":
        return blocks(rows, kind, 2, BLOCKS[kind]).view(np.int8).astype(np.float32)
    packed = blocks(rows, kind, start, BLOCKS[kind])
    codes = np.concatenate([packed & 15, packed >> 4], axis=2)
    if kind.startswith("Q5"):
        high = np.ascontiguousarray(blocks(rows, kind, start - 4, start))
        codes |= np.unpackbits(high, axis=2, bitorder="little") << 4
    middle = {"Q4_0": 8, "Q5_0": 16}.get(kind, 0)
    return codes.astype(np.float32) - np.float32(middle)


def eight_bits(rows: Bytes, kind: str) -> Bytes:
    """Codes of 8 bits around the middle 128, of steps that are not negative."""
    signs = np.where(np.signbit(halves(rows, kind, 0)), np.float32(-1), np.float32(1))
    middle = 128 - 16 if kind == "Q5_1" else 128  # its 32 codes lie above an offset
    return (whole_numbers(rows, kind) * signs[:, :, None] + middle).astype(np.uint8)


def dequantised(rows: Bytes, kind: str) -> npt.NDArray[np.float32]:
    """The weights of blocks in float32."""
    made = whole_numbers(rows, kind) * halves(rows, kind, 0).astype(np.float32)[:, :, None]
    if kind.endswith("_1"):
        made += halves(rows, kind, 2).astype(np.float32)[:, :, None]
    return made.reshape(len(rows), -1)


def widened(rows: Bytes, kind: str) -> npt.NDArray[np.float32]:
    """Numbers in float32."""
    if kind == "BF16":
        return (np.ascontiguousarray(rows).view("<u2").astype("<u4") << 16).view("<f4")
    return np.ascontiguousarray(rows).view({"F32": "<f4", "F16": "<f2"}[kind]).astype("<f4")


def narrowed(rows: Bytes, kind: str) -> npt.NDArray[np.float16]:
    """Numbers in float16, as float32 rounds to them."""
    with np.errstate(over="ignore"):
        return widened(rows, kind).astype("<f2")


PLAIN: Mapping[str, Step] = {
    "copy": lambda rows, _: rows,
    "float32": widened,
    "float16": narrowed,
}
OF_BLOCKS: Mapping[str, Step] = {
    "codes of 4 bits": four_bits,
    "codes of 8 bits": eight_bits,
    "scales": lambda rows, kind: halves(rows, kind, 0),
    "positive scales": lambda rows, kind: np.abs(halves(rows, kind, 0)),
    "float32 scales": lambda rows, kind: halves(rows, kind, 0).astype("<f4"),
    "positive float32 scales": lambda rows, kind: np.abs(halves(rows, kind, 0)).astype("<f4"),
    "offsets": lambda rows, kind: halves(rows, kind, 2),
    "float32 offsets": lambda rows, kind: halves(rows, kind, 2).astype("<f4"),
    "float32": dequantised,
}


def steps_of(kind: str) -> Mapping[str, Step]:
    """The steps that tensors of a kind have, by name."""
    if kind in SUPER_BLOCKS:
        return k_quants.steps_of(kind)
    if kind not in BLOCKS:
        return PLAIN
    return {
        name: step
        for name, step in OF_BLOCKS.items()
        if not ("4 bits" in name and kind[1] != "4") and not ("offsets" in name and kind[-1] != "1")
    }


def kept(rows: Bytes, kind: str) -> dict[str, npt.NDArray[np.generic]]:
    """What a package has of quantised rows that it keeps: `codes` in bytes, `scales` and, where the kind has any, `offsets`."""
    if kind in SUPER_BLOCKS:
        found = k_quants.kept(rows, kind)
        made: dict[str, npt.NDArray[np.generic]] = {"codes": found.packed(k_quants.CODE_BITS[kind]), "scales": found.scales}
        return made if found.offsets is None else made | {"offsets": found.offsets}
    names = ("codes of 4 bits", "scales") if kind.startswith("Q4") else ("codes of 8 bits", "positive scales")
    steps = dict(zip(("codes", "scales"), names, strict=True)) | ({"offsets": "offsets"} if kind.endswith("_1") else {})
    return {name: OF_BLOCKS[step](rows, kind) for name, step in steps.items()}


def rotary_order(rows: int, heads: int) -> npt.NDArray[np.int64]:
    """The rows of queries or keys as transformers has them; llama.cpp's files have the two halves of each head's pairs in turn."""
    return np.arange(rows).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)
