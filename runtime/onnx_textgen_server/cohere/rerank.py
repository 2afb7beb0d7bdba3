"""`POST /v1/rerank`: documents by their relevance for a query, in the form of Jina and Cohere."""

from __future__ import annotations

import dataclasses
import functools
import json
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, PlainValidator, WithJsonSchema

from onnx_textgen import Cancellation, Model, RankedDocument
from onnx_textgen.options.checks import shown

from ..requests.body import Request

if TYPE_CHECKING:
    from ..serving.work_queue import Compute

MAX_DOCUMENTS = 2048
"""Documents of one request."""
PART = 16
"""Documents that are scored in one turn."""


def read_documents(given: object) -> list[str]:
    """The texts of documents, each given as a text, or as an object with a `text`.

    Checked by hand, because pydantic would report the failure of each item of a list of a million.
    """
    if not isinstance(given, list) or not 1 <= len(given) <= MAX_DOCUMENTS:
        found = f"{len(given):,} of them" if isinstance(given, list) else shown(given)
        raise ValueError(f"should be a list of 1 to {MAX_DOCUMENTS} texts, found {found}")
    items = [each.get("text") if isinstance(each, Mapping) else each for each in given]
    texts = [each for each in items if isinstance(each, str) and each]
    if len(texts) < len(items):
        raise ValueError('each should be a text that is not empty, or an object such as {"text": "..."}')
    return texts


Documents = Annotated[
    list[str],
    PlainValidator(read_documents),
    WithJsonSchema({"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "object"}]}}),
]


class RerankRequest(Request):
    """`POST /v1/rerank`."""

    query: str
    documents: Documents
    top_n: Annotated[int, Field(ge=1)] | None = None
    """Number of documents to return; all unless given."""
    return_documents: bool = False
    """Return the texts of the documents too."""
    prompt: str | None = None
    """The reranker's instruction; a parameter of sentence-transformers, as the next one."""
    prompt_name: str | None = None
    """The name of one of the package's prompts."""


@dataclasses.dataclass(frozen=True, slots=True)
class Rerank:
    """The answer to one request."""

    name: str
    model: Model
    body: RerankRequest
    operation: str = "rerank"

    async def whole(self, compute: Compute) -> str:
        """See `Work`."""
        ranked = list[RankedDocument]()
        for start in range(0, len(self.body.documents), PART):
            ranked += await compute(functools.partial(self.part, start))
        ranked.sort(key=lambda each: (-each.relevance_score, each.index))
        count = sum(each.prompt_tokens for each in ranked)
        content = {
            "id": f"rerank-{uuid.uuid4().hex}",
            "object": "list",
            "model": self.name,
            "results": [self.result(each) for each in ranked[: self.body.top_n]],
            "usage": {"prompt_tokens": count, "total_tokens": count},
        }
        return json.dumps(content)

    def part(self, start: int, cancel: Cancellation) -> list[RankedDocument]:
        """The scores of the documents from `start`."""
        body, documents = self.body, self.body.documents[start : start + PART]
        ranked = self.model.rerank(
            body.query, documents, prompt=body.prompt, prompt_name=body.prompt_name, adapter=body.adapter, cancel=cancel
        )
        return [dataclasses.replace(each, index=start + each.index) for each in ranked]

    def result(self, ranked: RankedDocument) -> dict[str, Any]:
        """One entry of `results`."""
        more = {"document": {"text": ranked.text}} if self.body.return_documents else {}
        return {"index": ranked.index, "relevance_score": ranked.relevance_score, **more}
