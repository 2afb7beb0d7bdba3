"""The two models that ship with the project, and how each is trained."""

from __future__ import annotations

import dataclasses

from onnx_textgen_export import DecoderConfig

STORIES, STORYBOOKS = "tinystories_sample.txt.zst", "storybooks_ccby.txt.zst"
BOOKS = ("childrens_books_gitenberg.txt.zst", "childrens_books_chilit.txt.zst")
HELD_OUT = "tinystories_heldout.txt"


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
