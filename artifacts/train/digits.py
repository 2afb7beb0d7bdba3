"""Trains `digits`: a model of half a million parameters that reads the number in a picture of 64 x 64 pixels.

Its parts are those of LLaVA: a SigLIP encoder, a projection of two layers, and a Llama decoder. Numbers of one to three digits are
drawn dark on light or light on dark, at any place, in many sizes, turned, blurred and noisy.

    python -m artifacts.train.digits --out runs/digits
    python -m artifacts.train.digits --check artifacts/digits     # an exported model, on pictures that training never drew
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageDraw, ImageFilter, ImageFont
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import (
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerFast,
    SiglipImageProcessorPil,
    SiglipVisionConfig,
)

import onnx_textgen

SIZE, PATCH, WIDTH = 64, 8, 96
TOKENS = (SIZE // PATCH) ** 2
IMAGE, USER, ASSISTANT, END = "<image>", "<|user|>", "<|assistant|>", "<|end|>"
TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message.role + '|>' }}"
    "{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}"
    "{% if part.type == 'image' %}<image>{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
QUESTIONS = {
    "number": ("What number is this?", "What number do you see?", "Read the number.", "Which number is in the picture?"),
    "count": ("How many digits are there?", "How many digits does the number have?"),
    "first": ("What is the first digit?", "Which digit comes first?"),
    "last": ("What is the last digit?", "Which digit comes last?"),
}
SHARES = {"number": 0.7, "count": 0.1, "first": 0.1, "last": 0.1}
CHECKED = 1000
"""Pictures for each kind of question."""
LIGHT = 0.8
"""The share of pictures with dark digits on a light ground."""
BATCH, RATE, MATRIX_RATE, WARM_UP, HELD_OUT = 64, 1e-3, 0.01, 200, 2000
Pixels = npt.NDArray[np.uint8]


def draw_number(draw: np.random.Generator) -> tuple[str, Pixels]:
    """A number of one to three digits, and a picture of it [64, 64, 3]."""
    number = str(draw.integers(0, 10 ** draw.integers(1, 4)))
    light, dark = draw.integers(150, 256, 3), draw.integers(0, 90, 3)
    back, front = (light, dark) if draw.random() < LIGHT else (dark, light)
    largest = min(40, int(92 / len(number)))
    font = ImageFont.load_default(int(draw.integers(min(17, largest - 1), largest)))
    picture = Image.new("RGB", (SIZE, SIZE), tuple(map(int, back)))
    left, top, right, bottom = font.getbbox(number)
    room = SIZE - 4 - np.array((right - left, bottom - top))
    place = 2 + draw.random(2) * np.maximum(room, 0) - (left, top)
    ImageDraw.Draw(picture).text((float(place[0]), float(place[1])), number, fill=tuple(map(int, front)), font=font)
    picture = picture.rotate(float(draw.uniform(-7, 7)), Image.Resampling.BICUBIC, fillcolor=tuple(map(int, back)))
    if draw.random() < 0.3:
        picture = picture.filter(ImageFilter.GaussianBlur(float(draw.uniform(0.2, 0.9))))
    noise = draw.normal(0, draw.uniform(0, 10), (SIZE, SIZE, 3))
    return number, np.clip(np.asarray(picture) + noise, 0, 255).astype(np.uint8)


def answer(kind: str, number: str) -> str:
    """The answer to a question of a kind about a number."""
    return {"number": number, "count": str(len(number)), "first": number[0], "last": number[-1]}[kind]


def make_tokenizer() -> PreTrainedTokenizerFast:
    """One token a byte, and the special tokens."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    plain = Tokenizer(models.BPE(vocab={letter: place for place, letter in enumerate(letters)}, merges=[]))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    plain.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=plain, eos_token=END, pad_token="<|pad|>", extra_special_tokens=[IMAGE, USER, ASSISTANT]
    )


def make_model(tokenizer: PreTrainedTokenizerFast) -> LlavaForConditionalGeneration:
    """The model before training."""
    sizes = {"hidden_size": WIDTH, "intermediate_size": 256, "num_attention_heads": 4}
    vision = SiglipVisionConfig(**sizes, num_hidden_layers=3, image_size=SIZE, patch_size=PATCH, vision_use_head=False)
    text = LlamaConfig(
        **sizes, num_hidden_layers=2, num_key_value_heads=4, vocab_size=len(tokenizer), max_position_embeddings=1024,
        bos_token_id=None, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, tie_word_embeddings=True,
    )  # fmt: skip
    config = LlavaConfig(
        vision_config=vision, text_config=text, image_token_index=tokenizer.convert_tokens_to_ids(IMAGE),
        vision_feature_layer=-1, vision_feature_select_strategy="full", tie_word_embeddings=True,
    )  # fmt: skip
    torch.manual_seed(0)
    return LlavaForConditionalGeneration(config)


