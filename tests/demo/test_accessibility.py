"""Every tab passes axe-core's checks, light and dark, and fits a phone."""

import pytest

import onnx_textgen
from onnx_textgen_demo.app import TABS
from onnx_textgen_demo.conversation.message_tree import Figures
from onnx_textgen_demo.conversation.stored import read_tree
from onnx_textgen_demo.pictures.stage_pictures import ATTENTION
from support.axe import axe_script
from support.browser import PHONE, element, elements, open_page, open_tab, wait_until, walk_to, window, write
from support.chat_page import open_conversation, open_empty_chat, press, press_head
from support.paced_runs import make_chatty
from support.scripted_model import TINY_PACKAGE

AXE = "axe.run({ exclude: ['.vega-embed'] }).then(arguments[0])"
"""The marks within a plot are Gradio's alone; its figures stand in a table beside it."""
NOT_OURS = {"region"}  # Gradio puts its toasts outside of the main landmark
STILL = "return ['#generate', '#again'].every((name) => getComputedStyle(document.querySelector(name)).opacity === '1')"


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_on_any_tab(chromium, served, scheme):
    script = axe_script()
    prefer(chromium, scheme)
    try:
        open_page(chromium, served(onnx_textgen.load()))
        chromium.execute_script(script)
        write(chromium)
        # A button that can be pressed again fades in, and is pale until it has.
        wait_until(chromium, lambda: chromium.execute_script(STILL), "a page at rest")
        found = {}
        for name in TABS:
            open_tab(chromium, name)
            if name == "Look inside":
                walk_to(chromium, ATTENTION + 1)
                wait_until(chromium, lambda: "it looks most at" in element(chromium, "#picture").text, "the heat map")
                element(chromium, "#picture summary").click()
            found[name] = violations(chromium)
        assert {name: each for name, each in found.items() if each} == {}
    finally:
        prefer(chromium, "light")


MESSAGES = [
    {"role": "user", "content": "What is the weather?"},
    {
        "role": "assistant",
        "content": "# Look\n[here](https://example.com) ![there](https://example.com)\n\n> so\n\n|a|b|\n|-|-|\n|1|`2`|\n\n$$x$$",
        "reasoning_content": "I should **look**.",
        "tool_calls": [{"id": "c", "function": {"name": "weather", "arguments": '{"city": "Bern"}'}}],
    },
    {"role": "tool", "tool_call_id": "c", "content": '{"sky": "grey"}'},
    {"role": "assistant", "content": "```python\n@cache\ndef f(a: int) -> str:  # why\n    return 'x' + None * 3\n```"},
]


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1280])
def test_axe_finds_nothing_in_a_chat(chromium, served, scheme, width):
    script = axe_script()
    tree = read_tree(MESSAGES)
    tree = tree.add(2, {"role": "assistant", "content": "Grey."}, Figures("m", 4, 9, 5, 99, 30.0, 0.1, 0.0, "length"))
    prefer(chromium, scheme)
    try:
        with window(chromium, width, 900):
            open_empty_chat(chromium, address := served(make_chatty(4)))
            open_conversation(chromium, address, tree, 3)
            press(chromium, "select")
            wait_until(chromium, lambda: elements(chromium, "#turns .code"), "the answer with code")
            chromium.execute_script(script)
            found = violations(chromium)
            for fold in elements(chromium, "#turns .thoughts summary"):
                fold.click()
            press(chromium, "edit", 0)
            press(chromium, "delete", 0)
            press_head(chromium, "list")
            element(chromium, "#conversation-list input[type=search]").send_keys("weather")
            found += violations(chromium)
            press_head(chromium, "settings")
            found += violations(chromium)
            element(chromium, "#chat-settings-close").click()
            press_head(chromium, "keys")
            assert found + violations(chromium) == []
    finally:
        prefer(chromium, "light")


def violations(driver):
    """What axe-core finds on the page."""
    found = driver.execute_async_script(AXE)["violations"]
    return [f"{each['id']}: {node['html'][:160]}" for each in found if each["id"] not in NOT_OURS for node in each["nodes"]]


def prefer(driver, scheme):
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})


def test_every_tab_fits_a_phone(chromium, served):
    with window(chromium, *PHONE):
        open_page(chromium, served(onnx_textgen.load(TINY_PACKAGE)))
        for name in TABS:
            open_tab(chromium, name)
            wait_until(chromium, lambda: chromium.execute_script("return document.documentElement.scrollWidth") <= 390, name)
