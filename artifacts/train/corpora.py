"""Corpora of documents, the tokenizer trained on them, and the rows of token ids that training reads."""

from __future__ import annotations

import io
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import zstandard
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from .recipes import STORIES, STORYBOOKS, Recipe

SEPARATOR = "<|endoftext|>"
BOS_ID, EOS_ID = 0, 1  # the trainer numbers special tokens first


def read_documents(path: Path) -> list[str]:
    """The documents of one corpus file, plain or zstandard-compressed."""
    if path.suffix == ".zst":
        with path.open("rb") as raw:
            text = io.TextIOWrapper(zstandard.ZstdDecompressor().stream_reader(raw), encoding="utf-8").read()
    else:
        text = path.read_text(encoding="utf-8")
    return [document.strip() for document in text.split(f"\n{SEPARATOR}") if document.strip()]


def train_tokenizer(documents: list[str], *, vocab_size: int, bos: str, eos: str) -> Tokenizer:
    """Train a lossless byte-level BPE that puts `bos` first."""
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
    """Endless rows of `length + 1` token ids from a corpus, whose documents are reshuffled in every epoch."""

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


def load_or_train_tokenizer(recipe: Recipe, corpora: Path, out: Path) -> Tokenizer:
    """The tokenizer in `out`; trained first if there is none."""
    path = out / "tokenizer.json"
    if not path.exists():
        documents = read_documents(corpora / STORIES) + read_documents(corpora / STORYBOOKS)
        train_tokenizer(documents, vocab_size=recipe.model.vocab_size, bos=recipe.bos, eos=recipe.eos).save(str(path))
    return Tokenizer.from_file(str(path))
