"""A chat in a real browser: the session behind it is what is shown, from turn to turn."""

import re
from importlib.metadata import entry_points

import pytest
import typer
from selenium.webdriver.common.by import By

import onnx_textgen
from onnx_textgen.cli.app import app
from support.browser import close_messages, element, elements, open_page, open_tab, set_value, wait_until
from support.paced_runs import PacedRuns, make_chatty
from support.scripted_model import TINY_PACKAGE


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


def cache_of(driver):
    """How many tokens of the turn's prompt were in the cache, and how many it has."""
    return tuple(int(each) for each in re.search(r"from cache ([0-9]+) of ([0-9]+)", note_of(driver)).groups())


def test_turns_follow_each_other_and_a_turn_finds_the_prompt_of_the_one_before_in_the_cache(chat):
    set_value(chat, "#system textarea", "be kind")
    say(chat, "a cat")
    wait_until(chat, lambda: "finished" in note_of(chat), "the first answer")
    first, (_, prompt) = note_of(chat), cache_of(chat)
    say(chat, "a <b>dog</b>")
    wait_until(chat, lambda: "finished" in note_of(chat) and note_of(chat) != first, "the second answer")
    wait_until(chat, lambda: len(turns_of(chat)) == 4, "four turns")
    assert turns_of(chat)[2] == "a <b>dog</b>"
    reused, whole = cache_of(chat)
    assert reused == prompt - prompt % 2, "what was read is there, from an even place on; the answer is read once more"
    assert whole >= prompt + 24


def test_a_turn_is_taken_back_retried_and_changed(chat):
    say(chat, "a cat")
    wait_until(chat, lambda: "finished" in note_of(chat), "an answer")
    before = turns_of(chat)
    press(chat, "Retry")
    wait_until(chat, lambda: "finished" in note_of(chat) and turns_of(chat)[1] != before[1], "another answer")
    # Pressed again while the page is still drawing the answer anew, which takes the field away.
    wait_until(chat, lambda: elements(chat, "#chatbot textarea") or press(chat, "Edit"), "a field")
    set_value(chat, "#chatbot textarea", "a dog")
    note = note_of(chat)
    press(chat, "Submit")
    # The page shows the other message before it is sent, beside the note of the answer before.
    wait_until(chat, lambda: "finished" in note_of(chat) and note_of(chat) != note, "an answer to the other message")
    wait_until(chat, lambda: turns_of(chat)[:1] == ["a dog"], "the other message")
    # Pressed again where Gradio sent the answer's last frame once more after the first press.
    wait_until(chat, lambda: not turns_of(chat) or press(chat, "Undo"), "an empty chat")
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
    wait_until(chat, lambda: "finished: length" in note_of(chat), "an answer")
    wait_until(chat, lambda: len(turns_of(chat)) == 4, "four turns")


def test_a_model_without_a_template_says_so_and_how_to_get_one_that_has(chromium, served):
    open_page(chromium, served(onnx_textgen.load(TINY_PACKAGE)))
    open_tab(chromium, "Chat")
    wait_until(chromium, lambda: "no chat template" in element(chromium, "#no-chat").text, "the line")
    assert not [each for each in elements(chromium, "#send") if each.is_displayed()]
    install, fetch, demo = element(chromium, "#no-chat pre code").text.splitlines()
    assert install == 'pip install "onnx-textgen[export]"'
    for command in (fetch, demo):
        program, name, *arguments = command.split()
        assert program == "onnx-textgen"
        parsed = command_of(name).make_context(name, arguments)  # raises for what the command does not take
        assert "smollm" in str(parsed.params), "what is fetched is what is opened"


def command_of(name):
    for found in entry_points(group="onnx_textgen.commands", name=name):
        return typer.main.get_command(found.load())
    return typer.main.get_command(app).commands[name]


def test_nothing_lies_over_what_is_said(chat):
    say(chat, "a cat")
    wait_until(chat, lambda: "finished" in note_of(chat), "the answer")
    over = "#chatbot label, #chatbot [data-testid=block-label], #chatbot .top-panel, #chatbot > .icon-button-wrapper"
    assert not [each.get_attribute("outerHTML") for each in elements(chat, over) if each.is_displayed()]


def test_an_answer_is_asked_for_where_none_is_written_and_stopped_where_one_is(chat, monkeypatch):
    runs = PacedRuns(monkeypatch)
    can_press = lambda: [element(chat, button).is_enabled() for button in ("#send", "#chat-stop", "#new-chat")]  # noqa: E731
    assert can_press() == [True, False, False]
    runs.seconds = 0.1
    say(chat, "a cat")
    wait_until(chat, lambda: can_press() == [False, True, True], "an answer under way")
    element(chat, "#chat-stop").click()
    wait_until(chat, lambda: can_press() == [True, False, True], "its end")
    runs.fails_at = runs.count + 3
    say(chat, "a dog")
    wait_until(chat, lambda: "no memory" in note_of(chat), "the line about the error")
    wait_until(chat, lambda: can_press() == [True, False, True], "the end of an answer that failed")
    close_messages(chat)
    element(chat, "#new-chat").click()
    wait_until(chat, lambda: can_press() == [True, False, False], "an empty chat")
