"""Refuses options that cannot take effect together with the others, instead of ignoring them.

This holds for the options of the caller. A package's defaults that cannot take effect are ignored, and so is truncation at
temperature 0: programs send their `top_p` with every call, and the text is the same.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..errors import OptionError
from .generation_config import GenerationConfig

TRUNCATION = ("top_k", "top_p", "min_p")
CONSTRAINTS = ("json_schema", "regex", "grammar")

NEEDS: Mapping[str, tuple[Callable[[GenerationConfig], bool], str]] = {
    "dry_base": (lambda config: config.dry_multiplier > 0, "dry_multiplier above 0"),
    "dry_allowed_length": (lambda config: config.dry_multiplier > 0, "dry_multiplier above 0"),
    "dry_penalty_last_n": (lambda config: config.dry_multiplier > 0, "dry_multiplier above 0"),
    "dry_sequence_breakers": (lambda config: config.dry_multiplier > 0, "dry_multiplier above 0"),
    "max_matching_ngram_size": (lambda config: config.prompt_lookup_num_tokens > 0, "prompt_lookup_num_tokens above 0"),
    "assistant_confidence_threshold": (lambda config: config.num_assistant_tokens > 0, "num_assistant_tokens above 0"),
    "draft_verification": (
        lambda config: config.prompt_lookup_num_tokens > 0 or config.num_assistant_tokens > 0,
        "prompt_lookup_num_tokens or num_assistant_tokens above 0",
    ),
    "strict_schema": (lambda config: config.json_schema is not None, "json_schema"),
    "length_penalty": (lambda config: config.num_beams > 1, "num_beams above 1"),
    "early_stopping": (lambda config: config.num_beams > 1, "num_beams above 1"),
}
"""Options that need another one: when that is on, and how a message says it."""
DRAFTS = ("prompt_lookup_num_tokens", "num_assistant_tokens")
NOT_WITH_BEAMS = ("temperature", *TRUNCATION, "best_of", "loop_guard", "logprobs", *DRAFTS)


def check_effect(config: GenerationConfig, asked: Iterable[str]) -> None:
    """Raise `OptionError` if an option that the caller `asked` for, by name, cannot take effect in `config`."""
    names = {name for name in asked if not is_neutral(config, name)}
    for name in sorted(names & NEEDS.keys()):
        is_on, switch = NEEDS[name]
        if not is_on(config):
            raise OptionError(f"{name} cannot take effect without {switch}; give that too, or leave {name} out")
    if config.num_beams > 1:
        refuse(names & {*NOT_WITH_BEAMS}, "with num_beams: beam search looks for the most likely text")
        if config.context_limit == "shift":
            refuse(names & {"context_limit"}, 'as "shift" with num_beams, whose texts end with the context')
    elif config.temperature == 0:
        refuse(names & {"best_of", "num_return_sequences"}, "at temperature 0, which takes the most likely token")
        if config.loop_guard == "resample":
            refuse(names & {"loop_guard"}, 'as "resample" at temperature 0 (as "penalise" it can)')
    if config.has_several_texts and config.num_beams == 1:
        refuse(names & {*DRAFTS}, "with more than one text, because only a single text is drafted")
    if config.ignore_eos:
        refuse(names & {"min_new_tokens"}, "with ignore_eos")
    check_combinations(config)


def giving_way(base: GenerationConfig, asked: Mapping[str, Any]) -> GenerationConfig:
    """The package's defaults without a search, or a shortest text, that excludes what the caller `asked` for."""
    config = dataclasses.replace(base, **asked)
    wants_one_text = {name for name in asked if not is_neutral(config, name)} & {*NOT_WITH_BEAMS}
    if "num_beams" not in asked and (wants_one_text or "temperature" in asked or config.context_limit == "shift"):
        base = dataclasses.replace(base, num_beams=1)
    return dataclasses.replace(base, min_new_tokens=min(base.min_new_tokens, config.max_new_tokens))


def check_combinations(config: GenerationConfig) -> None:
    """Raise `OptionError` if there are two constraints, or numbers contradict each other."""
    given = [name for name in CONSTRAINTS if getattr(config, name) is not None]
    if len(given) > 1:
        raise OptionError(f"{' and '.join(given)} exclude each other: a text follows one constraint; leave one out")
    if config.min_new_tokens > config.max_new_tokens:
        raise OptionError(f"min_new_tokens {config.min_new_tokens} is more than max_new_tokens {config.max_new_tokens}; lower it")
    if config.best_of is not None and config.best_of < config.num_return_sequences:
        raise OptionError(f"best_of {config.best_of} is less than num_return_sequences {config.num_return_sequences}; raise it")
    if 1 < config.num_beams < config.num_return_sequences:
        raise OptionError(f"num_return_sequences {config.num_return_sequences} is more than num_beams {config.num_beams}; lower it")


def is_neutral(config: GenerationConfig, name: str) -> bool:
    """Return whether an option has a value that switches it off, so that it is no error where it cannot take effect."""
    value = getattr(config, name)
    if name == "temperature":
        return bool(value == 0)
    return value in OFF.get(name, ()) if isinstance(value, (int, float, str)) or value is None else not value


OFF: Mapping[str, tuple[Any, ...]] = {
    **dict.fromkeys(("top_k", "min_p", "min_new_tokens", "dry_multiplier"), (0,)),
    **dict.fromkeys(("top_p", "num_return_sequences"), (1,)),
    **dict.fromkeys((*CONSTRAINTS, "logprobs"), (None,)),
    "best_of": (None, 1),
    **dict.fromkeys(DRAFTS, (0,)),
    "length_penalty": (1,),
    "early_stopping": (False,),
    "strict_schema": (False,),
    "loop_guard": ("off",),
    "draft_verification": ("exact",),
}
"""The values that switch an option off."""


def refuse(names: Iterable[str], why: str) -> None:
    """Raise `OptionError` about the options `names`, if there are any."""
    if listed := sorted(names):
        raise OptionError(f"{' and '.join(listed)} cannot take effect {why}; leave {'them' if len(listed) > 1 else 'it'} out")
