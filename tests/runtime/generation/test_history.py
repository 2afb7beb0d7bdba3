"""The next turn of a conversation reads only what is new; with `exact_history` it reads what was generated once more."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
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


def test_of_samples_the_store_keeps_the_prompt_alone(usual: Model) -> None:
    model = Model(usual.folder, usual.manifest, usual.graph, chat_template=None)
    prompt = "Once upon a time there was a cat. It sat in the sun, and the sun was warm."
    model.generate(prompt, num_return_sequences=6, max_new_tokens=20, seed=1)
    held = model.generator.prefixes.held_bytes
    assert held == usual.new_context().bytes_of(len(model.encode(prompt)))


def test_a_prompt_is_kept_where_its_answer_has_no_room(usual: Model) -> None:
    prompt = "Once upon a time there was a cat. It sat in the sun, and the sun was warm."
    ids = usual.encode(prompt)
    model = Model(
        usual.folder, usual.manifest, usual.graph, chat_template=None, prefix_cache=usual.new_context().bytes_of(len(ids) + 5)
    )
    model.generate(prompt, max_new_tokens=20, temperature=0)
    assert model.generate(prompt, max_new_tokens=1).stats.reused_tokens >= len(ids) - 3


def test_inexact_tokens_do_not_keep_exact_ones_from_the_store(usual: Model, exact: Model) -> None:
    found = usual.generate("Once upon a time there was a cat that sat", max_new_tokens=30, temperature=0)
    ids = [*found.prompt_ids, *found.token_ids, 40, 41]
    context = usual.new_context()
    context.feed(found.prompt_ids)
    for token_id in found.token_ids:
        context.feed([token_id])
    inexact = context.snapshot()
    assert inexact.exact_part(len(ids)) == len(found.prompt_ids) < len(inexact.token_ids)
    model = Model(exact.folder, exact.manifest, exact.graph, chat_template=None, exact_history=True)
    model.generator.prefixes.add(inexact)
    first = model.generate(ids, max_new_tokens=5, temperature=0)
    assert first.stats.reused_tokens <= len(found.prompt_ids)
    assert model.generate(ids, max_new_tokens=5, temperature=0).stats.reused_tokens >= len(ids) - 3


def test_a_folder_of_prompts_gets_no_answers(usual: Model, tmp_path: Path) -> None:
    with onnx_textgen.load(threads=1, device="cpu", prefix_folder=tmp_path) as model:
        prompt = "Once upon a time there was a cat. " * 10
        model.generate(prompt, max_new_tokens=40, temperature=0)
    files = list(tmp_path.glob("prefix-*.npz"))
    with onnx_textgen.load(threads=1, device="cpu", prefix_folder=tmp_path) as again:
        found = again.generate(prompt, max_new_tokens=1, temperature=0)
        assert len(found.prompt_ids) - 3 <= found.stats.reused_tokens
    assert len(files) == 1
    with np.load(files[0]) as arrays:
        assert json.loads(arrays["header"].tobytes())["held"] == len(found.prompt_ids)


def test_the_beginning_of_a_snapshot_has_its_exact_part(usual: Model) -> None:
    context = usual.new_context()
    context.feed(list(range(100, 120)))
    for token_id in range(120, 130):
        context.feed([token_id])
    whole, tensors = context.snapshot(), context.cache.tensors
    assert whole.beginning(30, tensors) is whole
    for length, exact in ((25, 20), (12, 12), (0, 0)):
        found = whole.beginning(length, tensors)
        assert (len(found.token_ids), found.exact_part(length)) == (length, exact)
    again = usual.new_context()
    again.restore(whole.beginning(25, tensors), 25)
    assert again.token_ids == [context.token_ids[0][:25]]
