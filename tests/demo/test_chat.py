"""A chat in a real browser: the branch that is shown is what the model reads, and the browser keeps all of it."""

import json
import re
import sys
from importlib.metadata import entry_points

import pytest
import typer
from selenium.webdriver.common.keys import Keys

import onnx_textgen
from onnx_textgen.cli.app import app
from onnx_textgen.hub.short_models import recipe_of
from onnx_textgen_demo import fetch_panel
from onnx_textgen_demo.conversation.stored import read_tree
from onnx_textgen_demo.models import ModelRegistry
from support.browser import close_messages, element, elements, open_page, open_tab, requests_elsewhere, set_value, wait_until
from support.chat_page import (
    figures_of,
    is_at_rest,
    keep,
    kept,
    names_of_conversations,
    open_chat,
    open_conversation,
    open_empty_chat,
    press,
    press_head,
    press_name,
    say,
    turns_of,
    wait_for_turns,
)
from support.paced_runs import PacedRuns, make_chatty
from support.scripted_model import TINY_PACKAGE


@pytest.fixture(scope="module")
def chatty():
    return make_chatty(24)


@pytest.fixture
def address(served, chatty):
    return served(chatty)


@pytest.fixture
def chat(chromium, address):
    open_empty_chat(chromium, address)
    return chromium


def cache_of(driver):
    """How many tokens of the prompt were in the cache, and how many it has."""
    return tuple(int(each) for each in re.search(r"from cache ([0-9]+) of ([0-9]+)", figures_of(driver)).groups())


def context_of(driver):
    """How many tokens of the context are full, and how many there are."""
    found = re.search(r"([0-9,]+) / ([0-9,]+) tokens of context", figures_of(driver)).groups()
    return tuple(int(each.replace(",", "")) for each in found)


def note_of(driver):
    return element(driver, "#chat-note").text


def test_turns_follow_each_other_and_what_was_read_comes_from_the_cache(chat, chatty):
    press_head(chat, "settings")
    set_value(chat, "#system textarea", "be kind")
    element(chat, "#system textarea").send_keys(Keys.ESCAPE)
    say(chat, "a cat")
    wait_for_turns(chat, 2)
    filled, length = context_of(chat)
    assert length == chatty.manifest.geometry.context_length
    assert "tokens/s" in figures_of(chat)
    say(chat, "a <b>dog</b>")
    turns = wait_for_turns(chat, 4)
    assert turns[0] == ("user", "a cat")
    assert turns[2] == ("user", "a <b>dog</b>")
    reused, whole = cache_of(chat)
    prompt = filled - 24
    assert reused >= prompt - prompt % 2, "what was read is there, from an even place on"
    assert whole >= filled
    (conversation,) = [each["conversation"] for each in kept(chat).values()]
    assert conversation["system"] == "be kind"
    answers = [node["message"]["content"] for node in conversation["nodes"]]
    messages = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "a cat"}]
    messages += [{"role": "assistant", "content": answers[1]}, {"role": "user", "content": "a <b>dog</b>"}]
    assert whole == len(chatty.encode_chat(messages)), "the model read what is shown"


def test_another_answer_is_beside_the_first_and_both_can_be_paged_through(chat):
    say(chat, "a cat")
    first = wait_for_turns(chat, 2)
    press(chat, "retry")
    wait_until(chat, lambda: is_at_rest(chat) and "2/2" in element(chat, "#turns .pager").text, "another answer")
    second = turns_of(chat)
    assert second[1] != first[1]
    say(chat, "a dog")
    wait_for_turns(chat, 4)
    chat.execute_script("arguments[0].click()", element(chat, "[aria-label='Previous answer']"))
    wait_until(chat, lambda: turns_of(chat) == first, "the first answer")
    assert "1/2" in element(chat, "#turns .pager").text
    chat.execute_script("arguments[0].click()", element(chat, "[aria-label='Next answer']"))
    wait_until(chat, lambda: len(turns_of(chat)) == 4 and turns_of(chat)[:2] == second, "the second, with what follows it")


