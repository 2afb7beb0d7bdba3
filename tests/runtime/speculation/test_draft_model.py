"""A smaller model that guesses saves runs of the large one, and changes nothing of its texts."""

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

pytest.importorskip("onnx")

import onnx_textgen
from onnx_textgen import Cancellation, Model
from onnx_textgen.cancellation import CancelScope
from onnx_textgen.errors import ModelError, OptionError
from onnx_textgen.generation.request import Request
from onnx_textgen.inference.decoder import Decoder
from support.cache_graphs import VOCAB_SIZE, Attention, Recurrent, Tiny

PROMPT = [7, 30, 41, 9, 12, 77, 5, 64]
CHOOSING = [
    {"temperature": 0},
    {"temperature": 0.4, "seed": 3},
    {"temperature": 1.0, "top_k": 20, "seed": 5},
    {"repetition_penalty": 1.3, "dry_multiplier": 0.8, "seed": 1},
]
GUESSING = {"assistant_confidence_threshold": 1e-9}
"""Models of random weights are never sure of anything."""


def with_assistant(model: Model, other: Model, **options: int) -> Model:
    """A model with an assistant that counts as small; the fast way of checking is its default where it has no other."""
    found = onnx_textgen.load(model.folder, threads=1, device="cpu", assistant_model=other, **options)
    object.__setattr__(found.generator.assistant, "cost", 0.1)
    if not found.generator.verification.verifier():
        object.__setattr__(found.manifest, "generation", found.manifest.generation | {"draft_verification": "fast"})
    return found


class Hazy:
    """A decoder that sees its logits through noise, which the text's length decides."""

    def __init__(self, decoder: Decoder, haze: float) -> None:
        self.__dict__.update(decoder=decoder, haze=haze)

    def __getattr__(self, name: str) -> object:
        return getattr(self.decoder, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self.decoder, name, value)

    def feed(self, token_ids: list[int], **_: object) -> np.ndarray:
        logits = self.decoder.feed(token_ids)
        random = np.random.default_rng(len(self.decoder.token_ids[0]))
        return logits + random.normal(0, self.haze, logits.shape).astype(np.float32)


@pytest.fixture(params=[0.0, 0.3, 10.0])
def assisted(request: pytest.FixtureRequest, exact: Model, monkeypatch: pytest.MonkeyPatch) -> Iterator[Model]:
    """A model that guesses for itself: clearly, through some noise, and through nothing but noise."""
    model = with_assistant(exact, exact)
    assert model.generator.assistant is not None
    real = model.generator.assistant.new_decoder
    object.__setattr__(model.generator.assistant, "new_decoder", lambda: Hazy(real(), request.param))
    return model


@pytest.mark.parametrize("options", CHOOSING)
def test_texts_are_those_without_an_assistant(exact: Model, assisted: Model, options: dict) -> None:
    for prompt in (PROMPT, [5], list(range(3, 60))):
        wanted = {"max_new_tokens": 60, "ignore_eos": True, **options}
        plain, found = exact.generate(prompt, **wanted), assisted.generate(prompt, **wanted, **GUESSING)
        streamed = [i for chunk in assisted.stream(prompt, **wanted, **GUESSING) for i in chunk.token_ids]
        assert found.token_ids == plain.token_ids == tuple(streamed)
        assert 0 < found.stats.drafted_tokens >= found.stats.accepted_tokens


