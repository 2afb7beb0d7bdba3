"""`POST /api/embed`: texts as vectors."""

from __future__ import annotations

import dataclasses
import json
import time
from typing import TYPE_CHECKING, Any

from pydantic import Field

from onnx_textgen import Model

from ..openai.embeddings import Inputs
from ..requests.body import Request
from ..serving.vectors import encode_texts, written_vectors
from .answer import nanoseconds

if TYPE_CHECKING:
    from ..serving.work_queue import Compute


class EmbedRequest(Request):
    """`POST /api/embed`."""

    inputs: Inputs = Field(alias="input")
    dimensions: int | None = None
    truncate: bool | None = None
    """Whether a text that is too long is cut, which text encoders do unless it is false; a decoder refuses it in any case."""
    options: dict[str, Any] | None = None
    """Ignored: they configure Ollama's engine."""


@dataclasses.dataclass(frozen=True, slots=True)
class Embed:
    """The answer to one request."""

    name: str
    model: Model
    body: EmbedRequest
    operation: str = "embeddings"

    async def whole(self, compute: Compute) -> str:
        """See `Work`."""
        start = time.perf_counter()
        encoded = await compute(lambda _: encode_texts(self.model, self.body.inputs, cuts=self.body.truncate is not False))
        vectors = await written_vectors(compute, self.model, encoded, self.body, lambda _, vector: json.dumps(vector.tolist()))
        count, seconds = sum(map(len, encoded)), time.perf_counter() - start
        more = {"total_duration": nanoseconds(seconds), "load_duration": 0, "prompt_eval_count": count}
        return f'{{"model":{json.dumps(self.name)},"embeddings":[{",".join(vectors)}],{json.dumps(more)[1:]}'
