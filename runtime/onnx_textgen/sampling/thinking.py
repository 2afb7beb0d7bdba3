"""A rule that begins after the model's thinking, and a limit for the length of the thinking."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Protocol, Self

import numpy as np
import numpy.typing as npt


class Rule(Protocol):
    """Protocol of a rule that a text follows; `grammar.Constraint` is one."""

    @property
    def is_satisfied(self) -> bool | None:
        """Whether the text so far is complete under the rule; None if there is no rule."""

    @property
    def is_done(self) -> bool:
        """Whether the rule allows only the end of the text."""

    def mask(self, scores: npt.NDArray[np.float32]) -> None:
        """Set the scores [vocabulary] of forbidden ids to -inf, in place."""

    def accept(self, token_id: int) -> None:
        """Advance by a token that was allowed."""

    def forced(self) -> list[int]:
        """The tokens that must come next; often none."""

    def fork(self) -> Self:
        """A copy for another text with the same beginning."""


class Led:
    """A rule that holds after some tokens, which have to come first."""

    def __init__(self, token_ids: Sequence[int], rule: Rule) -> None:
        self.token_ids, self.rule = list(token_ids), rule

    @property
    def is_satisfied(self) -> bool | None:
        """See `Rule`."""
        return not self.token_ids and self.rule.is_satisfied

    @property
    def is_done(self) -> bool:
        """See `Rule`."""
        return not self.token_ids and self.rule.is_done

    def mask(self, scores: npt.NDArray[np.float32]) -> None:
        """See `Rule`."""
        if self.token_ids:
            only(scores, self.token_ids[0])
        else:
            self.rule.mask(scores)

    def accept(self, token_id: int) -> None:
        """See `Rule`."""
        if self.token_ids:
            self.token_ids.pop(0)
        else:
            self.rule.accept(token_id)

    def forced(self) -> list[int]:
        """See `Rule`."""
        return list(self.token_ids) or self.rule.forced()

    def fork(self) -> Led:
        """See `Rule`."""
        return Led(self.token_ids, self.rule.fork())


def only(scores: npt.NDArray[np.float32], token_id: int) -> None:
    """Set all scores [vocabulary] but one to -inf, in place."""
    score = scores[token_id]
    scores[:] = -np.inf
    scores[token_id] = score


@dataclasses.dataclass(frozen=True, slots=True)
class Thinking:
    """How the thinking of a model begins and ends."""

    open_ids: tuple[int, ...]
    """The tokens that begin it; none if only the prompt can begin it."""
    close: bytes
    """The text that ends it."""
    closing_ids: tuple[int, ...]
    """The tokens that end it properly, with what the model writes around `close`."""
    tail_ids: tuple[int, ...]
    """The tokens of what follows `close`: white space, or the beginning of another message."""
    eos_ids: tuple[int, ...]
    """The ids that end a text."""
    piece_bytes: Callable[[int], bytes]
    encode: Callable[[str], Sequence[int]]


class AfterThinking:
    """Lets a model think freely, up to a budget, and then holds it to a rule.

    The rule is not advanced until the thinking is over. If the model begins its answer without thinking, the rule holds at once.
    While it writes what may become the beginning of thinking, the rule advances as well, and starts again if it does.
    """

    def __init__(self, rule: Rule | None, thinking: Thinking, *, is_open: bool, may_begin: bool, budget: int | None) -> None:
        """`is_open`: whether the prompt has begun the thinking; `may_begin`: whether the text may begin it.

        `budget`: most tokens of the thinking; None = no limit.
        """
        self.rule, self.thinking, self.budget = rule, thinking, budget
        self.is_thinking, self.may_think = is_open, may_begin and bool(thinking.open_ids)
        self.opened = 0
        """Tokens that have begun the thinking so far."""
        self.first_rule = rule.fork() if rule is not None and self.may_think and len(thinking.open_ids) > 1 else rule
        """The rule at the beginning of the answer."""
        self.is_ruled = False
        """Whether the rule allows the next token of `open_ids` by itself."""
        self.tokens = 0
        """Tokens of the thinking so far."""
        self.end = b""
        """The last bytes of the thinking, in which its end is searched."""
        self.queue: list[int] = []
        """Tokens that have to come next: they end the thinking, or follow its end."""
        self.check_budget()

    def check_budget(self) -> None:
        """Begin to end the thinking when it has used its budget."""
        if self.is_thinking and not self.queue and self.budget is not None and self.tokens >= self.budget:
            self.queue = list(self.thinking.closing_ids)

    @property
    def is_satisfied(self) -> bool | None:
        """Whether the answer is complete under the rule; None without one."""
        return None if self.rule is None else not self.is_thinking and bool(self.rule.is_satisfied)

    @property
    def is_done(self) -> bool:
        """Whether the rule allows only the end of the text."""
        return self.rule is not None and not self.is_thinking and not self.queue and self.rule.is_done

    def mask(self, scores: npt.NDArray[np.float32]) -> None:
        """Set the scores [vocabulary] of forbidden ids to -inf, in place."""
        if self.queue:
            only(scores, self.queue[0])
        elif self.is_thinking:
            if self.rule is not None:
                scores[list(self.thinking.eos_ids)] = -np.inf  # the answer is still to come
        elif self.may_think:
            self.mask_beginning(scores)
        elif self.rule is not None:
            self.rule.mask(scores)

    def mask_beginning(self, scores: npt.NDArray[np.float32]) -> None:
        """`mask` where the thinking may begin."""
        open_ids = self.thinking.open_ids
        open_id = open_ids[self.opened]
        score = scores[open_id]
        if self.rule is not None:
            self.rule.mask(scores)
        self.is_ruled = self.rule is None or bool(np.isfinite(scores[open_id]))
        if self.budget != 0:
            scores[open_id] = score
        elif self.opened == min(1, len(open_ids) - 1) and np.count_nonzero(np.isfinite(scores)) > 1:
            scores[open_id] = -np.inf  # the first token may begin the text as well

    def accept(self, token_id: int) -> None:
        """Advance by a token that was allowed."""
        was_queued = bool(self.queue) and self.queue.pop(0) == token_id
        if self.is_thinking:
            self.think(token_id, was_queued=was_queued)
            return
        open_ids = self.thinking.open_ids
        self.may_think = self.may_think and token_id == open_ids[self.opened]
        self.opened += self.may_think
        if self.may_think and (self.opened == len(open_ids) or not self.is_ruled):
            self.is_thinking, self.may_think, self.rule = True, False, self.first_rule
            self.queue = list(open_ids[self.opened :])
            self.check_budget()
        elif self.rule is not None and not was_queued:
            self.rule.accept(token_id)

    def think(self, token_id: int, *, was_queued: bool) -> None:
        """Advance the thinking by a token, which may end it."""
        self.tokens += not was_queued  # the marks are not counted
        before, mark, rest = (self.end + self.thinking.piece_bytes(token_id)).partition(self.thinking.close)
        self.end = before[-len(self.thinking.close) :]
        if not mark:
            self.check_budget()
            return
        self.is_thinking = False
        if self.rule is None:
            self.queue = []
        elif not was_queued:
            self.queue = [] if rest else list(self.thinking.tail_ids)
            for each in self.thinking.encode(text) if (text := rest.decode("utf-8", "replace").lstrip()) else ():
                self.rule.accept(each)  # of a token that has more than the mark

    def forced(self) -> list[int]:
        """The tokens that must come next; often none."""
        if self.queue:
            return list(self.queue)
        return [] if self.is_thinking or self.may_think or self.rule is None else self.rule.forced()

    def fork(self) -> AfterThinking:
        """A copy for another text with the same beginning."""
        rule = None if self.rule is None else self.rule.fork()
        other = AfterThinking(rule, self.thinking, is_open=self.is_thinking, may_begin=self.may_think, budget=self.budget)
        other.tokens, other.end, other.queue = self.tokens, self.end, list(self.queue)
        other.opened, other.is_ruled = self.opened, self.is_ruled
        other.first_rule = other.first_rule if self.first_rule is None or not self.opened else self.first_rule.fork()
        return other
