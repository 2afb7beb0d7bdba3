"""Names of options in other libraries and earlier versions, so that a wrong name is answered with the right one."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from ..errors import OptionError

NAMES_ELSEWHERE: Mapping[str, str] = {
    **dict.fromkeys(("max_tokens", "max_completion_tokens", "max_output_tokens", "num_predict", "n_predict"), "max_new_tokens"),
    "max_length": "max_new_tokens, which does not count the prompt",
    "min_length": "min_new_tokens, which does not count the prompt",
    "min_tokens": "min_new_tokens",
    "do_sample": "temperature: 0 takes the most likely token, above 0 draws",
    **dict.fromkeys(("n", "num_samples"), "num_return_sequences"),
    **dict.fromkeys(("beam_width", "beam_size"), "num_beams"),
    **dict.fromkeys(("stop_strings", "stop_sequences", "stop_words"), "stop"),
    **dict.fromkeys(("repeat_penalty", "repetition_penalty_factor"), "repetition_penalty"),
    **dict.fromkeys(("random_seed", "manual_seed"), "seed"),
    "top_logprobs": "logprobs, which takes the number of alternatives",
    **dict.fromkeys(("response_format", "guided_json", "schema", "format"), "json_schema"),
    "guided_regex": "regex",
    **dict.fromkeys(("guided_grammar", "lark"), "grammar"),
    **dict.fromkeys(("timeout", "deadline"), "max_time"),
    **dict.fromkeys(("streamer", "stream"), "the method stream()"),
    "stopping_criteria": "stopping_criterion, a function of ids and text",
    **dict.fromkeys(("lora", "lora_name", "adapter_name"), "adapter"),
}
"""The option here that does what the other name does: OpenAI's, transformers', llama.cpp's, vLLM's."""
BEAMS = "take num_beams, or num_return_sequences with a temperature for texts that differ more"
SAMPLER = "take min_p, or give a logits_processor that does it"
REMOVED: Mapping[str, tuple[Any, str]] = {
    **{"num_beam_groups": (1, BEAMS), "diversity_penalty": (0, BEAMS)},
    **{"typical_p": (1, SAMPLER), "top_n_sigma": (0, SAMPLER), "xtc_probability": (0, SAMPLER), "mirostat": (0, SAMPLER)},
    **dict.fromkeys(("xtc_threshold", "mirostat_tau", "mirostat_eta"), (None, SAMPLER)),
    "n_keep": (0, "shorten the prompt yourself, and generate again"),
}
"""Options of version 0.2: the value at which they did nothing (None: any, as they need another of them), what to do instead."""


def did_nothing(name: str, value: object) -> bool:
    """Return whether this is an option of version 0.2 that did nothing at this value."""
    return name in REMOVED and REMOVED[name][0] in (None, value)


def in_todays_names(options: Mapping[str, Any]) -> dict[str, Any]:
    """Translate the options of version 0.2, with a `DeprecationWarning`; raises `OptionError` for one that has no equal."""
    found = dict(options)
    if (banned := found.pop("suppress_tokens", None)) is not None:
        warnings.warn("suppress_tokens was removed: give bad_words_ids=[[id], ...]", DeprecationWarning, stacklevel=2)
        found["bad_words_ids"] = [*(found.get("bad_words_ids") or ()), *([token_id] for token_id in banned)]
    for name, (_, instead) in REMOVED.items():
        if (value := found.pop(name, None)) is None:
            continue
        if not did_nothing(name, value):
            raise OptionError(f"{name} was removed in version 0.3; {instead}")
        warnings.warn(f"{name} was removed: leave it out", DeprecationWarning, stacklevel=2)
    return found
