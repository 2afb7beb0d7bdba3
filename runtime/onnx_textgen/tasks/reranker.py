"""Scores documents for a query with one model: as its settings say if it is a reranker, else by the likelihood of the query."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..cancellation import Cancellation, CancelScope
from ..errors import ModelError, OptionError, PackageError
from ..inference.decoder import Decoder
from ..inference.prefill import prefill
from ..inference.scoring import score_tokens
from ..options.checks import shown, whole_number
from ..package.retrieval import RerankingSettings, chosen_prompt, messages_of
from ..results import RankedDocument
from .chat_encoder import ChatEncoder
from .open_model import OpenModel

DOCUMENT_END = "\n\n"
"""What separates a document from the query that continues it."""


class Reranker:
    """Scores documents with one open model; each call has its own decoder, which is released afterwards."""

    def __init__(self, opened: OpenModel, chats: ChatEncoder) -> None:
        self.opened, self.chats, self.encoder = opened, chats, chats.encoder

    def rerank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        top_n: int | None = None,
        prompt: str | None = None,
        prompt_name: str | None = None,
        adapter: str | None = None,
        cancel: Cancellation | None = None,
    ) -> list[RankedDocument]:
        """Score documents for a query, most relevant first; see `Model.rerank`."""
        self.opened.refuse_encoder_decoder("ranks no documents")
        if not isinstance(query, str) or not query:
            raise OptionError(f"query should be a text that is not empty, found {shown(query)}")
        if isinstance(documents, str) or not documents or not all(isinstance(each, str) and each for each in documents):
            raise OptionError("documents should be a list of texts, none of them empty")
        most = None if top_n is None else whole_number("top_n", top_n, 1)
        settings = self.settings()
        if settings is None and (prompt or prompt_name):
            raise OptionError("the model is no reranker, so a prompt cannot take effect; leave prompt and prompt_name out")
        instruction = None if settings is None else chosen_prompt(settings, prompt, prompt_name)
        context, scope, found = self.opened.new_graph_context(adapter), CancelScope(cancel), list[RankedDocument]()
        with scope.active():
            for index, document in enumerate(documents):
                if settings is None:
                    score, count = self.query_likelihood(context, query, document, scope)
                else:
                    messages = messages_of(settings, query, document, instruction)
                    ids = self.chats.encode(messages, add_generation_prompt=settings.add_generation_prompt)
                    score, count = relevance(context, settings, ids, scope), len(ids)
                found.append(RankedDocument(index, document, score, count))
        return sorted(found, key=lambda each: -each.relevance_score)[:most]

    def settings(self) -> RerankingSettings | None:
        """Those of the package; None if it is no reranker. Raises `PackageError` if its scores cannot be computed."""
        settings = self.opened.manifest.reranking
        if settings is not None and settings.refused:
            raise PackageError(
                f"{self.opened.manifest.name} scores documents in a way that is not supported ({settings.refused}); "
                "take another reranker"
            )
        return settings

    def query_likelihood(self, context: Decoder, query: str, document: str, scope: CancelScope) -> tuple[float, int]:
        """The log-probability per token of the query after the document, and the number of tokens of both.

        Query likelihood with a language model: Sachan et al. 2022, arXiv 2204.07496; here without an instruction.
        """
        ids, count = self.encoder.encode_pair(document + DOCUMENT_END, query)
        found, _ = score_tokens(context, ids, first=max(1, count), scope=scope)
        return math.fsum(found) / len(found), len(ids)


def relevance(context: Decoder, settings: RerankingSettings, ids: Sequence[int], scope: CancelScope) -> float:
    """The score of a prompt, as by sentence-transformers' `LogitScore`; the beginning that prompts share is computed once."""
    logits = prefill(context, ids, scope=scope).astype(np.float64)
    score = float(logits[settings.true_id] - (0 if settings.false_id is None else logits[settings.false_id]))
    if not math.isfinite(score):
        raise ModelError("the model's logits are not numbers, so nothing can be scored; check it with: onnx-textgen verify DIR")
    return 0.5 * (1 + math.tanh(score / 2)) if settings.activation == "sigmoid" else score
