"""`POST /v1/embeddings`: texts as vectors."""

from __future__ import annotations

import base64
import dataclasses
import functools
import json
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, PlainValidator, WithJsonSchema

from onnx_textgen import Model
from onnx_textgen.tasks.embeddings import Vectors

from ..requests.body import Request
from ..serving.vectors import encode_texts, written_vectors
from .schema import read_prompts

if TYPE_CHECKING:
    from ..serving.work_queue import Compute

MAX_INPUTS = 2048
"""Texts of one request; OpenAI's limit."""
Inputs = Annotated[
    list[str | list[int]],
    PlainValidator(functools.partial(read_prompts, most=MAX_INPUTS)),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": ["string", "integer", "array"]}}]}),
]


class EmbeddingsRequest(Request):
    """`POST /v1/embeddings`."""

    inputs: Inputs = Field(alias="input")
    """One or more, each a text or ids."""
    dimensions: int | None = None
    encoding_format: Literal["float", "base64"] = "float"
    """`base64`: of little-endian float32 numbers."""
    prompt: str | None = None
    """What is written before each text; a parameter of sentence-transformers, as the next one."""
    prompt_name: str | None = None
    """The name of one of the package's prompts."""


@dataclasses.dataclass(frozen=True, slots=True)
class Embeddings:
    """The answer to one request."""

    name: str
    model: Model
    body: EmbeddingsRequest
    operation: str = "embeddings"

    async def whole(self, compute: Compute) -> str:
        """See `Work`."""
        body = self.body
        encoded = await compute(lambda _: encode_texts(self.model, body.inputs, body.prompt, body.prompt_name))
        entries = await written_vectors(compute, self.model, encoded, body, self.entry)
        count = sum(map(len, encoded))
        usage = {"prompt_tokens": count, "total_tokens": count}
        return f'{{"object":"list","data":[{",".join(entries)}],"model":{json.dumps(self.name)},"usage":{json.dumps(usage)}}}'

    def entry(self, index: int, vector: Vectors) -> str:
        """The entry of one text in the answer, as JSON."""
        is_text = self.body.encoding_format == "base64"
        numbers = base64.b64encode(vector.astype("<f4").tobytes()).decode() if is_text else vector.tolist()
        return json.dumps({"object": "embedding", "index": index, "embedding": numbers}, separators=(",", ":"))
