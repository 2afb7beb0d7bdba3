"""A chat in a real browser: the session behind it is what is shown, from turn to turn."""

import pytest
from selenium.webdriver.common.by import By

import onnx_textgen
from demo.browser import element, elements, open_page, open_tab, set_value, wait_until
from demo.paced_runs import PacedRuns, make_chatty
from demo.scripted_model import TINY_PACKAGE


@pytest.fixture(scope="module")
def chatty():
    return make_chatty(24)


@pytest.fixture
def chat(chromium, served, chatty):
    open_page(chromium, served(chatty))
    open_tab(chromium, "Chat")
    wait_until(chromium, lambda: element(chromium, "#send").is_displayed(), "the tab")
    return chromium


def say(driver, text):
    set_value(driver, "#message textarea", text)
    element(driver, "#send").click()


def note_of(driver):
    return element(driver, "#chat-note").text


def turns_of(driver):
    script = "return [...document.querySelectorAll(arguments[0])].map((turn) => turn.innerText.trim())"
    return driver.execute_script(script, "#chatbot [data-testid=user], #chatbot [data-testid=bot]")


def press(driver, name):
    driver.execute_script("arguments[0].click()", driver.find_element(By.CSS_SELECTOR, f"#chatbot button[aria-label='{name}']"))


def test_turns_follow_each_other_and_the_second_finds_the_first_in_the_cache(chat):
    set_value(chat, "#system textarea", "be kind")
    say(chat, "a cat")
    wait_until(chat, lambda: "Finished" in note_of(chat), "the first answer")
    first = note_of(chat)
    say(chat, "a <b>dog</b>")
    wait_until(chat, lambda: "Finished" in note_of(chat) and note_of(chat) != first, "the second answer")
    wait_until(chat, lambda: len(turns_of(chat)) == 4, "four turns")
    assert turns_of(chat)[2] == "a <b>dog</b>"
    reused = int(note_of(chat).partition(";")[2].split()[0])
    assert reused > 10


def test_a_turn_is_taken_back_retried_and_changed(chat):
    say(chat, "a cat")
    wait_until(chat, lambda: "Finished" in note_of(chat), "an answer")
    before = turns_of(chat)
    press(chat, "Retry")
    wait_until(chat, lambda: "Finished" in note_of(chat) and turns_of(chat)[1] != before[1], "another answer")
    # Pressed again while the page is still drawing the answer anew, which takes the field away.
    wait_until(chat, lambda: elements(chat, "#chatbot textarea") or press(chat, "Edit"), "a field")
    set_value(chat, "#chatbot textarea", "a dog")
    note = note_of(chat)
    press(chat, "Submit")
    # The page shows the other message before it is sent, beside the note of the answer before.
    wait_until(chat, lambda: "Finished" in note_of(chat) and note_of(chat) != note, "an answer to the other message")
    wait_until(chat, lambda: turns_of(chat)[:1] == ["a dog"], "the other message")
    press(chat, "Undo")
    wait_until(chat, lambda: not turns_of(chat), "an empty chat")
    assert element(chat, "#message textarea").get_attribute("value") == "a dog"


def test_stop_keeps_what_was_written_and_the_chat_goes_on(chat, monkeypatch):
    runs = PacedRuns(monkeypatch)
    runs.seconds = 0.1
    say(chat, "a cat")
    wait_until(chat, lambda: "writing" in note_of(chat), "some text")
    element(chat, "#chat-stop").click()
    wait_until(chat, lambda: "cancelled" in note_of(chat), "the word that it stopped")
    assert len(turns_of(chat)) == 2
    runs.seconds = 0
    say(chat, "a dog")
    wait_until(chat, lambda: "Finished: length" in note_of(chat), "an answer")
    wait_until(chat, lambda: len(turns_of(chat)) == 4, "four turns")


def test_a_model_without_a_template_says_so_in_a_line(chromium, served):
    open_page(chromium, served(onnx_textgen.load(TINY_PACKAGE)))
    open_tab(chromium, "Chat")
    wait_until(chromium, lambda: "no chat template" in element(chromium, "#no-chat").text, "the line")
    assert not [each for each in elements(chromium, "#send") if each.is_displayed()]
