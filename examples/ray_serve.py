"""Replicas of the server over Ray Serve: the same APIs, streams too, as many replicas as the load needs.

    pip install "onnx-textgen[serve]" "ray[serve]"
    python examples/ray_serve.py --model story --most 2 --port 8000
    curl -d '{"prompt": "Once upon a time", "stream": true}' localhost:8000/v1/completions

Each replica is a process with a separate model, which computes up to eight texts together. Conversations that `/v1/responses` keeps
stay in their replica: send whole conversations instead.
"""

from __future__ import annotations

import argparse
import threading
from collections.abc import Callable

from fastapi import FastAPI
from ray import serve

from onnx_textgen_server.app import make_app
from onnx_textgen_server.pool.model_pool import ModelPool, PoolLimits
from onnx_textgen_server.pool.sources import LoadOptions, find_sources
from onnx_textgen_server.state import Settings

TEXTS = 8
"""That a replica computes at once."""


def app_of(model: str, threads: int, key: str | None) -> Callable[[], FastAPI]:
    """What makes the app of a replica, in its process."""

    def build() -> FastAPI:
        sources, at_start = find_sources([model], LoadOptions("cpu", threads, TEXTS))
        pool = ModelPool(sources, PoolLimits())
        app = make_app(pool, Settings(api_key=key, hosts=["*"]))
        pool.open_at_start(at_start)
        return app

    return build


def main() -> None:
    """Serve until Ctrl-C."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="story")
    parser.add_argument("--least", type=int, default=1, help="replicas at rest")
    parser.add_argument("--most", type=int, default=2, help="replicas under load")
    parser.add_argument("--threads", type=int, default=1, help="of each replica")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--api-key")
    given = parser.parse_args()
    scaling = {"min_replicas": given.least, "max_replicas": given.most, "target_ongoing_requests": TEXTS}
    deployment = serve.deployment(serve.ingress(app_of(given.model, given.threads, given.api_key))()).options(
        name="textgen",
        ray_actor_options={"num_cpus": given.threads},
        autoscaling_config=scaling,
        max_ongoing_requests=4 * TEXTS,
        graceful_shutdown_timeout_s=30,  # for running texts to end, when a replica is given back
    )
    serve.start(http_options={"host": "127.0.0.1", "port": given.port})
    serve.run(deployment.bind(), name="textgen")
    threading.Event().wait()


if __name__ == "__main__":
    main()
