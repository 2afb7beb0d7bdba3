"""How often JavaScript chooses another token than Python for the same logits and place.

`python benchmarks/javascript_sampling.py [VOCABULARY] [ROWS]` draws random logits and prints how many choices differ for each
set of options: NumPy's exponential is not the nearest float32, so a choice can cross a border. Needs `node`.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from onnx_textgen.options.generation_config import GenerationConfig
from onnx_textgen.sampling.draw import Place, sample_token

WEB = Path(__file__).resolve().parents[1] / "runtime" / "web" / "textgen"
OPTIONS: list[dict[str, float]] = [
    {},
    {"top_k": 40},
    {"top_p": 0.9},
    {"min_p": 0.05},
    {"typical_p": 0.8},
    {"top_n_sigma": 1.0},
    {"xtc_probability": 0.5, "xtc_threshold": 0.05},
    {"top_k": 50, "top_p": 0.95, "min_p": 0.01},
]
CHOOSE = """
import { readFileSync } from "node:fs";
const { Chooser } = await import(`${process.argv[1]}/sampling/sampler.js`);
const { makeConfig } = await import(`${process.argv[1]}/options/generation_config.js`);
const [size, first, options] = JSON.parse(process.argv[3]);
const rows = new Float32Array(new Uint8Array(readFileSync(process.argv[2])).buffer);
const config = makeConfig({}, options);
const ids = [];
for (let row = 0; row < rows.length / size; row++) {
  const chooser = new Chooser(config, { promptIds: [], eosIds: [] });
  ids.push(chooser.choose(rows.subarray(row * size, (row + 1) * size), new Array(first + row)));
}
console.log(JSON.stringify(ids));
"""
AT_ONCE = 500


def choices(rows: np.ndarray, first: int, options: dict[str, float]) -> list[int]:
    """The ids that JavaScript chooses for rows [rows, vocabulary]; `first`: the step of the first."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows"
        path.write_bytes(rows.tobytes())
        request = json.dumps([rows.shape[1], first, options])
        command = ["node", "--input-type=module", "--eval", CHOOSE, str(WEB), str(path), request]
        return list(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


def main(vocabulary: int = 4096, count: int = 20_000) -> None:
    """Print a line for each set of options."""
    for given in OPTIONS:
        options = {"temperature": 0.8, "seed": 5, **given}
        config, draw, different = GenerationConfig(**options), np.random.default_rng(7), 0  # type: ignore[arg-type]
        for first in range(0, count, AT_ONCE):
            scales = draw.choice([1, 2.5, 4], (min(AT_ONCE, count - first), 1))
            rows = (draw.standard_normal((len(scales), vocabulary)) * scales).astype(np.float32)
            ours = [sample_token(row, config, Place(5, 0, first + index)) for index, row in enumerate(rows)]
            different += sum(one != other for one, other in zip(ours, choices(rows, first, options), strict=True))
        print(f"{count:,} choices from {vocabulary:,} tokens, {given}: {different} different", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
