"""What a package says of sound, where the settings of a checkpoint say little."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from transformers import WhisperFeatureExtractor

from onnx_textgen_export.errors import ExportError
from onnx_textgen_export.speech.opening import MULTILINGUAL, record_of
from support.tiny_whisper import tokenizer


def record(vocab_size: int, settings: dict[str, Any], words: Any = None) -> Any:
    config = SimpleNamespace(max_source_positions=1500)
    source = SimpleNamespace(geometry=SimpleNamespace(vocab_size=vocab_size), module=SimpleNamespace(config=config))
    return record_of(cast(Any, source), WhisperFeatureExtractor(), settings, words or tokenizer())


def test_languages_and_tasks_are_those_of_the_tokenizer() -> None:
    words = tokenizer()
    found = record(MULTILINGUAL, {})
    assert found.languages == {code: words.token_to_id(f"<|{code}|>") for code in ("en", "de")}
    assert found.tasks == {task: words.token_to_id(f"<|{task}|>") for task in ("transcribe", "translate")}
    assert (found.no_speech_id, found.previous_id) == tuple(
        words.token_to_id(f"<|{each}|>") for each in ("nospeech", "startofprev")
    )
    assert (found.timestamp_seconds, found.places, found.samples) == (0.02, 1500, 480_000)


@pytest.mark.parametrize(("size", "settings"), [(MULTILINGUAL - 1, {}), (MULTILINGUAL, {"is_multilingual": False})])
def test_a_model_of_english_has_no_languages(size: int, settings: dict[str, Any]) -> None:
    found = record(size, settings | {"begin_suppress_tokens": [3, 4]})
    assert (found.languages, found.tasks, found.never_first_ids) == ({}, {}, (3, 4))


def test_another_tokenizer_is_refused() -> None:
    nothing = SimpleNamespace(token_to_id=lambda _: None, get_vocab=dict)
    with pytest.raises(ExportError, match="the tokenizer has no token"):
        record(MULTILINGUAL, {}, nothing)
