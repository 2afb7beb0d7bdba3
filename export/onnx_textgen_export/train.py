"""Train the two models that ship with the project: `python -m onnx_textgen_export.train story --corpora DIR --out DIR`.

Reads plain-text corpora (documents separated by lines `<|endoftext|>`), trains a byte-level BPE tokenizer and a
`TinyTransformer`, and leaves in `--out` the checkpoint (config.json, model.safetensors, tokenizer.json), the loss curve as a
table (curve.csv) and as a picture (curve.png), and a resumable state (state.pt). Started again on the same folder it goes on
where it stopped. Exporting the checkpoint is `onnx-textgen export`.

The optimizer is Muon (Jordan et al. 2024) for the matrices and AdamW for the rest; the learning rate warms up, stays, and
decays linearly over the last part, so that a longer run can start from the same state before the decay.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import io
import json
import math
import random
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
import zstandard
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor

from .sources.tiny_transformer import DecoderConfig, TinyTransformer

SEPARATOR = "<|endoftext|>"
STORIES, STORYBOOKS = "tinystories_sample.txt.zst", "storybooks_ccby.txt.zst"
BOOKS = ("childrens_books_gitenberg.txt.zst", "childrens_books_chilit.txt.zst")
HELD_OUT = "tinystories_heldout.txt"
BOS_ID, EOS_ID = 0, 1  # the trainer numbers special tokens first


@dataclasses.dataclass(frozen=True, slots=True)
class Recipe:
    """One model and how it is trained."""

    model: DecoderConfig
    bos: str
    eos: str
    batch: int
    """Rows per step, each of the model's context length."""
    tokens: int
    """Tokens seen in the whole run."""
    matrix_rate: float
    other_rate: float
    first_mix: dict[str, float]
    """Share of rows per corpus until the decay begins."""
    last_mix: dict[str, float]
    """Share of rows per corpus while the learning rate decays."""
    decay_share: float = 0.4
    weight_decay: float = 0.05
    generation: dict[str, float] = dataclasses.field(default_factory=lambda: {"temperature": 0.6, "top_p": 0.9})
    """Sampling defaults that suit so small a model."""


RECIPES = {
    "story": Recipe(
        model=DecoderConfig(
            vocab_size=4096,
            width=320,
            layers=6,
            heads=5,
            kv_heads=1,
            feed_forward=832,
            context_length=512,
            norm="rms",
            activation="silu_gated",
            positions="rotary",
            tie_embeddings=True,
            bias=False,
        ),
        bos="<s>",
        eos="</s>",
        batch=16,
        tokens=21_000_000,
        matrix_rate=0.02,
        other_rate=3e-3,
        first_mix={STORIES: 0.45, STORYBOOKS: 0.05, BOOKS[0]: 0.3, BOOKS[1]: 0.2},
        last_mix={STORIES: 0.86, STORYBOOKS: 0.08, BOOKS[0]: 0.06},
    ),
    "tiny-transformer": Recipe(
        model=DecoderConfig(),
        bos="<BOS>",
        eos="<EOS>",
        batch=8,
        tokens=10_000_000,
        matrix_rate=0.02,
        other_rate=3e-3,
        first_mix={STORIES: 0.7, STORYBOOKS: 0.05, BOOKS[0]: 0.25},
        last_mix={STORIES: 0.92, STORYBOOKS: 0.08},
    ),
}


def read_documents(path: Path) -> list[str]:
    """The documents of one corpus file, plain or zstandard-compressed."""
    if path.suffix == ".zst":
        with path.open("rb") as raw:
            text = io.TextIOWrapper(zstandard.ZstdDecompressor().stream_reader(raw), encoding="utf-8").read()
    else:
        text = path.read_text(encoding="utf-8")
    return [document.strip() for document in text.split(f"\n{SEPARATOR}") if document.strip()]


