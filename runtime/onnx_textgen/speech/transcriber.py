"""Writes down what is said in a sound: window by window, each where the last one's times end.

Windows, fallbacks and limits are those of Whisper's paper (arXiv 2212.04356, section 4.5).
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import cast

import numpy as np

from ..cancellation import CancelScope
from ..errors import OptionError
from ..generation.request import Request
from ..options.checks import shown
from ..results import Segment, Transcription
from ..tasks.text_generator import TextGenerator
from .sounds import read_sound
from .speech_encoder import Samples, SpeechEncoder, Window
from .timestamps import TimestampRule

TEMPERATURES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
"""Tried one after the other, until a text is neither repetitive nor unlikely."""
MOST_COMPRESSION, LEAST_LOGPROB, LEAST_SILENCE = 2.4, -1.0, 0.6
HOT = 0.5
"""From this temperature on, a text is no context for the next."""
QUIETEST = 1e-4
"""Below this a window is silent, whatever the model hears in it: three levels of 16 bits."""
TASKS = ("transcribe", "translate")
ENGLISH, MOST_NAMED = "en", 10


@dataclasses.dataclass(frozen=True, slots=True)
class Attempt:
    """What was written for a window."""

    token_ids: tuple[int, ...]
    text: str
    mean_logprob: float
    temperature: float

    @property
    def compression_ratio(self) -> float:
        """How much shorter the text is when compressed, which repetitions are."""
        data = self.text.encode()
        return len(data) / len(zlib.compress(data)) if data else 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class Asked:
    """How a sound is written down."""

    scope: CancelScope
    temperatures: tuple[float, ...]
    language: str | None = None
    task: str = "transcribe"
    timestamps: bool = True
    initial_prompt: str = ""
    condition_on_previous_text: bool = True


class Transcriber:
    """Transcribes with one open model."""

    def __init__(self, generator: TextGenerator) -> None:
        """Raises `OptionError` for a model that reads no sound."""
        about = generator.opened.manifest.speech
        if about is None or not isinstance(generator.opened.encoder, SpeechEncoder):
            raise OptionError(f"{generator.opened.manifest.name} reads no sound; take a model that does, such as Whisper")
        self.generator, self.opened, self.about = generator, generator.opened, about
        self.speech = generator.opened.encoder
        self.start = list(generator.encoder.start_ids())
        self.end_id = self.opened.manifest.eos_ids[0]
        self.first_time = about.no_timestamps_id + 1

    def transcribe(
        self, sound: object, sampling_rate: int | None, asked: Asked, on_segment: Callable[[Segment], None] | None
    ) -> Transcription:
        """Transcribe a sound; see `Model.transcribe`."""
        if asked.task not in TASKS or (asked.task == "translate" and "translate" not in self.about.tasks):
            tasks = ", ".join(map(repr, self.about.tasks or ("transcribe",)))
            raise OptionError(f"task should be one of {tasks}, found {shown(asked.task)}")
        known = list(self.about.languages) or [ENGLISH]
        if asked.language is not None and asked.language not in known:
            few = ", ".join(known[:MOST_NAMED]) + (" ..." if len(known) > MOST_NAMED else "")
            raise OptionError(f"the model knows no language {shown(asked.language)}; it knows {few}")
        samples = read_sound(sound, sampling_rate, self.about.sampling_rate)
        held = [self.window(samples, 0)]  # by which the language is heard: it is not read again
        language = asked.language or self.language_of(held[0], asked.scope)
        segments = list[Segment]()
        for segment in self.segments(samples, dataclasses.replace(asked, language=language), held):
            segments.append(segment)
            if on_segment is not None:
                on_segment(segment)
        text = "".join(each.text for each in segments).strip()
        return Transcription(text, language, tuple(segments), len(samples) / self.about.sampling_rate)

    def window(self, samples: Samples, place: int) -> Window:
        """The window that begins at a sample."""
        return self.speech.keep(np.ascontiguousarray(samples[place : place + self.about.samples]))

    def language_of(self, window: Window, scope: CancelScope) -> str:
        """The language that is spoken in a window; of a model of one language, English."""
        languages = self.about.languages
        if not languages:
            return ENGLISH
        logits = self.first_logits(window, scope)
        return max(languages, key=lambda code: float(logits[languages[code]]))

    def first_logits(self, window: Window, scope: CancelScope) -> Samples:
        """The logits [vocabulary] of the first token after the beginning of a text."""
        context = self.opened.new_context()
        context.read_source([window.id], scope=scope)
        return cast("Samples", context.feed(self.start[:1])[-1])

    def segments(self, samples: Samples, asked: Asked, held: list[Window]) -> Iterator[Segment]:
        """The segments of a sound, in their order; `held`: keeps the first window at hand until it is read."""
        rate, place = self.about.sampling_rate, 0
        step = round(self.about.timestamp_seconds * rate)
        history, context = self.prompt_ids(asked.initial_prompt), list[int]()
        while place < len(samples):
            window = self.window(samples, place)
            held.clear()
            size, offset = len(window.samples), place / rate
            if np.abs(window.samples).max() < QUIETEST:
                place += size
                continue
            before = [*history, *context]
            silence = self.silence(window, asked.scope)
            best = self.best(window, before, silence, asked)
            if nobody_speaks(silence, best):
                place += size
                continue
            pieces, steps = self.pieces(best.token_ids, size // step, asked)
            is_context = asked.condition_on_previous_text and best.temperature <= HOT
            if not is_context:
                history, context = [], []
            for start, end, ids in pieces:
                text, duration = self.text_of(ids), len(samples) / rate
                first, last = (min(offset + each * step / rate, duration) for each in (start, end))
                if text.strip() and first < last:
                    measured = best.mean_logprob, silence, best.temperature, best.compression_ratio
                    yield Segment(first, last, text, ids, *measured)
                    context += ids if is_context else []
            place += max(rate // 2, size if steps is None else steps * step)

    def prompt_ids(self, text: str) -> list[int]:
        """The ids of a text that is said to come before."""
        return self.opened.tokenizer.encode(f" {text.strip()}", add_special_tokens=False) if text.strip() else []

    def silence(self, window: Window, scope: CancelScope) -> float:
        """How likely nobody speaks in a window."""
        logits = self.first_logits(window, scope)
        return float(np.exp(logits[self.about.no_speech_id] - np.logaddexp.reduce(logits)))

    def best(self, window: Window, before: Sequence[int], silence: float, asked: Asked) -> Attempt:
        """The first attempt that is neither repetitive nor unlikely, else the likeliest that is not repetitive."""
        tried = list[Attempt]()
        for temperature in asked.temperatures:
            found = self.attempt(window, before, temperature, asked)
            is_good = found.compression_ratio <= MOST_COMPRESSION and found.mean_logprob >= LEAST_LOGPROB
            if is_good or nobody_speaks(silence, found):
                return found
            tried.append(found)
        varied = [each for each in tried if each.compression_ratio <= MOST_COMPRESSION]
        return max(varied, key=lambda each: each.mean_logprob) if varied else tried[-1]

    def attempt(self, window: Window, before: Sequence[int], temperature: float, asked: Asked) -> Attempt:
        """Write the text of a window."""
        most = self.opened.manifest.geometry.context_length // 2
        ids = [self.about.previous_id, *before[-(most - 1) :]] if before else []
        ids += self.start[:1]
        if self.about.languages:
            ids.append(self.about.languages[asked.language or ENGLISH])
        if self.about.tasks:
            ids.append(self.about.tasks[asked.task])
        if not asked.timestamps:
            ids.append(self.about.no_timestamps_id)
        rule = TimestampRule(self.about, len(ids), self.end_id, asked.timestamps)
        options = {"temperature": temperature, "max_new_tokens": most, "logits_processor": rule, "seed": 0}
        if temperature:
            options |= {"top_k": 0, "top_p": 1.0}
        text = self.generator.begin(ids, self.generator.config(options), source_ids=[window.id])
        self.generator.engine.finish([Request(text, asked.scope, streams=False)])
        made = text.result()
        likely = rule.mean_logprob(made.token_ids, ended=made.finish_reason == "eos")
        return Attempt(made.token_ids, self.text_of(made.token_ids), likely, temperature)

    def text_of(self, ids: Sequence[int]) -> str:
        """The text of ids, without control tokens and times."""
        return self.opened.tokenizer.decode([each for each in ids if each < self.end_id])

    def pieces(
        self, ids: tuple[int, ...], window_steps: int, asked: Asked
    ) -> tuple[list[tuple[int, int, tuple[int, ...]]], int | None]:
        """Stretches of a text, each with its first and last step of time, and the step at which the next window begins.

        None: after this one.
        """
        if not asked.timestamps:
            return [(0, window_steps, ids)], None
        is_time = [each >= self.first_time for each in ids]
        ends = [place for place in range(1, len(ids)) if is_time[place - 1] and is_time[place]]
        ends_with_one = is_time[-2:] == [False, True]
        if not ends:
            times = [each - self.first_time for each in ids if each >= self.first_time]
            last = times[-1] if times and times[-1] > 0 else window_steps
            return [(times[0] if len(times) > 1 else 0, last, ids)], None
        found, begin = list[tuple[int, int, tuple[int, ...]]](), 0
        for end in [*ends, *([len(ids)] if ends_with_one else [])]:
            part = ids[begin:end]
            found.append((part[0] - self.first_time, part[-1] - self.first_time, part))
            begin = end
        return found, None if ends_with_one else ids[begin - 1] - self.first_time


def nobody_speaks(silence: float, found: Attempt) -> bool:
    """Return whether a window is left without a text: it is likely silent, and the text unlikely."""
    return silence > LEAST_SILENCE and found.mean_logprob < LEAST_LOGPROB


def temperatures_of(given: float | Sequence[float] | None) -> tuple[float, ...]:
    """The temperatures to try; raises `OptionError` for none."""
    try:
        found = TEMPERATURES if given is None else tuple(np.atleast_1d(np.asarray(given, np.float64)).tolist())
    except (TypeError, ValueError):
        found = ()
    if isinstance(given, str) or not found or any(not 0 <= each <= 2 for each in found):
        raise OptionError(f"temperature should be from 0 to 2, or a list of such, found {shown(given)}")
    return found
