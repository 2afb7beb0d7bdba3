"""The keys of the chat do what their list says, and the search finds conversations by title and by text."""

import json

import pytest
from selenium.webdriver.common.keys import Keys

from onnx_textgen_demo.chat.conversations_pane import KEYS
from onnx_textgen_demo.conversation.message_tree import ROOT, MessageTree
from support.browser import element, elements, wait_until, window
from support.chat_page import keep, names_of_conversations, open_chat, open_empty_chat, say, turns_of, wait_for_turns
from support.paced_runs import PacedRuns, make_chatty


def conversation(key, *answers):
    """A question, and its answers, of which the last is shown."""
    tree = MessageTree(key).add(ROOT, {"role": "user", "content": f"question {key}"})
    for answer in answers:
        tree = tree.add(0, {"role": "assistant", "content": answer})
    return tree


CONVERSATIONS = (
    conversation("a1", "The Rhine flows through Köln.", "It is a river."),
    conversation("b2", "A cat sleeps."),
    conversation("c3", "Another CAT is awake <b>now</b>."),
)


@pytest.fixture
def address(served):
    return served(make_chatty(24))


@pytest.fixture
def chat(chromium, address):
    """The tab with three conversations, of which the last is open."""
    open_empty_chat(chromium, address)
    for saved, tree in enumerate(CONVERSATIONS):
        keep(chromium, tree.key, json.dumps({"saved": saved, "conversation": tree.to_json()}))
    open_chat(chromium, address)
    wait_for_turns(chromium, 2)
    return chromium


def test_a_long_list_scrolls_and_the_buttons_below_it_stay_in_reach(chat):
    for number in range(60):
        tree = conversation(f"n{number}", "a cat")
        keep(chat, tree.key, json.dumps({"saved": number, "conversation": tree.to_json()}))
    with window(chat, 1280, 800):
        open_chat(chat, chat.current_url)
        wait_until(chat, lambda: len(names_of_conversations(chat)) == 63, "all of them")
        bottom = "return document.querySelector('[data-does=import]').getBoundingClientRect().bottom"
        assert chat.execute_script(bottom) <= 800
        scrolls = "const list = document.querySelector('#conversation-list ul'); return list.scrollHeight > list.clientHeight"
        assert chat.execute_script(scrolls)


def search(driver, text):
    field = element(driver, "#conversation-list input[type=search]")
    field.clear()
    field.send_keys(text)


def test_conversations_are_found_by_title_and_by_the_text_of_any_version(chat):
    title = [f"question {tree.key}" for tree in CONVERSATIONS]
    assert names_of_conversations(chat) == title[::-1]
    search(chat, "B2")
    assert names_of_conversations(chat) == [title[1]]
    search(chat, "cat")
    assert names_of_conversations(chat) == [f"{title[2]}Another CAT is awake <b>now</b>.", f"{title[1]}A cat sleeps."]
    assert element(chat, ".conversations-note").text == "2 of 3 conversations"
    search(chat, "question KÖLN rhine")
    assert names_of_conversations(chat) == [f"{title[0]}The Rhine flows through Köln."]
    search(chat, "unicorn")
    assert names_of_conversations(chat) == []
    assert "“unicorn”" in element(chat, ".conversations-note").text
    element(chat, "#conversation-list input[type=search]").send_keys(Keys.ESCAPE)
    assert names_of_conversations(chat) == title[::-1]


def test_what_was_found_is_shown_in_the_branch_where_it_stands(chat):
    search(chat, "rhine")
    element(chat, "#conversation-list input[type=search]").send_keys(Keys.ENTER)
    wait_until(chat, lambda: turns_of(chat)[-1] == ("assistant", "The Rhine flows through Köln."), "the first answer")
    element(chat, "#conversation-list input[type=search]").send_keys(Keys.CONTROL, "a", Keys.NULL, "river", Keys.ARROW_DOWN)
    assert chat.switch_to.active_element.accessible_name == "question a1: It is a river."
    chat.switch_to.active_element.send_keys(Keys.ENTER)
    wait_until(chat, lambda: turns_of(chat)[-1] == ("assistant", "It is a river."), "the second answer")


