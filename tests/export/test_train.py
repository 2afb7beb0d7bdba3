"""The training script on a corpus of a few lines: it learns, writes what the exporter reads, and goes on where it stopped."""

import csv
import dataclasses
import itertools
from pathlib import Path

import pytest
import torch
import zstandard
from artifacts.train import corpora as corpus_files
from artifacts.train import recipes
from artifacts.train.optimizers import rate_factor
from artifacts.train.training_run import train

from onnx_textgen_export import TinyTransformer
from onnx_textgen_export.tokenization.text_assets import read_text_assets

STORY = "The cat sat on the mat. The dog sat on the log. The cat and the dog sat in the sun all day long.\n"


@pytest.fixture
def corpora(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Corpora of one story each, a recipe to match, and no compiler."""
    folder = tmp_path / "corpora"
    folder.mkdir()
    text = f"{STORY}<|endoftext|>\n" * 30
    for name in (recipes.STORIES, recipes.STORYBOOKS, *recipes.BOOKS):
        (folder / name).write_bytes(zstandard.compress(text.encode()))
    (folder / recipes.HELD_OUT).write_text(f"{STORY}<|endoftext|>\n" * 155)
    recipe = recipes.RECIPES["tiny-transformer"]
    model = dataclasses.replace(recipe.model, vocab_size=300, width=32, context_length=64)
    monkeypatch.setitem(recipes.RECIPES, "tiny-transformer", dataclasses.replace(recipe, model=model, batch=4))
    monkeypatch.setattr(torch, "compile", lambda function: function)
    return folder


def test_it_learns_and_goes_on_where_it_stopped(corpora: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "run"
    per_step = 4 * 64
    train("tiny-transformer", corpora, out, tokens=20 * per_step, report_every=10)
    train("tiny-transformer", corpora, out, tokens=40 * per_step, report_every=10)
    with (out / "curve.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["tokens"]) for row in rows] == [count * per_step for count in (10, 20, 30, 40)]
    assert float(rows[-1]["held_out_bits_per_byte"]) < 0.5 * float(rows[0]["held_out_bits_per_byte"])
    assert (out / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert (out / "state_before_decay.pt").exists()
    model, assets = TinyTransformer.from_folder(out), read_text_assets(out)
    assert (assets.bos_id, assets.eos_ids) == (0, (1,))
    assert assets.tokenizer is not None
    assert assets.tokenizer.get_vocab_size() <= model.config.vocab_size
    assert assets.tokenizer.decode(assets.tokenizer.encode(STORY).ids) == STORY


def test_rows_are_cut_from_whole_documents_without_a_gap(corpora: Path, tmp_path: Path) -> None:
    documents = ["one two three", "four five", "six seven eight nine"]
    tokenizer = corpus_files.train_tokenizer(documents, vocab_size=300, bos="<BOS>", eos="<EOS>")
    rows = corpus_files.Rows(documents, tokenizer, length=5, seed=1)
    stream = [int(i) for _, row in zip(range(40), rows, strict=False) for i in row[:-1]]
    whole = [[*tokenizer.encode(text).ids, corpus_files.EOS_ID] for text in documents]
    starts = [index for index, token in enumerate(stream) if token == corpus_files.BOS_ID]
    pieces = [stream[a:b] for a, b in itertools.pairwise(starts)]
    assert starts[0] == 0
    assert all(piece in whole for piece in pieces)
    assert {tuple(piece) for piece in pieces} == {tuple(piece) for piece in whole}


def test_the_learning_rate_warms_up_stays_and_ends_at_zero() -> None:
    factors = [rate_factor(progress, 0.4) for progress in (0.0, 0.01, 0.5, 0.6, 0.8, 1.0)]
    assert factors == pytest.approx([0.02, 1, 1, 1, 0.5, 0])
