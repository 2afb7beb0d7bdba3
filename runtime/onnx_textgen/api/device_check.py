"""Checks an accelerator when a model is opened: with itself, and with what the package's maker recorded.

A device has other kernels for many tokens than for few, and they depend on the GPU and its driver. A wrong one raises no error: of
WebGPU 0.4.0, attention over 32 tokens or more is wrong on a GPU whose subgroups have four lanes; CUDA reads the experts of packages
that version 0.2 made in its own order. Kernels that are right differ by their rounding.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from ..backends.onnxruntime_session import OnnxRuntimeSession
from ..backends.protocol import Device
from ..errors import LOG, DeviceError, ModelError, first_line
from ..inference.capabilities import Capabilities
from ..inference.decoder import Decoder
from ..package.manifest import Geometry, Manifest
from ..tasks.golden_runs import replay

FEW, MANY = 16, 128
"""Tokens of a short part and of a long one."""
LEAST_SAME = 0.5
"""Least share of the golden tokens that have to be the likeliest: with other rounding nearly all are, with wrong products few."""
MOST_DIFFERENCE = 0.04
"""Root of the mean square of the logits' difference, divided by their standard deviation. If two devices round products to 8 bits
by different rules, it is 0.023; with the attention above, 0.077 and more."""


def check_device(session: OnnxRuntimeSession, geometry: Geometry) -> OnnxRuntimeSession:
    """Return the session, with shorter parts of prompts if the device computes only those right.

    Raises `DeviceError` if it does not even compute short parts as it computes single tokens.
    """
    can = Capabilities.of(session, geometry)
    count = min(can.part_size, MANY, geometry.context_length)
    if can.takes_single_tokens or not can.appends or count <= FEW:
        return session
    ids = [(37 * place + 11) % geometry.vocab_size for place in range(count)]
    short = logits_of(session, geometry, ids, FEW)
    if (difference := difference_of(logits_of(session, geometry, ids, count), short)) <= MOST_DIFFERENCE:
        return session
    is_few_right = difference_of(short[:FEW], logits_of(session, geometry, ids[:FEW], 1)) <= MOST_DIFFERENCE
    if not is_few_right or session.rotary_switch is not None:  # at a rope switch, a whole text is computed at once
        wrong = count if is_few_right else FEW
        raise DeviceError(
            f"{session.device} computes {wrong} tokens at once wrongly, so it does not work on this machine; "
            "update its package and the driver, or use the device cpu"
        )
    LOG.warning(
        "%s computes %d tokens at once wrongly (logits differ by %.0f %% of their spread), so prompts are fed in parts of %d; "
        "update its package and the driver",
        session.device,
        count,
        100 * difference,
        FEW,
    )
    return dataclasses.replace(session, most_tokens=FEW)


def check_golden(decoder: Decoder, manifest: Manifest, device: Device) -> None:
    """Raise `DeviceError` if a device cannot compute a package's first golden run, or finds few of its tokens.

    `decoder` is empty before, and need not be afterwards.
    """
    for run in manifest.golden[:1]:
        try:
            found = replay(decoder, manifest, run)
        except ModelError as error:
            raise DeviceError(f"{device} cannot compute {manifest.name}: {first_line(error)}; use the device cpu") from error
        if found.same < LEAST_SAME * found.new_tokens:
            raise DeviceError(
                f"{device} computes {manifest.name} wrongly: it finds {found.same} of {found.new_tokens} tokens that the maker "
                "recorded; update its package and the driver, export the model again, or use the device cpu"
            )


def logits_of(session: OnnxRuntimeSession, geometry: Geometry, ids: list[int], part: int) -> npt.NDArray[np.float32]:
    """The logits [tokens, vocabulary] of tokens that are fed in parts."""
    decoder = Decoder(session, geometry)
    return np.concatenate([decoder.feed(ids[start : start + part], every_position=True) for start in range(0, len(ids), part)])


def difference_of(found: npt.NDArray[np.float32], wanted: npt.NDArray[np.float32]) -> float:
    """How far logits differ, see `MOST_DIFFERENCE`; infinite if one is no number."""
    difference = float(np.sqrt(np.mean((found - wanted) ** 2)) / wanted.std())
    return difference if np.isfinite(difference) else float("inf")
