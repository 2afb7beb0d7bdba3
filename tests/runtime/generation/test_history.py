"""The next turn of a conversation reads only what is new; with `exact_history` it reads what was generated once more."""

from __future__ import annotations

from pathlib import Path

import pytest

import onnx_textgen
from onnx_textgen import Model

TURNS = "Once upon a time", " One day the dog", " Then her mother", " In the end"


@pytest.fixture(scope="module")
def exact() -> Model:
    return onnx_textgen.load(threads=1, device="cpu", exact_history=True)


@pytest.fixture(scope="module")
def usual() -> Model:
    return onnx_textgen.load(threads=1, device="cpu")


def test_every_turn_of_a_session_reads_only_what_is_new(usual: Model) -> None:
    session = usual.session()
    for turn in TURNS:
        held = len(session)
        session.append(turn)
        found = session.generate(max_new_tokens=15, seed=1)
        assert found.stats.reused_tokens >= held - 2, "the last token was never fed, and tokens are fed in pairs"


def test_prompts_that_hold_an_answer_of_any_caller_reuse_it(usual: Model) -> None:
    text = "Lily had a red ball"
    for _ in range(3):
        found = usual.generate(text, max_new_tokens=20, temperature=0)
        ids = [*found.prompt_ids, *found.token_ids, 40, 41]
        assert usual.generate(ids, max_new_tokens=1).stats.reused_tokens >= len(ids) - 5
        text += " again"


def test_an_exact_history_gives_the_text_from_the_beginning(exact: Model, usual: Model) -> None:
    session = exact.session()
    for turn in TURNS:
        session.append(turn)
        prompt = list(session.token_ids)
        found = session.generate(max_new_tokens=15, seed=1)
        fresh = exact.session()
        fresh.append(prompt)
        assert found.token_ids == fresh.generate(max_new_tokens=15, seed=1).token_ids


def test_what_was_saved_with_answers_is_reused_as_far_as_it_is_exact(exact: Model, usual: Model, tmp_path: Path) -> None:
    session = usual.session()
    session.append("Once upon a time there was a cat")
    prompt = len(session)
    session.generate(max_new_tokens=15, seed=1)
    session.save(tmp_path / "saved")
    ids = [*session.token_ids, 40, 41]
    for model, least, most in ((usual, len(ids) - 5, len(ids)), (exact, prompt - 2, prompt)):
        again = model.load_session(tmp_path / "saved")
        again.append([40, 41])
        found = again.generate(max_new_tokens=5, temperature=0)
        assert least <= found.stats.reused_tokens <= most
    fresh = exact.session()
    fresh.append(ids)
    assert found.token_ids == fresh.generate(max_new_tokens=5, temperature=0).token_ids


def test_scores_do_not_depend_on_what_was_generated(usual: Model, exact: Model) -> None:
    found = usual.generate("Once upon a time", max_new_tokens=20, seed=3)
    text = "Once upon a time" + found.text
    assert usual.score(text).logprobs == exact.score(text).logprobs