def test_a_clear_assistant_is_always_right_and_saves_runs(exact: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    model = with_assistant(exact, exact, prefix_cache=0)
    verifier = model.generator.verification.verifier()
    sessions = [model.graph.ort, *([verifier.session.ort] if verifier else [])]
    runs, real = [0], type(model.graph.ort).run_with_iobinding

    def run(ort: object, *given: object) -> object:
        runs[0] += ort in sessions
        return real(ort, *given)

    monkeypatch.setattr(type(model.graph.ort), "run_with_iobinding", run)
    for options in ({"temperature": 0}, {"temperature": 1.0, "seed": 4}):  # drawn with the same random numbers
        runs[0] = 0
        stats = model.generate(PROMPT, max_new_tokens=100, ignore_eos=True, **options, **GUESSING).stats
        assert stats.accepted_tokens == stats.drafted_tokens > 80
        assert runs[0] == 100 - stats.accepted_tokens


def test_an_assistant_goes_with_rules_stops_sessions_shifts_and_other_callers(exact: Model, assisted: Model) -> None:
    for options in (
        {"regex": "(ab|cd){3,9}x"},
        {"stop": ["a"], "temperature": 1.1},
        {"loop_guard": "stop"},
        {"context_limit": "shift", "ignore_eos": True},
        {"logprobs": 2},
        {"prompt_lookup_num_tokens": 4},
    ):
        if "regex" in options:
            pytest.importorskip("llguidance")
        size = 200 if "context_limit" in options else 50
        plain = exact.generate(PROMPT, max_new_tokens=size, seed=2, **options)
        found = assisted.generate(PROMPT, max_new_tokens=size, seed=2, **options, **GUESSING)
        assert (found.text, found.token_ids, found.finish_reason) == (plain.text, plain.token_ids, plain.finish_reason)
    session = assisted.session()
    session.append(PROMPT)
    for turn in range(3):
        ids = list(session.token_ids)
        found = session.generate(max_new_tokens=20, seed=turn, ignore_eos=True, **GUESSING)
        assert found.token_ids == exact.generate(ids, max_new_tokens=20, seed=turn, ignore_eos=True).token_ids
        session.append([7, 30])
    prompts = [PROMPT * 2, [9, 8], PROMPT]
    options = {"max_new_tokens": 40, "seed": 1, "ignore_eos": True}
    plain, found = exact.generate(prompts, **options), assisted.generate(prompts, **options, **GUESSING)
    assert [each.token_ids for each in found] == [each.token_ids for each in plain]


@pytest.mark.slow
@pytest.mark.parametrize("way", ["exact", "fast"])
def test_drawn_tokens_have_the_models_own_distribution(way: Literal["exact", "fast"], tmp_path: Path) -> None:
    """The second new token's, over all first ones, against probabilities from NumPy; by a chi-square test."""
    tiny, other = Tiny((Attention(0, shared=way == "exact"),)), Tiny((Attention(0), Attention(1)))
    for name, each in (("large", tiny), ("small", other)):
        (tmp_path / name).mkdir()
        each.package(tmp_path / name)
    model = onnx_textgen.load(tmp_path / "large", threads=1, device="cpu", assistant_model=tmp_path / "small")
    object.__setattr__(model.generator.assistant, "cost", 0.01)
    prompt, draws = [5, 9, 1], 1500

    def probabilities(ids: list[int]) -> np.ndarray:
        logits = tiny.logits(ids)[-1].astype(np.float64)
        return np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()

    expected = draws * sum(p * probabilities([*prompt, i]) for i, p in enumerate(probabilities(prompt)))
    found = [
        model.generate(
            prompt, max_new_tokens=4, temperature=1.0, seed=seed, assistant_confidence_threshold=1e-9, draft_verification=way
        )
        for seed in range(draws)
    ]
    drafted, accepted = (sum(getattr(each.stats, f"{name}_tokens") for each in found) for name in ("drafted", "accepted"))
    assert draws / 10 < accepted < drafted * 0.95, "else nothing is tested"
    counts = np.bincount([each.token_ids[1] for each in found], minlength=VOCAB_SIZE)
    freedom = VOCAB_SIZE - 1
    assert np.sum((counts - expected) ** 2 / expected) < freedom + 5 * np.sqrt(2 * freedom)


def test_it_guesses_no_further_than_it_is_sure(exact: Model) -> None:
    model = with_assistant(exact, exact)
    stats = model.generate(PROMPT, max_new_tokens=60, ignore_eos=True, assistant_confidence_threshold=1.0).stats
    assert stats.drafted_tokens == 0
    assert model.generate(PROMPT, max_new_tokens=60, num_assistant_tokens=0).stats.drafted_tokens == 0


def test_an_assistant_that_fails_is_left_out(exact: Model, monkeypatch: pytest.MonkeyPatch, caplog) -> None:
    model = with_assistant(exact, exact)
    real = model.generator.assistant.new_decoder

    def broken() -> Decoder:
        decoder, runs = real(), [0]

        def feed(token_ids: list[int], **_: object) -> np.ndarray:
            runs[0] += 1
            if runs[0] > 5:
                raise ModelError("no memory")
            return Decoder.feed(decoder, token_ids)

        monkeypatch.setattr(decoder, "feed", feed)
        return decoder

    object.__setattr__(model.generator.assistant, "new_decoder", broken)
    found = model.generate(PROMPT, max_new_tokens=60, ignore_eos=True, seed=1, **GUESSING)
    assert found.token_ids == exact.generate(PROMPT, max_new_tokens=60, ignore_eos=True, seed=1).token_ids
    assert [each for each in caplog.messages if "assistant" in each] == [
        "the assistant model failed and drafts no more tokens for this text: no memory"
    ]


def test_the_memory_of_an_assistant_ends_with_the_text(exact: Model) -> None:
    model, made = with_assistant(exact, exact), list[weakref.ref]()
    real = model.generator.assistant.new_decoder

    def new_decoder() -> Decoder:
        decoder = real()
        made.append(weakref.ref(decoder))
        return decoder

    object.__setattr__(model.generator.assistant, "new_decoder", new_decoder)
    model.generator.engine.scheduler.most_rows = 1
    results = model.generate([[7, i] for i in range(10)], max_new_tokens=20, ignore_eos=True, seed=1, **GUESSING)
    gc.collect()
    assert sum(each.stats.drafted_tokens for each in results) > 0
    assert len(made) == 10
    assert not any(each() for each in made)


def test_each_of_several_texts_is_guessed_with_its_own_random_numbers(exact: Model) -> None:
    model = with_assistant(exact, exact)
    config = model.generator.config({"max_new_tokens": 60, "ignore_eos": True, "temperature": 1.0, "seed": 3, **GUESSING})
    for sample in (0, 1, 5):
        continuation = model.generator.begin(PROMPT, config, sample=sample)
        model.generator.engine.finish([Request(continuation, CancelScope(), streams=False)])
        assert continuation.drafter.accepted == continuation.drafter.drafted > 30


def test_cancelling_and_deadlines_reach_the_assistants_runs(exact: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    model = with_assistant(exact, exact)
    real, cancel = model.generator.assistant.new_decoder, Cancellation()

    def cancelling() -> Decoder:
        cancel.cancel()
        return real()

    object.__setattr__(model.generator.assistant, "new_decoder", cancelling)
    found = model.generate(PROMPT, max_new_tokens=60, ignore_eos=True, cancel=cancel, seed=1)
    assert (found.finish_reason, len(found.token_ids)) == ("cancelled", 1)


def test_a_model_that_cannot_draft_for_another_is_refused(story: Model, exact: Model, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"cannot draft for .*: id 0 is '.*' in one and '.*' in the other; take a model with the"):
        onnx_textgen.load(threads=1, device="cpu", assistant_model="tiny-transformer")
    Tiny((Recurrent(0),)).package(tmp_path)
    with pytest.raises(OptionError, match="one of them has no tokenizer"):
        onnx_textgen.load(threads=1, device="cpu", assistant_model=tmp_path)
    with pytest.raises(OptionError, match="cannot draft: its recurrent states"):
        onnx_textgen.load(tmp_path, threads=1, device="cpu", assistant_model=tmp_path)
    with pytest.raises(OptionError, match="num_assistant_tokens needs a draft model"):
        exact.generate(PROMPT, num_assistant_tokens=4)
    assert exact.generate(PROMPT, max_new_tokens=2, num_assistant_tokens=0).stats.drafted_tokens == 0
    model = with_assistant(exact, exact)
    with pytest.raises(OptionError, match="num_assistant_tokens cannot take effect with more than one text"):
        model.generate(PROMPT, num_assistant_tokens=4, num_return_sequences=2)
    assert model.generate(PROMPT, num_beams=2, max_new_tokens=3).text
