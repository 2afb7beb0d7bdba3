"""Constraints: a JSON Schema, a regular expression or a grammar that the text follows.

llguidance (extra `grammar`) computes before each token which ids the rule allows. That is a mask over the logits, applied before
the rest of the chain, so the text follows the rule whatever the model prefers.
"""

from __future__ import annotations

import functools
import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..errors import LOG, OptionError, PackageError, RuleError, first_line
from ..extras import remedy
from ..options.generation_config import GenerationConfig
from .vocabulary import make_vocabulary

if TYPE_CHECKING:
    from ..text.tokenizer import TextTokenizer

RULES = ("json_schema", "regex", "grammar")
WIDER = {"coerce_one_of": True, "lenient": True}
"""What llguidance leaves out of a schema that need not be followed to the letter: the text may then say more, and never less."""
LIMITS: dict[str, Any] = {
    "initial_lexer_fuel": 200_000,
    "step_lexer_fuel": 20_000,
    "step_max_items": 5_000,
    "max_lexer_states": 20_000,
    "max_grammar_size": 50_000,
}
"""Limits of the work for a rule: a rule that would take seconds per token is refused (the units are llguidance's)."""
MOST_RULES = 500
"""Rules of a grammar, or references in a schema: llguidance 1.9 follows them recursively, and a chain of 3,000 ends the process."""
SUBJECTS = {"tools": "the grammar of tool calls"}
"""Names in messages for rules that are not named after an option."""
MARKS = {"grammar": ":", "json_schema": '"$ref"', "tools": '"$ref"'}
"""The mark by which rules or references are counted."""
MOST_KEPT = 16
"""Compiled rules that are kept for later texts."""
BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
CEILINGS: npt.NDArray[np.float32] = np.where(BITS == 1, np.inf, -np.inf).astype(np.float32)
"""For each byte of a mask, the upper bounds of eight logits: inf if the id is allowed, -inf if not."""


class Rules:
    """Makes the constraints of one package; the tokenizer is converted once, for the first constraint."""

    def __init__(self, tokenizer: TextTokenizer | None, *, vocab_size: int, eos_ids: Sequence[int]) -> None:
        self.tokenizer, self.vocab_size, self.eos_ids = tokenizer, vocab_size, tuple(eos_ids)
        self._lock = threading.Lock()
        self._vocabulary: Any = None
        self._kept: OrderedDict[tuple[str, str, bool], Any] = OrderedDict()
        """Matchers at the beginning of a text, least recently used first, and errors of rules that were refused.

        Compiling a large schema takes a second, and so does finding out that it is too large.
        """

    def constraint(self, config: GenerationConfig) -> Constraint | None:
        """The constraint of a text with these options; None if they name no rule. Raises `OptionError`."""
        given = [name for name in RULES if getattr(config, name) is not None]
        if not given:
            return None
        return self.compiled(given[0], getattr(config, given[0]), is_strict=config.strict_schema)

    def compiled(self, name: str, rule: str, *, is_strict: bool = False) -> Constraint:
        """The constraint of one of `RULES`, or of `tools`: a grammar of calls, with schemas in it. Raises `OptionError`.

        `is_strict`: refuse a JSON Schema with keywords that no grammar can follow.
        """
        key = (name, rule, is_strict)
        with self._lock:
            kept = self._kept.pop(key, None) or self.matcher_or_error(*key)
            self._kept[key] = kept
            while len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
            if isinstance(kept, OptionError):
                raise OptionError(str(kept))
            made = Constraint(kept.deep_copy(), name, self.vocabulary(name).vocab_size - 1)
            if name == "json_schema" and self.tokenizer is not None and kept.get_grammar_warnings():
                made.checked = functools.partial(follows_schema, self.tokenizer, rule)
            return made

    def matcher_or_error(self, name: str, rule: str, is_strict: bool) -> Any:  # noqa: ANN401 - llguidance's LLMatcher, or an OptionError
        """The matcher of a rule, or why it is refused."""
        try:
            return self.matcher(name, rule, is_strict)
        except OptionError as error:
            return error

    def matcher(self, name: str, rule: str, is_strict: bool) -> Any:  # noqa: ANN401 - llguidance's LLMatcher
        """Compile a rule to a matcher at the beginning of a text."""
        if (count := rule.count(MARKS[name]) if name in MARKS else 0) > MOST_RULES:
            what = "rules" if name == "grammar" else "references"
            raise OptionError(
                f"{SUBJECTS.get(name, name)} cannot be used: it has about {count:,} {what}, and {MOST_RULES} is the limit; "
                "make it simpler"
            )
        vocabulary = self.vocabulary(name)
        from llguidance import LLMatcher, LLParserLimits  # noqa: PLC0415 - only for texts with a rule

        try:
            if name == "json_schema":
                # Any amount of white space is valid JSON: a model could write white space without end.
                how: Any = {"whitespace_flexible": False, **({} if is_strict else WIDER)}
                made = LLMatcher.grammar_from_json_schema(rule, defaults=how)
            else:
                made = LLMatcher.grammar_from_regex(rule) if name == "regex" else LLMatcher.grammar_from_lark(rule)
            matcher = LLMatcher(vocabulary, made, log_level=0, limits=LLParserLimits(**LIMITS, verbose_errors=False))
            error = matcher.get_error()
        except ValueError as caught:
            error = str(caught)
        if error:
            raise OptionError(f"{SUBJECTS.get(name, name)} cannot be used: {reason_in(error)}")
        if found := matcher.get_grammar_warnings():
            LOG.warning(
                "%s does not hold all that is asked for: %.300s", SUBJECTS.get(name, name), "; ".join(map(reason_in, found))
            )
        return matcher

    def vocabulary(self, name: str) -> Any:  # noqa: ANN401 - llguidance's LLTokenizer
        """The package's vocabulary in llguidance's form."""
        subject = SUBJECTS.get(name, name)
        if self.tokenizer is None:
            raise OptionError(f"{subject} needs a tokenizer, which this package does not have; export it again with --tokenizer")
        if self._vocabulary is None:
            try:
                self._vocabulary = make_vocabulary(self.tokenizer, rows=self.vocab_size, eos_ids=self.eos_ids)
            except ImportError as error:
                raise OptionError(f"{subject} needs llguidance, which is not installed; {remedy('grammar')}") from error
            except ValueError as error:
                raise PackageError(f"{subject} does not work with this package's tokenizer: {first_line(error)}") from error
        return self._vocabulary


