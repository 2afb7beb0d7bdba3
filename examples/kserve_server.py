"""A model server of KServe: its protocols V1 and V2 over HTTP, V2 over gRPC, readiness, metrics, batches.

    pip install onnx-textgen kserve
    python examples/kserve_server.py --model story --http_port 8080
    curl -H "Content-Type: application/json" localhost:8080/v1/models/textgen:predict \
        -d '{"instances": [{"prompt": "Once upon a time", "seed": 7}]}'

In a cluster it is the container of an `InferenceService`. For OpenAI's APIs, streams and chats put this project's own image there
instead: KServe asks of a container no more than a port.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Sequence
from typing import Any

import kserve
import numpy as np
from kserve.errors import InvalidInput

from onnx_textgen import BatchGenerator, OnnxTextgenError

WANTED = 'each instance is {"prompt": "some text", "seed": 7}, the seed left out if it does not matter'


class TextModel(kserve.Model):
    """A text for each prompt; requests that arrive together are computed together."""

    def __init__(self, name: str, model: str, threads: int, **options: Any) -> None:  # noqa: ANN401 - GenerationConfig's
        super().__init__(name)
        self.generator = BatchGenerator(model, threads=threads, **options)

    def load(self) -> bool:
        """Load the model; only then is the server ready."""
        self.ready = self.generator.model is not None
        return self.ready

    async def predict(
        self,
        payload: dict[str, Any] | kserve.InferRequest,
        headers: dict[str, str] | None = None,
        response_headers: dict[str, str] | None = None,
    ) -> dict[str, Any] | kserve.InferResponse:
        """Answer a request of protocol V1 (a dictionary) or V2."""
        try:
            is_v2 = isinstance(payload, kserve.InferRequest)
            columns = {each.name: values_of(each) for each in payload.inputs} if is_v2 else self.columns_of(payload)
            made = await asyncio.to_thread(self.generator, columns)
        except (OnnxTextgenError, ValueError) as error:
            raise InvalidInput(str(error)) from error
        texts = {name: values for name, values in made.items() if name not in columns}
        if not is_v2:
            return {"predictions": [dict(zip(texts, row, strict=True)) for row in zip(*texts.values(), strict=True)]}
        outputs = [output_of(name, values) for name, values in texts.items()]
        asked = {"use_binary_outputs": payload.use_binary_outputs, "requested_outputs": payload.request_outputs}
        return kserve.InferResponse(payload.id, self.name, outputs, **asked)

    def columns_of(self, payload: object) -> dict[str, list[Any]]:
        """The prompts and seeds of V1's rows; KServe reads no JSON whose `Content-Type` has parameters."""
        body = json.loads(payload) if isinstance(payload, bytes) else payload
        instances = body.get("instances") if isinstance(body, dict) else None
        if not isinstance(instances, list) or not all(is_row(each) for each in instances):
            raise ValueError(WANTED)
        prompts = [each["prompt"] for each in instances]
        return {"prompt": prompts, "seed": [each.get("seed", self.generator.seed_of(each["prompt"])) for each in instances]}


def is_row(instance: object) -> bool:
    """Whether a row of V1 can be answered."""
    return isinstance(instance, dict) and isinstance(instance.get("prompt"), str)


def values_of(tensor: kserve.InferInput) -> list[Any]:
    """What a tensor of V2 holds: numbers, or texts, which are bytes over gRPC."""
    return [each.decode() if isinstance(each, bytes) else each for each in tensor.as_numpy().reshape(-1).tolist()]


def output_of(name: str, values: Sequence[str] | Sequence[int]) -> kserve.InferOutput:
    """A tensor of V2."""
    is_number = name == "generated_tokens"
    output = kserve.InferOutput(name, [len(values)], "INT64" if is_number else "BYTES")
    output.set_data_from_numpy(np.array(values, np.int64 if is_number else object), binary_data=False)
    return output


def main() -> None:
    """Serve until SIGTERM."""
    parser = argparse.ArgumentParser(parents=[kserve.model_server.parser], conflict_handler="resolve")
    parser.add_argument("--model", default="story")
    parser.add_argument("--model_name", default="textgen")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    given = parser.parse_args()
    model = TextModel(given.model_name, given.model, given.threads, max_new_tokens=given.max_new_tokens)
    model.load()
    kserve.ModelServer(http_port=given.http_port, grpc_port=given.grpc_port).start([model])


if __name__ == "__main__":
    main()
