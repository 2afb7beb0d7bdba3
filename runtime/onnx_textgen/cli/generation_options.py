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
class Given:
    """How one option is written on the command line."""

    kind: Any
    """Type of its value; a list may be given several times."""
    metavar: str | None
    help: str
    flags: tuple[str, ...] = ()
    """Where `--name-with-dashes` is not enough."""


OPTIONS: Mapping[str, Given] = {
    "max_new_tokens": Given(int, "N", "Most tokens to generate.", ("--max-new-tokens", "-n")),
    "min_new_tokens": Given(int, "N", "No end of text before so many tokens."),
    "temperature": Given(float, "T", "Randomness; 0 always takes the likeliest token. Default: the model's, else 0.8."),
    "top_k": Given(int, "K", "Draw from the K likeliest tokens; 0: from all."),
    "top_p": Given(float, "P", "Draw from the likeliest tokens that together reach P."),
    "min_p": Given(float, "P", "Leave out tokens below P times the likeliest one."),
    "typical_p": Given(float, "P", "Draw from the tokens of the most expected surprise that together reach P."),
    "top_n_sigma": Given(float, "S", "Draw from logits within S standard deviations of the largest."),
    "xtc_probability": Given(float, "P", "How often the likeliest tokens are left out (XTC)."),
    "xtc_threshold": Given(float, "P", "The probability that makes a token one of the likeliest (XTC)."),
    "mirostat": Given(int, "2", "2: hold the surprise of the text steady; 0: off."),
    "mirostat_tau": Given(float, "BITS", "The surprise that mirostat holds, in bits per token."),
    "mirostat_eta": Given(float, "RATE", "How fast mirostat follows."),
    "repetition_penalty": Given(float, "R", "Above 1: tokens of prompt and text become less likely."),
    "presence_penalty": Given(float, "X", "Taken from the logit of each token that the text has."),
    "frequency_penalty": Given(float, "X", "Taken from a token's logit as often as the text has it."),
    "no_repeat_ngram_size": Given(int, "N", "No sequence of N tokens twice."),
    "dry_multiplier": Given(float, "X", "Strength of the penalty on lengthening a repeat (DRY)."),
    "dry_base": Given(float, "X", "How the penalty grows with each token of the repeat (DRY)."),
    "dry_allowed_length": Given(int, "N", "Repeats that go unpunished (DRY)."),
    "dry_penalty_last_n": Given(int, "N", "Tokens searched for repeats; -1: all (DRY)."),
    "dry_sequence_breakers": Given(list[str], "TEXT", "Text that ends a repeat (DRY).", ("--dry-sequence-breaker",)),
    "logit_bias": Given(list[str], "ID=X", "Add X, from -100 to 100, to the logit of a token id."),
    "suppress_tokens": Given(list[int], "ID", "A token id that must not come.", ("--suppress-token",)),
    "seed": Given(int, "N", "Same seed, same text."),
    "num_return_sequences": Given(int, "N", "Give so many texts."),
    "best_of": Given(int, "N", "Draw N texts and give the likeliest."),
    "num_beams": Given(int, "N", "Search for the likeliest text with N beams."),
    "num_beam_groups": Given(int, "N", "Groups of beams that are kept apart."),
    "diversity_penalty": Given(float, "X", "How far the groups are kept apart."),
    "length_penalty": Given(float, "X", "Above 0: beams favour longer texts."),
    "early_stopping": Given(bool, None, "End the search as soon as N texts are finished."),
    "stop": Given(list[str], "TEXT", "End before this text; may be given several times."),
    "ignore_eos": Given(bool, None, "Go on where the model would end the text."),
    "max_time": Given(float, "S", "End after S seconds."),
    "context_limit": Given(str, "WHAT", "At the end of the context: stop, error, or shift (forget the older half)."),
    "n_keep": Given(int, "N", "Tokens that a shift never forgets; -1: the prompt."),
    "prompt_lookup_num_tokens": Given(int, "N", "Guess up to N tokens from what came before; speed alone."),
    "max_matching_ngram_size": Given(int, "N", "Tokens that such a guess has to match."),
    "num_assistant_tokens": Given(int, "N", "Let the assistant model guess up to N tokens at a time; 0: none."),
    "assistant_confidence_threshold": Given(float, "P", "It guesses on while it gives its choice the probability P."),
    "draft_verification": Given(str, "WHAT", "How guesses are checked: exact, or fast, which may change a text."),
    "loop_guard": Given(str, "WHAT", "When the text runs in a circle: off, stop, penalise or resample."),
    "json_schema": Given(Path, "FILE", "Write JSON of this schema."),
    "regex": Given(str, "REGEX", "Write text that matches this regular expression."),
    "grammar": Given(Path, "FILE", "Write text that follows this grammar, in Lark's notation."),
    "logprobs": Given(int, "K", "Show each token's log-probability, and the K likeliest at its place; with --json too."),
}


def with_options(names: Sequence[str]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options `names`; it gets those that were given as the mapping `generation`."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        own = [parameter for name, parameter in signature.parameters.items() if name != "generation"]
        added = [parameter_for(name, OPTIONS[name]) for name in names]

        @functools.wraps(command)
        def run(**given: Any) -> None:  # noqa: ANN401 - whatever typer read
            generation = {name: value for name in names if (value := given.pop(name)) not in (None, [])}
            command(**given, generation=read(generation))

        run.__signature__ = signature.replace(parameters=[*own, *added])  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in [*own, *added]}
        return run

    return decorate


def parameter_for(name: str, given: Given) -> inspect.Parameter:
    """A keyword-only parameter that typer reads as an option."""
    flags = given.flags or (f"--{name.replace('_', '-')}",)
    option = typer.Option(*flags, metavar=given.metavar, help=given.help, show_default=False)
    annotation: Any = Annotated[given.kind | None, option]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def read(generation: dict[str, Any]) -> dict[str, Any]:
    """The values as `GenerationConfig` takes them: files are read, `ID=X` becomes a mapping."""
    for name in FILES:
        if name in generation:
            generation[name] = read_file(name, generation[name])
    if "logit_bias" in generation:
        generation["logit_bias"] = dict(read_bias(text) for text in generation["logit_bias"])
    return generation


def read_file(name: str, path: Path) -> str:
    """A schema or a grammar."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise OptionError(f"--{name.replace('_', '-')} cannot read {path}: {reason}; name a text file") from error


def read_bias(text: str) -> tuple[int, float]:
    """Parse `13=-100`."""
    token_id, _, bias = text.partition("=")
    try:
        return int(token_id), float(bias)
    except ValueError as error:
        raise OptionError(f"--logit-bias takes a token id and a number, like 13=-100; found {text!r}") from error
