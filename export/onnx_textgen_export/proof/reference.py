"""Reference logits from PyTorch, and the comparison of a package's logits with them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from onnx_textgen.inference.graph_runner import Logits
from onnx_textgen.package.manifest import GoldenRun

from ..errors import ExportError
from ..sources.output_layer import only_these_positions
from ..sources.source import Source
from .measures import Scenario, Tolerance, compare, next_tokens
from .scenarios import GOLDEN_PROMPTS, GOLDEN_TOKENS, MOST_LOGITS, WHOLE_LENGTH, ScenarioRun

SHORT = max(WHOLE_LENGTH, GOLDEN_PROMPTS[-1] + GOLDEN_TOKENS) + 1
"""Texts below this length are computed together."""


class Reference:
    """The logits of texts as PyTorch computes them."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.known: dict[tuple[tuple[int, ...], tuple[int, ...], int], Logits] = {}
        """By text, source and how many positions: more than one comparison asks for them."""

    def read(self, fed: Sequence[ScenarioRun], golden: Sequence[GoldenRun]) -> None:
        """Compute the short texts of a comparison together, as each pass of PyTorch reads and rounds all weights again.

        The end of shorter ones is filled up: no position of a decoder sees the tokens after it. An encoder does.
        """
        if self.source.encoder is not None or self.source.rotary_switch is not None:
            return
        asked = [*(part.ids for run in fed for part in run.parts), *([*run.prompt_ids, *run.new_ids[:-1]] for run in golden)]
        short = list[list[int]]()
        for ids in sorted((ids for ids in asked if len(ids) < SHORT), key=len, reverse=True):
            if not any(longer[: len(ids)] == ids for longer in short) and (tuple(ids), (), len(ids)) not in self.known:
                short.append(ids)
        together = max(MOST_LOGITS // (SHORT * self.source.geometry.vocab_size), 1)
        for start in range(0, len(short), together):
            texts = short[start : start + together]
            filled = torch.tensor([[*ids, *ids[:1] * (len(texts[0]) - len(ids))] for ids in texts])
            with torch.no_grad():
                rows = self.source.reference(filled)
            for ids, row in zip(texts, rows, strict=True):
                self.known[tuple(ids), (), len(ids)] = np.array(row[: len(ids)].float().numpy())

    def logits(self, ids: Sequence[int], last: int, source_ids: Sequence[int] = ()) -> Logits:
        """Logits [last, vocabulary] of the end of a text, without a cache; of an encoder-decoder after a source."""
        key = (tuple(ids), tuple(source_ids), last)
        if key in self.known:
            return self.known[key]
        for (text, read, count), whole in self.known.items():
            # a known text that begins with this one has the same logits there, unless its length changes them
            is_beginning = count == len(text) and text[: len(ids)] == key[0] and read == key[1]
            if is_beginning and self.source.rotary_switch is None:
                return whole[len(ids) - last : len(ids)]
        positions = torch.arange(len(ids) - last, len(ids))
        head = self.source.head if last < len(ids) else None  # the logits of a whole text come from the unhooked module
        with torch.no_grad(), only_these_positions(head, positions):
            logits = self.source.logits(ids, source_ids)
        self.known[key] = np.asarray((logits if head is not None else logits[positions]).float().numpy())
        return self.known[key]

    def before_the_switch(self, ids: Sequence[int], last: int) -> int:
        """How many of the `last` logits of a text lie before a rotary switch that the text crosses.

        Those depend on how the text was fed: PyTorch's reference computes the whole text with the frequencies after the switch.
        """
        switch = self.source.rotary_switch
        return min(max(switch - len(ids) + last, 0), last) if switch is not None and len(ids) > switch else 0


def judge_scenario(reference: Reference, fed: ScenarioRun) -> Scenario:
    """Compare one way of feeding with PyTorch."""
    parts = [(each, each.logits[reference.before_the_switch(each.ids, len(each.logits)) :]) for each in fed.parts]
    got = np.concatenate([logits for _, logits in parts])
    want = np.concatenate([reference.logits(each.ids, len(logits), each.source_ids) for each, logits in parts])
    return compare(fed.name, got, want, [target for each, logits in parts for target in next_tokens(each.ids)[-len(logits) :]])


def judge_greedy(reference: Reference, run: GoldenRun, tolerance: Tolerance, remedy: str) -> None:
    """Raise `ExportError` if PyTorch ranks another token clearly above one of a greedy continuation."""
    text, count = [*run.prompt_ids, *run.new_ids[:-1]], len(run.new_ids)
    early = reference.before_the_switch(text, count)
    want = reference.logits(text, count - early, run.source_ids)
    if early:
        want = np.concatenate([reference.logits(text[: reference.source.rotary_switch], early), want])
    margin = want.max(axis=1) - want[np.arange(len(run.new_ids)), list(run.new_ids)]
    wrong = np.flatnonzero(margin > tolerance.logits_error * np.abs(want).max())
    if len(wrong):
        prompt = len(run.prompt_ids)
        raise ExportError(
            f"greedy token {wrong[0] + 1} after a prompt of {prompt} is not PyTorch's, so nothing was written; {remedy}"
        )