def test_a_new_chat_ends_the_search(chat):
    search(chat, "b2")
    say(chat, "no end of it")
    wait_for_turns(chat, 4)
    assert len(names_of_conversations(chat)) == 1
    chat.switch_to.active_element.send_keys(Keys.CONTROL, Keys.SHIFT, "o")
    wait_until(chat, lambda: len(names_of_conversations(chat)) == 3, "all conversations")


def body(driver):
    driver.execute_script("document.activeElement.blur()")
    return element(driver, "body")


def test_each_key_of_the_list_does_what_it_says(chat, monkeypatch):
    tried = []

    def by(name, keys, condition, *, at=None):
        (at or body(chat)).send_keys(*keys)
        wait_until(chat, condition, name)
        tried.append(name)

    focused = lambda: chat.switch_to.active_element  # noqa: E731
    dialog = lambda: elements(chat, "#chat dialog[open]")  # noqa: E731
    search_field, field = element(chat, "#conversation-list input[type=search]"), element(chat, "#message textarea")
    by("? or Ctrl + /", "?", dialog)
    shown = [each.text for each in elements(chat, "#chat dialog th")]
    assert shown == list(KEYS)
    focused().send_keys(Keys.ESCAPE)
    wait_until(chat, lambda: not dialog(), "no dialog")
    field.send_keys(Keys.CONTROL, "/")
    wait_until(chat, dialog, "the dialog from within the field")
    element(chat, "[data-does=keys-close]").click()
    field.send_keys("?")
    assert (field.get_attribute("value"), dialog()) == ("?", []), "in the field it is a question mark"
    field.clear()
    by("Ctrl + K", [Keys.CONTROL, "k"], lambda: focused() == search_field, at=field)
    by("Shift + Esc", [Keys.SHIFT, Keys.ESCAPE], lambda: focused() == field, at=search_field)
    by("Ctrl + .", [Keys.CONTROL, "."], lambda: element(chat, "#chat-settings").is_displayed(), at=field)
    runs = PacedRuns(monkeypatch)
    runs.seconds = 0.2
    focused().send_keys(Keys.ESCAPE)
    wait_until(chat, lambda: not element(chat, "#chat-settings").is_displayed(), "no drawer")
    by("Shift + Enter", ["one", Keys.SHIFT, Keys.ENTER], lambda: field.get_attribute("value") == "one\n", at=field)
    by("Enter", ["two", Keys.ENTER], lambda: "writing" in element(chat, "#chat-note").text, at=field)
    assert (focused(), field.get_attribute("value")) == (field, "")
    by("Esc", [Keys.ESCAPE], lambda: "stopped by you" in element(chat, "#turns").text, at=field)
    runs.seconds = 0
    by("↑", [Keys.ARROW_UP], lambda: elements(chat, "#turns .editor"), at=field)
    assert focused().get_attribute("value") == "one\ntwo"
    focused().send_keys(Keys.ESCAPE)
    by("Ctrl + Shift + E", [Keys.CONTROL, Keys.SHIFT, "e"], lambda: "Name of" in focused().accessible_name, at=field)
    focused().send_keys("renamed", Keys.ENTER)
    wait_until(chat, lambda: names_of_conversations(chat)[0] == "renamed", "the name")
    assert focused().text == "renamed", "the focus stays in the list"
    by("Ctrl + Shift + O", [Keys.CONTROL, Keys.SHIFT, "o"], lambda: turns_of(chat) == [], at=field)
    assert focused() == field
    assert sorted(tried) == sorted(KEYS)


def test_the_search_key_opens_the_list_on_a_phone(chat):
    with window(chat, 400, 800):
        assert not element(chat, "#conversation-list").is_displayed()
        body(chat).send_keys(Keys.CONTROL, "k")
        wait_until(chat, lambda: element(chat, "#conversation-list").is_displayed(), "the list")
        assert chat.switch_to.active_element == element(chat, "#conversation-list input[type=search]")
        chat.switch_to.active_element.send_keys("cat")
        assert chat.execute_script("return document.documentElement.scrollWidth") <= 400
        chat.switch_to.active_element.send_keys(Keys.ESCAPE, Keys.ESCAPE)
        wait_until(chat, lambda: not element(chat, "#conversation-list").is_displayed(), "no list")
