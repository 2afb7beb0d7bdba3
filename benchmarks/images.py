"""How long a picture takes to be read, beside transformers: from a decoded picture to the first token of an answer.

    python benchmarks/images.py --work DIR [--tiles N] [--size HEIGHT WIDTH] [--rounds N] [--threads N]

The weights are random, in the shape of SmolVLM-256M (SigLIP of 93 million parameters, pictures of 512 x 512, 64 tokens): speed
depends on shapes alone. `--tiles`: along the longer edge of a picture; with 1 it is read as a whole. Rounds are interleaved;
medians, and medians of ratios, are printed. The machine should do nothing else.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import onnx_textgen
from onnx_textgen_export import export
from onnx_textgen_export.image_processors.processors import own_processor

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from support.image_checkpoints import Kind, write_checkpoint

TEXT = {"hidden_size": 576, "intermediate_size": 1536, "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64}
SIGLIP = {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12, "num_hidden_layers": 12}
PLACES = 2048
"""Tokens of a text."""


def sized(part: Any, sizes: dict[str, Any]) -> None:  # noqa: ANN401 - a config of transformers
    """Set the sizes of a part of a model."""
    for name, size in sizes.items():
        setattr(part, name, size)


def smolvlm(config: Any, _: Any) -> None:  # noqa: ANN401 - as above
    """SmolVLM-256M."""
    sized(config.vision_config, SIGLIP | {"image_size": 512, "patch_size": 16})
    sized(config.text_config, TEXT | {"num_hidden_layers": 30, "max_position_embeddings": PLACES, "vocab_size": 49280})
    sized(config, {"scale_factor": 4})


SIDE = 512


def kind(tiles: int) -> Kind:
    """The type, with as many tiles along the longer edge of a picture."""
    return Kind({"size": {"longest_edge": tiles * SIDE}, "max_image_size": {"longest_edge": SIDE}}, {"image_seq_len": 64}, smolvlm)


def timed(function: Callable[[], object]) -> float:
    """Seconds that a call takes."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def first_token(model: onnx_textgen.Model, text: str, picture: np.ndarray[Any, Any]) -> None:
    """Read a picture, and the text around it."""
    model.generate(model.encode(text, images=[picture]), temperature=0, max_new_tokens=1)


def packages(checkpoint: Path, tiles: int) -> dict[str, Path]:
    """The packages at float32 and int8, made once; next to them lies the checkpoint."""
    if not checkpoint.exists():
        write_checkpoint("smolvlm", checkpoint, kind(tiles), deviation=0.02)
    made = {precision: checkpoint.parent / precision for precision in ("fp32", "int8")}
    for precision, folder in made.items():
        if not folder.exists():
            export(checkpoint, folder, precision=precision)  # type: ignore[arg-type]
    return made


def main() -> None:
    """Measure, and print a table."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--work", type=Path, required=True)
    asked.add_argument("--tiles", type=int, choices=(1, 2, 3), default=1)
    asked.add_argument("--size", type=int, nargs=2, default=(480, 640), metavar=("HEIGHT", "WIDTH"))
    asked.add_argument("--rounds", type=int, default=7)
    asked.add_argument("--threads", type=int, default=2)
    given = asked.parse_args()
    torch.set_num_threads(given.threads)
    checkpoint = given.work / f"tiles-{given.tiles}" / "checkpoint"
    folders = packages(checkpoint, given.tiles)
    models = {name: onnx_textgen.load(folder, device="cpu", threads=given.threads) for name, folder in folders.items()}
    from transformers import AutoModelForImageTextToText, PreTrainedTokenizerFast  # noqa: PLC0415 - it takes seconds

    theirs: Any = AutoModelForImageTextToText.from_pretrained(checkpoint, dtype=torch.float32).eval()
    processor: Any = own_processor(checkpoint, theirs.config)
    processor.tokenizer = PreTrainedTokenizerFast.from_pretrained(checkpoint)
    about = models["fp32"].manifest.images
    assert about is not None
    text, draw = f"See {about.placeholder}: what is it?", np.random.default_rng(0)
    seconds: dict[str, list[float]] = {name: [] for name in ("transformers", *models)}

    def answer_of_theirs(picture: np.ndarray[Any, Any]) -> None:
        inputs = processor(text=[text], images=[Image.fromarray(picture)], return_tensors="pt")
        with torch.inference_mode():
            theirs.generate(**inputs, do_sample=False, max_new_tokens=1, min_new_tokens=1)

    for number in range(given.rounds + 1):
        picture = draw.integers(0, 256, (*given.size, 3), dtype=np.uint8)  # another one each time, as known ones are not read again
        found = {"transformers": timed(lambda: answer_of_theirs(picture))}  # noqa: B023 - it is called at once
        for name, model in models.items():
            found[name] = timed(lambda: first_token(model, text, picture))  # noqa: B023 - as above
        if number:  # the first opens kernels
            for name, each in found.items():
                seconds[name].append(each)
    tokens = sum(each < 0 for each in models["fp32"].encode(text, images=[picture]))
    print(f"{given.size[0]} x {given.size[1]} pixels, {tokens} tokens, {given.threads} threads, {given.rounds} rounds")
    for name, each in seconds.items():
        ratio = statistics.median(a / b for a, b in zip(seconds["transformers"], each, strict=True))
        print(f"{name:14} {statistics.median(each):7.3f} s   {ratio:5.2f} times as fast as transformers")


if __name__ == "__main__":
    main()
