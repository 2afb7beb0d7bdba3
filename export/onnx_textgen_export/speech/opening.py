"""Opens what reads the sound of a checkpoint: its feature extractor as a graph, and its control tokens."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx_ir as ir
import onnxruntime
from tokenizers import Tokenizer
from transformers import AutoFeatureExtractor

from onnx_textgen.errors import first_line
from onnx_textgen.package.hf_settings import read_json
from onnx_textgen.package.manifest import LOG_MEL_GRAPH, SpeechRecord
from onnx_textgen.speech.speech_encoder import SOUND

from ..errors import ExportError, innermost
from ..sources.source import Source
from .log_mel import log_mel_graph
from .settings_for_others import write_speech_settings

MOST_APART = 1e-3
"""How far a feature may be from the extractor's, which computes in double precision; they go from -1 to 1.5."""
MULTILINGUAL = 51_865
"""Tokens from which on a Whisper knows more languages than English, where its settings do not say."""
LANGUAGE = re.compile(r"<\|[a-z]{2,3}\|>")
NEVER_FIRST = "begin_suppress_tokens"
"""The setting of ids that no text begins with, which `Model.transcribe` follows."""
TIMES = 1501
"""Tokens of times: each 20 ms of 30 seconds."""


@dataclasses.dataclass(frozen=True, slots=True)
class Speech:
    """What reads the sound of a model."""

    graph: ir.Model
    apart: float
    """The largest difference of a feature from the extractor's."""
    record: SpeechRecord
    others: Callable[[Path], None]
    """Writes the settings for other runtimes into a folder with graphs for them."""

    def write(self, folder: Path) -> dict[str, Any]:
        """Write the graph; returns an entry of the certificate."""
        ir.save(self.graph, folder / LOG_MEL_GRAPH)
        self.others(folder)
        return {"log_mel_error": self.apart}


def open_speech(source: Source, folder: Path | None, tokenizer: Tokenizer | None) -> Speech:
    """What reads the sound of a checkpoint; raises `ExportError` if nothing says how, or it is read in another way."""
    encoder = source.encoder
    assert encoder is not None and encoder.features is not None, "the caller has looked"
    if folder is None or tokenizer is None or not (folder / "preprocessor_config.json").is_file():
        raise ExportError("a model that reads sound needs its folder, with preprocessor_config.json and a tokenizer")
    try:
        extractor: Any = cast(Any, AutoFeatureExtractor).from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:
        raise ExportError(f"its feature extractor cannot be opened ({first_line(innermost(error))})") from error
    names = ("n_fft", "hop_length", "n_samples", "mel_filters", "sampling_rate")
    if any(not hasattr(extractor, name) for name in names):
        raise ExportError(f"{type(extractor).__name__} computes other features than Whisper's, which cannot be exported yet")
    graph = log_mel_graph(extractor)
    apart = largest_difference(graph, extractor)
    if not apart <= MOST_APART:
        raise ExportError(f"the graph of {type(extractor).__name__} differs from it by {apart:.1e}, so nothing was written")
    mels, frames = encoder.features
    if (extractor.feature_size, extractor.n_samples // extractor.hop_length) != (mels, frames):
        raise ExportError(f"the feature extractor makes other features than the encoder takes, [{mels}, {frames}]")
    settings, config = read_json(folder / "generation_config.json"), cast(Any, source.module).config
    others = functools.partial(write_speech_settings, config=config, generation=settings, extractor=extractor.to_dict())
    return Speech(graph, apart, record_of(source, extractor, settings, tokenizer), others)


def record_of(source: Source, extractor: Any, settings: Mapping[str, Any], tokenizer: Tokenizer) -> SpeechRecord:  # noqa: ANN401
    """What the manifest says of sound; raises `ExportError` for a tokenizer without the control tokens of Whisper."""

    def id_of(*names: str) -> int:
        known = (tokenizer.token_to_id(f"<|{name}|>") for name in names)
        found: int | None = next((number for number in known if number is not None), None)
        if found is None:
            raise ExportError(f"the tokenizer has no token <|{names[0]}|>, by which a text is asked for")
        return found

    languages, tasks = dict[str, int](), dict[str, int]()
    if settings.get("is_multilingual", source.geometry.vocab_size >= MULTILINGUAL):
        known = {token: number for token, number in tokenizer.get_vocab().items() if LANGUAGE.fullmatch(token)}
        named = settings.get("lang_to_id") or known
        languages = {token.strip("<|>"): number for token, number in named.items()}
        tasks = {task: id_of(task) for task in ("transcribe", "translate")}
    return SpeechRecord(
        extractor.sampling_rate,
        extractor.n_samples,
        int(cast(Any, source.module).config.max_source_positions),
        settings.get("no_timestamps_token_id") or id_of("notimestamps"),
        extractor.n_samples / extractor.sampling_rate / (TIMES - 1),
        settings.get("max_initial_timestamp_index") or 50,
        id_of("nospeech", "nocaptions"),
        settings.get("prev_sot_token_id") or id_of("startofprev"),
        languages,
        tasks,
        tuple(settings.get(NEVER_FIRST) or ()),
    )


def largest_difference(graph: ir.Model, extractor: Any) -> float:  # noqa: ANN401 - a feature extractor of transformers
    """The largest difference of a feature, over sounds: noise, tones, one that swells, silence, one that is too long."""
    session = onnxruntime.InferenceSession(ir.to_proto(graph).SerializeToString(), providers=["CPUExecutionProvider"])
    rate, largest = extractor.sampling_rate, 0.0
    times = np.arange(3 * rate) / rate
    draw = np.random.default_rng(0)
    tones = sum(0.2 * np.sin(2 * math.pi * pitch * times) for pitch in (110, 997, 3301))
    sounds = [draw.normal(0, 0.2, 2 * rate), tones, times / 3 * np.sin(2 * math.pi * 440 * times), np.zeros(rate), np.ones(1)]
    for sound in [*sounds, draw.normal(0, 0.01, extractor.n_samples + rate)]:
        samples = np.asarray(sound, np.float32)
        want = extractor(samples, sampling_rate=rate, return_tensors="np")["input_features"]
        (found,) = session.run(None, {SOUND: samples})
        largest = max(largest, float(np.abs(found - want).max()))
    return largest