def test_a_sent_message_is_edited_by_the_keyboard_and_the_first_version_is_kept(chat):
    say(chat, "a cat")
    wait_for_turns(chat, 2)
    field = element(chat, "#message textarea")
    field.send_keys(Keys.ARROW_UP)
    editor = wait_until(chat, lambda: elements(chat, "#turns .editor textarea"), "the editor")[0]
    assert editor.get_attribute("value") == "a cat"
    editor.send_keys(Keys.ESCAPE)
    wait_until(chat, lambda: not elements(chat, "#turns .editor"), "the end of the editor")
    assert chat.switch_to.active_element == field
    press(chat, "edit", 0)
    editor = element(chat, "#turns .editor textarea")
    editor.clear()
    editor.send_keys("a dog", Keys.SHIFT, Keys.ENTER, Keys.NULL, "barks", Keys.ENTER)
    wait_until(chat, lambda: is_at_rest(chat) and turns_of(chat)[0] == ("user", "a dog\nbarks"), "the other message")
    wait_for_turns(chat, 2)
    chat.execute_script("arguments[0].click()", element(chat, "[aria-label='Previous message']"))
    wait_until(chat, lambda: turns_of(chat)[0] == ("user", "a cat") and len(turns_of(chat)) == 2, "the first version")


def test_escape_stops_and_what_was_written_stays(chat, monkeypatch):
    runs = PacedRuns(monkeypatch)
    runs.seconds = 0.1
    say(chat, "a cat")
    wait_until(chat, lambda: "writing" in note_of(chat), "some text")
    assert not element(chat, "#send").is_displayed()
    element(chat, "#message textarea").send_keys(Keys.ESCAPE)
    wait_until(chat, lambda: "stopped by you" in figures_of(chat), "the word that it stopped")
    assert len(wait_for_turns(chat, 2)) == 2
    runs.seconds = 0
    say(chat, "a dog")
    wait_for_turns(chat, 4)
    assert "max new tokens" in figures_of(chat)


def test_one_answer_at_a_time(chat, monkeypatch):
    say(chat, "a cat")
    wait_for_turns(chat, 2)
    runs = PacedRuns(monkeypatch)
    runs.seconds = 0.05
    press(chat, "retry")
    say(chat, "too early")
    wait_until(chat, lambda: "writing" in note_of(chat), "an answer under way")
    element(chat, "#message textarea").send_keys(Keys.ENTER)
    turns = wait_for_turns(chat, 2)
    assert "2/2" in element(chat, "#turns .pager").text
    assert turns[0] == ("user", "a cat")
    assert element(chat, "#message textarea").get_attribute("value") == "too early"
    element(chat, "#message textarea").send_keys(Keys.ENTER)
    wait_for_turns(chat, 4)


def test_a_suggestion_is_sent_by_a_press(chat):
    suggestion = elements(chat, "#turns [data-says]")[0]
    text = suggestion.text
    suggestion.click()
    assert wait_for_turns(chat, 2)[0] == ("user", text)


def test_after_an_error_the_message_stays_and_can_be_answered(chat, monkeypatch):
    runs = PacedRuns(monkeypatch)
    runs.fails_at = runs.count + 1
    say(chat, "a cat")
    wait_until(chat, lambda: "<b>no memory</b>" in note_of(chat), "the line about the error")
    close_messages(chat)
    assert wait_for_turns(chat, 1) == [("user", "a cat")]
    chat.execute_script("arguments[0].click()", element(chat, "[data-does=retry]"))
    wait_for_turns(chat, 2)
    assert note_of(chat) == ""


def test_what_cannot_be_sent_stays_in_the_field(chat):
    press_head(chat, "settings")
    set_value(chat, "#chat-settings .seed input, #chat-settings .seed textarea", "x")
    element(chat, "#chat-settings-close").click()
    say(chat, "a cat")
    wait_until(chat, lambda: "seed should be a whole number" in note_of(chat), "the line about the error")
    assert turns_of(chat) == []
    assert element(chat, "#message textarea").get_attribute("value") == "a cat"


