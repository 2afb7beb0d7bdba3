"""The rules of times are those of transformers, for any text and any scores."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnx_textgen.package.manifest import SpeechRecord
from onnx_textgen.speech.timestamps import TimestampRule

END, NO_TIMES, SIZE, LATEST, PROMPT = 20, 24, 60, 12, 3
ABOUT = SpeechRecord(16_000, 32_000, 100, NO_TIMES, 0.02, LATEST, 23, 22)
TEXT, TIME = st.integers(0, END - 1), st.integers(NO_TIMES + 1, SIZE - 1)


@given(st.lists(TEXT | TIME, max_size=8), st.integers(0, 2**32 - 1), st.floats(0.1, 8))
@settings(max_examples=300)
def test_scores_are_those_of_transformers(text: list[int], seed: int, spread: float) -> None:
    torch = pytest.importorskip("torch")
    from transformers.generation.logits_process import WhisperTimeStampLogitsProcessor  # noqa: PLC0415

    config = SimpleNamespace(
        no_timestamps_token_id=NO_TIMES, eos_token_id=END, bos_token_id=END, max_initial_timestamp_index=LATEST
    )
    theirs = WhisperTimeStampLogitsProcessor(config, begin_index=PROMPT)
    ids = [21, 1, 2, *text]
    scores = np.random.default_rng(seed).normal(0, spread, SIZE).astype(np.float32)
    want = theirs(torch.tensor([ids]), torch.from_numpy(scores.copy())[None])[0].numpy()
    found = TimestampRule(ABOUT, PROMPT, END)(ids, scores)
    np.testing.assert_array_equal(found, want)


def test_a_text_without_times_is_free_but_for_its_first_token() -> None:
    rule = TimestampRule(dataclasses.replace(ABOUT, never_first_ids=(4, END)), PROMPT, END, with_times=False)
    assert np.flatnonzero(np.isinf(rule([21, 1, 2], np.zeros(SIZE)))).tolist() == [4, END]
    assert np.isfinite(rule([21, 1, 2, 7], np.zeros(SIZE))).all()
