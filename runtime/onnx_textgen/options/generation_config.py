"""The options of one call: how much text, how tokens are chosen, when the text ends. Their limits are checked only here.

Python, the command line and the demo all build a `GenerationConfig`, so the same limits apply everywhere. Names are those of
transformers' GenerationConfig where it has the option, else OpenAI's, else llama.cpp's. The properties of a package (`Manifest`)
are not here, nor are limits that depend on the model: the context length, the vocabulary.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from . import checks
from .checks import Check

MOST_ALTERNATIVES = 64
MOST_SEQUENCES = 64


def option(default: Any, check: Check) -> Any:  # noqa: ANN401 - a field of any type
    """Declare a field with the check of its values."""
    return dataclasses.field(default=default, metadata={"check": check})


@dataclasses.dataclass(frozen=True, slots=True)
class GenerationConfig:
    """The checked options of one generation; raises `OptionError` for anything out of range or of the wrong type.

    >>> GenerationConfig(temperature=0.7, top_p=0.9, seed=7).top_k
    0
    """

    max_new_tokens: int = option(256, checks.whole(1))
    """Most tokens to generate; at least 1."""
    min_new_tokens: int = option(0, checks.whole(0))
    """The end of the text is excluded until the text has this many tokens."""

    temperature: float = option(0.8, checks.real("from 0 (always the most likely) to 100", lambda t: 0 <= t <= 100))
    """Divides the logits: below 1 the distribution is sharper, above 1 flatter, up to 100; 0 always takes the most likely token."""
    top_k: int = option(0, checks.whole(0))
    """Draw from the k most likely tokens only; 0 = all."""
    top_p: float = option(1.0, checks.real("above 0, up to 1", lambda p: 0 < p <= 1))
    """Draw from the fewest tokens that together have this probability; above 0, up to 1 = all."""
    min_p: float = option(0.0, checks.real("from 0 to 1", lambda p: 0 <= p <= 1))
    """Draw from tokens at least this many times as likely as the most likely one; 0 = all, up to 1."""

    repetition_penalty: float = option(1.0, checks.real("above 0, up to 100", lambda p: 0 < p <= 100))
    """Divides positive logits of tokens in the prompt or text, multiplies negative ones; 1 = off (Keskar et al. 2019)."""
    presence_penalty: float = option(0.0, checks.real("from -2 to 2", lambda p: -2 <= p <= 2))
    """Subtracted from the logit of every token in the new text."""
    frequency_penalty: float = option(0.0, checks.real("from -2 to 2", lambda p: -2 <= p <= 2))
    """Subtracted from the logit of a token for each time that it occurs in the new text."""
    no_repeat_ngram_size: int = option(0, checks.whole(0))
    """No sequence of this many tokens may occur twice, prompt included; 0 = off."""
    dry_multiplier: float = option(0.0, checks.real("from 0 (off) to 100", lambda m: 0 <= m <= 100))
    """Strength of the penalty on a token that would extend a repeat (DRY); 0 = off."""
    dry_base: float = option(1.75, checks.real("from 1 to 100", lambda b: 1 <= b <= 100))
    """The DRY penalty grows by this factor with each token of the repeat."""
    dry_allowed_length: int = option(2, checks.whole(1))
    """Repeats of up to this many tokens get no DRY penalty."""
    dry_penalty_last_n: int = option(-1, checks.whole(-1))
    """DRY searches this many of the last tokens for repeats; -1 = all."""
    dry_sequence_breakers: tuple[str, ...] = option(("\n", ":", '"', "*"), checks.strings(64, 64))
    """Tokens that contain one of these strings end a repeat (DRY)."""

    logit_bias: tuple[tuple[int, float], ...] = option((), checks.biases)
    """Numbers added to the logits of token ids, -100 to 100; -100 in effect excludes a token."""
    bad_words_ids: tuple[tuple[int, ...], ...] = option((), checks.token_id_lists)
    """Sequences of token ids that must not occur."""

    seed: int | None = option(None, checks.optional(checks.whole(0, checks.MAX_SEED)))
    """0 to 2**63 - 1: the same seed draws the same tokens; None draws a new seed."""

    num_return_sequences: int = option(1, checks.whole(1, MOST_SEQUENCES))
    """Number of texts to return for a prompt, as `sequences` of the result."""
    best_of: int | None = option(None, checks.optional(checks.whole(1, MOST_SEQUENCES)))
    """Draw this many texts and return the best: those that follow their schema, then the most likely per token; None = no more."""
    num_beams: int = option(1, checks.whole(1, MOST_SEQUENCES))
    """Search for the most likely text with this many beams; 1 = no search."""
    length_penalty: float = option(1.0, checks.real("from -10 to 10", lambda p: -10 <= p <= 10))
    """A beam's score is its log-probability divided by its length to this power; above 0 favours longer texts. -10 to 10,
    so that the score is finite at any length."""
    early_stopping: bool | Literal["never"] = option(False, checks.one_of(False, True, "never"))
    """True: end as soon as `num_beams` texts are finished; False: when better ones are unlikely; "never": when impossible."""

    stop: tuple[str, ...] = option((), checks.strings(checks.MAX_STOPS, checks.MAX_STOP_CHARS))
    """Strings that end the text and are left out of it: up to 16, of 1 to 256 characters each."""
    ignore_eos: bool = option(False, checks.one_of(False, True))
    """Exclude the end-of-text ids, so that the model cannot end the text."""
    max_time: float | None = option(None, checks.optional(checks.real("of seconds above 0", lambda s: 0 < s < float("inf"))))
    """Seconds after which the text ends, prompt included; None = no limit."""
    context_limit: Literal["stop", "error", "shift"] = option("stop", checks.one_of("stop", "error", "shift"))
    """When the context is full: end the text ("stop") or drop the older half and continue ("shift"); "error" refuses in advance."""
    prompt_lookup_num_tokens: int = option(0, checks.whole(0, 64))
    """Most tokens of a draft from earlier text (prompt lookup), verified in one run; 0 = none. Changes the speed, and with
    `draft_verification="exact"` nothing else."""
    max_matching_ngram_size: int = option(3, checks.whole(1, 16))
    """Most tokens at the text's end that prompt lookup searches for in the earlier text."""
    num_assistant_tokens: int = option(8, checks.whole(0, 64))
    """Most tokens of a draft by the assistant model, if one was loaded, verified in one run; 0 = none."""
    assistant_confidence_threshold: float = option(0.4, checks.real("above 0, up to 1", lambda p: 0 < p <= 1))
    """The assistant model continues a draft while its own choice has at least this probability."""
    draft_verification: Literal["exact", "fast"] = option("exact", checks.one_of("exact", "fast"))
    """How drafts are verified: "exact", bit-identical to single tokens, or "fast", in a run whose rounding may change a text."""
    loop_guard: Literal["off", "stop", "penalise", "resample"] = option("off", checks.one_of("off", "stop", "penalise", "resample"))
    """If the text repeats in a loop: end it, exclude the token that would continue the loop, or draw that token again."""

    json_schema: str | None = option(None, checks.optional(checks.json_schema))
    """The text is JSON that follows this schema."""
    strict_schema: bool = option(False, checks.one_of(False, True))
    """Refuse a `json_schema` with keywords that no grammar follows; else the finished text is checked (`follows_rule`)."""
    regex: str | None = option(None, checks.optional(checks.text_of_grammar))
    """The text matches this regular expression."""
    grammar: str | None = option(None, checks.optional(checks.text_of_grammar))
    """The text follows this grammar, in Lark's notation."""

    adapter: str | None = option(None, checks.optional(checks.name))
    """The LoRA adapter of the package that the text is generated with; None = the model without one."""

    src_lang: str | None = option(None, checks.optional(checks.name))
    """Of an encoder-decoder with many languages: the code of the source's language; None = the tokenizer's own."""
    tgt_lang: str | None = option(None, checks.optional(checks.name))
    """Of an encoder-decoder with many languages: the code of the text's language; None = the package's own."""

    logprobs: int | None = option(None, checks.optional(checks.switch_or(checks.whole(0, MOST_ALTERNATIVES))))
    """Return each token's log-probability, and this many of the most likely tokens at its position; None = neither, True = 0."""

    logits_processor: Callable[[list[int], Any], Any] | None = option(None, checks.optional(checks.function))  # noqa: RUF009 - `option` gives a field
    """Your function that changes logits, after all penalties; see `LogitsProcessor`. Beam search passes log-probabilities."""
    stopping_criterion: Callable[[list[int], str], bool] | None = option(None, checks.optional(checks.function))  # noqa: RUF009 - `option` gives a field
    """Your function that ends the text, called after each token; see `StoppingCriterion`."""

    @property
    def has_several_texts(self) -> bool:
        """Whether these options ask for a search, or for more than one text per prompt."""
        return self.texts > 1

    @property
    def is_drawn(self) -> bool:
        """Whether a text depends on the seed: no beam search, and temperature above 0."""
        return self.num_beams == 1 and self.temperature > 0

    @property
    def texts(self) -> int:
        """Number of texts that are generated together for one prompt."""
        return self.num_beams if self.num_beams > 1 else max(self.num_return_sequences, self.best_of or 1)

    def __repr__(self) -> str:
        given = [field for field in dataclasses.fields(self) if getattr(self, field.name) != field.default]
        return f"GenerationConfig({', '.join(f'{field.name}={getattr(self, field.name)!r}' for field in given)})"

    def __post_init__(self) -> None:
        """Check every field, and convert other numbers (NumPy's, fractions) to int and float."""
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, field.metadata["check"](field.name, getattr(self, field.name)))


OPTION_NAMES = tuple(field.name for field in dataclasses.fields(GenerationConfig))
FIELD_AND_TEXT = re.compile(r'^    (\w+): [^\n]* = option\([^\n]*\n    """(.*?)"""', re.MULTILINE | re.DOTALL)


def described_options() -> str:
    """Every option with its default and the text below its field; empty if the source is absent, as in a frozen app.

    Editors show those texts by themselves; Python keeps none at run time, so `help` has them from here.
    """
    try:
        texts = FIELD_AND_TEXT.findall(Path(__file__).read_text(encoding="utf-8"))
    except OSError:
        return ""
    defaults = {field.name: field.default for field in dataclasses.fields(GenerationConfig)}
    return "".join(f"\n    {name} = {defaults[name]!r}\n        {' '.join(text.split())}" for name, text in texts)


OPTIONS_HELP = described_options()


def with_options(docstring: str | None) -> str:
    """The docstring, and after it every option."""
    return f"{inspect.cleandoc(docstring or '')}\n\nOptions:{OPTIONS_HELP}" if OPTIONS_HELP else docstring or ""


GenerationConfig.__doc__ = with_options(GenerationConfig.__doc__)
