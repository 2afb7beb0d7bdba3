"""Generate a text for each prompt of a file, on all workers and machines of a Ray cluster.

    pip install onnx-textgen "ray[data]"
    python examples/ray_data.py prompts.jsonl texts --workers 2     # lines such as {"prompt": "Once upon a time", "seed": 7}

Each worker loads the model once. A row's text does not depend on the worker that writes it, nor on other rows. A worker that dies
is replaced, and its batch computed again. Run the same command after an interruption: rows that have their text are left out.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ray

from onnx_textgen import BatchGenerator

ROWS_PER_FILE = 512
"""Of the results: what a run that is interrupted loses at most, per worker."""


def key_of(row: Mapping[str, Any]) -> tuple[str, int | None]:
    """What tells rows apart."""
    return row["prompt"], row.get("seed")


def rows_done(folder: Path) -> set[tuple[str, int | None]]:
    """The rows whose texts are in the folder."""
    lines = (line for path in folder.glob("*.json") for line in path.read_text(encoding="utf-8").splitlines())
    return {key_of(json.loads(line)) for line in lines}


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
    rows = ray.data.read_json(given.prompts).repartition(target_num_rows_per_block=ROWS_PER_FILE)
    if done := rows_done(Path(given.texts)):
        rows = rows.filter(lambda row: key_of(row) not in done)
        print(f"{len(done)} rows have their text")
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
