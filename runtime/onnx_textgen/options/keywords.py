"""The options of `generate` and `stream` as keyword arguments, for type checkers and editors; `GenerationConfig` checks them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypedDict

LogitsProcessor = Callable[[list[int], Any], Any]
"""Takes the ids of prompt and text so far, and logits [vocabulary], float32, which it may change in place; returns such logits."""
StoppingCriterion = Callable[[list[int], str], bool]
"""Takes the ids of prompt and text so far, and the part of the new text that is certain; returns whether the text ends here."""


class TemplateInputs(TypedDict, total=False):
    """What a chat template gets in addition to the messages."""

    tools: Sequence[Any] | None
    """Functions that the model may call: of Python, as `Tool`, or as JSON schemas in OpenAI's form."""
    documents: Sequence[Mapping[str, Any]] | None
    """What an answer may cite; templates that know no documents ignore them."""
    chat_template_kwargs: Mapping[str, Any] | None
    """Further variables of the template, such as `{"enable_thinking": False}`."""


class Options(TypedDict, total=False):
    """The options of `generate` and `stream` as a caller writes them; None counts as not given. See `GenerationConfig`.

    `python docs/make_keywords.py` writes each option with the text of its field there, so that editors show it at a call.
    """

    max_new_tokens: int | None
    """Most tokens to generate; at least 1."""
    min_new_tokens: int | None
    """The end of the text is excluded until the text has this many tokens."""
    temperature: float | None
    """Divides the logits: below 1 the distribution is sharper, above 1 flatter, up to 100; 0 always takes the most likely token."""
    top_k: int | None
    """Draw from the k most likely tokens only; 0 = all."""
    top_p: float | None
    """Draw from the fewest tokens that together have this probability; above 0, up to 1 = all."""
    min_p: float | None
    """Draw from tokens at least this many times as likely as the most likely one; 0 = all, up to 1."""
    repetition_penalty: float | None
    """Divides positive logits of tokens in the prompt or text, multiplies negative ones; 1 = off (Keskar et al. 2019)."""
    presence_penalty: float | None
    """Subtracted from the logit of every token in the new text."""
    frequency_penalty: float | None
    """Subtracted from the logit of a token for each time that it occurs in the new text."""
    no_repeat_ngram_size: int | None
    """No sequence of this many tokens may occur twice, prompt included; 0 = off."""
    dry_multiplier: float | None
    """Strength of the penalty on a token that would extend a repeat (DRY); 0 = off."""
    dry_base: float | None
    """The DRY penalty grows by this factor with each token of the repeat."""
    dry_allowed_length: int | None
    """Repeats of up to this many tokens get no DRY penalty."""
    dry_penalty_last_n: int | None
    """DRY searches this many of the last tokens for repeats; -1 = all."""
    dry_sequence_breakers: Sequence[str] | None
    """Tokens that contain one of these strings end a repeat (DRY)."""
    logit_bias: Mapping[int, float] | None
    """Numbers added to the logits of token ids, -100 to 100; -100 in effect excludes a token."""
    bad_words_ids: Sequence[Sequence[int]] | None
    """Sequences of token ids that must not occur."""
    seed: int | None
    """0 to 2**63 - 1: the same seed draws the same tokens; None draws a new seed."""
    num_return_sequences: int | None
    """Number of texts to return for a prompt, as `sequences` of the result."""
    best_of: int | None
    """Draw this many texts and return the best: those that follow their schema, then the most likely per token; None = no more."""
    num_beams: int | None
    """Search for the most likely text with this many beams; 1 = no search."""
    length_penalty: float | None
    """A beam's score is its log-probability divided by its length to this power; above 0 favours longer texts. -10 to 10,
    so that the score is finite at any length."""
    early_stopping: bool | Literal["never"] | None
    """True: end as soon as `num_beams` texts are finished; False: when better ones are unlikely; "never": when impossible."""
    stop: str | Sequence[str] | None
    """Strings that end the text and are left out of it: up to 16, of 1 to 256 characters each."""
    ignore_eos: bool | None
    """Exclude the end-of-text ids, so that the model cannot end the text."""
    max_time: float | None
    """Seconds after which the text ends, prompt included; None = no limit."""
    context_limit: Literal["stop", "error", "shift"] | None
    """When the context is full: end the text ("stop") or drop the older half and continue ("shift"); "error" refuses in advance."""
    prompt_lookup_num_tokens: int | None
    """Most tokens of a draft from earlier text (prompt lookup), verified in one run; 0 = none. Changes the speed, and with
    `draft_verification="exact"` nothing else."""
    max_matching_ngram_size: int | None
    """Most tokens at the text's end that prompt lookup searches for in the earlier text."""
    num_assistant_tokens: int | None
    """Most tokens of a draft by the assistant model, if one was loaded, verified in one run; 0 = none."""
    assistant_confidence_threshold: float | None
    """The assistant model continues a draft while its own choice has at least this probability."""
    draft_verification: Literal["exact", "fast"] | None
    """How drafts are verified: "exact", bit-identical to single tokens, or "fast", in a run whose rounding may change a text."""
    loop_guard: Literal["off", "stop", "penalise", "resample"] | None
    """If the text repeats in a loop: end it, exclude the token that would continue the loop, or draw that token again."""
    json_schema: str | Mapping[str, Any] | None
    """The text is JSON that follows this schema."""
    strict_schema: bool | None
    """Refuse a `json_schema` with keywords that no grammar follows; else the finished text is checked (`follows_rule`)."""
    regex: str | None
    """The text matches this regular expression."""
    grammar: str | None
    """The text follows this grammar, in Lark's notation."""
    adapter: str | None
    """The LoRA adapter of the package that the text is generated with; None = the model without one."""
    src_lang: str | None
    """Of an encoder-decoder with many languages: the code of the source's language; None = the tokenizer's own."""
    tgt_lang: str | None
    """Of an encoder-decoder with many languages: the code of the text's language; None = the package's own."""
    logprobs: int | bool | None
    """Return each token's log-probability, and this many of the most likely tokens at its position; None = neither, True = 0."""
    logits_processor: LogitsProcessor | None
    """Your function that changes logits, after all penalties; see `LogitsProcessor`. Beam search passes log-probabilities."""
    stopping_criterion: StoppingCriterion | None
    """Your function that ends the text, called after each token; see `StoppingCriterion`."""


class TurnInputs(TemplateInputs, total=False):
    """What the next answer of a chat may contain, in addition to what its template gets."""

    tool_choice: Literal["auto", "none", "required"] | Mapping[str, Any] | None
    """Whether the answer may call tools ("auto"), may not, has to, or has to call a certain one, named in OpenAI's form."""
    parallel_tool_calls: bool | None
    """Whether the answer may have several calls; by default it may, if the model was trained to call tools."""
    thinking_budget: int | None
    """Most tokens that the model thinks before its answer; None = as many as it likes."""
    continue_final_message: bool | None
    """The last message is the beginning of the answer, and is continued."""


class ChatOptions(Options, TurnInputs, total=False):
    """The options of `chat` and `stream_chat`."""
