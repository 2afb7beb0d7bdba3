"""What holds the page together on every tab: its width, its tabs on a phone, and one name for each thing."""

import itertools

import pytest
from selenium.webdriver.common.keys import Keys

import onnx_textgen
from onnx_textgen_demo.app import TABS
from onnx_textgen_demo.models import ModelRegistry
from support.browser import PHONE, element, elements, open_page, open_tab, wait_until, window, write
from support.chat_page import open_chat, say, turns_of, wait_for_turns
from support.paced_runs import make_chatty
from support.scripted_model import TINY_PACKAGE, ScriptedModel


@pytest.fixture(scope="module")
def tiny():
    return onnx_textgen.load(TINY_PACKAGE)


@pytest.fixture
def phone(chromium):
    with window(chromium, *PHONE):
        yield chromium


SETTLED = "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(() => done(true)))"


def go_to_tab(driver, name):
    open_tab(driver, name)
    wait_until(driver, lambda: selected_tab(driver) == name, f"the tab {name}")


def said_of(driver):
    """What the header says of its model, to screen readers too."""
    return element(driver, ".masthead").get_attribute("textContent")


def selected_tab(driver):
    return element(driver, "button[role=tab][aria-selected=true]").text


PLACES = """return [".masthead", "#picker", "button[role=tab]:first-of-type"].map((selector) => {
    const { left, top, width, height } = document.querySelector(selector).getBoundingClientRect();
    return [left, top + scrollY, width, height].join(" ");
}).join(" ")"""


@pytest.mark.slow
@pytest.mark.parametrize("size", [(400, 860), (1280, 400), (1280, 1100)], ids=str)
@pytest.mark.parametrize("has_chat", [True, False], ids=["chat", "no template"])
def test_the_header_does_not_move_whatever_the_tab(chromium, served, tiny, size, has_chat):
    with window(chromium, *size):
        open_page(chromium, served(make_chatty(4) if has_chat else tiny, onnx_textgen.load("story")))
        places = set()
        for name in [*TABS, *TABS]:  # the second time with the tabs that are drawn when they are first opened
            go_to_tab(chromium, name)
            wait_until(chromium, lambda: chromium.execute_async_script(SETTLED), "a drawn page")
            places.add(chromium.execute_script(PLACES))
        assert len(places) == 1


HEIGHT = "return document.querySelector('[role=tablist]').getBoundingClientRect().top"


@pytest.mark.slow
@pytest.mark.parametrize("width", [360, 400])
def test_the_header_takes_little_of_a_phone_and_covers_nothing(chromium, served, tiny, width):
    with window(chromium, width, 844):
        models = ModelRegistry({"a-model-with-quite-a-long-name": lambda: tiny, "other": lambda: tiny})
        open_page(chromium, served(models, opener_of=lambda name: None))
        assert chromium.execute_script(HEIGHT) <= 64
        title, picker = element(chromium, ".masthead h1"), element(chromium, "#picker")
        text = chromium.execute_script(TEXT_WIDTH, title)
        assert title.rect["x"] + text <= picker.rect["x"], "beside each other"
        go_to_tab(chromium, "Chat")
        assert chromium.execute_script("return document.documentElement.scrollWidth") <= width


TEXT_WIDTH = "const r = document.createRange(); r.selectNodeContents(arguments[0]); return r.getBoundingClientRect().width"


def test_the_field_for_a_message_is_on_the_first_screen_of_a_phone(chromium, served):
    with window(chromium, 400, 800):
        open_chat(chromium, served(ModelRegistry({"one": lambda: make_chatty(4), "two": None}), opener_of=lambda name: None))
        bottom = "return document.querySelector('#message').getBoundingClientRect().bottom"
        assert 760 < chromium.execute_script(bottom) <= 800, "and little is left below it"


@pytest.mark.parametrize("size", [(400, 800), (1280, 800)], ids=str)
def test_only_the_messages_scroll_in_a_chat(chromium, served, size):
    with window(chromium, *size):
        open_chat(chromium, served(make_chatty(4)))
        say(chromium, "a cat")
        wait_for_turns(chromium, 2)
        assert chromium.execute_script("return document.documentElement.scrollHeight") <= size[1]


