"""How far rounding moves a model: the package's predictions on real texts, compared with PyTorch's in float32."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from onnx_textgen.backends.onnxruntime_session import open_session
from onnx_textgen.inference.graph_runner import Logits

from ..errors import as_export_error
from ..proof.measures import ROWS_AT_A_TIME, Quality, log_softmax
from ..proof.scenarios import decoders_of, fed, open_encoder
from ..reports import Report
from ..sources.output_layer import only_these_positions
from ..sources.source import Source
from ..weights.streamed import Weights, blocks_of
from .texts import WINDOW, affordable_tokens

WORK = 2.5e12
"""Parameters times tokens that PyTorch reads."""
FEWEST_TOKENS, MOST_TOKENS = 1024, 4096
"""Tokens of all texts, for a large and for a small model; half of them if nothing is searched."""
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


def measured_tokens(source: Source) -> int:
    """How many tokens of both halves of all texts a model can afford."""
    return affordable_tokens(source, WORK, fewest=FEWEST_TOKENS, most=MOST_TOKENS)


def summaries(parts: Sequence[Measures]) -> dict[str, Quality]:
    """The quality on each kind of text, and on `all`."""
    kinds = {kind: Positions.joined([part[kind] for part in parts]) for kind in parts[0]}
    return {kind: each.summary() for kind, each in (kinds | {"all": Positions.joined(list(kinds.values()))}).items()}


def largest_loss(measures: Measures) -> float:
    """The mean divergence on the kind of text where it is largest, in nats per token."""
    return max(each.summary().kl_mean for each in measures.values())


@dataclasses.dataclass(frozen=True, slots=True)
class Window:
    """Tokens of a text that are read together, from an empty context."""

    kind: str
    place: int
    """Among the windows of the text."""
    ids: list[int]
    file: Path
    """PyTorch's log-probabilities; float16 is exact enough where a probability is not tiny."""


class QualityMeter:
    """PyTorch's predictions on some texts, kept in a file, so that every attempt is measured without PyTorch."""

    def __init__(
        self,
        source: Source,
        weights: Weights,
        texts: Mapping[str, list[int]],
        folder: Path,
        *,
        searches: bool = True,
        report: Report = lambda step: None,
    ) -> None:
        """`searches`: attempts will be compared, so texts have two halves, else one. `report` is told each layer that read them."""
        self.source, self.searches = source, searches
        most = measured_tokens(source) // (2 * max(len(texts), 1))
        length = min(WINDOW, source.geometry.context_length, most)
        most *= 2 if searches else 1
        self.chosen = [
            Window(kind, start // length, ids[start : min(start + length, most)], folder / f"{kind}_{start}.float16")
            for kind, ids in texts.items()
            for start in range(0, min(len(ids), most), length)
        ]
        unread = [window for window in self.chosen if not window.file.exists()]  # an interrupted export may have left some
        with weights.present(), torch.no_grad(), layers_told(source.module, report):
            for size in dict.fromkeys(len(window.ids) for window in unread):  # those of one length together
                alike = [window for window in unread if len(window.ids) == size]
                found = logits_of(source, torch.tensor([window.ids for window in alike]))
                for window, slices in zip(alike, found, strict=True):
                    partial = window.file.with_suffix(".partial")
                    with partial.open("wb") as file:
                        for logits in slices:
                            logits.float().log_softmax(-1).numpy().astype(np.float16).tofile(file)
                    partial.rename(window.file)

    def windows(self, part: Part) -> Iterator[tuple[Window, npt.NDArray[np.float16]]]:
        """The windows of a part with PyTorch's log-probabilities [tokens, vocabulary]; a text's only window is in both."""
        windows = collections.Counter(window.kind for window in self.chosen)
        for window in self.chosen:
            if not self.searches or windows[window.kind] == 1 or (window.place % 2 == 0) == (part == "search"):
                yield window, np.fromfile(window.file, np.float16).reshape(len(window.ids), -1)

    def measure(self, graph: Path, part: Part, report: Report = lambda step: None) -> Measures:
        """Measure a package's graph on one part of the texts."""
        with as_export_error():
            session = open_session(graph, device="cpu")
            new_decoder = decoders_of(self.source, session, encoder=open_encoder(self.source, graph))
            return self.measure_fed(lambda ids: fed(new_decoder(ids), ids), part, report)

    def measure_fed(self, feed: Callable[[list[int]], Iterator[Logits]], part: Part, report: Report) -> Measures:
        """Measure the logits that `feed` gives for token ids, in slices, on one part of the texts."""
        done, found = 0, dict[str, list[Positions]]()
        for window, wanted in self.windows(part):
            found.setdefault(window.kind, []).append(compare(feed(window.ids), wanted, window.ids))
            done += len(window.ids)
            report(f"{done:,} tokens")
        return {kind: Positions.joined(parts) for kind, parts in found.items()}


@contextlib.contextmanager
def layers_told(module: nn.Module, report: Report) -> Iterator[None]:
    """Within the context, report each layer that has run."""
    with contextlib.ExitStack() as stack:
        layers = blocks_of(module)
        for number, layer in enumerate(layers.values(), 1):
            step = f"layer {number} of {len(layers)}"
            stack.callback(layer.register_forward_hook(lambda *_, step=step: report(step)).remove)
        yield


def logits_of(source: Source, ids: Tensor) -> Iterator[Iterator[Tensor]]:
    """PyTorch's logits of each text of `ids` [texts, tokens], in slices [positions, vocabulary]; one pass for all if possible.

    The output layer is applied to a slice at a time, unless the model changes its outputs, by a cap for example.
    """
    if (head := source.head) is not None:
        first = torch.arange(1)
        with only_these_positions(head, torch.arange(ids.shape[1])) as hidden, only_these_positions(head, first):
            logits = source.reference(ids)
        if torch.allclose(head(hidden[0][:, first]), logits, atol=1e-5):
            yield from (map(head, torch.split(text, ROWS_AT_A_TIME)) for text in hidden[0])
            return
    for text in ids:
        yield iter(torch.split(source.reference(text[None])[0], ROWS_AT_A_TIME))


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
