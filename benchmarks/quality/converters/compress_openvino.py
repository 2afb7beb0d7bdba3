"""`python compress_openvino.py FP32_FOLDER TOKENS.json OUT_FOLDER --group-size 64 --scale-estimation|--gptq`: int4 with data.

What `optimum-cli export openvino --dataset` does, by NNCF itself, with the windows of token ids in TOKENS.json in place of a data
set from the hub: asymmetric int4 in groups, all products inside the layers, AWQ, and scale estimation or GPTQ.
"""

import argparse
import json
import shutil
from pathlib import Path

import nncf
import numpy as np
import openvino

GRAPH, WEIGHTS = "openvino_model.xml", "openvino_model.bin"


def inputs_of(model: openvino.Model, ids: list[int]) -> dict[str, np.ndarray]:
    """The graph's inputs for a window fed alone."""
    length = len(ids)
    inputs = {
        "input_ids": np.array([ids], dtype=np.int64),
        "attention_mask": np.ones((1, length), dtype=np.int64),
        "position_ids": np.arange(length, dtype=np.int64)[None],
        "beam_idx": np.zeros(1, dtype=np.int32),
    }
    names = {name for port in model.inputs for name in port.names}
    return {name: value for name, value in inputs.items() if name in names}


def main() -> None:
    """Write the folder."""
    parser = argparse.ArgumentParser()
    parser.add_argument("source", type=Path)
    parser.add_argument("tokens", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--group-size", type=int, required=True)
    parser.add_argument("--scale-estimation", action="store_true")
    parser.add_argument("--gptq", action="store_true")
    options = parser.parse_args()
    model = openvino.Core().read_model(options.source / GRAPH)
    windows = [inputs_of(model, ids) for ids in json.loads(options.tokens.read_text())]
    compressed = nncf.compress_weights(
        model,
        mode=nncf.CompressWeightsMode.INT4_ASYM,
        group_size=options.group_size,
        ratio=1.0,
        dataset=nncf.Dataset(windows),
        subset_size=len(windows),
        awq=True,
        scale_estimation=options.scale_estimation,
        gptq=options.gptq,
    )
    shutil.copytree(options.source, options.out, ignore=shutil.ignore_patterns(GRAPH, WEIGHTS))
    openvino.save_model(compressed, options.out / GRAPH, compress_to_fp16=False)


if __name__ == "__main__":
    main()
