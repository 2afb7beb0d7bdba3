"""Scores documents for a query with one model: as its settings say if it is a reranker, else by the likelihood of the query."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..backends.signature import LOGITS
from ..cancellation import Cancellation, CancelScope
from ..errors import ModelError, OptionError, PackageError
from ..inference.decoder import Decoder
from ..inference.prefill import prefill
from ..inference.scoring import score_tokens
from ..options.checks import shown, whole_number
from ..package.retrieval import RerankingSettings, chosen_prompt, messages_of
from ..results import RankedDocument
from .chat_encoder import ChatEncoder
from .embedder import Embedder, fits_together
from .embeddings import groups
from .open_model import OpenModel

PROMPTS = (("query",), ("document", "passage", "corpus"))
"""Names of an embedder's prompts for queries and for documents, as sentence-transformers looks for them."""
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
        if self.opened.manifest.text_encoder is not None:
            if prompt or prompt_name:
                raise OptionError(f"{self.opened.manifest.name} is no reranker with prompts; leave prompt and prompt_name out")
            self.opened.for_adapter(adapter)  # which none has
            by = self.similarities if self.opened.manifest.pair_scoring is None else self.pairs
            return sorted(by(query, documents, CancelScope(cancel)), key=lambda each: -each.relevance_score)[:most]
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

    def pairs(self, query: str, documents: Sequence[str], scope: CancelScope) -> list[RankedDocument]:
        """The scores of documents by a cross-encoder, which reads each with the query as a pair, in their order."""
        reader, scoring = self.opened.text_encoder, self.opened.manifest.pair_scoring
        assert reader is not None and scoring is not None, "the caller has checked"
        found: list[float] = [0.0] * len(documents)
        with scope.active():
            encoded = [self.encoder.encode_whole(query, each) for each in documents]
            for group in groups([len(ids) for ids, _ in encoded], fits_together):
                texts, types = zip(*(encoded[place] for place in group), strict=True)
                for place, logits in zip(group, reader.read(texts, LOGITS, types=types, scope=scope), strict=True):
                    found[place] = activated(float(logits[0]), scoring.activation)
        counts = (len(ids) for ids, _ in encoded)
        return [RankedDocument(*each) for each in zip(range(len(documents)), documents, found, counts, strict=True)]

    def similarities(self, query: str, documents: Sequence[str], scope: CancelScope) -> list[RankedDocument]:
        """The cosines between a query's vector and those of documents by an embedder, with its prompts for each, in their order."""
        embedder = Embedder(self.opened, self.encoder)
        names = [next((name for name in each if name in embedder.settings.prompts), None) for each in PROMPTS]
        (encoded_query,), encoded = (
            embedder.encode(texts, prompt_name=name) for texts, name in zip(([query], documents), names, strict=True)
        )
        vectors = embedder.vectors([encoded_query, *encoded], normalize=True, scope=scope)
        found = (vectors[1:] @ vectors[0]).tolist()
        counts = (len(encoded_query) + len(ids) for ids in encoded)
        return [RankedDocument(*each) for each in zip(range(len(documents)), documents, found, counts, strict=True)]

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
    return activated(score, settings.activation)


def activated(score: float, activation: str) -> float:
    """A score after its activation, `sigmoid` or `identity`."""
    return 0.5 * (1 + math.tanh(score / 2)) if activation == "sigmoid" else score