def examples(draw: np.random.Generator, tokenizer: PreTrainedTokenizerFast, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Ids [count, tokens], labels, and pixels [count, 3, 64, 64] of pictures with questions and answers."""
    rows, kept, pictures = list[list[int]](), list[int](), list[Pixels]()
    for _ in range(count):
        number, picture = draw_number(draw)
        kind = draw.choice(list(SHARES), p=list(SHARES.values()))
        prompt = f"{USER}{IMAGE * TOKENS}{draw.choice(QUESTIONS[kind])}{END}{ASSISTANT}"
        ids = tokenizer(prompt)["input_ids"]
        rows.append([*ids, *tokenizer(answer(kind, number) + END)["input_ids"]])
        kept.append(len(ids))
        pictures.append(picture)
    longest = max(map(len, rows))
    ids = torch.full((count, longest), tokenizer.pad_token_id)
    labels = torch.full_like(ids, -100)
    for row, (each, start) in enumerate(zip(rows, kept, strict=True)):
        ids[row, : len(each)] = torch.tensor(each)
        labels[row, start : len(each)] = torch.tensor(each[start:])
    return ids, labels, numbers_of(pictures)


def numbers_of(pictures: Sequence[Pixels]) -> Tensor:
    """What the image processor makes of pictures of this size."""
    return (torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).float() / 255 - 0.5) / 0.5


def factors(steps: int) -> Iterator[float]:
    """The factor of the learning rates at each step: a short rise, then half a cosine."""
    for step in range(steps):
        yield min(1, (step + 1) / WARM_UP) * 0.5 * (1 + math.cos(math.pi * step / steps))


def make_optimizers(model: LlavaForConditionalGeneration) -> list[torch.optim.Optimizer]:
    """Muon for the layers' matrices, AdamW for the rest."""
    matrices = [each for name, each in model.named_parameters() if each.ndim == 2 and ".layers." in name]
    chosen = set(map(id, matrices))
    others = [each for each in model.parameters() if id(each) not in chosen]
    return [
        torch.optim.Muon(matrices, lr=MATRIX_RATE, weight_decay=0.05, momentum=0.95),
        torch.optim.AdamW(others, lr=RATE, weight_decay=0.05, betas=(0.9, 0.95)),
    ]


def right_answers(model: LlavaForConditionalGeneration, tokenizer: PreTrainedTokenizerFast, count: int, seed: int) -> float:
    """The share of held-out pictures whose answer is right to the last token."""
    draw, right = np.random.default_rng(seed), 0
    model.train(False)
    for _ in range(0, count, 100):
        ids, labels, pixels = examples(draw, tokenizer, 100)
        with torch.no_grad():
            guessed = model(input_ids=ids, pixel_values=pixels).logits[:, :-1].argmax(-1)
        wanted = labels[:, 1:]
        right += int(((guessed == wanted) | (wanted < 0)).all(1).sum())
    model.train(True)
    return right / count


def check(folder: Path) -> None:
    """Ask a package about held-out pictures, and print the share of right answers for each kind of question."""
    package, draw = onnx_textgen.load(folder, device="cpu"), np.random.default_rng(9)
    for kind, questions in QUESTIONS.items():
        right = 0
        for count in range(CHECKED):
            number, picture = draw_number(draw)
            content = [{"type": "image", "image": picture}, {"type": "text", "text": questions[count % len(questions)]}]
            found = package.chat([{"role": "user", "content": content}], temperature=0, max_new_tokens=6)
            right += found.text == answer(kind, number)
        print(f"{kind}: {right} of {CHECKED} right")


def save(model: LlavaForConditionalGeneration, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    """Write the checkpoint with its processor and its chat template."""
    tokenizer.chat_template = TEMPLATE
    images = SiglipImageProcessorPil(size={"height": SIZE, "width": SIZE})
    model.generation_config.temperature = None
    model.save_pretrained(out)
    processor: Any = LlavaProcessor(
        images, tokenizer, patch_size=PATCH, vision_feature_select_strategy="full", chat_template=TEMPLATE, image_token=IMAGE
    )
    processor.save_pretrained(out)
    images.save_pretrained(out)
    tokenizer.save_pretrained(out)


def main() -> None:
    """Train, and print the loss and the share of right answers."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--out", type=Path)
    asked.add_argument("--check", type=Path, metavar="DIR")
    asked.add_argument("--steps", type=int, default=6000)
    asked.add_argument("--threads", type=int)
    given = asked.parse_args()
    if given.check is not None:
        check(given.check)
        return
    if given.out is None:
        asked.error("give --out, or --check")
    if given.threads:
        torch.set_num_threads(given.threads)
    tokenizer = make_tokenizer()
    model, draw = make_model(tokenizer), np.random.default_rng(1)
    print(f"{sum(each.numel() for each in model.parameters()):,} parameters", flush=True)
    optimizers = make_optimizers(model)
    began, losses = time.monotonic(), list[float]()
    for step, factor in enumerate(factors(given.steps), 1):
        for optimizer, rate in zip(optimizers, (MATRIX_RATE, RATE), strict=True):
            optimizer.param_groups[0]["lr"] = rate * factor
            optimizer.zero_grad()
        ids, labels, pixels = examples(draw, tokenizer, BATCH)
        loss = model(input_ids=ids, pixel_values=pixels, labels=labels, attention_mask=(ids != tokenizer.pad_token_id).long()).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
        losses.append(float(loss.detach()))
        if step % 250 == 0 or step == given.steps:
            right = right_answers(model, tokenizer, 200, seed=7)
            line = {"step": step, "loss": round(float(np.mean(losses[-250:])), 4), "right": right}
            print(json.dumps(line | {"seconds": round(time.monotonic() - began)}), flush=True)
            save(model, tokenizer, given.out)
    print(f"right on {HELD_OUT} held-out pictures: {right_answers(model, tokenizer, HELD_OUT, seed=8):.4f}")


if __name__ == "__main__":
    main()
