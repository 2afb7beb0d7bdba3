"""How far rounding moves a model: the package's predictions on real texts, compared with PyTorch's in float32."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from onnx_textgen.backends.onnxruntime_session import open_session
from onnx_textgen.inference.decoder import Decoder
from onnx_textgen.inference.graph_runner import Logits

from ..errors import as_export_error
from ..proof.measures import ROWS_AT_A_TIME, Quality, log_softmax
from ..proof.scenarios import decoders_of, fed, open_encoder
from ..sources.source import Source
from ..weights.streamed import Weights
from .texts import WINDOW

MOST_LOGITS = 1 << 27
"""Logits of the reference, which are kept in a file."""


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
        length = min(WINDOW, source.geometry.context_length)
        most = max(MOST_LOGITS // source.geometry.vocab_size // max(len(texts), 1), length)
        self.texts = {
            kind: [ids[start : start + length] for start in range(0, min(len(ids), most), length)] for kind, ids in texts.items()
        }
        count = sum(len(window) for windows in self.texts.values() for window in windows)
        self.logits = np.lib.format.open_memmap(
            folder / "reference.npy", mode="w+", dtype=np.float32, shape=(count, source.geometry.vocab_size)
        )
        start = 0
        with weights.present(), torch.no_grad():
            for windows in self.texts.values():
                for together in (windows[:-1], windows[-1:]):  # all but the last have the same length
                    for logits in source.reference(torch.tensor(together)) if together else ():
                        self.logits[start : start + len(logits)] = logits.float().numpy()
                        start += len(logits)
                        report(f"{start:,} of {count:,} tokens")

    def measure(self, graph: Path, report: Callable[[str], None] = lambda step: None) -> dict[str, Quality]:
        """The quality of a package's graph on each kind of text, and on `all`."""
        with as_export_error():
            session, start, found = open_session(graph, device="cpu"), 0, dict[str, Positions]()
            new_decoder = decoders_of(self.source, session, encoder=open_encoder(self.source, graph))
            for kind, windows in self.texts.items():
                parts = list[Positions]()
                for window in windows:
                    parts.append(compare(fed(new_decoder(window), window), self.logits[start : start + len(window)], window))
                    start += len(window)
                    report(f"{start:,} of {len(self.logits):,} tokens")
                found[kind] = Positions.joined(parts)
        everything = Positions.joined(list(found.values()))
        return {kind: each.summary() for kind, each in (found | {"all": everything}).items()}


def compare(got: Iterator[Logits], want: npt.NDArray[np.float32], window: list[int]) -> Positions:
    """Measure logits, given in slices, against PyTorch's [tokens, vocabulary]."""
    divergences, agree, surprise, start = list[float](), list[bool](), list[float](), 0
    for some in got:
        for at in range(0, len(some), ROWS_AT_A_TIME):
            mine, theirs = (
                log_softmax(some[at : at + ROWS_AT_A_TIME]),
                log_softmax(want[start : start + len(some[at:])][:ROWS_AT_A_TIME]),
            )
            divergences += (np.exp(theirs) * (theirs - mine)).sum(axis=1).tolist()
            agree += (mine.argmax(axis=1) == theirs.argmax(axis=1)).tolist()
            targets = window[start + 1 : start + 1 + len(mine)]
            surprise += [float(theirs[row, target] - mine[row, target]) for row, target in enumerate(targets)]
            start += len(mine)
    return Positions(np.array(divergences), np.array(agree, bool), np.array(surprise))
