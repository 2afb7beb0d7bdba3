"""Sound as a user has it: a file, its bytes or samples, to one channel at the rate of a model."""

from __future__ import annotations

import io
import os
import wave
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..errors import AudioError, first_line
from ..extras import remedy

MOST_BYTES = 2 << 30
"""Of a file."""
MOST_CHANNELS, LOWEST_RATE, HIGHEST_RATE = 64, 1000, 768_000
HALF = {1: 128.0, 2: 2.0**15, 3: 2.0**23, 4: 2.0**31}
"""The largest number of a sample, by its bytes."""
Samples = npt.NDArray[np.float32]


def read_sound(source: object, sampling_rate: int | None, wanted: int) -> Samples:
    """The samples [samples] of a sound from -1 to 1, in one channel at `wanted` samples a second.

    source: a path or the bytes of a file, or samples [samples] or [samples, channels] at `sampling_rate`: float from -1 to 1, or
    whole numbers of 16 or 32 bits. WAV at the wanted rate needs nothing else; the rest needs the extra `audio`.
    Raises `AudioError`.
    """
    if isinstance(source, str | os.PathLike | bytes | bytearray | memoryview):
        if sampling_rate is not None:
            raise AudioError("sampling_rate is for samples; a file names its own, so leave it out")
        samples, rate = decoded(source)
    else:
        samples, rate = of_array(source), wanted if sampling_rate is None else sampling_rate
    if not isinstance(rate, int) or isinstance(rate, bool) or not LOWEST_RATE <= rate <= HIGHEST_RATE:
        raise AudioError(f"a sound has {LOWEST_RATE:,} to {HIGHEST_RATE:,} samples a second, found {rate!r:.40}")
    if not len(samples):
        raise AudioError("the sound is empty; give one with samples")
    mono = samples.mean(axis=1, dtype=np.float32) if samples.ndim == 2 else samples
    if not np.isfinite(mono).all():
        raise AudioError("the sound has samples that are not finite")
    return mono if rate == wanted else resampled(mono, rate, wanted)


def of_array(source: object) -> Samples:
    """Samples of a caller as float32 [samples] or [samples, channels]."""
    try:
        given = np.asarray(source)
    except ValueError as error:
        raise AudioError(f"a sound should be a file, bytes or samples ({first_line(error)})") from error
    if given.ndim not in (1, 2) or (given.ndim == 2 and not 1 <= given.shape[1] <= MOST_CHANNELS):
        raise AudioError(f"samples should be [samples] or [samples, channels], found the shape {list(given.shape)}")
    if given.dtype in (np.int16, np.int32):
        return given.astype(np.float32) / np.float32(HALF[given.dtype.itemsize])
    if not np.issubdtype(given.dtype, np.floating):
        raise AudioError(f"samples should be float, int16 or int32, found {given.dtype}")
    return given.astype(np.float32)


def decoded(source: str | os.PathLike[str] | bytes | bytearray | memoryview) -> tuple[Samples, int]:
    """Samples [samples, channels] of a file, and its rate."""
    if isinstance(source, bytes | bytearray | memoryview):
        data = bytes(source)
    else:
        path = Path(source).expanduser()
        try:
            if (size := path.stat().st_size) > MOST_BYTES:
                raise AudioError(f"{path} has {size / 1e9:.1f} GB, and at most {MOST_BYTES / 1e9:.0f} are read; cut it")
            data = path.read_bytes()
        except OSError as error:
            raise AudioError(f"{path} cannot be read ({error.strerror or error})") from error
    found = of_wave(data) if data[:4] == b"RIFF" else None
    return of_library(data) if found is None else found


def of_wave(data: bytes) -> tuple[Samples, int] | None:
    """Samples of a WAV file with plain whole numbers; None for any other."""
    try:
        with wave.open(io.BytesIO(data)) as file:
            channels, width, rate = file.getnchannels(), file.getsampwidth(), file.getframerate()
            raw = file.readframes(file.getnframes())
    except (wave.Error, EOFError):
        return None
    if width not in HALF or not 1 <= channels <= MOST_CHANNELS:
        return None
    raw = raw[: len(raw) // (width * channels) * width * channels]
    if width == 1:
        numbers = np.frombuffer(raw, np.uint8).astype(np.float32) - 128
    elif width == 3:
        parts = np.frombuffer(raw, np.uint8).reshape(-1, 3)
        wide = np.concatenate([np.zeros((len(parts), 1), np.uint8), parts], axis=1).view("<i4")[:, 0]
        numbers = wide.astype(np.float32) / np.float32(256)
    else:
        numbers = np.frombuffer(raw, f"<i{width}").astype(np.float32)
    return (numbers / np.float32(HALF[width])).reshape(-1, channels), rate


def of_library(data: bytes) -> tuple[Samples, int]:
    """Samples of a file in any format that libsndfile knows: FLAC, OGG, MP3, AIFF and others."""
    try:
        import soundfile  # noqa: PLC0415 - an extra
    except (ImportError, OSError) as error:
        raise AudioError(f"the sound is no plain WAV file, and soundfile reads others; {remedy('audio')}") from error
    try:
        samples, rate = soundfile.read(io.BytesIO(data), dtype="float32", always_2d=True)
    except (soundfile.LibsndfileError, RuntimeError, ValueError, TypeError) as error:
        why = getattr(error, "error_string", None) or first_line(error)
        raise AudioError(f"the sound cannot be read ({why.rstrip('.')}); give WAV, FLAC, OGG or MP3") from error
    return samples, int(rate)


def resampled(samples: Samples, rate: int, wanted: int) -> Samples:
    """Samples at another rate."""
    try:
        import soxr  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise AudioError(f"the sound has {rate:,} samples a second; soxr makes {wanted:,} of them: {remedy('audio')}") from error
    found: Samples = soxr.resample(samples, rate, wanted)
    return found
