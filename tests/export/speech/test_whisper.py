"""A Whisper is exported with proof, and writes what transformers writes of the same sound."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration

import onnx_textgen
from onnx_textgen.cancellation import CancelScope
from onnx_textgen.errors import OptionError, PackageError, PromptError
from onnx_textgen.package.manifest import LOG_MEL_GRAPH
from onnx_textgen.speech import transcriber
from onnx_textgen_export import export
from onnx_textgen_export.errors import ExportError
from support.tiny_whisper import SECONDS, write_whisper

RATE = 16_000
pytestmark = pytest.mark.slow


def sound(seed: int, seconds: float = SECONDS) -> Any:
    draw = np.random.default_rng(seed)
    times = np.arange(int(seconds * RATE)) / RATE
    pitches = draw.uniform(80, 4000, 5)
    made = sum(np.sin(2 * np.pi * pitch * times + phase) for phase, pitch in enumerate(pitches)) * np.sin(3 * times) / 8
    return (made + draw.normal(0, 0.02, len(times))).astype(np.float32)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, WhisperForConditionalGeneration]:
    folder = tmp_path_factory.mktemp("whisper") / "checkpoint"
    return folder, write_whisper(folder)


@pytest.fixture(scope="module")
def model(checkpoint: tuple[Path, Any], tmp_path_factory: pytest.TempPathFactory) -> onnx_textgen.Model:
    made = export(checkpoint[0], tmp_path_factory.mktemp("package") / "out")
    return onnx_textgen.load(made.folder, device="cpu", threads=1)


def by_transformers(folder: Path, module: Any, samples: Any, **options: Any) -> list[int]:
    extractor = WhisperFeatureExtractor.from_pretrained(folder)
    features = extractor(samples, sampling_rate=RATE, return_tensors="pt").input_features
    with torch.no_grad():
        found = module.generate(features, do_sample=False, max_new_tokens=48, **options)
    return [each for each in found[0].tolist() if each != module.generation_config.eos_token_id]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("timestamps", [True, False])
@pytest.mark.parametrize("asked_for", [("en", "transcribe"), ("de", "translate")])
def test_tokens_are_those_of_transformers(
    asked_for: tuple[str, str], timestamps: bool, seed: int, checkpoint: tuple[Path, Any], model: onnx_textgen.Model
) -> None:
    folder, module = checkpoint
    samples, (language, task) = sound(seed), asked_for
    options = {"language": language, "task": task, "return_timestamps": timestamps}
    want = by_transformers(folder, module, samples, **options)
    reader = transcriber.Transcriber(model.generator)
    asked = transcriber.Asked(CancelScope(), (0.0,), language=language, task=task, timestamps=timestamps)
    found = reader.attempt(reader.speech.keep(samples), [], 0.0, asked).token_ids
    if timestamps:  # transformers goes on with the sound after the last pair of times
        pieces, _ = reader.pieces(found, SECONDS * 50, asked)
        found = tuple(itertools.chain(*(ids for *_, ids in pieces)))
    count = min(len(found), len(want))
    assert list(found[:count]) == want[:count] and count >= 3


def test_the_language_is_the_one_that_transformers_hears(checkpoint: tuple[Path, Any], model: onnx_textgen.Model) -> None:
    folder, module = checkpoint
    extractor = WhisperFeatureExtractor.from_pretrained(folder)
    for seed in range(4):
        samples = sound(seed)
        features = extractor(samples, sampling_rate=RATE, return_tensors="pt").input_features
        (want,) = module.detect_language(features).tolist()
        about = model.manifest.speech
        assert about is not None
        assert about.languages[model.transcribe(samples, temperature=0).language] == want


def test_windows_follow_each_other(model: onnx_textgen.Model) -> None:
    heard = list[Any]()
    made = model.transcribe(sound(3, 7.3), language="en", temperature=0, on_segment=heard.append)
    assert tuple(heard) == made.segments and made.duration == pytest.approx(7.3, abs=1e-3)
    assert all(each.start <= each.end <= made.duration for each in made.segments)
    assert all(one.start <= other.start for one, other in zip(made.segments, made.segments[1:], strict=False))


def test_the_mean_logprob_is_that_of_the_tokens_that_could_follow(checkpoint: tuple[Path, Any], model: onnx_textgen.Model) -> None:
    folder, module = checkpoint
    samples = sound(2)
    features = WhisperFeatureExtractor.from_pretrained(folder)(samples, sampling_rate=RATE, return_tensors="pt").input_features
    reader = transcriber.Transcriber(model.generator)
    asked = transcriber.Asked(CancelScope(), (0.0,), language="en", timestamps=False)
    found = reader.attempt(reader.speech.keep(samples), [], 0.0, asked)
    settings = module.generation_config
    start = [settings.decoder_start_token_id, settings.lang_to_id["<|en|>"], settings.task_to_id["transcribe"]]
    ids = [*start, settings.no_timestamps_token_id, *found.token_ids]
    with torch.no_grad():
        logits = module(features, decoder_input_ids=torch.tensor([ids])).logits[0, len(start) :]
    logits[:, settings.suppress_tokens] = -torch.inf
    logits[0, settings.begin_suppress_tokens] = -torch.inf
    chosen = logits.log_softmax(-1)[range(len(found.token_ids)), list(found.token_ids)].sum()
    assert len(found.token_ids) == model.manifest.geometry.context_length // 2  # so that no end is counted
    assert found.mean_logprob == pytest.approx(float(chosen) / (len(found.token_ids) + 1), abs=1e-3)


def test_a_call_can_be_ended(model: onnx_textgen.Model) -> None:
    cancel = onnx_textgen.Cancellation()
    cancel.cancel()
    with pytest.raises(onnx_textgen.InterruptedRunError):
        model.transcribe(sound(1, 60), language="en", cancel=cancel)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"task": "sing"}, "task should be"),
        ({"language": "xx"}, "no language"),
        *(({"temperature": each}, "temperature should be") for each in ((), "0.5", [3])),
    ],
)
def test_wrong_options_get_one_line(options: dict[str, Any], why: str, model: onnx_textgen.Model) -> None:
    with pytest.raises(OptionError, match=why):
        model.transcribe(sound(0), **options)


def test_text_is_refused_where_sound_is_read(model: onnx_textgen.Model) -> None:
    with pytest.raises(PromptError, match="reads sound"):
        model.generate("hello")
    with pytest.raises(OptionError, match="reads no sound"):
        onnx_textgen.load(device="cpu", threads=1).transcribe(sound(0))


@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_rounded_packages_are_proved(precision: Any, checkpoint: tuple[Path, Any], tmp_path: Path) -> None:
    made = export(checkpoint[0], tmp_path / "out", precision=precision)
    opened = onnx_textgen.load(made.folder, device="cpu", threads=1)
    assert opened.transcribe(sound(2), language="en", temperature=0).duration == pytest.approx(SECONDS)


def test_golden_runs_and_files_are_verified(model: onnx_textgen.Model, tmp_path: Path) -> None:
    assert LOG_MEL_GRAPH in model.manifest.files
    assert any(run.source_ids for run in model.manifest.golden)
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("manifest.json", *model.manifest.files):
        (copy / name).parent.mkdir(exist_ok=True)
        (copy / name).write_bytes((model.folder / name).read_bytes())
    (copy / LOG_MEL_GRAPH).write_bytes(b"")
    with pytest.raises(PackageError):
        onnx_textgen.load(copy, device="cpu")


def test_a_checkpoint_without_its_extractor_is_refused(checkpoint: tuple[Path, Any], tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="needs its folder"):
        export(checkpoint[1], tmp_path / "out")
