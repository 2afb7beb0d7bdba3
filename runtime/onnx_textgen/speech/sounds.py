"""Sound as a user has it: a file, its bytes or samples, to one channel at the rate of a model."""

from __future__ import annotations

import contextlib
import io
import operator
import os
import wave
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..errors import AudioError, first_line
from ..extras import remedy
from ..options.checks import shown

MOST_BYTES, MOST_HOURS = 1 << 30, 4
"""Of a file, and of a sound: a small file may hold days of silence."""
MOST_CHANNELS, LOWEST_RATE, HIGHEST_RATE = 64, 1000, 768_000
HALF = {1: 128.0, 2: 2.0**15, 3: 2.0**23, 4: 2.0**31}
"""The largest number of a sample, by its bytes."""
BLOCK = 1 << 20
"""Samples that are decoded together, of all channels."""
Samples = npt.NDArray[np.float32]
Blocks = Iterator[Samples]


def read_sound(source: object, sampling_rate: int | None, wanted: int) -> Samples:
    """The samples [samples] of a sound from -1 to 1, in one channel at `wanted` samples a second.

    source: a path or the bytes of a file, or samples [samples] or [samples, channels] at `sampling_rate`: float from -1 to 1, or
    whole numbers of 16 or 32 bits. WAV at the wanted rate needs nothing else; the rest needs the extra `audio`.
    Raises `AudioError`.
    """
    if isinstance(source, str | os.PathLike | bytes | bytearray | memoryview):
        if sampling_rate is not None:
            raise AudioError("sampling_rate is for samples; a file names its own, so leave it out")
        rate, blocks = opened(content_of(source))
    else:
        rate, blocks = wanted if sampling_rate is None else sampling_rate, iter([of_array(source)])
    try:
        rate = operator.index(rate)
    except TypeError:
        rate = 0
    if not LOWEST_RATE <= rate <= HIGHEST_RATE:
        raise AudioError(f"a sound has {LOWEST_RATE:,} to {HIGHEST_RATE:,} samples a second, found {shown(sampling_rate or rate)}")
    mono = within_limit(blocks, rate)
    parts = list(mono if rate == wanted else resampled(mono, rate, wanted))
    found: Samples = np.concatenate(parts) if parts else np.zeros(0, np.float32)
    if not len(found):
        raise AudioError("the sound is empty; give one with samples")
    if not np.isfinite(found).all():
        raise AudioError("the sound has samples that are not finite")
    return found


def within_limit(blocks: Blocks, rate: int) -> Blocks:
    """Blocks [samples] in one channel; raises `AudioError` for a sound that is too long."""
    count = 0
    for block in blocks:
        count += len(block)
        if count > MOST_HOURS * 3600 * rate:
            raise AudioError(f"the sound is longer than {MOST_HOURS} hours; cut it")
        yield block.mean(axis=1, dtype=np.float32) if block.ndim > 1 else block


def of_array(source: object) -> Samples:
    """Samples of a caller as float32 [samples] or [samples, channels]."""
    try:
        given = np.asarray(source)
    except ValueError as error:
        raise AudioError(f"a sound should be a file, bytes or samples ({first_line(error)})") from error
    if given.ndim not in (1, 2) or (given.ndim > 1 and not 1 <= given.shape[1] <= MOST_CHANNELS):
        raise AudioError(f"samples should be [samples] or [samples, channels], found the shape {list(given.shape)}")
    if given.dtype in (np.int16, np.int32):
        return given.astype(np.float32) / np.float32(HALF[given.dtype.itemsize])
    if not np.issubdtype(given.dtype, np.floating):
        raise AudioError(f"samples should be float, int16 or int32, found {given.dtype}")
    return given.astype(np.float32)