def test_the_panel_that_fetches_moves_nothing_and_closes(chromium, served, tiny):
    open_page(chromium, served(tiny, opener_of=lambda name: None))
    places = chromium.execute_script(PLACES)
    for close in (lambda: element(chromium, "body").send_keys(Keys.ESCAPE), element(chromium, "#prompt textarea").click):
        element(chromium, "#fetch > button").click()
        wait_until(chromium, lambda: element(chromium, "#fetch-start").is_displayed(), "the panel")
        assert chromium.execute_script(PLACES) == places
        close()
        wait_until(chromium, lambda: not element(chromium, "#fetch-start").is_displayed(), "its end")


def test_the_page_opens_on_what_its_model_is_for_and_as_its_address_says(chromium, served, tiny):
    address = served(ModelRegistry({"talks": lambda: make_chatty(4), "plain": lambda: tiny}))
    chromium.get(address)
    wait_until(chromium, lambda: elements(chromium, "#send") and element(chromium, "#send").is_displayed(), "the chat")
    say(chromium, "a cat")
    turns = wait_for_turns(chromium, 2)
    chromium.refresh()
    wait_until(chromium, lambda: elements(chromium, "#turns") and turns_of(chromium) == turns, "the same conversation")
    open_tab(chromium, "Measure")
    element(chromium, "#picker input").click()
    wait_until(chromium, lambda: elements(chromium, "[role=option]"), "the models")[1].click()
    wait_until(chromium, lambda: "model plain" in said_of(chromium), "the other model")
    chromium.refresh()
    wait_until(chromium, lambda: elements(chromium, ".masthead") and "model plain" in said_of(chromium), "the same model")
    assert selected_tab(chromium) == "Measure"
    chromium.get(f"{address}#tab=Nowhere&model=none&chat=never")
    chromium.refresh()
    wait_until(chromium, lambda: elements(chromium, "#send") and element(chromium, "#send").is_displayed(), "the chat")
    assert turns_of(chromium) == []


@pytest.mark.slow
@pytest.mark.parametrize("width", [360, 390])
def test_all_tabs_are_in_one_row_on_a_phone(chromium, served, width):
    with window(chromium, width, 844):
        open_page(chromium, served(ScriptedModel()))
        tabs = elements(chromium, "button[role=tab]")
        assert [tab.text for tab in tabs] == list(TABS)
        assert len({tab.rect["y"] for tab in tabs}) == 1
        assert all(tab.rect["x"] + tab.rect["width"] <= width for tab in tabs)
        assert not [each for each in elements(chromium, ".overflow-menu") if each.is_displayed()]


def test_a_model_has_the_name_it_is_picked_by_everywhere(chromium, served, tiny):
    open_page(chromium, served(ModelRegistry({"first pick": lambda: tiny, "second pick": lambda: make_chatty(4)})))
    assert "model first pick" in said_of(chromium)
    go_to_tab(chromium, "Chat")
    assert "first pick" in element(chromium, "#no-chat").text
    go_to_tab(chromium, "Measure")
    element(chromium, "#measure").click()
    wait_until(chromium, lambda: "first pick, fp32" in element(chromium, "#measure-note").text, "the end")
    assert tiny.manifest.name not in element(chromium, "body").text


@pytest.mark.slow
def test_no_button_is_called_like_a_tab(chromium, served):
    open_page(chromium, served(make_chatty(4)))
    names = set()
    for name in TABS:
        go_to_tab(chromium, name)
        names |= {each.text for each in elements(chromium, "button:not([role=tab])")}
    assert names & set(TABS) == set()


def test_headings_go_down_by_one(chromium, served, tiny):
    open_page(chromium, served(tiny))
    write(chromium)
    for name in TABS:
        go_to_tab(chromium, name)
        levels = [int(each.tag_name[1]) for each in elements(chromium, "h1, h2, h3, h4") if each.is_displayed()]
        assert levels[0] == 1
        assert all(after <= before + 1 for before, after in itertools.pairwise(levels)), name


def test_nothing_of_gradios_own_stands_below_the_page(chromium, served):
    open_page(chromium, served(ScriptedModel()))
    assert not [each.text for each in elements(chromium, "footer, footer *") if each.is_displayed()]
