"""Texts that run in a circle are found out, ordinary ones are not, and what the caller chose happens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnx_textgen.sampling.repetition_guard import LONGEST, REPEATS, TOKENS, LoopGuard
from support.examples import examples

LIST = "Things to buy:\n" + "".join(f"{number}. a bag of apples and a box of tea\n" for number in range(1, 40))
TABLE = "| name | age |\n| --- | --- |\n" + "".join(f"| Tim | {age} |\n" for age in range(3, 30))
RULE = "Title\n" + "-" * 60 + "\nText\n" + "=" * 60 + "\n"
CODE = "def f():\n" + "".join(f"{' ' * 40}x{i} = {i}\n" for i in range(20))
VERSE = (
    """Row, row, row your boat, gently down the stream,
merrily, merrily, merrily, merrily, life is but a dream.
"""
    * 3
)
SONG = (
    "Old MacDonald had a farm, E-I-E-I-O. "
    + "And on his farm he had a cow, E-I-E-I-O. With a moo, moo here and a moo, moo there, " * 3
)


def first_alarm(ids):
    """After how many tokens the guard says that the text runs in a circle."""
    guard = LoopGuard()
    for count, token_id in enumerate(ids, start=1):
        guard.push(token_id)
        if guard.next_in_cycle is not None:
            return count
    return None


def in_circle(ids):
    """The same by comparing slices: the definition, not the method."""
    return any(
        all(ids[-1 - i] == ids[-1 - i - period] for i in range(max(TOKENS, REPEATS * period)))
        for period in range(1, LONGEST + 1)
        if len(ids) >= max(TOKENS, REPEATS * period) + period
    )


@given(st.lists(st.integers(0, 2), max_size=20), st.lists(st.integers(0, 2), min_size=1, max_size=12), st.integers(1, 40))
@examples(60)
def test_the_alarm_comes_exactly_when_the_definition_is_met(start, circle, times):
    ids = start + circle * times
    expected = next((count for count in range(1, len(ids) + 1) if in_circle(ids[:count])), None)
    assert first_alarm(ids) == expected


@pytest.mark.parametrize("period", [1, 2, 7, 60, 256])
def test_the_next_token_of_the_circle_is_told(period):
    guard, circle = LoopGuard(), list(range(100, 100 + period))
    ids = circle * (REPEATS + 1 + TOKENS // period)
    for token_id in ids:
        guard.push(token_id)
    assert guard.next_in_cycle == circle[len(ids) % period]


@pytest.mark.parametrize("text", [LIST, TABLE, RULE, CODE, VERSE, SONG])
def test_lists_tables_code_and_verse_are_no_circles(text, story):
    assert first_alarm(story.tokenizer.encode(text)) is None


CIRCLING = "the the the the the the the the the the the the"


def looping(story, **options):
    """A text whose model would say the same word for ever."""
    token_id = story.tokenizer.encode(" the")[-1]
    return story.generate(CIRCLING, max_new_tokens=300, logit_bias={token_id: 30}, ignore_eos=True, **options), token_id


def test_without_a_guard_the_text_loops_to_its_end(story):
    result, token_id = looping(story, temperature=0)
    assert result.finish_reason == "length" and set(result.token_ids) == {token_id}


def test_stop_ends_the_text(story):
    result, _ = looping(story, temperature=0, loop_guard="stop")
    assert result.finish_reason == "loop" and len(result.token_ids) == TOKENS + 1


def test_penalise_rules_the_next_token_out_and_gives_up_after_a_while(story):
    result, token_id = looping(story, temperature=0, loop_guard="penalise")
    others = [i for i in result.token_ids if i != token_id]
    assert others and result.finish_reason == "length"
    longer = story.generate(
        CIRCLING,
        max_new_tokens=1500,
        logit_bias={token_id: 30},
        ignore_eos=True,
        loop_guard="penalise",
        temperature=0,
        context_limit="shift",
    )
    assert longer.finish_reason == "loop" and len(longer.token_ids) < 1500


def test_resample_draws_the_token_again(story):
    token_id = story.tokenizer.encode(" the")[-1]
    options = {"max_new_tokens": 200, "ignore_eos": True, "temperature": 1, "seed": 3}
    bias = {token_id: 10.5}
    loops = story.generate(CIRCLING, logit_bias=bias, **options)
    assert first_alarm(loops.token_ids) is not None
    result = story.generate(CIRCLING, logit_bias=bias, loop_guard="resample", **options)
    assert result.token_ids != loops.token_ids
    alarm = first_alarm(loops.token_ids)
    assert result.token_ids[:alarm] == loops.token_ids[:alarm]


def test_real_circles_of_a_greedy_model_are_found(story):
    result = story.generate("Once upon a time", max_new_tokens=480, temperature=0, ignore_eos=True)
    alarm = first_alarm(result.token_ids)
    guarded = story.generate("Once upon a time", max_new_tokens=480, temperature=0, ignore_eos=True, loop_guard="stop")
    assert (guarded.finish_reason == "loop") == (alarm is not None)
    assert alarm is None or len(guarded.token_ids) == alarm
