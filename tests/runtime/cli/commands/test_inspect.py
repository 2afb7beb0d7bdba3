"""`onnx-textgen inspect` and the data behind it."""

import json

import numpy as np
import pytest

import onnx_textgen
from onnx_textgen.cli import run
from onnx_textgen.diagnostics.inspection import inspect_steps
from onnx_textgen.options.generation_config import GenerationConfig
from onnx_textgen.sampling.draw import Place, candidates, final_candidates, sample_token
from support.cli_model import EOS, VOCAB_SIZE, CharacterModel

GREEDY = GenerationConfig(temperature=0)


@pytest.fixture
def model(monkeypatch):
    model = CharacterModel()
    monkeypatch.setattr(onnx_textgen, "load", lambda package, **options: model)
    return model


def test_the_first_step_feeds_the_prompt_and_the_others_the_token_before():
    inspection = inspect_steps(CharacterModel(), "ab", config=GREEDY)
    assert [token.piece for token in inspection.tokens] == ["<s>", "a", "b"]
    assert [[token.piece for token in step.fed] for step in inspection.steps] == [["<s>", "a", "b"], ["c"], ["d"]]
    assert [step.first_position for step in inspection.steps] == [0, 3, 4]
    assert [step.cached_tokens for step in inspection.steps] == [3, 4, 5]
    assert inspection.text == "cde"


def test_shapes_and_bytes_are_those_of_the_cache():
    step = inspect_steps(CharacterModel(), "ab", config=GREEDY).steps[0]
    assert step.cache_shape == (1, 2, 64, 4)
    assert step.cache_bytes == 3 * 2 * 2 * 4 * 3 * 4  # layers, keys and values, heads, size, tokens, bytes of a float
    assert step.logits_shape == (1, VOCAB_SIZE)


@pytest.mark.parametrize(
    "config",
    [
        GREEDY,
        GenerationConfig(temperature=1, seed=5),
        GenerationConfig(temperature=2, top_k=5, top_p=0.9, min_p=0.2, seed=5),
        GenerationConfig(temperature=0.7, min_p=0.05, seed=6),
    ],
)
def test_the_steps_tell_of_the_very_chain_and_draw_that_generation_uses(config):
    inspection = inspect_steps(CharacterModel(), "ab", config=config, candidates=VOCAB_SIZE)
    ids = [1, 97, 98]
    for number, step in enumerate(inspection.steps):
        logits = -np.abs(np.arange(VOCAB_SIZE) - ids[-1] - 1).astype(np.float32)
        place = Place(inspection.seed, step=number)
        kept, probabilities = candidates(final_candidates(logits, config))
        drawable = {one.token.id: one.draw_probability for one in step.candidates if one.cut_by is None}
        assert drawable == pytest.approx(dict(zip(kept.tolist(), probabilities.tolist(), strict=True)), abs=1e-6)
        assert step.remaining[list(step.remaining)[-1]] == len(kept)
        assert step.chosen.id == sample_token(logits, config, place)
        assert sum(one.probability for one in step.candidates) == pytest.approx(1, abs=1e-5)
        assert {one.cut_by for one in step.candidates if one.draw_probability == 0} <= {"temperature", "top_k", "top_p", "min_p"}
        ids.append(step.chosen.id)


def test_the_stages_that_are_switched_on_are_counted_in_their_order():
    config = GenerationConfig(temperature=2, top_k=5, top_p=0.9, min_p=0.5, seed=5)
    remaining = inspect_steps(CharacterModel(), "ab", config=config).steps[0].remaining
    assert list(remaining) == ["vocabulary", "temperature", "top_k", "top_p", "min_p"]
    assert list(remaining.values()) == sorted(remaining.values(), reverse=True)


def test_an_end_of_text_id_ends_the_steps():
    inspection = inspect_steps(CharacterModel(), [EOS - 1], config=GREEDY, steps=9)
    assert [step.chosen.id for step in inspection.steps] == [EOS]


def test_the_context_ends_the_steps():
    inspection = inspect_steps(CharacterModel(eos_ids=()), [1] * 99, config=GREEDY, steps=9)
    assert len(inspection.steps) == 2


def test_a_package_without_a_tokenizer_shows_ids():
    bare = CharacterModel(tokenizer=False)
    bare.tokenizer = None
    inspection = inspect_steps(bare, [97], config=GREEDY, steps=1)
    assert (inspection.tokens[0].piece, inspection.steps[0].chosen.piece, inspection.text) == ("<97>", "<98>", "")


def test_the_screen_shows_every_stage_within_80_columns(model, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert run(["inspect", "ab", "--temperature", "0.5", "--top-k", "3", "--seed", "1", "--steps", "2"]) == 0
    out = capsys.readouterr().out
    stages = ["1 prompt", "2 token ids", "3 embeddings", "4 positions", "5 layers", "6 cache", "7 logits", "softmax", "8 sampling"]
    assert [stage for stage in [*stages, "9 next token", "step 2", "10 text", "cut by top_k", "taken"] if stage not in out] == []
    assert "c 46 %" in out
    assert max(map(len, out.splitlines())) <= 80


def test_json_has_the_same_steps(model, capsys):
    assert run(["inspect", "ab", "--temperature", "0", "--json"]) == 0
    inspection = json.loads(capsys.readouterr().out)
    assert [step["chosen"] for step in inspection["steps"]] == [{"id": ord(c), "piece": c} for c in "cde"]


def test_markup_in_a_models_text_is_text(model, capsys):
    assert run(["inspect", "[bold]:smile:", "--temperature", "0", "--steps", "1"]) == 0
    assert "'[bold]:smile:'" in capsys.readouterr().out


def test_of_a_long_prompt_the_first_and_the_last_tokens_are_shown(model, capsys):
    assert run(["inspect", "ab" * 30, "--temperature", "0", "--steps", "1"]) == 0
    out = capsys.readouterr().out
    assert "29 more; all of them with --json" in out
    rows = [line.split()[0] for line in out.splitlines() if line.rstrip().endswith(("'a'", "'b'", "'<s>'"))]
    assert [int(row) for row in rows if row.isdigit()] == [*range(16), *range(45, 61)]
