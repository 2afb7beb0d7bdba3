"""The buttons below a message: each has a name, a size that a finger hits, and a place in the order of the keyboard."""

import json

import pytest
from selenium.webdriver.common.keys import Keys

from onnx_textgen_demo.conversation.message_tree import ROOT, Figures, MessageTree
from support.browser import element, elements, wait_until, window
from support.chat_page import (
    is_at_rest,
    kept,
    names_of_conversations,
    open_chat,
    open_conversation,
    open_empty_chat,
    press,
    press_name,
    say,
    turns_of,
    wait_for_turns,
)
from support.paced_runs import make_chatty

TREE = MessageTree("ab").add(ROOT, {"role": "user", "content": "a cat"})
TREE = TREE.add(0, {"role": "assistant", "content": "**one**"}, Figures("m", 4, 9, 5, 99, 30.0, 0.1, 0.0, "eos"))
TREE = TREE.add(0, {"role": "assistant", "content": "two"}).add(2, {"role": "user", "content": "a dog"})
TREE = TREE.add(3, {"role": "assistant", "content": "three"})
"""Two versions of the first answer; a second question follows the second one."""


@pytest.fixture
def chat(chromium, served):
    """The tab with the conversation TREE."""
    address = served(make_chatty(4))
    open_empty_chat(chromium, address)
    open_conversation(chromium, address, TREE, 4)
    return chromium


def texts(driver):
    return [text for _, text in turns_of(driver)]


def wait_for_texts(driver, *expected):
    wait_until(driver, lambda: is_at_rest(driver) and texts(driver) == list(expected), f"the messages {expected}")


def focused(driver):
    return driver.switch_to.active_element.accessible_name


@pytest.mark.parametrize("width", [400, 1280])
def test_every_icon_has_a_name_and_is_at_least_24_pixels_wide_and_high(chat, width):
    with window(chat, width, 860):
        icons = elements(chat, "#turns .glyph")
        assert len(icons) == 4 * 2 + 5 * 2 + 2, "four of a question, five of an answer, and those of the versions"
        assert all(icon.accessible_name for icon in icons)
        assert min(min(icon.size["width"], icon.size["height"]) for icon in icons) >= 24
        assert chat.execute_script("return document.documentElement.scrollWidth") <= width


SHOWN_NAME = "return getComputedStyle(document.activeElement, '::after').content"


def test_the_keyboard_reaches_each_icon_and_its_name_is_seen_and_nothing_moves(chat):
    width = "return document.querySelector('#messages').scrollWidth"
    before = chat.execute_script(width)
    chat.execute_script("arguments[0].focus()", elements(chat, "#turns .turn:last-of-type .glyph")[0])
    chat.switch_to.active_element.send_keys(Keys.SHIFT, Keys.TAB, Keys.NULL, Keys.TAB)
    names = ["Copy message", "Edit this answer", "Write another answer", "New chat from here", "Delete"]
    for name in names:
        assert focused(chat) == name
        assert chat.execute_script(SHOWN_NAME) == f'"{name}"'
        assert chat.execute_script("return getComputedStyle(document.activeElement).outlineStyle") == "solid"
        assert chat.execute_script(width) == before
        chat.switch_to.active_element.send_keys(Keys.TAB)


def test_an_edited_answer_is_another_version_and_the_model_does_not_answer_it(chat):
    press(chat, "edit", -1)
    editor = element(chat, "#turns .editor textarea")
    assert editor.get_attribute("value") == "three"
    assert [each.text for each in elements(chat, "#turns .editor button")] == ["Save", "Cancel"]
    editor.send_keys(" _mice_", Keys.ENTER)
    wait_for_texts(chat, "a cat", "two", "a dog", "three mice")
    assert "2/2" in elements(chat, "#turns .pager")[-1].text
    say(chat, "more")
    assert len(wait_for_turns(chat, 6)) == 6
    (conversation,) = [each["conversation"] for each in kept(chat).values()]
    assert [node["message"]["content"] for node in conversation["nodes"]][:6] == [
        *[node.message["content"] for node in TREE.nodes],
        "three _mice_",
    ], "as it was written, and the version before is kept"