def test_conversations_are_kept_named_and_deleted_and_a_reload_opens_the_last_one(chat, address):
    say(chat, "a cat")
    cat = wait_for_turns(chat, 2)
    press_head(chat, "new")
    wait_until(chat, lambda: turns_of(chat) == [], "an empty conversation")
    say(chat, "a dog")
    dog = wait_for_turns(chat, 2)
    wait_until(chat, lambda: names_of_conversations(chat) == ["a dog", "a cat"], "both in the list")
    press_name(chat, "Rename a cat")
    name = element(chat, "#conversation-list li input")
    name.send_keys("My cat", Keys.ENTER)
    assert names_of_conversations(chat) == ["a dog", "My cat"]
    open_chat(chat, address)
    assert wait_for_turns(chat, 2) == dog
    press_name(chat, "My cat")
    wait_until(chat, lambda: turns_of(chat) == cat, "the other one")
    say(chat, "more")
    assert wait_for_turns(chat, 4)[:2] == cat
    wait_until(chat, lambda: names_of_conversations(chat) == ["My cat", "a dog"], "its name in the first place")
    press_name(chat, "Delete a dog")
    assert len(kept(chat)) == 2, "once is not enough"
    press_name(chat, "Delete a dog?")
    assert names_of_conversations(chat) == ["My cat"]
    press_name(chat, "Delete My cat")
    press_name(chat, "Delete My cat?")
    wait_until(chat, lambda: turns_of(chat) == [], "an empty conversation")
    assert kept(chat) == {}


def test_a_reload_in_mid_answer_keeps_what_was_written(chat, address, monkeypatch):
    runs = PacedRuns(monkeypatch)
    runs.seconds = 0.2
    say(chat, "a cat")
    wait_until(chat, lambda: any(len(each["conversation"]["nodes"]) == 2 for each in kept(chat).values()), "a kept answer")
    open_chat(chat, address)
    runs.seconds = 0
    assert wait_for_turns(chat, 2)[0] == ("user", "a cat")
    say(chat, "more")
    wait_for_turns(chat, 4)


EXPORT = """const [does, report] = arguments;
const make = URL.createObjectURL;
URL.createObjectURL = (blob) => { blob.text().then(report); return make.call(URL, blob); };
document.querySelector(`#conversations [data-does=${does}]`).click();"""
"""Presses a button that exports, and gives the text of its file."""


def test_a_conversation_is_exported_in_openais_form_and_imported_again(chat, tmp_path):
    say(chat, "a cat")
    turns = wait_for_turns(chat, 2)
    exported = chat.execute_async_script(EXPORT, "json")
    value = json.loads(exported)
    assert [each["role"] for each in value["messages"]] == ["user", "assistant"]
    assert value["title"] == "a cat"
    assert chat.execute_async_script(EXPORT, "markdown").startswith("# a cat\n\n## You\n\na cat\n\n## Model\n\n")
    path = tmp_path / "chat.json"
    path.write_text(json.dumps({"messages": [{"role": "system", "content": "be kind"}, *value["messages"]]}))
    press_head(chat, "new")
    wait_until(chat, lambda: turns_of(chat) == [], "an empty conversation")
    element(chat, "#conversations input[type=file]").send_keys(str(path))
    wait_until(chat, lambda: turns_of(chat) == turns, "the imported conversation")
    wait_until(chat, lambda: len(kept(chat)) == 2, "both")
    assert element(chat, "#system textarea").get_attribute("value") == "be kind"
    path.write_text("no JSON")
    element(chat, "#conversations input[type=file]").send_keys(str(path))
    wait_until(chat, lambda: "no JSON" in element(chat, ".conversations-note").text, "the reason")


@pytest.mark.parametrize("value", ["no JSON", "7", '{"conversation": 7}', '{"conversation": {"nodes": [7], "version": 1}}'])
def test_what_is_damaged_in_the_browsers_storage_does_not_break_the_page(chat, address, value):
    keep(chat, "ab", value)
    open_chat(chat, address)
    close_messages(chat)
    say(chat, "a cat")
    wait_for_turns(chat, 2)


HOSTILE = """![x](ADDRESS/markdown.png) <img src="ADDRESS/raw.png"> <style>@import url(ADDRESS/style.css)</style>
<div style="background:url(ADDRESS/background.png)">x</div><video src="ADDRESS/video.mp4"></video>
<script>document.title = "run"</script> [link](javascript:document.title='run') [safe](https://example.com/)
"""


