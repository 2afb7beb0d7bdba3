"""One conversation in two tabs of a browser: what is said in one is seen in the other, and neither overwrites the other."""

import contextlib

import pytest

from support.browser import DESKTOP, element, resize, wait_until
from support.chat_page import figures_of, is_at_rest, kept, open_chat, open_empty_chat, press, say, turns_of, wait_for_turns
from support.paced_runs import PacedRuns, make_chatty


@pytest.fixture
def tabs(chromium, served):
    """Two tabs that show one conversation of two messages: call it with 0 or 1 to go to one of them."""
    address, first = served(make_chatty(12)), chromium.current_window_handle
    open_empty_chat(chromium, address)
    say(chromium, "a cat")
    wait_for_turns(chromium, 2)
    with second_tab(chromium) as second:
        open_chat(chromium, address)
        element(chromium, "#conversation-list .pick").click()
        wait_for_turns(chromium, 2)
        yield lambda place: chromium.switch_to.window((first, second)[place])


@contextlib.contextmanager
def second_tab(driver):
    first = driver.current_window_handle
    driver.switch_to.new_window("tab")
    resize(driver, *DESKTOP)
    second = driver.current_window_handle
    try:
        yield second
    finally:
        driver.switch_to.window(second)
        driver.close()
        driver.switch_to.window(first)


def said(driver):
    """The texts of the user in the browser's storage, and whether every answer is complete."""
    (conversation,) = [each["conversation"] for each in kept(driver).values()]
    answers = [node["figures"]["finish_reason"] for node in conversation["nodes"] if node["message"]["role"] == "assistant"]
    texts = [node["message"]["content"] for node in conversation["nodes"] if node["message"]["role"] == "user"]
    return sorted(texts), all(answers) and len(answers) == len(texts)


def test_what_is_said_in_one_tab_appears_in_the_other_and_is_continued_there(chromium, tabs):
    say(chromium, "a dog")
    dog = wait_for_turns(chromium, 4)
    tabs(0)
    wait_until(chromium, lambda: turns_of(chromium) == dog, "the same in the first tab")
    say(chromium, "a cow")
    cow = wait_for_turns(chromium, 6)
    tabs(1)
    wait_until(chromium, lambda: turns_of(chromium) == cow, "the same in the second tab")
    assert said(chromium) == (["a cat", "a cow", "a dog"], True)


def test_what_is_deleted_in_one_tab_is_gone_from_the_other_too(chromium, tabs):
    say(chromium, "a dog")
    dog = wait_for_turns(chromium, 4), figures_of(chromium)
    tabs(0)
    # What still comes from the other tab is drawn between the two presses, and takes the question of the first one back.
    wait_until(chromium, lambda: (turns_of(chromium), figures_of(chromium)) == dog, "the same in the first tab")
    for _ in range(2):
        press(chromium, "delete", 2)
    cat = wait_for_turns(chromium, 2)
    tabs(1)
    wait_until(chromium, lambda: turns_of(chromium) == cat, "the same in the second tab")
    say(chromium, "a cow")
    cow = wait_for_turns(chromium, 4)
    tabs(0)
    wait_until(chromium, lambda: turns_of(chromium) == cow, "the same in the first tab")
    assert "a dog" not in str(kept(chromium))


def test_what_is_said_in_both_tabs_at_once_is_kept_from_both(chromium, tabs, monkeypatch):
    runs = PacedRuns(monkeypatch)
    press(chromium, "edit", 0)  # what is edited stays, whatever the other tab does
    tabs(0)
    runs.seconds = 0.15
    say(chromium, "a cow")
    wait_until(chromium, lambda: len(said(chromium)[0]) == 2, "a kept message of the first tab")
    tabs(1)
    editor = element(chromium, "#turns .editor textarea")
    editor.clear()
    editor.send_keys("a dog\n")
    wait_until(chromium, lambda: turns_of(chromium)[:1] == [("user", "a dog")], "the other version in the second tab")
    runs.seconds = 0
    both = ["a cat", "a cow", "a dog"], True
    wait_until(chromium, lambda: said(chromium) == both, "the messages of both, with their answers")
    wait_until(chromium, lambda: is_at_rest(chromium) and "2/2" in element(chromium, "#turns").text, "versions to page through")
    assert turns_of(chromium)[0] == ("user", "a dog")
    tabs(0)
    wait_until(chromium, lambda: is_at_rest(chromium) and "1/2" in element(chromium, "#turns").text, "the versions here too")
    assert [text for who, text in turns_of(chromium) if who == "user"] == ["a cat", "a cow"]
    say(chromium, "a hen")
    wait_for_turns(chromium, 6)
    every = ["a cat", "a cow", "a dog", "a hen"], True
    wait_until(chromium, lambda: said(chromium) == every, "the last message in the storage too")
