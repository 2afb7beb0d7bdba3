"""Stop strings: the same cut for every way of chunking a text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnx_textgen.text.stop_strings import StopMatcher

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
def test_every_chunking_gives_what_a_search_of_the_whole_text_gives(chunks: list[str], stops: list[str]) -> None:
    emitted, matched = stream(chunks, stops)
    assert ("".join(emitted), matched) == plain_search("".join(chunks), stops)


@given(TEXTS, STOPS)
def test_text_passed_on_never_holds_a_stop_string(chunks: list[str], stops: list[str]) -> None:
    text = "".join(stream(chunks, stops)[0])
    assert not any(stop in text for stop in stops)


@given(TEXTS, STOPS)
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


def test_a_stop_string_split_over_two_chunks_is_held_back() -> None:
    matcher = StopMatcher(["\n\nUser:"])
    assert matcher.push("Hello.\n") == ("Hello.", None)
    assert matcher.push("\nUs") == ("", None)
    assert matcher.push("er: and so on") == ("", "\n\nUser:")
    assert matcher.flush() == ""


def test_text_held_back_for_nothing_is_passed_on() -> None:
    matcher = StopMatcher(["\n\nUser:"])
    assert matcher.push("Hello.\n\nUs")[0] == "Hello."
    assert matcher.push(" two")[0] == "\n\nUs two"
    assert matcher.push("\n")[0] == ""
    assert matcher.flush() == "\n"
    assert matcher.matched is None


def test_nothing_is_passed_on_after_a_match() -> None:
    matcher = StopMatcher(["end"])
    assert matcher.push("the end of") == ("the ", "end")
    assert matcher.push("more end") == ("", "end")
    assert matcher.flush() == ""


def test_of_two_stop_strings_the_one_that_begins_first_wins() -> None:
    matcher = StopMatcher(["bc", "abcd"])
    assert matcher.push("xabc") == ("x", None)  # "bc" is there, but "abcd" may yet begin before it
    assert matcher.push("d") == ("", "abcd")


def test_a_shorter_stop_string_is_found_at_the_flush_if_the_earlier_one_did_not_come() -> None:
    matcher = StopMatcher(["bc", "abcd"])
    assert matcher.push("xabc") == ("x", None)
    assert matcher.flush() == "a"
    assert matcher.matched == "bc"


def test_of_two_stop_strings_at_one_place_the_shorter_wins_at_once() -> None:
    assert StopMatcher(["abc", "ab"]).push("xab") == ("x", "ab")


@pytest.mark.parametrize("text", ["", "any text\n"])
def test_without_stop_strings_all_text_passes_at_once(text: str) -> None:
    matcher = StopMatcher([])
    assert matcher.push(text) == (text, None)
    assert matcher.flush() == ""
