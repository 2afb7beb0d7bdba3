"""The options of `generate` and `stream` as keyword arguments, for type checkers and editors; `GenerationConfig` checks them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypedDict

LogitsProcessor = Callable[[list[int], Any], Any]
"""The ids of prompt and text so far, and logits [vocabulary], float32, which it may write into; gives such logits back."""
StoppingCriterion = Callable[[list[int], str], bool]
"""The ids of prompt and text so far, and the new text as far as it is certain; tells whether it is to end here."""


class Options(TypedDict, total=False):
    """The options of `generate` and `stream` as a caller writes them; None counts as not given. See `GenerationConfig`.

    Each has the text of its field there, for editors to show beside a call.
    """

    max_new_tokens: int | None
    """Most tokens to add; at least 1."""
    min_new_tokens: int | None
    """Tokens before which no end of text may be chosen."""
    temperature: float | None
    """Divides the logits: below 1 sharper, above 1 flatter, up to 100; 0 always takes the most likely token."""
    top_k: int | None
    """Draw among the k most likely tokens only; 0 = all."""
    top_p: float | None
    """Draw among the fewest tokens that hold this share of the probability; above 0, up to 1 = all."""
    min_p: float | None
    """Draw among tokens at least this many times as likely as the likeliest; 0 = all, up to 1."""
    typical_p: float | None
    """Draw among the tokens whose surprise is nearest to the expected one, that hold this share; 1 = all (Meister et al. 2022)."""
    top_n_sigma: float | None
    """Draw among logits within so many standard deviations of the largest; 0 = all (Tang et al. 2024)."""
    xtc_probability: float | None
    """How often the likeliest tokens are left out: all at or above `xtc_threshold` but the least likely of them."""
    xtc_threshold: float | None
    """The probability that makes a token one of the likeliest; above 0.5 there could never be two."""
    mirostat: int | None
    """2: keep the surprise of the text near `mirostat_tau` by a cut that follows it; 0 = off (Basu et al. 2021, version 2)."""
    mirostat_tau: float | None
    """The surprise to keep, in bits per token."""
    mirostat_eta: float | None
    """How fast mirostat follows."""
    repetition_penalty: float | None
    """Divides positive logits of tokens that prompt or text has, multiplies negative ones; 1 = off (Keskar et al. 2019)."""
    presence_penalty: float | None
    """Subtracted from the logit of every token that the new text has."""
    frequency_penalty: float | None
    """Subtracted from the logit of a token as many times as the new text has it."""
    no_repeat_ngram_size: int | None
    """No run of so many tokens may come twice, prompt included; 0 = off."""
    dry_multiplier: float | None
    """Strength of the penalty on a token that would lengthen a repeated sequence (DRY)."""
    dry_base: float | None
    """The penalty grows by this factor with each token of the repeated sequence."""
    dry_allowed_length: int | None
    """Repeated sequences up to this length go unpunished."""
    dry_penalty_last_n: int | None
    """How many of the last tokens are searched for repeats; -1 = all."""
    dry_sequence_breakers: Sequence[str] | None
    """Tokens that hold one of these end a sequence."""
    logit_bias: Mapping[int, float] | None
    """What is added to the logits of some tokens, by id: -100, which all but rules a token out, to 100."""
    bad_words_ids: Sequence[Sequence[int]] | None
    """Sequences of token ids that must not come."""
    suppress_tokens: Sequence[int] | None
    """Token ids that must not come."""
    seed: int | None
    """0 to 2**63 - 1: the same seed draws the same tokens; None takes a fresh one."""
    num_return_sequences: int | None
    """How many texts to give back for a prompt."""
    best_of: int | None
    """Draw so many texts and give back the likeliest per token; None = as many as are given back."""
    num_beams: int | None
    """Search for the likeliest text with so many candidates side by side; 1 = no search."""
    num_beam_groups: int | None
    """Groups of beams kept apart by `diversity_penalty` (Vijayakumar et al. 2016)."""
    diversity_penalty: float | None
    """Subtracted from a token's score for each earlier group that takes it at the same step."""
    length_penalty: float | None
    """A beam's score is its log-probability divided by its length to this power; above 0 favours longer texts. -10 to 10, which no
    length brings to the ends of what a float holds."""
    early_stopping: bool | Literal["never"] | None
    """True: end as soon as `num_beams` texts are finished; False: when better ones are unlikely; "never": when impossible."""
    stop: str | Sequence[str] | None
    """Text that ends the generation and is left out of it: up to 16 strings of 1 to 256 characters."""
    ignore_eos: bool | None
    """Rule out the tokens that end a text."""
    max_time: float | None
    """Seconds after which the text ends, prompt included; None = no limit."""
    context_limit: Literal["stop", "error", "shift"] | None
    """At the end of the context: end the text, raise an error, or forget the older half and go on."""
    n_keep: int | None
    """Tokens at the beginning of the prompt that `context_limit="shift"` never forgets; -1 = all of the prompt."""
    prompt_lookup_num_tokens: int | None
    """Most tokens that are guessed at a time from what came before, and checked in one run; 0: none. Changes the speed alone."""
    max_matching_ngram_size: int | None
    """Tokens at the text's end that are looked for in what came before."""
    num_assistant_tokens: int | None
    """Most tokens that are guessed at a time by the assistant model, where one was loaded, and checked in one run; 0: none."""
    assistant_confidence_threshold: float | None
    """The assistant model guesses on while it gives its own choice at least this probability."""
    draft_verification: Literal["exact", "fast"] | None
    """How guesses are checked: to the last bit as tokens one by one, or in a run that may round otherwise and change a text."""
    loop_guard: Literal["off", "stop", "penalise", "resample"] | None
    """What to do when the text runs in a circle: end it, rule out the token that goes on with it, or draw that token again."""
    json_schema: str | Mapping[str, Any] | None
    """The text is JSON of this schema."""
    regex: str | None
    """The text matches this regular expression."""
    grammar: str | None
    """The text follows this grammar, in Lark's notation."""
    logprobs: int | None
    """Give each token's log-probability, and those of so many of the likeliest; None = neither."""
    logits_processor: LogitsProcessor | None
    """A function of your own, called behind all penalties; see `LogitsProcessor`. In a beam search it gets log-probabilities."""
    stopping_criterion: StoppingCriterion | None
    """A function of your own that ends the text, called after each token; see `StoppingCriterion`."""
