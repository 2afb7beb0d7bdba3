"""Sound of any form becomes samples of one channel at the rate of a model, or one line says why not."""

from __future__ import annotations

import io
import re
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnx_textgen.errors import AudioError
from onnx_textgen.installation import add_extra
from onnx_textgen.speech import sounds
from onnx_textgen.speech.sounds import read_sound

RATE = 16_000
TONE = (0.5 * np.sin(2 * np.pi * 440 * np.arange(RATE) / RATE)).astype(np.float32)


def wav(samples: Any, *, rate: int = RATE, subtype: str = "PCM_16", form: str = "WAV") -> bytes:
    soundfile = pytest.importorskip("soundfile")
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=form, subtype=subtype)
    return file.getvalue()


@pytest.mark.parametrize(("subtype", "step"), [("PCM_U8", 2**-7), ("PCM_16", 2**-15), ("PCM_24", 2**-23), ("PCM_32", 2**-23)])
def test_wav_of_each_width_is_read_without_a_library(subtype: str, step: float, monkeypatch: pytest.MonkeyPatch) -> None:
    data = wav(TONE, subtype=subtype)
    monkeypatch.setattr(sounds, "opened_by_library", None)
    assert np.abs(read_sound(data, None, RATE) - TONE).max() <= 2 * step


@pytest.mark.parametrize(("form", "subtype", "most"), [("FLAC", "PCM_16", 1e-4), ("OGG", "VORBIS", 0.1), ("WAV", "FLOAT", 0)])
def test_other_forms_are_read_by_the_library(form: str, subtype: str, most: float, tmp_path: Path) -> None:
    path = tmp_path / "tone"
    path.write_bytes(wav(TONE, form=form, subtype=subtype))
    found = read_sound(path, None, RATE)
    assert len(found) == len(TONE) and np.abs(found - TONE).max() <= most


def test_channels_are_joined_and_rates_converted() -> None:
    pytest.importorskip("soxr")
    times = np.arange(44_100) / 44_100
    both = np.stack([np.sin(2 * np.pi * 440 * times), np.zeros_like(times)], axis=1).astype(np.float32)
    found = read_sound(both, 44_100, RATE)
    assert found.shape == (RATE,) and np.abs(found[200:-200] - TONE[200:-200]).max() < 1e-3


def test_arrays_of_whole_numbers_are_scaled() -> None:
    for kind in (np.int16, np.int32):
        numbers = (TONE * np.iinfo(kind).max).astype(kind)
        assert np.abs(read_sound(numbers, RATE, RATE) - TONE).max() < 1e-4


@pytest.mark.parametrize(
    ("sound", "rate", "why"),
    [
        (np.zeros(0, np.float32), RATE, "empty"),
        (np.zeros((2, 2, 2), np.float32), RATE, "the shape"),
        (np.zeros(8, bool), RATE, "float, int16 or int32"),
        (np.full(8, np.nan), RATE, "not finite"),
        (TONE, 3, "samples a second"),
        (TONE, 16_000.5, "samples a second"),
        (b"abc", RATE, "leave it out"),
        (Path("missing.wav"), None, "cannot be read"),
        (b"RIFF", None, "cannot be read"),
        ([[1.0], [1.0, 2.0]], RATE, "a file, bytes or samples"),
    ],
)
def test_what_is_no_sound_gets_one_line(sound: Any, rate: Any, why: str) -> None:
    pytest.importorskip("soundfile")
    with pytest.raises(AudioError, match=why) as error:
        read_sound(sound, rate, RATE)
    assert "\n" not in str(error.value)


def test_missing_libraries_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    flac, slow = wav(TONE, form="FLAC"), wav(TONE[::2], rate=RATE // 2)
    monkeypatch.setitem(__import__("sys").modules, "soundfile", None)
    monkeypatch.setitem(__import__("sys").modules, "soxr", None)
    for data in (flac, slow):
        with pytest.raises(AudioError, match=re.escape(add_extra("audio"))):
            read_sound(data, None, RATE)


def test_a_small_file_of_long_silence_is_refused_before_it_fills_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sounds, "BLOCK", 4096)
    monkeypatch.setattr(sounds, "MOST_HOURS", 1 / 3600)
    silence = np.zeros(3 * RATE, np.float32)
    for data in (wav(silence, form="FLAC"), wav(silence)):
        with pytest.raises(AudioError, match="longer than"):
            read_sound(data, None, RATE)


@given(st.integers(50, 50_000), st.sampled_from([8000, 22_050, 44_100, 48_000]))
def test_blocks_make_one_sound(count: int, rate: int) -> None:
    soxr = pytest.importorskip("soxr")
    samples = np.random.default_rng(count).normal(0, 0.1, count).astype(np.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sounds, "BLOCK", 1024)
        found = read_sound(wav(samples, rate=rate, subtype="FLOAT"), None, RATE)
    want = soxr.resample(samples, rate, RATE)
    assert len(found) == len(want) and np.abs(found - want).max() < 1e-5


@given(st.binary(max_size=200), st.sampled_from([b"", b"RIFF\x24\x00\x00\x00WAVEfmt ", b"fLaC", b"OggS"]))
def test_any_bytes_are_refused_or_are_sound(tail: bytes, head: bytes) -> None:
    pytest.importorskip("soundfile")
    try:
        found = read_sound(head + tail, None, RATE)
    except AudioError as error:
        assert "\n" not in str(error)
    else:
        assert np.isfinite(found).all()


@given(st.integers(0, 60))
def test_a_file_that_is_cut_off_is_read_as_far_as_it_goes(size: int) -> None:
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(2)
        writer.setsampwidth(2)
        writer.setframerate(RATE)
        writer.writeframes(np.arange(64, dtype="<i2").tobytes())
    data = file.getvalue()[:44] + file.getvalue()[44 : 44 + size]
    if size < 4:  # less than a sample of both channels
        with pytest.raises(AudioError):
            read_sound(data, None, RATE)
    else:
        assert len(read_sound(data, None, RATE)) == size // 4


@given(st.integers(4, 60), st.integers(0, 255), st.integers(0, 255))
def test_a_wav_file_whose_sizes_lie_gets_one_line(place: int, byte: int, other: int) -> None:
    pytest.importorskip("soundfile")
    data = bytearray(wav(TONE[:200]))
    data[place : place + 2] = bytes([byte, other])
    try:
        found = read_sound(bytes(data), None, RATE)
    except AudioError as error:
        assert "\n" not in str(error)
    else:
        assert np.isfinite(found).all()


@pytest.mark.parametrize("path", ["~nobody-of-this-name/a.wav", "a\0b"])
def test_a_path_that_is_none_gets_one_line(path: str) -> None:
    with pytest.raises(AudioError, match="cannot be read"):
        read_sound(path, None, RATE)


def test_a_rate_of_numpy_is_a_rate() -> None:
    assert len(read_sound(TONE, np.int64(RATE), RATE)) == len(TONE)  # type: ignore[arg-type]