def train_tokenizer(documents: list[str], *, vocab_size: int, bos: str, eos: str) -> Tokenizer:
    """A byte-level BPE that loses nothing and puts `bos` first."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=[bos, eos], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(documents, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{bos} $A", special_tokens=[(bos, tokenizer.token_to_id(bos))])
    return tokenizer


class Rows:
    """Endless rows of `length + 1` token ids cut from a corpus, its documents shuffled anew each time round."""

    def __init__(self, documents: list[str], tokenizer: Tokenizer, *, length: int, seed: int) -> None:
        encoded = tokenizer.encode_batch_fast(documents)  # each begins with bos
        self.documents = [np.array([*each.ids, EOS_ID], dtype=np.int32) for each in encoded]
        self.length, self.random = length, random.Random(seed)
        self.rest: npt.NDArray[np.int32] = np.empty(0, dtype=np.int32)
        self.order: list[int] = []

    def __next__(self) -> npt.NDArray[np.int32]:
        parts, have = [self.rest], len(self.rest)
        while have < self.length + 1:
            if not self.order:
                self.order = self.random.sample(range(len(self.documents)), len(self.documents))
            parts.append(self.documents[self.order.pop()])
            have += len(parts[-1])
        joined = np.concatenate(parts)
        self.rest = joined[self.length :]  # the row's last target is the next row's first input
        return joined[: self.length + 1]

    def __iter__(self) -> Iterator[npt.NDArray[np.int32]]:
        return self


def held_out_bits_per_byte(model: TinyTransformer, tokenizer: Tokenizer, documents: list[str]) -> float:
    """Bits per UTF-8 byte over `documents`, each alone behind the first token; padding is not counted."""
    bits = 0.0
    with torch.no_grad():
        for start in range(0, len(documents), 16):
            rows = [torch.tensor(tokenizer.encode(text).ids) for text in documents[start : start + 16]]
            ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1)
            with torch.autocast(ids.device.type, torch.bfloat16):
                logits = model(ids[:, :-1].clamp(min=0))
            loss = F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten(), ignore_index=-1, reduction="sum")
            bits += float(loss) / math.log(2)
    return bits / sum(len(text.encode()) for text in documents)


def make_optimizers(model: TinyTransformer, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Muon for the layers' matrices, AdamW for embeddings, norms, biases and the output layer."""
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and name.startswith("layers.")]
    chosen = {id(p) for p in matrices}
    others = [p for p in model.parameters() if id(p) not in chosen]
    return [
        torch.optim.Muon(matrices, lr=recipe.matrix_rate, weight_decay=recipe.weight_decay, momentum=0.95),
        torch.optim.AdamW(others, lr=recipe.other_rate, betas=(0.9, 0.95), weight_decay=0.01, fused=True),
    ]


def rate_factor(progress: float, decay_share: float) -> float:
    """Warm up over the first hundredth, stay, decay linearly to zero over the last `decay_share`."""
    return min(1.0, progress / 0.01 + 0.02, max(0.0, 1.0 - progress) / decay_share)


def plot_curve(folder: Path, name: str) -> None:
    """Draw curve.csv as curve.png."""
    import matplotlib.pyplot as plt  # noqa: PLC0415 - training works without it

    with (folder / "curve.csv").open(encoding="utf-8", newline="") as file:
        rows = [{key: float(value) for key, value in row.items()} for row in csv.DictReader(file)]
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    tokens, bits = [row["tokens"] / 1e6 for row in rows], [row["held_out_bits_per_byte"] for row in rows]
    axes.plot(tokens, bits, label="held-out bits per byte")
    axes.set(xlabel="million tokens seen", ylabel="bits per byte", title=f"{name}: held-out loss while training")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(folder / "curve.png", dpi=120)
    plt.close(figure)


def load_or_train_tokenizer(recipe: Recipe, corpora: Path, out: Path) -> Tokenizer:
    """The tokenizer in `out`, trained first where there is none yet."""
    path = out / "tokenizer.json"
    if not path.exists():
        documents = read_documents(corpora / STORIES) + read_documents(corpora / STORYBOOKS)
        train_tokenizer(documents, vocab_size=recipe.model.vocab_size, bos=recipe.bos, eos=recipe.eos).save(str(path))
    return Tokenizer.from_file(str(path))


