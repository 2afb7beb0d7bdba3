"""Reads what a model's makers say about generation (`generation_config.json`) as defaults of our options.

The file means what transformers' `generate()` does with it: without `do_sample` the text is greedy or a beam search, whatever the
temperature. What has no option here is returned by name, so that an export can say what it leaves out.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import OptionError, PackageError
from .generation_config import GenerationConfig
from .merging import make_generation_config

SAMPLING: dict[str, float] = {"temperature": 1.0, "top_k": 50, "top_p": 1.0, "min_p": 0.0}
"""Options of a drawn text, with transformers' own values."""
SEARCH = ("num_beams", "length_penalty", "early_stopping")
ALWAYS = ("repetition_penalty", "no_repeat_ngram_size", "max_new_tokens", "min_new_tokens")
OFF: dict[str, tuple[Any, ...]] = {
    "top_k": (0, -1),
    "top_p": (0,),
    "min_length": (0,),
    "typical_p": (1,),
    "top_h": (1,),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
    "penalty_alpha": (0,),
    "guidance_scale": (1,),
    "encoder_repetition_penalty": (1,),
    "encoder_no_repeat_ngram_size": (0,),
    "num_return_sequences": (1,),
    "diversity_penalty": (0,),
    "num_beam_groups": (1,),
    "xtc_probability": (0,),
    "mirostat": (0,),
}
"""Values that switch a setting off, where these are not our options' defaults."""
NO_OPTION = (
    *("exponential_decay_length_penalty", "sequence_bias", "begin_suppress_tokens", "forced_eos_token_id", "force_words_ids"),
    *("constraints", "dola_layers", "token_healing", "watermarking_config"),
    *(name for name in OFF if name not in SAMPLING),
)
"""Settings that change a text, and that no option here has."""
CHOOSING = ("do_sample", *SAMPLING, *SEARCH, *ALWAYS, *NO_OPTION)
"""Settings that say how tokens are chosen; in `config.json` those of older checkpoints."""


@dataclasses.dataclass(slots=True)
class MakerSettings:
    """A maker's settings of generation."""

    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Defaults, by our names."""
    left_out: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Settings that texts do not follow, as they were written."""


def read_maker_settings(
    settings: Mapping[str, Any], *, start_count: int | None = None, suppressed: Iterable[int] = ()
) -> MakerSettings:
    """Read settings without nulls; no settings at all leave our own defaults.

    start_count: of an encoder-decoder, the ids that every text begins with, which its lengths count; None for a decoder.
    suppressed: ids that are excluded from every text anyway.

    >>> read_maker_settings({"eos_token_id": 2}).options
    {'temperature': 0.0}
    >>> read_maker_settings({"do_sample": True, "temperature": "0.6", "top_k": 20.0, "typical_p": 0.9})
    MakerSettings(options={'temperature': 0.6, 'top_k': 20}, left_out={'typical_p': 0.9})
    >>> read_maker_settings({"num_beams": 4, "min_length": 5, "forced_eos_token_id": 1}, start_count=1)
    MakerSettings(options={'temperature': 0.0, 'num_beams': 4, 'min_new_tokens': 4}, left_out={'forced_eos_token_id': 1})
    """
    found = MakerSettings()
    if not settings:
        return found
    given = {name: plain(value) for name, value in settings.items()}
    is_drawn, beams = given.get("do_sample") is True, given.get("num_beams", 1)
    found.options["temperature"] = 0.0
    wanted: dict[str, Any] = {}
    if is_drawn:
        wanted = SAMPLING | {name: given[name] for name in SAMPLING if name in given}
    elif beams != 1:
        wanted = {name: given[name] for name in SEARCH if name in given}
    wanted |= with_lengths({name: given[name] for name in ALWAYS if name in given}, given, start_count)
    if (words := banned(given, suppressed)) != ():
        wanted["bad_words_ids"] = words
    if (stop := given.get("stop_strings")) is not None:
        wanted["stop"] = stop
    for name, value in wanted.items():
        if not takes(found.options, name, value):
            found.left_out[name] = settings.get(name, value)
    if is_drawn and beams != 1:
        found.left_out["num_beams"] = settings["num_beams"]  # transformers draws within the search
    for name in NO_OPTION:
        if (
            name in given
            and given[name] not in (False, [], *OFF.get(name, ()))
            and not (name == "min_length" and start_count is not None)
        ):
            found.left_out[name] = settings[name]
    return found


def as_list(value: Any) -> list[Any]:  # noqa: ANN401 - a value of the file
    """A value that may stand for a list of one."""
    return value if isinstance(value, list) else [] if value is None else [value]


def takes(options: dict[str, Any], name: str, value: object) -> bool:
    """Add a default that the runtime accepts with the others; returns whether it is there, or has a value that changes nothing."""
    default = getattr(GenerationConfig(), name)
    if value in OFF.get(name, ()) or (value == default and name != "temperature"):
        return True
    try:
        make_generation_config(options | {name: value}, {})
    except (OptionError, PackageError):
        return False
    options[name] = value
    return True


def plain(value: object) -> object:
    """A value as its type should be: numbers and switches that were written as texts, and whole numbers as floats.

    >>> [plain(each) for each in ("0.6", 20.0, "False", "a text")]
    [0.6, 20, False, 'a text']
    """
    if isinstance(value, str):
        if value.strip().lower() in {"true", "false"}:
            return value.strip().lower() == "true"
        try:
            value = float(value)
        except ValueError:
            return value
    if isinstance(value, float) and math.isfinite(value) and value == int(value):
        return int(value)
    if isinstance(value, list):
        return [plain(each) for each in value]
    return value


def with_lengths(wanted: dict[str, Any], given: Mapping[str, Any], start_count: int | None) -> dict[str, Any]:
    """Add the lengths of an encoder-decoder's texts, which its settings count with the ids that a text begins with.

    Those of a decoder count the prompt too; so its `max_length` is the context's limit, and its `min_length` has no option.
    """
    if start_count is None:
        return wanted
    for name, option in (("max_length", "max_new_tokens"), ("min_length", "min_new_tokens")):
        if isinstance(length := given.get(name), int) and option not in wanted:
            wanted[option] = max(length - start_count, 0)
    return wanted


def banned(given: Mapping[str, Any], known: Iterable[int] = ()) -> tuple[tuple[int, ...], ...]:
    """The sequences of ids that no text may have; as in transformers, an end of text alone is not among `bad_words_ids`."""
    ends, words, ids = (as_list(given.get(name)) for name in ("eos_token_id", "bad_words_ids", "suppress_tokens"))
    found = [tuple(word) for word in words if isinstance(word, list) and not (len(word) == 1 and word[0] in ends)]
    found += [(token_id,) for token_id in ids]
    whole = [word for word in found if word and all(isinstance(each, int) and each >= 0 for each in word)]
    return tuple(word for word in dict.fromkeys(whole) if word not in [(token_id,) for token_id in known])
