"""Workers with HTTP, with LitServe: requests that arrive close together are answered as one batch.

    pip install onnx-textgen litserve
    python examples/litserve_server.py --workers 2 --port 8000
    curl -d '{"prompt": "Once upon a time", "seed": 7}' -H "Content-Type: application/json" localhost:8000/predict

Each worker is a process with a separate model. A text does not depend on the worker, nor on the other requests.
"""

from __future__ import annotations

import argparse
from typing import Any

import litserve

from onnx_textgen import BatchGenerator, OnnxTextgenError

WANTED = 'a request is {"prompt": "some text", "seed": 7}, the seed left out if it does not matter'


def is_right(request: dict[str, Any]) -> bool:
    """Whether a request can be answered."""
    prompt, seed = request.get("prompt"), request.get("seed", 0)
    return isinstance(prompt, str) and bool(prompt) and isinstance(seed, int) and 0 <= seed < 2**31


class TextAPI(litserve.LitAPI):
    """One text for each request `{"prompt": ..., "seed": ...}`."""

    def __init__(self, model: str, threads: int, **options: Any) -> None:  # noqa: ANN401 - LitServe's and GenerationConfig's
        super().__init__(max_batch_size=8, batch_timeout=0.01)
        self.generator = BatchGenerator(model, threads=threads, **options)

    def setup(self, device: str) -> None:
        """Load the model before the first request."""
        _ = self.generator.model

    def predict(self, requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """A text for each request, or what is wrong with it; a wrong one spoils no other."""
        generator, answers = self.generator, list[dict[str, Any]]()
        known = [request for request in requests if is_right(request)]
        try:
            seeds = [request.get("seed", generator.seed_of(request["prompt"])) for request in known]
            texts = iter(generator.generate([request["prompt"] for request in known], seeds))
        except OnnxTextgenError as error:
            return [{"error": str(error)} for _ in requests]
        for request in requests:
            if request not in known:
                answers.append({"error": WANTED})
                continue
            text = next(texts)
            answers.append({"text": text.text, "finish_reason": text.finish_reason, "seed": text.stats.seed})
        return answers


def main() -> None:
    """Serve until Ctrl-C."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="story")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1, help="of each worker")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    given = parser.parse_args()
    api = TextAPI(given.model, given.threads, max_new_tokens=given.max_new_tokens)
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=given.workers)
    server.run(port=given.port, host="127.0.0.1", generate_client_file=False)


if __name__ == "__main__":
    main()
