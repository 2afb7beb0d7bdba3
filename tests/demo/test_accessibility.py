"""Every tab passes axe-core's checks, light and dark, and fits a phone."""

from importlib.util import find_spec
from pathlib import Path

import pytest

import onnx_textgen
from onnx_textgen_demo.app import TABS
from onnx_textgen_demo.pictures.stage_pictures import ATTENTION
from support.browser import PHONE, element, elements, open_page, open_tab, status_of, wait_until, window
from support.scripted_model import TINY_PACKAGE

AXE = "axe.run({ exclude: ['.vega-embed'] }).then(arguments[0])"
"""The marks within a plot are Gradio's alone; its figures stand in a table beside it."""
NOT_OURS = {"region"}  # Gradio puts its toasts outside of the main landmark
STILL = "return ['#generate', '#again'].every((name) => getComputedStyle(document.querySelector(name)).opacity === '1')"


def axe_script():
    """The text of axe.min.js, from a package that carries it (`pip install axe-playwright-python --no-deps`)."""
    found = find_spec("axe_playwright_python")
    if found is None or not found.submodule_search_locations:
        pytest.skip("axe-core is not here: pip install --no-deps axe-playwright-python")
    return (Path(found.submodule_search_locations[0]) / "axe.min.js").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_on_any_tab(chromium, served, scheme):
    script = axe_script()
    prefer(chromium, scheme)
    try:
        open_page(chromium, served(onnx_textgen.load()))
        chromium.execute_script(script)
        element(chromium, "#generate").click()
        wait_until(chromium, lambda: "finished" in status_of(chromium), "a text")
        # A button that can be pressed again fades in, and is pale until it has.
        wait_until(chromium, lambda: chromium.execute_script(STILL), "a page at rest")
        found = {}
        for name in TABS:
            open_tab(chromium, name)
            if name == "Look inside":
                wait_until(chromium, lambda: element(chromium, "#walk").is_displayed(), "the tab")
                element(chromium, "#walk").click()
                wait_until(chromium, lambda: "1. Text" in element(chromium, "#picture").text, "the first picture")
                elements(chromium, "#stages button")[ATTENTION].click()
                wait_until(chromium, lambda: "it looks most at" in element(chromium, "#picture").text, "the heat map")
                element(chromium, "#picture summary").click()
            result = chromium.execute_async_script(AXE)
            found[name] = [
                f"{each['id']}: {node['html'][:160]}"
                for each in result["violations"]
                if each["id"] not in NOT_OURS
                for node in each["nodes"]
            ]
        assert {name: each for name, each in found.items() if each} == {}
    finally:
        prefer(chromium, "light")


def prefer(driver, scheme):
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})


def test_every_tab_fits_a_phone(chromium, served):
    with window(chromium, *PHONE):
        open_page(chromium, served(onnx_textgen.load(TINY_PACKAGE)))
        for name in TABS:
            open_tab(chromium, name)
            wait_until(chromium, lambda: chromium.execute_script("return document.documentElement.scrollWidth") <= 390, name)
