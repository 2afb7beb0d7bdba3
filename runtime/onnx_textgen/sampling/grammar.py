"""Text that follows a rule: a JSON Schema, a regular expression or a grammar.

The rules are llguidance's (extra `grammar`), which says before each token which ids may come. What a text's rule allows is a mask
over its logits; the rest of the chain chooses among what is left, so the text is valid whatever the model prefers.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..errors import OptionError, PackageError, RuleError, first_line
from ..options.generation_config import GenerationConfig

if TYPE_CHECKING:
    from ..text.tokenizer import TextTokenizer

RULES = ("json_schema", "regex", "grammar")
INSTALL = 'pip install "onnx-textgen[grammar]"'
LIMITS: dict[str, Any] = {
    "initial_lexer_fuel": 200_000,
    "step_lexer_fuel": 20_000,
    "step_max_items": 5_000,
    "max_lexer_states": 20_000,
    "max_grammar_size": 50_000,
}
"""Work that a rule may cost: one that would take seconds a token is refused (units are llguidance's own)."""
MOST_RULES = 500
"""Rules of a grammar, or references in a schema: llguidance 1.9 follows them recursively, and 3,000 in a chain end the process."""
MARKS = {"grammar": ":", "json_schema": '"$ref"'}
"""What each rule, or reference, has in its text."""
MOST_KEPT = 16
"""Rules that are kept ready for another text."""
BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
CEILINGS: npt.NDArray[np.float32] = np.where(BITS == 1, np.inf, -np.inf).astype(np.float32)
"""For each byte of a mask the largest value that eight logits may have: inf where allowed, -inf where not."""


class Rules:
    """Makes the constraints of one package; the tokenizer is taken apart once, when the first of them is asked for."""

    def __init__(self, tokenizer: TextTokenizer | None, *, vocab_size: int, eos_ids: Sequence[int]) -> None:
        self.tokenizer, self.vocab_size, self.eos_ids = tokenizer, vocab_size, tuple(eos_ids)
        self._lock = threading.Lock()
        self._vocabulary: Any = None
        self._kept: OrderedDict[tuple[str, str], Any] = OrderedDict()
        """Matchers at the beginning of a text, the one used longest ago first: compiling a large schema takes a second."""

    def constraint(self, config: GenerationConfig) -> Constraint | None:
        """What holds for a text with these options; None where no rule was asked for. Raises `OptionError`."""
        given = [name for name in RULES if getattr(config, name) is not None]
        if not given:
            return None
        name, rule = given[0], getattr(config, given[0])
        with self._lock:
            matcher = self._kept.pop((name, rule), None) or self.matcher(name, rule)
            self._kept[name, rule] = matcher
            while len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
            return Constraint(matcher.deep_copy(), name, self.vocab_size)

    def matcher(self, name: str, rule: str) -> Any:  # noqa: ANN401 - llguidance's LLMatcher
        """A matcher at the beginning of a text."""
        if (count := rule.count(MARKS[name]) if name in MARKS else 0) > MOST_RULES:
            what = "rules" if name == "grammar" else "references"
            raise OptionError(
                f"{name} cannot be used: it has about {count:,} {what}, and {MOST_RULES} is the limit; make it simpler"
            )
        vocabulary = self.vocabulary(name)
        from llguidance import LLMatcher, LLParserLimits  # noqa: PLC0415 - only where a rule is asked for

        try:
            if name == "json_schema":
                # Any amount of white space is valid JSON: a model that likes it would never get to the point.
                made = LLMatcher.grammar_from_json_schema(rule, defaults={"whitespace_flexible": False})
            else:
                made = LLMatcher.grammar_from_regex(rule) if name == "regex" else LLMatcher.grammar_from_lark(rule)
            matcher = LLMatcher(vocabulary, made, log_level=0, limits=LLParserLimits(**LIMITS, verbose_errors=False))
            error = matcher.get_error()
        except ValueError as caught:
            error = str(caught)
        if error:
            raise OptionError(f"{name} cannot be used: {reason_in(error)}")
        return matcher

    def vocabulary(self, name: str) -> Any:  # noqa: ANN401 - llguidance's LLTokenizer
        """The package's tokens as llguidance sees them."""
        if self.tokenizer is None:
            raise OptionError(f"{name} needs a tokenizer, which this package does not have; export it again with --tokenizer")
        try:
            from llguidance import LLTokenizer  # noqa: PLC0415
        except ImportError as error:
            raise OptionError(f"{name} needs llguidance, which is not installed; run: {INSTALL}") from error
        if self._vocabulary is None:
            # The id after the last stands for the end of text where the package has none: it is never chosen.
            ends = list(self.eos_ids) or [self.vocab_size]
            try:
                self._vocabulary = LLTokenizer(self.tokenizer.to_json(), n_vocab=self.vocab_size + 1, eos_token=ends)
            except ValueError as error:
                raise PackageError(f"{name} does not work with this package's tokenizer: {first_line(error)}") from error
        return self._vocabulary


class Constraint:
    """What may come next in one text."""

    def __init__(self, matcher: Any, name: str, vocab_size: int) -> None:  # noqa: ANN401 - llguidance's LLMatcher
        self.matcher, self.name, self.vocab_size = matcher, name, vocab_size
        self.bits = np.zeros((1, -(-(vocab_size + 1) // 32)), np.int32)
        self.ceilings = np.empty((self.bits.nbytes, 8), np.float32)

    @property
    def is_satisfied(self) -> bool:
        """Whether the text so far follows the rule to its end."""
        return bool(self.matcher.is_accepting())

    @property
    def is_done(self) -> bool:
        """Whether nothing but the end of the text may come."""
        return bool(self.matcher.is_stopped()) and not self.matcher.is_error()

    def mask(self, scores: npt.NDArray[np.float32]) -> None:
        """Set the scores [vocabulary] of ids that may not come to -inf, in place; raises `RuleError` where none may."""
        from llguidance.numpy import fill_next_token_bitmask  # noqa: PLC0415

        fill_next_token_bitmask(self.matcher, self.bits, 0)
        self.check()
        # Through a table of bytes: a selection by single bits takes eight times as long (0.08 against 0.7 ms for 152,000 ids).
        np.take(CEILINGS, self.bits.view(np.uint8)[0], axis=0, out=self.ceilings)
        np.minimum(scores, self.ceilings.reshape(-1)[: len(scores)], out=scores)
        if not self.bits.any():
            raise RuleError(f"no token of this model goes on with the {self.name}; make it less strict")

    def accept(self, token_id: int) -> None:
        """Go on behind a token that was allowed."""
        self.matcher.consume_token(token_id)
        self.check()

    def forced(self) -> list[int]:
        """The tokens that must come next, as the tokenizer would write them; often none."""
        tokens: list[int] = self.matcher.compute_ff_tokens()
        self.check()
        return tokens

    def fork(self) -> Constraint:
        """One for another text with the same beginning."""
        return Constraint(self.matcher.deep_copy(), self.name, self.vocab_size)

    def check(self) -> None:
        """Raise `RuleError` where the rule cannot be followed any further, as when it costs more than `LIMITS`."""
        if self.matcher.is_error():
            raise RuleError(f"the {self.name} cannot be followed further: {reason_in(self.matcher.get_error())}; make it simpler")


def reason_in(error: str) -> str:
    """The part of a message of llguidance that says why, in one line."""
    lines = [line.strip() for line in error.strip().splitlines()]
    why = next(
        (line.removeprefix("error: ") for line in lines if line.startswith("error: ")), lines[0] if lines else "no reason given"
    )
    return why[:300]
