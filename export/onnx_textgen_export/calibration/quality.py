"""How far rounding moves a model: the package's predictions on real texts, compared with PyTorch's in float32."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from onnx_textgen.backends.onnxruntime_session import open_session
from onnx_textgen.inference.graph_runner import Logits

from ..errors import as_export_error
from ..proof.measures import ROWS_AT_A_TIME, Quality, log_softmax
from ..proof.scenarios import decoders_of, fed, open_encoder
from ..sources.source import Source
from ..weights.streamed import Weights
from .texts import WINDOW, affordable_tokens

WORK = 2.5e12
"""Parameters times tokens that PyTorch reads."""
FEWEST_TOKENS, MOST_TOKENS = 1024, 4096
"""Tokens of all texts, for a large and for a small model."""
Part = Literal["search", "acceptance"]
"""Half of the windows of each text: attempts are compared on the first, and a package is accepted on the second. The best of some
attempts looks better than it is on the texts that chose it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Positions:
    """The measures of single positions, concatenated."""

    divergences: npt.NDArray[np.float64]
    agree: npt.NDArray[np.bool_]
    surprise: npt.NDArray[np.float64]
    """Loss in log-probability of the next token, in nats; not measured for the last token of a window."""

    def summary(self) -> Quality:
        """Over all positions."""
        return Quality(
            tokens=len(self.divergences),
            kl_mean=max(float(self.divergences.mean()), 0.0),
            kl_p99=max(float(np.quantile(self.divergences, 0.99)), 0.0),
            top1_agreement=float(self.agree.mean()),
            perplexity_change=float(np.expm1(self.surprise.mean())) if len(self.surprise) else 0.0,
        )

    @classmethod
    def joined(cls, parts: list[Positions]) -> Positions:
        """The positions of all parts."""
        return cls(*(np.concatenate([getattr(part, field.name) for part in parts]) for field in dataclasses.fields(cls)))


Measures = dict[str, Positions]
"""By kind of text."""


def summaries(parts: Sequence[Measures]) -> dict[str, Quality]:
    """The quality on each kind of text, and on `all`."""
    kinds = {kind: Positions.joined([part[kind] for part in parts]) for kind in parts[0]}
    return {kind: each.summary() for kind, each in (kinds | {"all": Positions.joined(list(kinds.values()))}).items()}


def largest_loss(measures: Measures) -> float:
    """The mean divergence on the kind of text where it is largest, in nats per token."""
    return max(each.summary().kl_mean for each in measures.values())


class QualityMeter:
    """PyTorch's predictions on some texts, kept in a file, so that every attempt is measured without PyTorch."""

    def __init__(
        self,
        source: Source,
        weights: Weights,
        texts: Mapping[str, list[int]],
        folder: Path,
        report: Callable[[str], None] = lambda step: None,
    ) -> None:
        """`report` is told how many tokens are read."""
        self.source = source
        most = affordable_tokens(source, WORK, fewest=FEWEST_TOKENS, most=MOST_TOKENS) // max(len(texts), 1)
        length = min(WINDOW, source.geometry.context_length, -(-most // 2))
        self.texts = {
            kind: [ids[start : start + length] for start in range(0, min(len(ids), most), length)] for kind, ids in texts.items()
        }
        count = sum(len(window) for windows in self.texts.values() for window in windows)
        self.log_probabilities = np.lib.format.open_memmap(
            folder / "reference.npy", mode="w+", dtype=np.float16, shape=(count, source.geometry.vocab_size)
        )
        """[tokens, vocabulary]; float16 is exact enough where a probability is not tiny."""
        start = 0
        with weights.present(), torch.no_grad():
            for windows in self.texts.values():
                for together in (windows[:-1], windows[-1:]):  # all but the last have the same length
                    for logits in source.reference(torch.tensor(together)) if together else ():
                        for rows in logits.split(ROWS_AT_A_TIME):
                            self.log_probabilities[start : start + len(rows)] = rows.float().log_softmax(-1).numpy()
                            start += len(rows)
                        report(f"{start:,} of {count:,} tokens")

    def measure(self, graph: Path, part: Part, report: Callable[[str], None] = lambda step: None) -> Measures:
        """Measure a package's graph on one part of each text; on all of a text that has a single window."""
        with as_export_error():
            session, start, done, found = open_session(graph, device="cpu"), 0, 0, dict[str, Positions]()
            new_decoder = decoders_of(self.source, session, encoder=open_encoder(self.source, graph))
            for kind, windows in self.texts.items():
                parts = list[Positions]()
                for place, window in enumerate(windows):
                    if len(windows) == 1 or (place % 2 == 0) == (part == "search"):
                        wanted = self.log_probabilities[start : start + len(window)]
                        parts.append(compare(fed(new_decoder(window), window), wanted, window))
                        done += len(window)
                        report(f"{done:,} tokens")
                    start += len(window)
                found[kind] = Positions.joined(parts)
        return found


def compare(got: Iterator[Logits], want: npt.NDArray[np.float16], window: list[int]) -> Positions:
    """Measure logits, given in slices, against PyTorch's log-probabilities [tokens, vocabulary]."""
    divergences, agree, surprise, start = list[float](), list[bool](), list[float](), 0
    for some in got:
        for at in range(0, len(some), ROWS_AT_A_TIME):
            mine = log_softmax(some[at : at + ROWS_AT_A_TIME])
            theirs = want[start : start + len(mine)].astype(np.float64)
            divergences += (np.exp(theirs) * (theirs - mine)).sum(axis=1).tolist()
            likeliest = np.take_along_axis(theirs, mine.argmax(axis=1)[:, None], axis=1)[:, 0]
            agree += (likeliest == theirs.max(axis=1)).tolist()  # a tie in float16 is agreement
            targets = window[start + 1 : start + 1 + len(mine)]
            surprise += [float(theirs[row, target] - mine[row, target]) for row, target in enumerate(targets)]
            start += len(mine)
    return Positions(np.array(divergences), np.array(agree, bool), np.array(surprise))
