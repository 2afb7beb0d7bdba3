"""What one call wants: how much text, drawn how, ended where. The only place that checks these options.

Python, the command line and the demo all build a `GenerationConfig`, so one set of limits holds everywhere. What a package *is*
(`Manifest`) is another matter, and so are limits that need the model: the context length, the vocabulary.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from typing import Any

from .errors import OptionError, PackageError

MAX_STOPS = 16
MAX_STOP_CHARS = 256
MAX_SEED = 2**63 - 1


@dataclasses.dataclass(frozen=True, slots=True)
class GenerationConfig:
    """The checked options of one generation; raises `OptionError` for anything out of range or of the wrong type.

    >>> GenerationConfig(temperature=0.7, top_p=0.9, seed=7).top_k
    0
    """

    max_new_tokens: int = 256
    """Most tokens to add; at least 1."""
    temperature: float = 0.8
    """Divides the logits: below 1 sharper, above 1 flatter, up to 100; 0 always takes the most likely token."""
    top_k: int = 0
    """Draw among the k most likely tokens only; 0 = all."""
    top_p: float = 1.0
    """Draw among the fewest tokens that hold this share of the probability; above 0, up to 1 = all."""
    min_p: float = 0.0
    """Draw among tokens at least this many times as likely as the likeliest; 0 = all, up to 1."""
    seed: int | None = None
    """0 to 2**63 - 1: the same seed draws the same tokens; None takes a fresh one."""
    stop: tuple[str, ...] = ()
    """Text that ends the generation and is left out of it: up to 16 strings of 1 to 256 characters."""

    def __post_init__(self) -> None:
        """Check every field, and turn numbers of other kinds (NumPy's, fractions) into Python's own."""
        values = {
            "max_new_tokens": whole_number("max_new_tokens", self.max_new_tokens, 1),
            "temperature": number("temperature", self.temperature, "from 0 (always the likeliest) to 100", lambda t: 0 <= t <= 100),
            "top_k": whole_number("top_k", self.top_k, 0),
            "top_p": number("top_p", self.top_p, "above 0, up to 1", lambda p: 0 < p <= 1),
            "min_p": number("min_p", self.min_p, "from 0 to 1", lambda p: 0 <= p <= 1),
            "seed": None if self.seed is None else whole_number("seed", self.seed, 0, MAX_SEED),
            "stop": stop_strings(self.stop),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)


OPTION_NAMES = tuple(field.name for field in dataclasses.fields(GenerationConfig))


def make_generation_config(defaults: Mapping[str, int | float], options: Mapping[str, object]) -> GenerationConfig:
    """Join what the caller asks for with a package's defaults (`Manifest.generation`), then those of `GenerationConfig`.

    An option that is None counts as not given; one string for `stop` stands for a tuple of it. Raises `OptionError` for an
    unknown or unusable option and `PackageError` for an unusable default.

    >>> make_generation_config({"temperature": 0.6, "top_k": 20}, {"top_k": 5, "seed": None})
    GenerationConfig(max_new_tokens=256, temperature=0.6, top_k=5, top_p=1.0, min_p=0.0, seed=None, stop=())
    """
    try:
        base = GenerationConfig(**known_options(defaults))
    except OptionError as error:
        raise PackageError(f"the package has an unusable generation default: {error}; export the model again") from error
    given = known_options(options)
    if isinstance(given.get("stop"), str):
        given["stop"] = (given["stop"],)
    return dataclasses.replace(base, **given)


def known_options(options: Mapping[str, object]) -> dict[str, Any]:
    """Leave out the options that are None; raises `OptionError` for a name that does not exist, naming the closest that does."""
    for name in options:
        if name not in OPTION_NAMES:
            closest = difflib.get_close_matches(str(name), OPTION_NAMES, n=1)
            hint = f"did you mean {closest[0]}?" if closest else f"the options are {', '.join(OPTION_NAMES)}"
            raise OptionError(f"there is no option {shown(name)}; {hint}")
    return {name: value for name, value in options.items() if value is not None}


def whole_number(name: str, value: object, low: int, high: int | None = None) -> int:
    """Read `value` as an int within `low..high`; a bool or a float is no whole number."""
    if isinstance(value, Integral) and not isinstance(value, bool):
        result = int(value)
        if low <= result and (high is None or result <= high):
            return result
    limits = f"of at least {low}" if high is None else f"from {low} to {high}"
    raise OptionError(f"{name} should be a whole number {limits}, found {shown(value)}")


def number(name: str, value: object, limits: str, fits: Callable[[float], bool]) -> float:
    """Read `value` as a float for which `fits`; `limits` says the same in words. NaN fits nowhere."""
    if isinstance(value, Real) and not isinstance(value, bool):
        try:
            result = float(value)
        except OverflowError:
            result = float("inf")
        if fits(result):
            return result
    raise OptionError(f"{name} should be a number {limits}, found {shown(value)}")


def stop_strings(value: object) -> tuple[str, ...]:
    """Read `value` as a tuple of stop strings."""
    if not isinstance(value, (tuple, list)) or len(value) > MAX_STOPS:
        found = f"{len(value)} of them" if isinstance(value, (tuple, list)) else shown(value)
        raise OptionError(f"stop should be a tuple of up to {MAX_STOPS} strings, found {found}")
    for text in value:
        if not isinstance(text, str) or not 1 <= len(text) <= MAX_STOP_CHARS:
            found = f"{len(text):,} characters" if isinstance(text, str) else shown(text)
            raise OptionError(f"each stop string should have 1 to {MAX_STOP_CHARS} characters, found {found}")
    return tuple(value)


def shown(value: object) -> str:
    """Show `value` in a one-line message: short, whatever it is."""
    if isinstance(value, int) and value.bit_length() > 128:
        return f"a number of {value.bit_length():,} bits"  # Python refuses to print more than 4,300 digits
    if isinstance(value, str):
        return repr(value if len(value) <= 40 else value[:37] + "...")
    return repr(value) if isinstance(value, (int, float)) or value is None else f"a {type(value).__name__}"