def content_of(source: str | os.PathLike[str] | bytes | bytearray | memoryview) -> bytes:
    """The bytes of a file."""
    if isinstance(source, bytes | bytearray | memoryview):
        return bytes(source)
    try:
        with Path(source).expanduser().open("rb") as file:
            data = file.read(MOST_BYTES + 1)  # a pipe does not say how much it has
    except (OSError, RuntimeError, ValueError) as error:
        why = getattr(error, "strerror", None) or first_line(error)
        raise AudioError(f"{shown(os.fspath(source))} cannot be read ({why})") from error
    if len(data) > MOST_BYTES:
        raise AudioError(f"{source} has more than {MOST_BYTES / 1e9:.1f} GB; cut it")
    return data


def opened(data: bytes) -> tuple[int, Blocks]:
    """The rate of a file, and its samples in blocks [samples, channels]."""
    found = opened_wave(data) if data[:4] == b"RIFF" else None
    return opened_by_library(data) if found is None else found


def opened_wave(data: bytes) -> tuple[int, Blocks] | None:
    """`opened` for a WAV file with plain whole numbers; None for any other."""
    try:
        file = wave.open(io.BytesIO(data))  # noqa: SIM115 - closed with its bytes
    except (wave.Error, EOFError, RuntimeError, ValueError):  # the last two of chunks that lie about their sizes
        return None
    channels, width = file.getnchannels(), file.getsampwidth()
    if width not in HALF or not 1 <= channels <= MOST_CHANNELS:
        return None

    def blocks() -> Blocks:
        while raw := frames_of(file, BLOCK // channels):
            raw = raw[: len(raw) // (width * channels) * width * channels]  # the last sample may be cut off
            yield (of_bytes(raw, width) / np.float32(HALF[width])).reshape(-1, channels)

    return file.getframerate(), blocks()


def frames_of(file: wave.Wave_read, count: int) -> bytes:
    """The next frames of a WAV file; none after a place that cannot be read."""
    try:
        return file.readframes(count)
    except (wave.Error, EOFError, RuntimeError, ValueError):
        return b""


def of_bytes(raw: bytes, width: int) -> Samples:
    """Whole numbers of `width` bytes."""
    if width == 1:
        return np.frombuffer(raw, np.uint8).astype(np.float32) - np.float32(HALF[1])
    if width in (2, 4):
        return np.frombuffer(raw, f"<i{width}").astype(np.float32)
    parts = np.frombuffer(raw, np.uint8).reshape(-1, width)
    wide = np.concatenate([np.zeros((len(parts), 1), np.uint8), parts], axis=1).view("<i4")[:, 0]
    return wide.astype(np.float32) / np.float32(256)


def opened_by_library(data: bytes) -> tuple[int, Blocks]:
    """`opened` for any format that libsndfile knows: FLAC, OGG, MP3, AIFF and others."""
    try:
        import soundfile  # noqa: PLC0415 - an extra
    except (ImportError, OSError) as error:
        raise AudioError(f"the sound is no plain WAV file, and soundfile reads others; {remedy('audio')}") from error
    with no_sound():
        file = soundfile.SoundFile(io.BytesIO(data))
    channels = max(1, file.channels)

    def blocks() -> Blocks:
        while True:
            with no_sound():
                block = file.read(BLOCK // channels, dtype="float32", always_2d=True)
            if not len(block):
                return
            yield block

    return int(file.samplerate), blocks()


@contextlib.contextmanager
def no_sound() -> Iterator[None]:
    """Raise the library's errors as `AudioError`."""
    try:
        yield
    except (RuntimeError, ValueError, TypeError) as error:  # the library's are the first
        why = getattr(error, "error_string", None) or first_line(error)
        raise AudioError(f"the sound cannot be read ({why.rstrip('.')}); give WAV, FLAC, OGG or MP3") from error


def resampled(blocks: Blocks, rate: int, wanted: int) -> Blocks:
    """The same sound at another rate."""
    try:
        import soxr  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise AudioError(f"the sound has {rate:,} samples a second; soxr makes {wanted:,} of them: {remedy('audio')}") from error
    stream = soxr.ResampleStream(rate, wanted, 1, dtype="float32")
    for block in blocks:
        yield stream.resample_chunk(block)
    yield stream.resample_chunk(np.zeros(0, np.float32), last=True)
