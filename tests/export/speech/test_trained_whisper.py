"""A trained Whisper writes what is said, with the tokens of transformers, and about as many wrong words at 8 bits."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration

import onnx_textgen
from onnx_textgen.speech.sounds import read_sound
from onnx_textgen_export import export
from support.whisper import whisper_checkpoint
from support.wrong_words import words, wrong

RATE = 16_000
SAID = (
    "The committee will meet again on Tuesday morning to discuss the new budget for the public library.",
    "The weather forecast says that it will rain in the north and stay dry in the south.",
    "When the train arrived, all the passengers were already waiting on the platform.",
    "She opened the door, looked at the garden, and decided to plant some tomatoes.",
    "The museum is open every day from nine in the morning until six in the evening.",
    "He forgot his umbrella at the restaurant and had to walk home in the rain.",
    "Good software is easy to change, easy to test, and pleasant to read.",
)
MOST_WRONG = 0.2
"""Of the words, of a voice that a machine makes."""


@pytest.fixture(scope="module")
def spoken(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """Samples of each sentence."""
    if shutil.which("espeak-ng") is None:
        pytest.skip("needs espeak-ng, which speaks the sentences")
    pytest.importorskip("soxr")
    path, found = tmp_path_factory.mktemp("spoken") / "said.wav", list[Any]()
    for text in SAID:
        subprocess.run(["espeak-ng", "-s", "150", "-w", str(path), text], check=True)
        found.append(read_sound(path, None, RATE))
    return found


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return whisper_checkpoint(tmp_path_factory.mktemp("whisper") / "checkpoint")


@pytest.fixture(scope="module")
def model(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> onnx_textgen.Model:
    return onnx_textgen.load(export(checkpoint, tmp_path_factory.mktemp("package") / "out").folder, device="cpu")


@pytest.mark.slow
def test_tokens_are_those_of_transformers(checkpoint: Path, model: onnx_textgen.Model, spoken: list[Any]) -> None:
    reference = WhisperForConditionalGeneration.from_pretrained(checkpoint).eval()
    extractor = WhisperFeatureExtractor.from_pretrained(checkpoint)
    for samples in spoken[:3]:
        features = extractor(samples, sampling_rate=RATE, return_tensors="pt").input_features
        with torch.no_grad():
            want = reference.generate(features, return_timestamps=True)[0].tolist()
        found = model.transcribe(samples, temperature=0)
        ids = [each for segment in found.segments for each in segment.token_ids]
        assert ids == [each for each in want if each != reference.generation_config.eos_token_id]


@pytest.mark.slow
def test_a_long_sound_is_written_in_windows(model: onnx_textgen.Model, spoken: list[Any]) -> None:
    whole = np.concatenate(spoken)
    assert len(whole) > 32 * RATE
    made = model.transcribe(whole)
    assert wrong(words(" ".join(SAID)), words(made.text)) < MOST_WRONG * len(words(" ".join(SAID)))
    places = np.cumsum([0, *(len(each) / RATE for each in spoken)])
    for start in places[:-1]:  # a segment begins where a sentence does
        assert min(abs(each.start - start) for each in made.segments) < 1


@pytest.mark.slow
def test_silence_has_no_text(model: onnx_textgen.Model) -> None:
    assert not model.transcribe(np.zeros(4 * RATE, np.float32)).text


@pytest.mark.rare
def test_eight_bits_get_about_as_many_words_wrong(
    checkpoint: Path, model: onnx_textgen.Model, spoken: list[Any], tmp_path: Path
) -> None:
    small = onnx_textgen.load(export(checkpoint, tmp_path / "out", precision="int8").folder, device="cpu")
    wanted = [words(text) for text in SAID]

    def share(opened: onnx_textgen.Model) -> float:
        made = [words(opened.transcribe(samples).text) for samples in spoken]
        return sum(map(wrong, wanted, made)) / sum(map(len, wanted))

    assert share(model) < MOST_WRONG
    assert share(small) < share(model) + 0.05
