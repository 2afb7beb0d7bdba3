"""Optimizers, their learning rate, and the state that a later run resumes from.

Muon (Jordan et al. 2024) takes the matrices and AdamW the rest. The learning rate warms up, stays, and decays linearly over the
last part, so that a longer run can start from the state before the decay.
"""

from __future__ import annotations

from pathlib import Path

import torch

from onnx_textgen.files.replace import replaced_file
from onnx_textgen_export import TinyTransformer

from .recipes import Recipe


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


def save_state(path: Path, model: TinyTransformer, optimizers: list[torch.optim.Optimizer], step: int) -> None:
    """Write everything that a later run needs to resume, completely or not at all."""
    with replaced_file(path) as partial:
        torch.save({"model": model.state_dict(), "optimizers": [o.state_dict() for o in optimizers], "step": step}, partial)


def load_state(path: Path, model: TinyTransformer, optimizers: list[torch.optim.Optimizer]) -> int:
    """Restore what `save_state` wrote; returns its step."""
    state = torch.load(path, weights_only=True)
    model.load_state_dict(state["model"])
    for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
        optimizer.load_state_dict(saved)
    return int(state["step"])
