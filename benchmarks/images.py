"""How long a picture takes to be read, beside transformers: from a decoded picture to the first token of an answer.

    python benchmarks/images.py --work DIR [--kind smolvlm|qwen2_vl|gemma3] [--size HEIGHT WIDTH] [--rounds N]

The weights are random, in the shapes of SmolVLM-256M (SigLIP of 93 million parameters, pictures of 512 x 512, 64 tokens), and of
the vision parts of Qwen2-VL (pictures keep their shape) and Gemma 3 (896 x 896, 256 tokens) with a small decoder: speed depends
on shapes alone. Rounds are interleaved; medians, and medians of ratios, are printed. The machine should do nothing else.
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
from onnx_textgen_export.images.processors import own_processor

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from support.image_checkpoints import Kind, write_checkpoint

TEXT = {"hidden_size": 576, "intermediate_size": 1536, "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64}
SIGLIP = {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12, "num_hidden_layers": 12}
LARGE_SIGLIP = {"hidden_size": 1152, "intermediate_size": 4304, "num_attention_heads": 16, "num_hidden_layers": 27}
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


def qwen2_vl(config: Any, _: Any) -> None:  # noqa: ANN401 - as above
    """The vision part of Qwen2-VL, with a decoder of the size of SmolLM2-135M."""
    vision = {"embed_dim": 1280, "depth": 32, "num_heads": 16, "patch_size": 14, "hidden_size": 576, "mlp_ratio": 4}
    sized(config.vision_config, vision)
    sections = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [8, 12, 12]}}
    text = {"num_hidden_layers": 30, "max_position_embeddings": PLACES, "vocab_size": 49280}
    sized(config.text_config, TEXT | text | sections)


def gemma3(config: Any, _: Any) -> None:  # noqa: ANN401 - as above
    """The vision part of Gemma 3, with a decoder of the size of SmolLM2-135M."""
    sized(config.vision_config, LARGE_SIGLIP | {"image_size": 896, "patch_size": 14})
    layers = ["full_attention" if number % 6 == 5 else "sliding_attention" for number in range(30)]
    text = {"num_hidden_layers": 30, "max_position_embeddings": PLACES, "vocab_size": 49280, "layer_types": layers}
    sized(config.text_config, TEXT | text | {"sliding_window": 512})
    sized(config, {"mm_tokens_per_image": 256})


WHOLE = {"longest_edge": 512}
KINDS: dict[str, Kind] = {
    "smolvlm": Kind({"size": WHOLE, "max_image_size": WHOLE}, {"image_seq_len": 64}, smolvlm),
    "qwen2_vl": Kind({"size": {"shortest_edge": 3136, "longest_edge": 1280 * 28 * 28}, "patch_size": 14}, {}, qwen2_vl),
    "gemma3": Kind({"size": {"height": 896, "width": 896}}, {"image_seq_length": 256}, gemma3),
}


def timed(function: Callable[[], object]) -> float:
    """Seconds that a call takes."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def first_token(model: onnx_textgen.Model, text: str, picture: np.ndarray[Any, Any]) -> None:
    """Read a picture, and the text around it."""
    model.generate(model.encode(text, images=[picture]), temperature=0, max_new_tokens=1)


def packages(kind: str, work: Path) -> dict[str, Path]:
    """The packages of a kind at float32 and int8, made once; next to them lies the checkpoint."""
    checkpoint = work / kind / "checkpoint"
    if not checkpoint.exists():
        write_checkpoint(kind, checkpoint, KINDS[kind])
    made = {precision: work / kind / precision for precision in ("fp32", "int8")}
    for precision, folder in made.items():
        if not folder.exists():
            export(checkpoint, folder, precision=precision)  # type: ignore[arg-type]
    return made


def main() -> None:
    """Measure, and print a table."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--work", type=Path, required=True)
    asked.add_argument("--kind", choices=KINDS, default="smolvlm")
    asked.add_argument("--size", type=int, nargs=2, default=(480, 640), metavar=("HEIGHT", "WIDTH"))
    asked.add_argument("--rounds", type=int, default=7)
    asked.add_argument("--threads", type=int, default=2)
    given = asked.parse_args()
    torch.set_num_threads(given.threads)
    folders = packages(given.kind, given.work)
    models = {name: onnx_textgen.load(folder, device="cpu", threads=given.threads) for name, folder in folders.items()}
    from transformers import AutoModelForImageTextToText, PreTrainedTokenizerFast  # noqa: PLC0415 - it takes seconds

    checkpoint = given.work / given.kind / "checkpoint"
    theirs: Any = AutoModelForImageTextToText.from_pretrained(checkpoint, dtype=torch.float32).eval()
    processor: Any = own_processor(checkpoint, theirs.config)
    processor.tokenizer = PreTrainedTokenizerFast.from_pretrained(checkpoint)
    switches = {name: False for name in ("do_image_splitting",) if hasattr(processor.image_processor, name)}
    about = models["fp32"].manifest.images
    assert about is not None
    text, draw = f"See {about.placeholder}: what is it?", np.random.default_rng(0)
    seconds: dict[str, list[float]] = {name: [] for name in ("transformers", *models)}

    def answer_of_theirs(picture: np.ndarray[Any, Any]) -> None:
        inputs = processor(text=[text], images=[Image.fromarray(picture)], return_tensors="pt", **switches)
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
    print(
        f"{given.kind}, {given.size[0]} x {given.size[1]} pixels, {tokens} tokens, {given.threads} threads, {given.rounds} rounds"
    )
    for name, each in seconds.items():
        ratio = statistics.median(a / b for a, b in zip(seconds["transformers"], each, strict=True))
        print(f"{name:14} {statistics.median(each):7.3f} s   {ratio:5.2f} times as fast as transformers")


if __name__ == "__main__":
    main()