class Constraint:
    """The tokens that a rule allows next in one text."""

    def __init__(self, matcher: Any, name: str, vocab_size: int) -> None:  # noqa: ANN401 - llguidance's LLMatcher
        """`vocab_size`: the ids of the matcher, except for the last."""
        self.matcher, self.name, self.vocab_size = matcher, name, vocab_size
        self.bits = np.zeros((1, -(-(vocab_size + 1) // 32)), np.int32)
        self.ceilings = np.empty((self.bits.nbytes, 8), np.float32)
        self.checked: Callable[[Sequence[int]], bool] | None = None
        """Whether a text follows what the matcher cannot, if there is such."""
        self.token_ids = list[int]()

    @property
    def is_satisfied(self) -> bool:
        """Whether the text so far is complete under the rule."""
        return bool(self.matcher.is_accepting()) and (self.checked is None or self.checked(self.token_ids))

    @property
    def is_done(self) -> bool:
        """Whether the rule allows only the end of the text."""
        return bool(self.matcher.is_stopped()) and not self.matcher.is_error()

    def mask(self, scores: npt.NDArray[np.float32]) -> None:
        """Set the scores [vocabulary] of forbidden ids to -inf, in place; raises `RuleError` if the rule allows no id."""
        from llguidance.numpy import fill_next_token_bitmask  # noqa: PLC0415

        fill_next_token_bitmask(self.matcher, self.bits, 0)
        self.check()
        # With a table of bytes: a selection by single bits takes eight times as long (0.7 instead of 0.08 ms for 152,000 ids).
        np.take(CEILINGS, self.bits.view(np.uint8)[0], axis=0, out=self.ceilings)
        np.minimum(scores, self.ceilings.reshape(-1)[: len(scores)], out=scores)
        if not self.bits.any():
            raise RuleError(f"no token of this model continues the {self.name}; make it less strict")

    def accept(self, token_id: int) -> None:
        """Advance by a token that was allowed."""
        self.matcher.consume_token(token_id)
        self.check()
        if self.checked is not None:
            self.token_ids.append(token_id)

    def forced(self) -> list[int]:
        """The tokens that must come next, as the tokenizer encodes them; often none."""
        tokens: list[int] = self.matcher.compute_ff_tokens()
        self.check()
        return tokens

    def fork(self) -> Constraint:
        """A copy for another text with the same beginning."""
        other = Constraint(self.matcher.deep_copy(), self.name, self.vocab_size)
        other.checked, other.token_ids = self.checked, [*self.token_ids]
        return other

    def check(self) -> None:
        """Raise `RuleError` if the rule cannot be followed any further, for example because it costs more than `LIMITS`."""
        if self.matcher.is_error():
            raise RuleError(f"the {self.name} cannot be followed further: {reason_in(self.matcher.get_error())}; make it simpler")


def follows_schema(tokenizer: TextTokenizer, schema: str, token_ids: Sequence[int]) -> bool:
    """Return whether a text of the grammar follows all of the schema."""
    from .schema_check import follows  # noqa: PLC0415 - imports regex, which only such texts need

    try:
        return follows(json.loads(tokenizer.decode(token_ids)), json.loads(schema))
    except (ValueError, RecursionError):
        return False


def reason_in(error: str) -> str:
    """The reason in a message of llguidance, in one line."""
    lines = [line.strip() for line in error.strip().splitlines()]
    why = next(
        (line.removeprefix("error: ") for line in lines if line.startswith("error: ")), lines[0] if lines else "no reason given"
    )
    return why[:300]