def train(name: str, corpora: Path, out: Path, *, tokens: int | None = None, report_every: int = 100) -> None:
    """Train recipe `name` until it has seen `tokens` tokens, or go on with the run that `out` holds."""
    recipe = RECIPES[name]
    total = tokens or recipe.tokens
    out.mkdir(parents=True, exist_ok=True)
    tokenizer = load_or_train_tokenizer(recipe, corpora, out)
    length, per_step = recipe.model.context_length, recipe.batch * recipe.model.context_length
    torch.manual_seed(1)
    short = [text for text in read_documents(corpora / HELD_OUT) if len(text.encode()) <= 900]
    held_out = short[150:250]  # the first 150 are the final test
    model = TinyTransformer(recipe.model)
    optimizers = make_optimizers(model, recipe)
    state_path = out / "state.pt"
    step = load_state(state_path, model, optimizers) if state_path.exists() else 0
    chooser = np.random.default_rng(step)  # with the seeds below: a resumed run draws other rows than it has seen
    sources = {
        file: Rows(read_documents(corpora / file), tokenizer, length=length, seed=step * 31 + index)
        for index, file in enumerate(recipe.first_mix | recipe.last_mix)
    }

    def loss_of(inputs: Tensor, targets: Tensor) -> Tensor:
        with torch.autocast(inputs.device.type, torch.bfloat16):
            logits = model(inputs)
            return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    compiled = torch.compile(loss_of)
    decaying, running, started = False, math.nan, time.monotonic()
    while step * per_step < total:
        progress = step * per_step / total
        if not decaying and progress >= 1 - recipe.decay_share:
            decaying = True
            if step:
                save_state(out / "state_before_decay.pt", model, optimizers, step)
        mix = recipe.last_mix if decaying else recipe.first_mix
        files = chooser.choice(list(mix), size=recipe.batch, p=np.array(list(mix.values())) / sum(mix.values()))
        rows = torch.from_numpy(np.stack([next(sources[file]) for file in files])).long()
        for optimizer, rate in zip(optimizers, (recipe.matrix_rate, recipe.other_rate), strict=True):
            for group in optimizer.param_groups:
                group["lr"] = rate * rate_factor(progress, recipe.decay_share)
        loss = compiled(rows[:, :-1], rows[:, 1:])
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        step += 1
        running = float(loss.detach()) if math.isnan(running) else 0.98 * running + 0.02 * float(loss.detach())
        if step % report_every == 0 or step * per_step >= total:
            bits = held_out_bits_per_byte(model, tokenizer, held_out)
            record = {"tokens": step * per_step, "train_loss": round(running, 4), "held_out_bits_per_byte": round(bits, 4)}
            append_row(out / "curve.csv", record)
            minutes = (time.monotonic() - started) / 60
            print(*(f"{key} {value}" for key, value in record.items()), f"minutes {minutes:.1f}", flush=True)
            save_state(state_path, model, optimizers, step)
            model.save(out)
            settings = {"bos_token_id": BOS_ID, "eos_token_id": EOS_ID, **recipe.generation}
            (out / "generation_config.json").write_text(json.dumps(settings) + "\n", encoding="utf-8")
    plot_curve(out, name)


def append_row(path: Path, record: dict[str, float]) -> None:
    """One more line of a CSV table, with its header where it is the first."""
    is_new = not path.exists()
    with path.open("a", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, record)
        if is_new:
            writer.writeheader()
        writer.writerow(record)


def save_state(path: Path, model: TinyTransformer, optimizers: list[torch.optim.Optimizer], step: int) -> None:
    """Everything a later run needs to go on, written whole or not at all."""
    partial = path.with_suffix(".partial")
    torch.save({"model": model.state_dict(), "optimizers": [o.state_dict() for o in optimizers], "step": step}, partial)
    partial.replace(path)


def load_state(path: Path, model: TinyTransformer, optimizers: list[torch.optim.Optimizer]) -> int:
    """Put what `save_state` wrote back; returns the step it was written at."""
    state = torch.load(path, weights_only=True)
    model.load_state_dict(state["model"])
    for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
        optimizer.load_state_dict(saved)
    return int(state["step"])


def main() -> None:
    """The command line of this module."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("recipe", choices=RECIPES)
    parser.add_argument("--corpora", type=Path, required=True, help="folder of the corpus files named in RECIPES")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tokens", type=int, help="tokens to see in the whole run; default: the recipe's")
    parser.add_argument("--threads", type=int)
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    train(options.recipe, options.corpora, options.out, tokens=options.tokens)


if __name__ == "__main__":
    main()
