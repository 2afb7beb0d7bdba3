"""Generate a text for each prompt of a file, on all workers and machines of a Ray cluster.

    pip install onnx-textgen "ray[data]"
    python examples/ray_data.py prompts.jsonl texts --workers 2     # lines such as {"prompt": "Once upon a time", "seed": 7}

Each worker loads the model once. A row's text does not depend on the worker that writes it, nor on other rows.
"""

from __future__ import annotations

import argparse

import ray

from onnx_textgen import BatchGenerator


def main() -> None:
    """Read prompts, write texts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts", help="JSON lines with a column `prompt`")
    parser.add_argument("texts", help="the folder for the results, JSON lines again")
    parser.add_argument("--model", default="story")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1, help="of each worker")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    given = parser.parse_args()
    rows = ray.data.read_json(given.prompts)
    texts = rows.map_batches(
        BatchGenerator,
        fn_constructor_args=(given.model,),
        fn_constructor_kwargs={"threads": given.threads, "max_new_tokens": given.max_new_tokens},
        batch_size=16,
        num_cpus=given.threads,
        compute=ray.data.ActorPoolStrategy(min_size=1, max_size=given.workers),  # reading and writing need a core too
    )
    texts.write_json(given.texts)


if __name__ == "__main__":
    main()
