"""Replays a package's golden runs, to check that it computes the same on this machine as where it was exported.

The golden ids are fed whatever the model would choose, the prompt in two parts and the rest token by token, so a wrong choice does
not affect the logits after it. A package may round differently on another processor, an 8-bit package visibly. So a golden id that
is no longer the most likely one still counts as right if its logit is close to the largest, measured by the certificate's error.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from ..errors import OptionError, PackageError
from ..inference.decoder import Decoder
from ..inference.graph_runner import Logits
from ..inference.hand_over import new_reader, take_over
from ..options.checks import number
from ..package.manifest import GoldenRun, Manifest

MARGIN = 3
"""The allowed gap as a multiple of the largest logits error in the certificate."""
SMALLEST_GAP = 1e-5
"""Lowest limit of the allowed gap, relative to the largest logit: float32 sums in another order may differ by as much."""


@dataclasses.dataclass(frozen=True, slots=True)
class Replay:
    """The result of one golden run."""

    prompt_tokens: int
    new_tokens: int
    same: int
    """New tokens that are still the most likely ones."""
    largest_gap: float
    """Largest difference between the largest logit and the golden id's, relative to the largest logit; 0 if all are the same."""
    first_difference: int | None
    """Index of the first new token with a gap above `allowed_gap`; None if there is none."""
    allowed_gap: float
    adapter: str | None = None
    """The LoRA adapter of the run."""
    prompt_device: str | None = None
    """The second engine, if it computed the prompt and the first half of the new tokens."""

    @property
    def is_right(self) -> bool:
        """Whether all gaps are allowed."""
        return self.first_difference is None


def replay(decoder: Decoder, manifest: Manifest, run: GoldenRun, *, hands_over: bool = False) -> Replay:
    """Feed a golden run to an empty decoder and compare; raises `ModelError` if the model fails.

    `hands_over`: let the decoder's second engine compute the prompt and the first half of the new tokens, however short that is.
    Raises `PackageError` if the certificate's error is not a number.
    """
    if run.source_ids:
        decoder.read_source(run.source_ids)
    logits = np.concatenate((fed_by_two if hands_over else fed)(decoder, run)[-len(run.new_ids) :])
    wanted = logits[np.arange(len(run.new_ids)), list(run.new_ids)]
    gaps = (logits.max(axis=1) - wanted) / np.abs(logits).max(axis=1)
    allowed = max(MARGIN * certified_error(manifest), SMALLEST_GAP)
    wrong = np.flatnonzero(~(gaps <= allowed))  # a NaN is wrong too
    return Replay(
        prompt_tokens=len(run.source_ids or run.prompt_ids),
        new_tokens=len(run.new_ids),
        same=int((logits.argmax(axis=1) == np.array(run.new_ids)).sum()),
        largest_gap=float(gaps.max()),
        first_difference=int(wrong[0]) if len(wrong) else None,
        allowed_gap=allowed,
        prompt_device=decoder.prompt_engine.device if hands_over and decoder.prompt_engine is not None else None,
    )


def fed(decoder: Decoder, run: GoldenRun) -> list[Logits]:
    """The logits of each run: the prompt in two parts, then the new tokens one by one."""
    cut = len(run.prompt_ids) // 3
    parts = [part for part in (run.prompt_ids[:cut], run.prompt_ids[cut:]) if part] + [(token,) for token in run.new_ids[:-1]]
    return [decoder.feed(part) for part in parts]


def fed_by_two(decoder: Decoder, run: GoldenRun) -> list[Logits]:
    """The logits of each token: those of the second engine for the first ones, which it hands over, then those of the graph."""
    assert decoder.prompt_engine is not None, "the caller has checked"
    half = len(run.prompt_ids) + len(run.new_ids) // 2
    token_ids, reader = (*run.prompt_ids, *run.new_ids[:-1]), new_reader(decoder.prompt_engine, half)
    first = reader.feed(token_ids[:half], every_position=True)
    take_over(reader, decoder, 0, 0)
    return [*first[:, None], *(decoder.feed([token_id]) for token_id in token_ids[half:])]


def certified_error(manifest: Manifest) -> float:
    """The certificate's largest logits error relative to the largest logit, 0 if it states none; raises `PackageError`."""
    found = manifest.certificate.get("largest_logits_error", 0.0)
    try:
        return number("its largest_logits_error", found, "of at least 0", lambda error: 0 <= error < np.inf)
    except OptionError as error:
        raise PackageError(f"manifest.json has a damaged certificate: {error}; export or fetch the model again") from error