def test_an_answer_that_would_load_or_run_something_does_neither(chat, address):
    text = HOSTILE.replace("ADDRESS", "http://example.com")
    call = {"id": "c", "type": "function", "function": {"name": text, "arguments": text}}
    answer = {"role": "assistant", "content": text, "reasoning_content": text, "tool_calls": [call]}
    messages = [{"role": "user", "content": text}, answer, {"role": "tool", "tool_call_id": "c", "content": text}]
    nodes = [{"parent": place - 1, "message": message} for place, message in enumerate(messages)]
    conversation = {"version": 1, "key": "ab", "title": text, "system": "", "nodes": nodes, "leaf": 2}
    keep(chat, "ab", json.dumps({"saved": 1, "name": text, "conversation": conversation}))
    chat.get_log("performance")
    open_chat(chat, address)
    wait_for_turns(chat, 2)
    for fold in elements(chat, "#turns summary"):
        chat.execute_script("arguments[0].click()", fold)
    links = [each.get_attribute("href") for each in elements(chat, "#turns a")]
    assert set(links) == {"http://example.com/markdown.png", "https://example.com/"}
    assert not elements(chat, "#chat img, #chat video, #turns style, #turns script, #turns [style*=url]")
    assert chat.title == "onnx-textgen"
    assert requests_elsewhere(chat, address) == []


def test_a_fold_stays_open_while_the_answer_grows(chat, address, monkeypatch):
    answer = {"role": "assistant", "content": "b", "reasoning_content": "hm"}
    open_conversation(chat, address, read_tree([{"role": "user", "content": "a"}, answer]), 2)
    fold = element(chat, "#turns .thoughts")
    assert fold.get_attribute("open") is None
    fold.find_element("css selector", "summary").click()
    say(chat, "more")
    wait_for_turns(chat, 4)
    assert element(chat, "#turns .thoughts").get_attribute("open") is not None


def test_code_has_a_button_that_copies_it(chat, address):
    open_conversation(chat, address, read_tree([{"role": "assistant", "content": "```python\nreturn '<b>'\n```"}]), 1)
    chat.execute_script("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    copied = lambda name: (  # noqa: E731
        chat.execute_script("arguments[0].click()", element(chat, f"#turns [aria-label='{name}']")),
        wait_until(chat, lambda: chat.execute_script("return window.copied"), "a copy"),
        chat.execute_script("delete window.copied"),
    )[1]
    assert copied("Copy code") == "return '<b>'\n"
    assert copied("Copy message") == "```python\nreturn '<b>'\n```"


def test_the_settings_are_a_drawer_over_the_chat_which_escape_closes(chat):
    width = element(chat, "#turns").rect["width"]
    press_head(chat, "settings")
    assert element(chat, "#chat-settings").is_displayed()
    assert chat.switch_to.active_element == element(chat, "#system textarea")
    assert element(chat, "#turns").rect["width"] == width
    chat.switch_to.active_element.send_keys(Keys.ESCAPE)
    wait_until(chat, lambda: not element(chat, "#chat-settings").is_displayed(), "a closed drawer")
    assert element(chat, "[data-does=settings]") == chat.switch_to.active_element
    assert element(chat, "[data-does=settings]").get_attribute("aria-expanded") == "false"


def test_another_model_continues_the_conversation(chromium, served, chatty):
    other = make_chatty(5)
    open_empty_chat(chromium, served(ModelRegistry({"first": lambda: chatty, "second": lambda: other})))
    say(chromium, "a cat")
    first = wait_for_turns(chromium, 2)
    element(chromium, "#picker input").click()
    wait_until(chromium, lambda: elements(chromium, "[role=option]"), "the models")[1].click()
    wait_until(chromium, lambda: "model second" in element(chromium, ".masthead").get_attribute("textContent"), "the other model")
    say(chromium, "a dog")
    assert wait_for_turns(chromium, 4)[:2] == first
    assert figures_of(chromium).startswith("second")
    assert "5 tokens" in figures_of(chromium)


def test_a_model_without_a_template_says_so_and_how_to_get_one_that_has(chromium, served):
    open_page(chromium, served(onnx_textgen.load(TINY_PACKAGE)))
    open_tab(chromium, "Chat")
    wait_until(chromium, lambda: "no chat template" in element(chromium, "#no-chat").text, "the line")
    assert not [each for each in elements(chromium, "#send, #no-chat-open, #no-chat-fetch") if each.is_displayed()]
    program, name, *arguments = element(chromium, "#no-chat pre code").text.split()
    assert (program, name) == ("onnx-textgen", "demo")
    parsed = command_of(name).make_context(name, arguments)  # raises for what the command does not take
    assert recipe_of("smollm2") is not None and "smollm2" in str(parsed.params), "it is fetched by the command"