def test_what_is_edited_is_the_markdown(chat):
    press(chat, "select", 1)
    wait_for_texts(chat, "a cat", "one")
    press(chat, "edit", 1)
    assert element(chat, "#turns .editor textarea").get_attribute("value") == "**one**"


def test_deleting_takes_two_presses_and_says_how_many_messages_go(chat):
    press(chat, "delete", 1)
    button = elements(chat, "#turns .turn")[1].find_element("css selector", "[data-does=delete]")
    assert button.text == button.accessible_name == "Delete 3 messages?"
    button.send_keys(Keys.ESCAPE)
    assert button.accessible_name == "Delete"
    press(chat, "delete", 1)
    element(chat, "#message textarea").click()
    assert button.accessible_name == "Delete", "so does leaving it"
    assert len(texts(chat)) == 4
    press(chat, "delete", 1)
    button.send_keys(Keys.ENTER)
    wait_for_texts(chat, "a cat", "one")
    assert not elements(chat, "#turns .pager")
    wait_until(chat, lambda: "three" not in json.dumps(kept(chat)), "a storage without what was deleted")
    say(chat, "more")
    wait_for_turns(chat, 4)
    open_chat(chat, chat.current_url)
    assert [text for text in wait_for_turns(chat, 4) if text[0] == "user"] == [("user", "a cat"), ("user", "more")]


def test_a_conversation_whose_messages_are_all_deleted_is_in_the_list_no_more(chat):
    press(chat, "delete", 0)
    press(chat, "delete", 0)
    wait_until(chat, lambda: elements(chat, "#turns .empty") and not turns_of(chat), "an empty conversation")
    wait_until(chat, lambda: kept(chat) == {} and names_of_conversations(chat) == [], "an empty list")
    say(chat, "a cow")
    wait_for_turns(chat, 2)
    wait_until(chat, lambda: names_of_conversations(chat) == ["a cow"], "the new one")


def test_a_new_chat_from_a_message_has_the_messages_up_to_it_and_the_first_one_stays(chat):
    press(chat, "copy", 1)
    wait_for_texts(chat, "a cat", "two")
    wait_until(chat, lambda: names_of_conversations(chat) == ["Branch: a cat", "a cat"], "both in the list")
    assert element(chat, "#conversation-list [aria-current]").text == "Branch: a cat"
    say(chat, "a cow")
    wait_for_turns(chat, 4)
    press_name(chat, "a cat")
    wait_for_texts(chat, "a cat", "two", "a dog", "three")
    press(chat, "copy", 2)
    wait_for_texts(chat, "a cat", "two", "a dog")
    chat.execute_script("arguments[0].click()", element(chat, ".unanswered button"))
    wait_for_turns(chat, 4)


def test_the_keyboard_stays_at_the_buttons_it_presses(chat):
    chat.execute_script("arguments[0].focus()", element(chat, "[aria-label='Previous answer']"))
    chat.switch_to.active_element.send_keys(Keys.ENTER)
    wait_for_texts(chat, "a cat", "one")
    wait_until(chat, lambda: focused(chat) == "Next answer", "the focus on the way back")
    chat.switch_to.active_element.send_keys(Keys.ENTER)
    wait_for_texts(chat, "a cat", "two", "a dog", "three")
    retry = elements(chat, "[data-does=retry]")[-1]
    chat.execute_script("arguments[0].focus()", retry)
    retry.send_keys(Keys.ENTER)
    wait_until(chat, lambda: is_at_rest(chat) and "2/2" in elements(chat, "#turns .pager")[-1].text, "another answer")
    wait_until(chat, lambda: focused(chat) == "Write another answer", "the focus where it was")
