"""One training run, from its recipe to the checkpoint.

The folder `out` gets the checkpoint (config.json, model.safetensors, tokenizer.json, generation_config.json), the loss curve as a
table (curve.csv) and as a picture (curve.png), and the state that a later run resumes from (state.pt).
"""

from __future__ import annotations

import json
import math
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from onnx_textgen_export import TinyTransformer

from .corpora import BOS_ID, EOS_ID, Rows, load_or_train_tokenizer, read_documents
from .curve import append_row, held_out_bits_per_byte, plot_curve
from .optimizers import load_state, make_optimizers, rate_factor, save_state
from .recipes import HELD_OUT, RECIPES

HELD_OUT_BYTES = 900
"""Longest held-out document that is measured."""
HELD_OUT_DOCUMENTS = slice(150, 250)
"""The first 150 are the final test."""


def train(name: str, corpora: Path, out: Path, *, tokens: int | None = None, report_every: int = 100) -> None:
    """Train recipe `name` until it has seen `tokens` tokens; resumes the run that `out` holds, if there is one."""
    out.mkdir(parents=True, exist_ok=True)
    run = TrainingRun(name, corpora, out)
    total = tokens or run.recipe.tokens
    started = time.monotonic()
    while run.tokens < total:
        run.advance(run.tokens / total)
        if run.step % report_every == 0 or run.tokens >= total:
            print(
                *(f"{key} {value}" for key, value in run.save().items()),
                f"minutes {(time.monotonic() - started) / 60:.1f}",
                flush=True,
            )
    plot_curve(out, name)


class TrainingRun:
    """A model in training, with its optimizers, its corpora, and how far it has come."""

    def __init__(self, name: str, corpora: Path, out: Path) -> None:
        self.out = out
        self.recipe = recipe = RECIPES[name]
        self.tokenizer = load_or_train_tokenizer(recipe, corpora, out)
        torch.manual_seed(1)
        short = [text for text in read_documents(corpora / HELD_OUT) if len(text.encode()) <= HELD_OUT_BYTES]
        self.held_out = short[HELD_OUT_DOCUMENTS]
        self.model = TinyTransformer(recipe.model)
        self.optimizers = make_optimizers(self.model, recipe)
        state = out / "state.pt"
        self.step = load_state(state, self.model, self.optimizers) if state.exists() else 0
        self.chooser = np.random.default_rng(self.step)  # with the seeds below: a resumed run draws rows that it has not seen
        self.rows = {
            file: Rows(
                read_documents(corpora / file), self.tokenizer, length=recipe.model.context_length, seed=self.step * 31 + index
            )
            for index, file in enumerate(recipe.first_mix | recipe.last_mix)
        }
        self.loss = torch.compile(self.loss_of)
        self.decaying, self.running_loss = False, math.nan

    @property
    def tokens(self) -> int:
        """Tokens seen so far."""
        return self.step * self.recipe.batch * self.recipe.model.context_length

    def loss_of(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy of token ids [batch, length], in bfloat16 where that suffices."""
        with torch.autocast(inputs.device.type, torch.bfloat16):
            logits = self.model(inputs)
            return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    def next_batch(self) -> Tensor:
        """Token ids [batch, length + 1], from the corpora in the shares of the recipe."""
        mix = self.recipe.last_mix if self.decaying else self.recipe.first_mix
        files = self.chooser.choice(list(mix), size=self.recipe.batch, p=np.array(list(mix.values())) / sum(mix.values()))
        return torch.from_numpy(np.stack([next(self.rows[file]) for file in files])).long()

    def advance(self, progress: float) -> None:
        """One step; `progress` is the share of the run that lies before it, which sets the learning rate and the corpora."""
        recipe = self.recipe
        if not self.decaying and progress >= 1 - recipe.decay_share:
            self.decaying = True
            if self.step:
                save_state(self.out / "state_before_decay.pt", self.model, self.optimizers, self.step)
        rows = self.next_batch()
        for optimizer, rate in zip(self.optimizers, (recipe.matrix_rate, recipe.other_rate), strict=True):
            for group in optimizer.param_groups:
                group["lr"] = rate * rate_factor(progress, recipe.decay_share)
        loss = self.loss(rows[:, :-1], rows[:, 1:])
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        self.step += 1
        found = float(loss.detach())
        self.running_loss = found if math.isnan(self.running_loss) else 0.98 * self.running_loss + 0.02 * found

    def save(self) -> dict[str, float]:
        """Measure the model, add a row to the curve, and write state and checkpoint; returns the row."""
        bits = held_out_bits_per_byte(self.model, self.tokenizer, self.held_out)
        row = {"tokens": self.tokens, "train_loss": round(self.running_loss, 4), "held_out_bits_per_byte": round(bits, 4)}
        append_row(self.out / "curve.csv", row)
        save_state(self.out / "state.pt", self.model, self.optimizers, self.step)
        self.model.save(self.out)
        settings = {"bos_token_id": BOS_ID, "eos_token_id": EOS_ID, **self.recipe.generation}
        (self.out / "generation_config.json").write_text(json.dumps(settings) + "\n", encoding="utf-8")
        return row
