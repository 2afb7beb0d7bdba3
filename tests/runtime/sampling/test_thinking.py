"""A model thinks freely up to its budget; then, and only then, its answer follows the rule."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from onnx_textgen.sampling.thinking import AfterThinking, Led, Thinking

PIECES = [b"</s>", b"<think>", b"</think>", b"\n", b"a", b"b", b"</th", b"ink>", b"\n</think>\n\nx"]
EOS, OPEN, CLOSE, LINE, A, B, HALF, REST, STRADDLES = range(9)


class OnlyA:
    """The rule: the letter a, twice."""

    def __init__(self, count: int = 0) -> None:
        self.count = count

    @property
    def is_satisfied(self) -> bool:
        return self.count == 2

    @property
    def is_done(self) -> bool:
        return self.count == 2

    def mask(self, scores: np.ndarray) -> None:
        kept = scores[A]
        scores[:] = -np.inf
        scores[A] = kept

    def accept(self, token_id: int) -> None:
        assert token_id == A
        self.count += 1

    def forced(self) -> list[int]:
        return [] if self.is_done else [A]

    def fork(self) -> OnlyA:
        return OnlyA(self.count)


def thinking(*open_ids: int) -> Thinking:
    return Thinking(
        open_ids or (OPEN,),
        b"</think>",
        (LINE, CLOSE, LINE),
        (LINE,),
        (EOS,),
        lambda token_id: PIECES[token_id],
        lambda text: [A] * len(text),
    )


def allowed(rule: AfterThinking) -> list[int]:
    scores = np.zeros(len(PIECES), np.float32)
    rule.mask(scores)
    return np.flatnonzero(np.isfinite(scores)).tolist()


EVERYTHING = list(range(9))


def test_the_rule_holds_after_the_thinking_and_not_in_it() -> None:
    rule = AfterThinking(OnlyA(), thinking(), is_open=False, may_begin=True, budget=None)
    assert allowed(rule) == [OPEN, A], "an answer begins with its thinking, or at once"
    rule.accept(OPEN)
    assert allowed(rule) == EVERYTHING[1:], "the text must not end in the thinking"
    for token_id in (B, HALF, B, HALF, REST):
        assert not rule.is_satisfied
        rule.accept(token_id)
    assert rule.forced() == [LINE], "the line break that the model writes there"
    assert allowed(rule) == [LINE]
    rule.accept(LINE)
    assert allowed(rule) == [A]
    rule.accept(A)
    rule.accept(A)
    assert rule.is_satisfied
    assert rule.is_done


def test_without_thinking_the_rule_holds_from_the_first_token() -> None:
    rule = AfterThinking(OnlyA(), thinking(), is_open=False, may_begin=True, budget=None)
    rule.accept(A)
    assert allowed(rule) == [A]
    assert rule.forced() == [A]


def test_tokens_before_the_rule_come_first_also_after_thinking() -> None:
    """The marks before a text: `<|channel|>final<|message|>` of gpt-oss, `<|START_RESPONSE|>` of Command R7B."""
    led = Led([B, LINE], OnlyA())
    rule = AfterThinking(led, thinking(), is_open=False, may_begin=True, budget=None)
    other = rule.fork()
    for token_id in (OPEN, B, CLOSE, LINE):
        rule.accept(token_id)
    for each in (rule, other):
        for token_id in (B, LINE, A, A):
            assert each.forced()[:1] == ([] if each.may_think else [token_id])
            assert allowed(each) == ([OPEN, token_id] if each.may_think else [token_id])
            assert not each.is_satisfied
            assert not each.is_done
            each.accept(token_id)
        assert each.is_satisfied
        assert each.is_done


def test_thinking_that_several_tokens_begin_is_told_from_text_that_begins_alike() -> None:
    """gpt-oss begins both with `<|channel|>`; the tokens here are B and LINE, and the rule is A, or B and then A."""
    for rule, beside in ((OnlyA(), [A]), (Led([B], OnlyA()), [])):
        made = AfterThinking(rule, thinking(B, LINE), is_open=False, may_begin=True, budget=None)
        assert allowed(made) == sorted({B, *beside})
        thinks, answers = made.fork(), made.fork()
        for each in (thinks, answers):
            allowed(each)
            each.accept(B)
        if not beside:
            assert allowed(answers) == [LINE, A], "thinking or text"
            answers.accept(A)
            assert allowed(answers) == [A]
            answers.accept(A)
            assert answers.is_done
            assert allowed(thinks) == [LINE, A]
        assert thinks.is_thinking is bool(beside), "the rule allows no text with this beginning"
        assert thinks.forced() == ([LINE] if beside else [])
        for token_id in (LINE, A, CLOSE, LINE, *([] if beside else [B]), A, A):
            assert not thinks.is_satisfied
            thinks.accept(token_id)
        assert thinks.is_done
        spent = AfterThinking(rule.fork(), thinking(B, LINE), is_open=False, may_begin=True, budget=0)
        assert allowed(spent) == (beside or [B])
        spent.accept(beside[0] if beside else B)
        assert allowed(spent) == [A]


def test_a_rule_that_needs_a_token_which_also_begins_thinking_gets_it_without_a_budget() -> None:
    rule = AfterThinking(Led([B, LINE, A], OnlyA()), thinking(B, LINE, B), is_open=False, may_begin=True, budget=0)
    for token_id in (B, LINE, A, A, A):
        assert allowed(rule) == [token_id]
        rule.accept(token_id)
    assert rule.is_done


def test_without_a_rule_a_budget_of_nothing_forbids_the_second_token_that_begins_thinking() -> None:
    rule = AfterThinking(None, thinking(B, LINE, A), is_open=False, may_begin=True, budget=0)
    assert allowed(rule) == EVERYTHING
    rule.accept(B)
    assert allowed(rule) == [each for each in EVERYTHING if each != LINE]
    rule.accept(A)
    assert allowed(rule) == EVERYTHING
    counted = AfterThinking(None, thinking(B, LINE), is_open=False, may_begin=True, budget=2)
    for token_id in (B, LINE, A, A):
        assert allowed(counted) == EVERYTHING
        counted.accept(token_id)
    assert allowed(counted) == [LINE], "the budget is spent"
    ruled = AfterThinking(OnlyA(), thinking(B, LINE), is_open=False, may_begin=True, budget=1)
    allowed(ruled)
    for token_id in (B, LINE, B):
        assert not ruled.queue or ruled.queue == [LINE]
        ruled.accept(token_id)
    assert ruled.forced() == [LINE, CLOSE, LINE], "the marks are not counted"


def test_where_the_prompt_has_ended_the_thinking_none_can_begin() -> None:
    assert allowed(AfterThinking(OnlyA(), thinking(), is_open=False, may_begin=False, budget=None)) == [A]
    assert allowed(AfterThinking(None, thinking(), is_open=False, may_begin=True, budget=0)) == [
        each for each in EVERYTHING if each != OPEN
    ]


def test_a_spent_budget_ends_the_thinking_properly() -> None:
    rule = AfterThinking(OnlyA(), thinking(), is_open=True, may_begin=False, budget=2)
    rule.accept(B)
    assert allowed(rule) == EVERYTHING[1:]
    rule.accept(B)
    for token_id in (LINE, CLOSE, LINE):
        assert allowed(rule) == [token_id]
        assert rule.forced()[0] == token_id
        rule.accept(token_id)
    assert allowed(rule) == [A]


def test_a_budget_without_a_rule_leaves_the_answer_free() -> None:
    rule = AfterThinking(None, thinking(), is_open=True, may_begin=False, budget=0)
    for token_id in (LINE, CLOSE):
        assert allowed(rule) == [token_id]
        rule.accept(token_id)
    assert allowed(rule) == EVERYTHING
    assert rule.is_satisfied is None
    assert not rule.is_done


def test_a_token_with_more_than_the_mark_advances_the_rule() -> None:
    rule = AfterThinking(OnlyA(), thinking(), is_open=True, may_begin=False, budget=None)
    rule.accept(STRADDLES)
    assert rule.forced() == [A]
    rule.accept(A)
    assert rule.is_done


@given(st.lists(st.sampled_from([B, HALF, LINE, A]), max_size=30), st.integers(0, 10))
def test_no_thinking_is_longer_than_its_budget_and_what_ends_it(tokens: list[int], budget: int) -> None:
    rule, thought = AfterThinking(OnlyA(), thinking(), is_open=True, may_begin=False, budget=budget), 0
    choices = iter(tokens)
    while rule.is_thinking and (choice := next(choices, None)) is not None:
        can = allowed(rule)
        rule.accept(choice if choice in can else can[0])
        thought += 1
    assert thought <= budget + len((LINE, CLOSE))
    other = rule.fork()
    assert allowed(other) == allowed(rule)
    assert (other.tokens, other.is_thinking) == (rule.tokens, rule.is_thinking)
