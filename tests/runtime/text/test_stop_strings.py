"""Stop strings: the same cut for every way of chunking a text."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import onnx_textgen
from onnx_textgen.text.stop_strings import StopMatcher
from support.examples import examples

LETTERS = st.sampled_from("ab\n🙂")  # few, so that stop strings begin, overlap and break off often
TEXTS = st.lists(st.text(LETTERS, max_size=4), max_size=30)
STOPS = st.lists(st.text(LETTERS, min_size=1, max_size=5), max_size=4)


def plain_search(text: str, stops: list[str]) -> tuple[str, str | None]:
    """Look through the whole text: the first position wins, the shortest stop string at it."""
    found = [(text.index(stop), len(stop), stop) for stop in stops if stop in text]
    return (text[: min(found)[0]], min(found)[2]) if found else (text, None)


def stream(chunks: list[str], stops: list[str]) -> tuple[list[str], str | None]:
    matcher = StopMatcher(stops)
    emitted = [matcher.push(chunk)[0] for chunk in chunks]
    return [*emitted, matcher.flush()], matcher.matched


@given(TEXTS, STOPS)
@examples(200)
def test_every_chunking_gives_what_a_search_of_the_whole_text_gives(chunks: list[str], stops: list[str]) -> None:
    emitted, matched = stream(chunks, stops)
    assert ("".join(emitted), matched) == plain_search("".join(chunks), stops)


@given(TEXTS, STOPS)
@examples(200)
def test_no_more_is_held_back_than_may_begin_a_stop_string(chunks: list[str], stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    pushed = passed_on = ""
    for chunk in chunks:
        emitted, matched = matcher.push(chunk)
        if matched is not None:
            return
        pushed, passed_on = pushed + chunk, passed_on + emitted
        held = pushed.removeprefix(passed_on)
        assert not held or any(stop.startswith(held) for stop in stops)


def test_of_two_stop_strings_at_one_place_the_shorter_wins_at_once() -> None:
    assert StopMatcher(["abc", "ab"]).push("xab") == ("x", "ab")


@pytest.mark.parametrize(
    "how", [{"temperature": 0}, {"num_beams": 2}, {"temperature": 1, "seed": 3, "num_return_sequences": 2}], ids=str
)
def test_a_stop_string_that_is_a_control_token_ends_the_text_though_it_has_no_text(how: dict[str, Any]) -> None:
    model = onnx_textgen.load("story", device="cpu", threads=1)
    made = model.generate("Once upon", stop=["never", "<s>"], logit_bias={0: 100}, max_new_tokens=4, **how)
    assert (made.text, made.token_ids, made.finish_reason) == ("", (), "stop")
    plain = model.generate("Once upon", logit_bias={0: 100}, max_new_tokens=4, **how)
    assert (plain.text, plain.finish_reason) == ("", "length"), "else the token is left out of the text"