def command_of(name):
    for found in entry_points(group="onnx_textgen.commands", name=name):
        return typer.main.get_command(found.load())
    return typer.main.get_command(app).commands[name]


def test_a_model_without_a_template_offers_one_that_has(chromium, served, chatty):
    registry = ModelRegistry({"plain": lambda: onnx_textgen.load(TINY_PACKAGE), "talks": lambda: chatty}, chat_names=["talks"])
    open_page(chromium, served(registry))
    open_tab(chromium, "Chat")
    wait_until(chromium, lambda: element(chromium, "#no-chat-open").text == "Chat with talks", "the offer")
    element(chromium, "#no-chat-open").click()
    wait_until(chromium, lambda: element(chromium, "#send").is_displayed(), "the chat")
    assert "model talks" in element(chromium, ".masthead").get_attribute("textContent")
    assert not [each for each in elements(chromium, "#no-chat") if each.is_displayed()]
    say(chromium, "a cat")
    wait_for_turns(chromium, 2)


@pytest.mark.slow
def test_a_model_that_chats_is_fetched_by_a_press_and_opened(chromium, served, chatty, monkeypatch):
    fails = [sys.executable, "-c", "import sys; sys.exit('error: the disk is full')"]
    commands = [fails, [sys.executable, "-c", ""]]
    monkeypatch.setattr(fetch_panel, "command", lambda name: commands.pop(0))
    open_page(chromium, served(onnx_textgen.load(TINY_PACKAGE), opener_of=lambda name: lambda: chatty))
    open_tab(chromium, "Chat")
    wait_until(chromium, lambda: "Fetch smollm2" in element(chromium, "#no-chat-fetch").text, "the offer")
    element(chromium, "#no-chat-fetch").click()
    wait_until(chromium, lambda: "the disk is full" in element(chromium, "#no-chat-status").text, "the error")
    wait_until(chromium, element(chromium, "#no-chat-fetch").is_enabled, "the end of the first")
    element(chromium, "#no-chat-fetch").click()
    wait_until(chromium, lambda: elements(chromium, "#send") and element(chromium, "#send").is_displayed(), "the chat")
    assert "model smollm2" in element(chromium, ".masthead").get_attribute("textContent")


def test_nothing_lies_over_what_is_said(chat):
    say(chat, "a cat")
    wait_for_turns(chat, 2)
    covered = """return [...document.querySelectorAll(".said, .turn .markdown, #message textarea, #send")].filter((each) => {
        const { left, top, width, height } = each.getBoundingClientRect();
        const found = document.elementFromPoint(left + width / 2, top + height / 2);
        return !each.contains(found) && !found.contains(each); }).map((each) => each.outerHTML)"""
    assert chat.execute_script(covered) == []


def test_the_browser_itself_refuses_to_load_anything_from_elsewhere(chat):
    chat.get_log("performance")
    load = """const report = arguments[0], image = new Image();
        image.onload = () => report("loaded"), image.onerror = () => report("refused"), image.src = "http://127.0.0.1:1/x.png";"""
    refused = "document.addEventListener('securitypolicyviolation', (event) => { window.refused = event.blockedURI; })"
    chat.execute_script(refused)
    assert chat.execute_async_script(load) == "refused"
    wait_until(chat, lambda: chat.execute_script("return window.refused"), "the report of the browser")


def test_an_answer_that_was_cut_off_is_continued_by_a_press_as_another_version(chat):
    say(chat, "a cat")
    cut = wait_for_turns(chat, 2)[1][1]
    assert "max new tokens" in figures_of(chat)
    button = element(chat, "#turns [data-does=play]")
    assert button.text == "Continue this answer"
    button.click()
    wait_until(chat, lambda: is_at_rest(chat) and "2/2" in element(chat, "#turns .pager").text, "the longer version")
    stored = [node["message"]["content"] for node in next(iter(kept(chat).values()))["conversation"]["nodes"]]
    assert stored[2].startswith(stored[1]) and len(stored[2]) > len(stored[1]), stored
    assert cut
