"""Measures of how far logits are from PyTorch's, and what each precision may differ by."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from onnx_textgen.inference.graph_runner import Logits
from onnx_textgen.package.manifest import Precision

ROWS_AT_A_TIME = 32
"""Rows of logits per run and per comparison, which bounds memory."""


@dataclasses.dataclass(frozen=True, slots=True)
class Quality:
    """How far rounding moves a package on a text."""

    tokens: int
    kl_mean: float
    """Mean KL divergence of the package's predictions from PyTorch's, in nats per token."""
    kl_p99: float
    """Its 99th percentile."""
    top1_agreement: float
    """Share of positions at which both rank the same token first."""
    perplexity_change: float
    """Relative; 0.01 is one per cent worse."""


@dataclasses.dataclass(frozen=True, slots=True)
class Tolerance:
    """Limits that an export at some precision must keep."""

    logits_error: float
    """Largest difference of a logit, relative to the largest magnitude among the reference's logits."""
    top1_agreement: float
    """Share of positions at which both rank the same token first; ties in float32 count as agreement."""
    kl_divergence: float
    """Mean divergence of the package's distribution from PyTorch's, in nats per token."""

    def accepts(self, scenario: Scenario) -> bool:
        """Return whether a scenario is within the limits.

        Where not every position must agree, two disagreements are accepted even in a short scenario. Where logits differ by at
        most a tenth of their limit, or distributions by at most a hundredth of theirs, any disagreement on the first token is a
        near-tie and is accepted.
        """
        differing = (1 - scenario.top1_agreement) * scenario.tokens
        allowed = 0.0
        if self.top1_agreement < 1:
            near = scenario.logits_error <= self.logits_error / 10 or scenario.kl_divergence <= self.kl_divergence / 100
            allowed = scenario.tokens if near else max(2.0, (1 - self.top1_agreement) * scenario.tokens)
        return (
            scenario.logits_error <= self.logits_error
            and differing <= allowed + 1e-9
            and scenario.kl_divergence <= self.kl_divergence
        )


TOLERANCES: dict[Precision, Tolerance] = {
    "fp32": Tolerance(logits_error=1e-4, top1_agreement=1.0, kl_divergence=1e-6),
    "fp16": Tolerance(logits_error=0.02, top1_agreement=0.98, kl_divergence=1e-3),
    "int8": Tolerance(logits_error=0.1, top1_agreement=0.95, kl_divergence=0.005),
    "int4": Tolerance(logits_error=0.5, top1_agreement=0.75, kl_divergence=0.2),
}
ANY_ROUNDING = Tolerance(logits_error=float("inf"), top1_agreement=0.0, kl_divergence=float("inf"))
"""Accepts everything: used where a comparison with the same rounded weights shows whether the graph is right."""
REMEDIES: dict[Precision, str] = {
    "fp32": "its forward uses lengths, positions, masks or an internal state in a way that the graph does not reproduce",
    "fp16": "try --precision fp32",
    "int8": "try --precision fp32",
    "int4": "try --head-bits 8 --sensitive-bits 8, or --precision int8",
}
"""What to do about an export that differs too much, by precision."""


@dataclasses.dataclass(frozen=True, slots=True)
class Scenario:
    """One way of feeding tokens, and how far its logits were from PyTorch's."""

    name: str
    tokens: int
    logits_error: float
    top1_agreement: float
    kl_divergence: float
    perplexity_change: float
    """Relative change of the perplexity on the fed text; 0.01 is one per cent worse."""

    def in_words(self) -> str:
        """The measures in one line, for an error message."""
        return (
            f"{self.name}: logits error {self.logits_error:.1e}, top-1 agreement {self.top1_agreement:.1%}, "
            f"KL {self.kl_divergence:.1e}"
        )


def log_softmax(logits: Logits) -> npt.NDArray[np.float64]:
    """log softmax over the last axis in float64."""
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


def compare(name: str, got: Logits, want: Logits, targets: list[int | None]) -> Scenario:
    """Measure logits [tokens, vocabulary] against PyTorch's; `targets`: the token that follows each in the text, if known."""
    largest = max(float(want.max()), -float(want.min()))
    error, divergence, agreeing, changes = 0.0, 0.0, 0, list[float]()
    for start in range(0, len(got), ROWS_AT_A_TIME):
        rows = slice(start, start + ROWS_AT_A_TIME)
        part_got, part_want = got[rows], want[rows]
        difference = float(np.abs(part_got - part_want).max()) / largest
        error = max(error, difference if np.isfinite(difference) else float("inf"))
        margin = part_want.max(axis=1) - np.take_along_axis(part_want, part_got.argmax(1)[:, None], axis=1)[:, 0]
        agreeing += int((margin <= 2e-6 * largest).sum())  # a tie in float32 counts as agreement
        log_got, log_want = log_softmax(part_got), log_softmax(part_want)
        divergence += float((np.exp(log_want) * (log_want - log_got)).sum())
        changes += [log_want[row, target] - log_got[row, target] for row, target in enumerate(targets[rows]) if target is not None]
    change = float(np.expm1(np.mean(changes))) if changes else 0.0
    return Scenario(name, len(got), error, agreeing / len(got), max(divergence / len(got), 0.0), change)


def next_tokens(ids: list[int]) -> list[int | None]:
    """The token that follows each token of a text; None for the last."""
    return [*ids[1:], None]


def relative_error(got: npt.NDArray[Any], want: npt.NDArray[Any]) -> float:
    """The difference of two arrays as vectors, relative to the second, in float64; infinite if their shapes differ."""
    if got.shape != want.shape:
        return math.inf
    expected = want.astype(np.float64)
    return float(np.linalg.norm(got.astype(np.float64) - expected) / np.linalg.norm(expected))
