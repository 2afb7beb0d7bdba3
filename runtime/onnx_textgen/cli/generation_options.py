"""The options of `GenerationConfig` on the command line, declared once for every command that takes them."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import OptionError

FILES = ("json_schema", "grammar")
"""Options whose value is read from a file."""


@dataclasses.dataclass(frozen=True, slots=True)
class Spec:
    """How one option is written on the command line."""

    kind: Any
    """Type of its value; an option of a list may be repeated."""
    metavar: str | None
    help: str
    flags: tuple[str, ...] = ()
    """Its spellings, if `--name-with-dashes` is not the only one."""


OPTIONS: Mapping[str, Spec] = {
    "max_new_tokens": Spec(int, "N", "Most tokens to generate.", ("--max-new-tokens", "-n")),
    "min_new_tokens": Spec(int, "N", "Do not end the text before N tokens."),
    "temperature": Spec(float, "T", "Randomness; 0 always takes the most likely token. Default: the model's, else 0.8."),
    "top_k": Spec(int, "K", "Draw from the K most likely tokens; 0: from all."),
    "top_p": Spec(float, "P", "Draw from the most likely tokens that together reach P."),
    "min_p": Spec(float, "P", "Exclude tokens less than P times as likely as the most likely one."),
    "repetition_penalty": Spec(float, "R", "Above 1: tokens in prompt and text become less likely."),
    "presence_penalty": Spec(float, "X", "Subtract X from the logit of each token in the new text."),
    "frequency_penalty": Spec(float, "X", "Subtract X from a token's logit for each time it is in the new text."),
    "no_repeat_ngram_size": Spec(int, "N", "Let no sequence of N tokens occur twice."),
    "dry_multiplier": Spec(float, "X", "Strength of the penalty on extending a repeat (DRY)."),
    "dry_base": Spec(float, "X", "Factor of the penalty for each token of the repeat (DRY)."),
    "dry_allowed_length": Spec(int, "N", "Repeats of up to N tokens get no penalty (DRY)."),
    "dry_penalty_last_n": Spec(int, "N", "Search the last N tokens for repeats; -1: all (DRY)."),
    "dry_sequence_breakers": Spec(list[str], "TEXT", "Text that ends a repeat (DRY).", ("--dry-sequence-breaker",)),
    "logit_bias": Spec(list[str], "ID=X", "Add X, from -100 to 100, to the logit of a token id."),
    "seed": Spec(int, "N", "Same seed, same text."),
    "num_return_sequences": Spec(int, "N", "Number of texts to return."),
    "best_of": Spec(int, "N", "Draw N texts and return the most likely."),
    "num_beams": Spec(int, "N", "Search for the most likely text with N beams."),
    "length_penalty": Spec(float, "X", "Above 0: beams favour longer texts."),
    "early_stopping": Spec(bool, None, "End the search as soon as --num-beams texts are finished."),
    "stop": Spec(list[str], "TEXT", "End before this text; may be repeated."),
    "ignore_eos": Spec(bool, None, "Continue where the model would end the text."),
    "max_time": Spec(float, "S", "End after S seconds."),
    "context_limit": Spec(str, "WHAT", "At the end of the context: stop, error, or shift (drop the older half)."),
    "prompt_lookup_num_tokens": Spec(int, "N", "Draft up to N tokens from earlier text; changes only the speed."),
    "max_matching_ngram_size": Spec(int, "N", "Most tokens to look up in the earlier text for such a draft."),
    "num_assistant_tokens": Spec(int, "N", "Let the assistant model draft up to N tokens at a time; 0: none."),
    "assistant_confidence_threshold": Spec(float, "P", "It continues a draft while its choice has at least probability P."),
    "draft_verification": Spec(str, "WHAT", "How drafts are verified: exact, or fast, which may change a text."),
    "loop_guard": Spec(str, "WHAT", "When the text repeats in a loop: off, stop, penalise or resample."),
    "json_schema": Spec(Path, "FILE", "Write JSON that follows this schema."),
    "strict_schema": Spec(bool, None, "Refuse a schema of which no grammar can follow all."),
    "regex": Spec(str, "REGEX", "Write text that matches this regular expression."),
    "grammar": Spec(Path, "FILE", "Write text that follows this grammar, in Lark's notation."),
    "adapter": Spec(str, "NAME", "Generate with this LoRA adapter of the package; info lists them."),
    "src_lang": Spec(str, "CODE", "Language of the source, of a model that translates between many."),
    "tgt_lang": Spec(str, "CODE", "Language of the text, of a model that translates between many."),
    "logprobs": Spec(int, "K", "Show each token's log-probability, and the K most likely at its position; with --json too."),
}


def with_options(names: Sequence[str]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the options `names` to a command; the command gets the values that the user set as the mapping `generation`."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        own = [parameter for name, parameter in signature.parameters.items() if name != "generation"]
        added = [parameter_for(name, OPTIONS[name]) for name in names]

        @functools.wraps(command)
        def run(**given: Any) -> None:  # noqa: ANN401 - values of any type
            generation = {name: value for name in names if (value := given.pop(name)) not in (None, [])}
            command(**given, generation=read_values(generation))

        run.__signature__ = signature.replace(parameters=[*own, *added])  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in [*own, *added]}
        return run

    return decorate


def parameter_for(name: str, spec: Spec) -> inspect.Parameter:
    """A keyword-only parameter that typer reads as an option."""
    flags = spec.flags or (f"--{name.replace('_', '-')}",)
    option = typer.Option(*flags, metavar=spec.metavar, help=spec.help, show_default=False)
    annotation: Any = Annotated[spec.kind | None, option]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def read_values(generation: dict[str, Any]) -> dict[str, Any]:
    """Convert values to those of `GenerationConfig`: files are read, `ID=X` becomes a mapping."""
    for name in FILES:
        if name in generation:
            generation[name] = read_file(name, generation[name])
    if "logit_bias" in generation:
        generation["logit_bias"] = dict(read_bias(text) for text in generation["logit_bias"])
    return generation


def read_file(name: str, path: Path) -> str:
    """Read a schema or a grammar; raises `OptionError`."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise OptionError(f"--{name.replace('_', '-')} cannot read {path}: {reason}; name a text file") from error


def read_bias(text: str) -> tuple[int, float]:
    """Parse `13=-100`; raises `OptionError`."""
    token_id, _, bias = text.partition("=")
    try:
        return int(token_id), float(bias)
    except ValueError as error:
        raise OptionError(f"--logit-bias takes a token id and a number, like 13=-100; found {text!r}") from error
