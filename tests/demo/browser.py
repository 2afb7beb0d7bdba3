"""Debian's Chromium, headless, and what the tests do with the page in it.

`python tests/demo/browser.py` takes the picture that the README shows, with the embedded default model, into demo/screenshot.png.
"""

import contextlib
import io
import shutil
import tempfile
import time
from pathlib import Path

from PIL import Image
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from onnx_textgen_demo.app import make_page
from onnx_textgen_demo.server import serve
from onnx_textgen_demo.shelf import make_shelf

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
SEED = "#sampling .seed input, #sampling .seed textarea"
SCREENSHOT = Path(__file__).parents[2] / "demo" / "screenshot.png"


def programs():
    """Paths of chromium and its driver; None for one that is missing."""
    return shutil.which("chromium"), shutil.which("chromedriver")


@contextlib.contextmanager
def chromium(width=1280, height=1100, *, dark=False):
    binary, driver_binary = programs()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = binary
        for flag in [*FLAGS, f"--user-data-dir={profile}"]:
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
        driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver_binary))
        try:
            resize(driver, width, height)
            scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
            driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
            yield driver
        finally:
            driver.quit()


def resize(driver, width, height):
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def wait_until(driver, condition, what, seconds=60):
    """The first true value of `condition()`; fails with `what` after `seconds`."""
    return WebDriverWait(driver, seconds, poll_frequency=0.05).until(lambda _: condition(), message=f"waited in vain: {what}")


def element(driver, selector):
    return driver.find_element(By.CSS_SELECTOR, selector)


def elements(driver, selector):
    return driver.find_elements(By.CSS_SELECTOR, selector)


def open_page(driver, address):
    driver.get(address)
    wait_until(driver, lambda: elements(driver, "#generate"), "the Generate button", seconds=60)


def open_tab(driver, name):
    """Press a tab; on a narrow page it may be in the menu of those that find no room."""
    tabs = elements(driver, "button[role=tab], .overflow-menu button")
    tab = next(each for each in tabs if each.get_attribute("textContent").strip() == name)
    driver.execute_script("arguments[0].click()", tab)


def text_of(driver):
    """What the model has written so far."""
    return "".join(each.get_attribute("textContent") for each in elements(driver, "#text .new"))


def status_of(driver):
    return element(driver, "#status").text


def set_value(driver, selector, value):
    """Type into a field in place of what it holds."""
    field = element(driver, selector)
    field.clear()
    field.send_keys(value)


def take_screenshot(path=SCREENSHOT, *, prompt="Once upon a time, there was a little owl who", seed="11", width=1280, height=1120):
    """The page after a finished text, at desktop width."""
    page = make_page(make_shelf([], device="cpu", threads=None))
    served = serve(page, host="127.0.0.1", port=0)
    try:
        with chromium(width, height) as driver:
            open_page(driver, served.address)
            set_value(driver, "#prompt textarea", prompt)
            set_value(driver, SEED, seed)
            element(driver, "#generate").click()
            wait_until(driver, lambda: "finished" in status_of(driver), "the end of the text", seconds=60)
            driver.execute_script(
                "document.activeElement.blur(); scrollTo(0, 0); document.documentElement.style.overflow = 'hidden'"
            )
            time.sleep(0.5)  # the scrolling and the fading of the focus ring
            picture = Image.open(io.BytesIO(driver.get_screenshot_as_png()))
            picture.convert("RGB").quantize(128).save(path, optimize=True)
    finally:
        served.close()
    print(f"{path}: {path.stat().st_size / 1000:.0f} KB")


if __name__ == "__main__":
    take_screenshot()
