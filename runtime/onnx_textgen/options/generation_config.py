"""What one call wants: how much text, chosen how, ended where. The only place that lists these options and their limits.

Python, the command line and the demo all build a `GenerationConfig`, so one set of limits holds everywhere. Names are those of
transformers' GenerationConfig where it has the option, else OpenAI's, else llama.cpp's. What a package *is* (`Manifest`) is another
matter, and so are limits that need the model: the context length, the vocabulary.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Mapping
from typing import Any, Literal

from ..errors import OptionError, PackageError
from . import checks
from .checks import Check, shown
from .resolve import check_effect

MOST_ALTERNATIVES = 64
MOST_SEQUENCES = 64


def option(default: Any, check: Check) -> Any:  # noqa: ANN401 - a field of any type
    """A field with the check that its values go through."""
    return dataclasses.field(default=default, metadata={"check": check})


@dataclasses.dataclass(frozen=True, slots=True)
class GenerationConfig:
    """The checked options of one generation; raises `OptionError` for anything out of range or of the wrong type.

    >>> GenerationConfig(temperature=0.7, top_p=0.9, seed=7).top_k
    0
    """

    max_new_tokens: int = option(256, checks.whole(1))
    """Most tokens to add; at least 1."""
    min_new_tokens: int = option(0, checks.whole(0))
    """Tokens before which no end of text may be chosen."""

    temperature: float = option(0.8, checks.real("from 0 (always the likeliest) to 100", lambda t: 0 <= t <= 100))
    """Divides the logits: below 1 sharper, above 1 flatter, up to 100; 0 always takes the most likely token."""
    top_k: int = option(0, checks.whole(0))
    """Draw among the k most likely tokens only; 0 = all."""
    top_p: float = option(1.0, checks.real("above 0, up to 1", lambda p: 0 < p <= 1))
    """Draw among the fewest tokens that hold this share of the probability; above 0, up to 1 = all."""
    min_p: float = option(0.0, checks.real("from 0 to 1", lambda p: 0 <= p <= 1))
    """Draw among tokens at least this many times as likely as the likeliest; 0 = all, up to 1."""
    typical_p: float = option(1.0, checks.real("above 0, up to 1", lambda p: 0 < p <= 1))
    """Draw among the tokens whose surprise is nearest to the expected one, that hold this share; 1 = all (Meister et al. 2022)."""
    top_n_sigma: float = option(0.0, checks.real("from 0 (off) to 100", lambda s: 0 <= s <= 100))
    """Draw among logits within so many standard deviations of the largest; 0 = all (Tang et al. 2024)."""
    xtc_probability: float = option(0.0, checks.real("from 0 (off) to 1", lambda p: 0 <= p <= 1))
    """How often the likeliest tokens are left out: all at or above `xtc_threshold` but the least likely of them."""
    xtc_threshold: float = option(0.1, checks.real("from 0 to 0.5", lambda p: 0 <= p <= 0.5))
    """The probability that makes a token one of the likeliest; above 0.5 there could never be two."""
    mirostat: int = option(0, checks.one_of_numbers(0, 2))
    """2: keep the surprise of the text near `mirostat_tau` by a cut that follows it; 0 = off (Basu et al. 2021, version 2)."""
    mirostat_tau: float = option(5.0, checks.real("above 0, up to 100", lambda t: 0 < t <= 100))
    """The surprise to keep, in bits per token."""
    mirostat_eta: float = option(0.1, checks.real("above 0, up to 1", lambda e: 0 < e <= 1))
    """How fast mirostat follows."""

    repetition_penalty: float = option(1.0, checks.real("above 0, up to 100", lambda p: 0 < p <= 100))
    """Divides positive logits of tokens that prompt or text has, multiplies negative ones; 1 = off (Keskar et al. 2019)."""
    presence_penalty: float = option(0.0, checks.real("from -2 to 2", lambda p: -2 <= p <= 2))
    """Subtracted from the logit of every token that the new text has."""
    frequency_penalty: float = option(0.0, checks.real("from -2 to 2", lambda p: -2 <= p <= 2))
    """Subtracted from the logit of a token as many times as the new text has it."""
    no_repeat_ngram_size: int = option(0, checks.whole(0))
    """No run of so many tokens may come twice, prompt included; 0 = off."""
    dry_multiplier: float = option(0.0, checks.real("from 0 (off) to 100", lambda m: 0 <= m <= 100))
    """Strength of the penalty on a token that would lengthen a repeated sequence (DRY)."""
    dry_base: float = option(1.75, checks.real("from 1 to 100", lambda b: 1 <= b <= 100))
    """The penalty grows by this factor with each token of the repeated sequence."""
    dry_allowed_length: int = option(2, checks.whole(1))
    """Repeated sequences up to this length go unpunished."""
    dry_penalty_last_n: int = option(-1, checks.whole(-1))
    """How many of the last tokens are searched for repeats; -1 = all."""
    dry_sequence_breakers: tuple[str, ...] = option(("\n", ":", '"', "*"), checks.strings(64, 64))
    """Tokens that hold one of these end a sequence."""

    logit_bias: tuple[tuple[int, float], ...] = option((), checks.biases)
    """What is added to the logits of some tokens, by id: -100, which all but rules a token out, to 100."""
    bad_words_ids: tuple[tuple[int, ...], ...] = option((), checks.token_id_lists)
    """Sequences of token ids that must not come."""
    suppress_tokens: tuple[int, ...] = option((), checks.token_ids)
    """Token ids that must not come."""

    seed: int | None = option(None, checks.maybe(checks.whole(0, checks.MAX_SEED)))
    """0 to 2**63 - 1: the same seed draws the same tokens; None takes a fresh one."""

    num_return_sequences: int = option(1, checks.whole(1, MOST_SEQUENCES))
    """How many texts to give back for a prompt."""
    best_of: int | None = option(None, checks.maybe(checks.whole(1, MOST_SEQUENCES)))
    """Draw so many texts and give back the likeliest per token; None = as many as are given back."""
    num_beams: int = option(1, checks.whole(1, MOST_SEQUENCES))
    """Search for the likeliest text with so many candidates side by side; 1 = no search."""
    num_beam_groups: int = option(1, checks.whole(1, MOST_SEQUENCES))
    """Groups of beams kept apart by `diversity_penalty` (Vijayakumar et al. 2016)."""
    diversity_penalty: float = option(0.0, checks.real("from 0 to 100", lambda p: 0 <= p <= 100))
    """Subtracted from a token's score for each earlier group that takes it at the same step."""
    length_penalty: float = option(1.0, checks.real("from -10 to 10", lambda p: -10 <= p <= 10))
    """A beam's score is its log-probability divided by its length to this power; above 0 favours longer texts. -10 to 10, which no
    length brings to the ends of what a float holds."""
    early_stopping: bool | Literal["never"] = option(False, checks.one_of(False, True, "never"))
    """True: end as soon as `num_beams` texts are finished; False: when better ones are unlikely; "never": when impossible."""

    stop: tuple[str, ...] = option((), checks.strings(checks.MAX_STOPS, checks.MAX_STOP_CHARS))
    """Text that ends the generation and is left out of it: up to 16 strings of 1 to 256 characters."""
    ignore_eos: bool = option(False, checks.one_of(False, True))
    """Rule out the tokens that end a text."""
    max_time: float | None = option(None, checks.maybe(checks.real("of seconds above 0", lambda s: 0 < s < float("inf"))))
    """Seconds after which the text ends, prompt included; None = no limit."""
    context_limit: Literal["stop", "error", "shift"] = option("stop", checks.one_of("stop", "error", "shift"))
    """At the end of the context: end the text, raise an error, or forget the older half and go on."""
    n_keep: int = option(0, checks.whole(-1))
    """Tokens at the beginning of the prompt that `context_limit="shift"` never forgets; -1 = all of the prompt."""
    prompt_lookup_num_tokens: int = option(0, checks.whole(0, 64))
    """Most tokens that are guessed at a time from what came before, and checked in one run; 0: none. Changes the speed alone."""
    max_matching_ngram_size: int = option(3, checks.whole(1, 16))
    """Tokens at the text's end that are looked for in what came before."""
    num_assistant_tokens: int = option(8, checks.whole(0, 64))
    """Most tokens that are guessed at a time by the assistant model, where one was loaded, and checked in one run; 0: none."""
    assistant_confidence_threshold: float = option(0.4, checks.real("above 0, up to 1", lambda p: 0 < p <= 1))
    """The assistant model guesses on while it gives its own choice at least this probability."""
    draft_verification: Literal["exact", "fast"] = option("exact", checks.one_of("exact", "fast"))
    """How guesses are checked: to the last bit as tokens one by one, or in a run that may round otherwise and change a text."""
    loop_guard: Literal["off", "stop", "penalise", "resample"] = option("off", checks.one_of("off", "stop", "penalise", "resample"))
    """What to do when the text runs in a circle: end it, rule out the token that goes on with it, or draw that token again."""

    json_schema: str | None = option(None, checks.maybe(checks.json_schema))
    """The text is JSON of this schema."""
    regex: str | None = option(None, checks.maybe(checks.text_of_grammar))
    """The text matches this regular expression."""
    grammar: str | None = option(None, checks.maybe(checks.text_of_grammar))
    """The text follows this grammar, in Lark's notation."""

    logprobs: int | None = option(None, checks.maybe(checks.whole(0, MOST_ALTERNATIVES)))
    """Give each token's log-probability, and those of so many of the likeliest; None = neither."""

    logits_processor: Callable[[list[int], Any], Any] | None = option(None, checks.maybe(checks.function))  # noqa: RUF009 - `option` gives a field
    """A function of your own, called behind all penalties; see `LogitsProcessor`. In a beam search it gets log-probabilities."""
    stopping_criterion: Callable[[list[int], str], bool] | None = option(None, checks.maybe(checks.function))  # noqa: RUF009 - `option` gives a field
    """A function of your own that ends the text, called after each token; see `StoppingCriterion`."""

    @property
    def gives_several(self) -> bool:
        """Whether these options ask for a search, or for several texts of one prompt."""
        return self.texts > 1

    @property
    def is_drawn(self) -> bool:
        """Whether a text depends on the seed: neither searched for, nor always the likeliest token."""
        return self.num_beams == 1 and self.temperature > 0

    @property
    def texts(self) -> int:
        """How many texts are written side by side for one prompt."""
        return self.num_beams if self.num_beams > 1 else max(self.num_return_sequences, self.best_of or 1)

    def __repr__(self) -> str:
        given = [field for field in dataclasses.fields(self) if getattr(self, field.name) != field.default]
        return f"GenerationConfig({', '.join(f'{field.name}={getattr(self, field.name)!r}' for field in given)})"

    def __post_init__(self) -> None:
        """Check every field, and turn numbers of other kinds (NumPy's, fractions) into Python's own."""
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, field.metadata["check"](field.name, getattr(self, field.name)))


