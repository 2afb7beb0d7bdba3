"""The options of a call over the package's defaults, under the names of this library."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ..errors import OptionError, PackageError, did_you_mean
from .checks import shown
from .generation_config import OPTION_NAMES, GenerationConfig
from .other_names import NAMES_ELSEWHERE, REMOVED, in_todays_names
from .resolve import check_effect, giving_way


def make_generation_config(defaults: Mapping[str, Any], options: Mapping[str, Any]) -> GenerationConfig:
    """Merge options: the caller's first, then the package's defaults (`Manifest.generation`), then those of `GenerationConfig`.

    A default search or shortest text gives way to options that exclude it. An option that is None counts as not given, and so does
    an older package's default that was removed. Raises `OptionError` for an option that is unknown, unusable or without effect, and
    `PackageError` for an unusable default.

    >>> make_generation_config({"temperature": 0.6, "top_k": 20}, {"top_k": 5, "seed": None}).top_k
    5
    """
    kept = {name: value for name, value in defaults.items() if name not in REMOVED}
    try:
        base = GenerationConfig(**known_options(kept))
    except OptionError as error:
        raise PackageError(f"the package has an unusable generation default: {error}; export the model again") from error
    asked = known_options(options)
    config = dataclasses.replace(giving_way(base, asked), **asked)
    check_effect(config, asked)
    return config


def known_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out the options that are None; raises `OptionError` for an unknown name, with the name that was meant."""
    options = in_todays_names(options)
    for name in options:
        if name not in OPTION_NAMES:
            raise OptionError(f"there is no option {shown(name)}; {hint_for(str(name))}")
    return {name: value for name, value in options.items() if value is not None}


def hint_for(name: str) -> str:
    """Say which option was probably meant by a name that does not exist.

    >>> hint_for("do_sample")
    'take temperature: 0 takes the most likely token, above 0 draws'
    >>> hint_for("topk")
    'did you mean top_k?'
    """
    if name in NAMES_ELSEWHERE:
        return f"take {NAMES_ELSEWHERE[name]}"
    return did_you_mean(name, OPTION_NAMES).rstrip() or f"the options are {', '.join(OPTION_NAMES)}"
