"""Score given texts: log-probabilities, ranked continuations, attention weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from ..cancellation import Cancellation, CancelScope
from ..errors import OptionError
from ..inference.scoring import score_tokens
from ..kv_cache.memory_plan import check_fits, plan, source_bytes
from ..options.checks import shown, whole_number
from ..options.generation_config import MOST_ALTERNATIVES
from ..results import Choice, Score
from ..text.prompts import Prompt
from .attention_maps import AttentionMaps, read_maps
from .open_model import OpenModel
from .prompt_encoder import PromptEncoder

Measure = Literal["total", "token", "byte"]
MEASURES = {"total": "logprob", "token": "logprob_per_token", "byte": "logprob_per_byte"}
"""The field of a `Choice` that each measure compares."""


class Scorer:
    """Scores texts with one open model; each call has its own decoder, which is released afterwards."""

    def __init__(self, opened: OpenModel, encoder: PromptEncoder) -> None:
        self.opened, self.encoder = opened, encoder

    def score(
        self,
        text: Prompt,
        continuation: str | Sequence[int] | None,
        *,
        source: Prompt | None,
        logprobs: int,
        stride: int | None,
        cancel: Cancellation | None,
        adapter: str | None,
    ) -> Score:
        """Score one text; see `Model.score`."""
        logprobs = whole_number("logprobs", logprobs, 0, MOST_ALTERNATIVES)
        stride = None if stride is None else whole_number("stride", stride, 1)
        if source is None and self.opened.manifest.encoder is None:
            ids, prompt_tokens = self.encoder.encode_pair(text, continuation, any_length=stride is not None)
            self.encoder.refuse_images(ids, "scores are")
        else:
            ids, prompt_tokens = self.encode_after(source, text, continuation, stride)
        context, scope, piece = self.opened.new_context(adapter=adapter, exact_history=True), CancelScope(cancel), self.opened.piece
        with scope.active():
            if source is not None:
                context.read_source(self.encoder.encode_source(source), scope=scope)
            values, alternatives = score_tokens(context, ids, stride=stride, alternatives=logprobs, piece=piece, scope=scope)
        whole = text + continuation if isinstance(text, str) and isinstance(continuation, str) else text
        if not isinstance(whole, str) and self.opened.optional_tokenizer is None:
            size = None
        else:
            size = len((whole if isinstance(whole, str) else self.opened.tokenizer.decode(ids)).encode())
        return Score(tuple(ids), values, size, alternatives, prompt_tokens)

    def encode_after(
        self, source: Prompt | None, text: Prompt, continuation: str | Sequence[int] | None, stride: int | None
    ) -> tuple[list[int], int]:
        """Token ids of a text after a source, and how many begin it; raises `OptionError` for what fits no such text."""
        if self.opened.manifest.encoder is None:
            raise OptionError("source is for encoder-decoders; leave it out")
        if source is None:
            raise OptionError(f"{self.opened.manifest.name} is an encoder-decoder: give the source of the text too")
        if continuation is not None or stride is not None:
            raise OptionError("continuation and stride are for decoders; leave them out")
        return self.encoder.encode_target(text), len(self.encoder.start_ids())

    def rank(self, prompt: str, choices: Sequence[str], *, by: Measure, adapter: str | None) -> list[Choice]:
        """Score the choices as continuations of the prompt, most likely first; see `Model.rank`."""
        if by not in MEASURES:
            raise OptionError(f"by should be one of {', '.join(map(repr, MEASURES))}, found {shown(by)}")
        if isinstance(choices, str) or not choices or not all(choices):
            raise OptionError("choices should be a list of texts, none of them empty")
        context = self.opened.new_context(adapter=adapter, exact_history=True)
        ranked, reads = list[Choice](), self.opened.manifest.encoder is not None
        if reads:
            context.read_source(self.encoder.encode_source(prompt))
        for text in choices:
            ids, count = self.encode_after(prompt, text, None, None) if reads else self.encoder.encode_pair(prompt, text)
            found, _ = score_tokens(context, ids, first=max(1, count))
            total = math.fsum(found)
            ranked.append(Choice(text, total, total / len(found), total / len(text.encode())))
        return sorted(ranked, key=lambda choice: -getattr(choice, MEASURES[by]))

    def attentions(self, text: Prompt, *, source: Prompt | None, last: int | None) -> AttentionMaps:
        """Attention weights of a text; see `Model.attentions`."""
        self.opened.refuse_text_encoder()
        rows, graph, read = None if last is None else whole_number("last", last, 1), self.opened.attention_graph, list[int]()
        if source is None and self.opened.manifest.encoder is None:
            ids = self.encoder.encode(text, new_tokens=0)
            self.encoder.refuse_images(ids, "attention maps are")
        else:
            ids, _ = self.encode_after(source, text, None, None)
            assert source is not None, "encode_after has checked"
            read = self.encoder.encode_source(source)
        check_fits(plan(graph.cache_tensors, len(ids), source_bytes=source_bytes(graph.encoder_inputs, len(read))))
        given = {"rows": rows, "encoder": self.opened.encoder, "source_ids": read}
        layers, weights, cross = read_maps(graph, self.opened.manifest.geometry, ids, **given)  # type: ignore[arg-type]
        pieces, source_pieces = (tuple(map(self.opened.piece, each)) for each in (ids, read))
        return AttentionMaps(tuple(ids), pieces, layers, weights, tuple(read), source_pieces, cross)