OPTION_NAMES = tuple(field.name for field in dataclasses.fields(GenerationConfig))


def make_generation_config(defaults: Mapping[str, Any], options: Mapping[str, Any]) -> GenerationConfig:
    """Join what the caller asks for with a package's defaults (`Manifest.generation`), then those of `GenerationConfig`.

    An option that is None counts as not given. Raises `OptionError` for an option that is unknown, unusable or without effect, and
    `PackageError` for an unusable default.

    >>> make_generation_config({"temperature": 0.6, "top_k": 20}, {"top_k": 5, "seed": None}).top_k
    5
    """
    try:
        base = GenerationConfig(**known_options(defaults))
    except OptionError as error:
        raise PackageError(f"the package has an unusable generation default: {error}; export the model again") from error
    asked = known_options(options)
    config = dataclasses.replace(base, **asked)
    check_effect(config, asked)
    return config


def known_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out the options that are None; raises `OptionError` for a name that does not exist, naming the closest that does."""
    for name in options:
        if name not in OPTION_NAMES:
            closest = difflib.get_close_matches(str(name), OPTION_NAMES, n=1)
            hint = f"did you mean {closest[0]}?" if closest else f"the options are {', '.join(OPTION_NAMES)}"
            raise OptionError(f"there is no option {shown(name)}; {hint}")
    return {name: value for name, value in options.items() if value is not None}
