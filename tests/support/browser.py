"""Debian's Chromium, headless, and what the tests do with the page in it.

`python tests/support/browser.py` takes the pictures that the README and docs/web_page.md show, with the embedded models; with
the folder of a chat model as its argument, that of a chat too; with a folder of Whisper and a sound file, that of Transcribe.
"""

import contextlib
import functools
import io
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from PIL import Image
from selenium import webdriver
from selenium.common.exceptions import SessionNotCreatedException, WebDriverException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from onnx_textgen_demo.app import make_page
from onnx_textgen_demo.models import make_registry, opener
from onnx_textgen_demo.serving.server import serve

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--in-process-gpu",
    "--renderer-process-limit=1",  # with one origin for all pages, it keeps Gradio's scripts compiled
    "--disable-site-isolation-trials",
]
LONGEST_WAIT = 300
"""Seconds: a guard, and no measure."""
SEED = "#sampling .seed input, #sampling .seed textarea"
DESKTOP, PHONE = (1280, 1100), (390, 844)
"""Sizes of the page: width, height."""
QUESTIONS = "Suggest names for a small grey cat.", "Where is Peru?", "Write a Python function that adds two numbers."
ROOT = Path(__file__).parents[2]
PICTURES = {
    "Write": ROOT / "demo" / "screenshot.png",
    "Truncation": ROOT / "docs" / "pictures" / "look_inside.png",
    "Attention": ROOT / "docs" / "pictures" / "attention.png",
    "Chat": ROOT / "docs" / "pictures" / "chat.png",
    "Transcribe": ROOT / "docs" / "pictures" / "transcribe.png",
}


def programs():
    """Paths of chromium and its driver; None for one that is missing."""
    return shutil.which("chromium"), shutil.which("chromedriver")


def started(options, driver_binary):
    """A driver with its browser; one that ends while it starts, as it may on a busy machine, is started once more."""
    try:
        return webdriver.Chrome(options=options, service=webdriver.ChromeService(driver_binary))
    except SessionNotCreatedException:
        return webdriver.Chrome(options=options, service=webdriver.ChromeService(driver_binary))


@contextlib.contextmanager
def chromium(width=DESKTOP[0], height=DESKTOP[1], *, dark=False, flags=()):
    binary, driver_binary = programs()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = binary
        for flag in [*FLAGS, *flags, f"--user-data-dir={profile}"]:
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
        driver = started(options, driver_binary)
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


@contextlib.contextmanager
def window(driver, width, height):
    """The page has this size within the block, and the usual one after it."""
    resize(driver, width, height)
    try:
        yield
    finally:
        resize(driver, *DESKTOP)


def wait_until(driver, condition, what):
    """The first true value of `condition()`; fails with `what` where it never comes."""
    return WebDriverWait(driver, LONGEST_WAIT, poll_frequency=0.05).until(lambda _: condition(), message=f"waited in vain: {what}")


def element(driver, selector):
    return driver.find_element(By.CSS_SELECTOR, selector)


def elements(driver, selector):
    return driver.find_elements(By.CSS_SELECTOR, selector)


def go_to_page(driver, address):
    """The page at the tab that it opens at."""
    driver.get(address)
    wait_until(driver, lambda: elements(driver, "button[role=tab][aria-selected=true]"), "the page")


def open_page(driver, address):
    """The page at its tab Write."""
    go_to_page(driver, address)
    open_tab(driver, "Write")
    wait_until(driver, lambda: elements(driver, "#generate") and is_laid_out(driver), "the tab")


def leave_page(driver, origin):
    """Close the page, as its server waits for the streams of those that are open, and forget what the browser keeps for it."""
    driver.get("about:blank")
    driver.execute_cdp_cmd("Storage.clearDataForOrigin", {"origin": origin, "storageTypes": "local_storage"})


def is_laid_out(driver):
    """Whether the options of Write are open, or folded away on a phone; they are there last."""
    is_open = any(each.is_displayed() for each in elements(driver, SEED))
    return is_open == driver.execute_script("return innerWidth > 600")


def open_tab(driver, name, button=None):
    """Press a tab, and wait for a button of it; on a narrow page it may be in the menu of those that find no room."""
    tabs = elements(driver, "button[role=tab], .overflow-menu button")
    tab = next(each for each in tabs if each.get_attribute("textContent").strip() == name)
    driver.execute_script("arguments[0].click()", tab)
    wait_until(driver, lambda: button is None or element(driver, button).is_displayed(), f"the tab {name}")


def close_messages(driver):
    """Close what Gradio has put over the page, as far as it has not gone by itself."""

    def are_closed():
        for close in elements(driver, ".toast-close"):
            with contextlib.suppress(WebDriverException):
                close.click()
        return not elements(driver, ".toast-close")

    wait_until(driver, are_closed, "the end of the messages")


def text_of(driver):
    """What the model has written so far."""
    return "".join(each.get_attribute("textContent") for each in elements(driver, "#text .new"))


def status_of(driver):
    return element(driver, "#status").text


def generate(driver):
    """Press Generate, once it can be pressed."""
    wait_until(driver, element(driver, "#generate").is_enabled, "the end of a text before")
    element(driver, "#generate").click()


def write(driver):
    """Generate a text to its end."""
    generate(driver)
    wait_until(driver, lambda: "finished" in status_of(driver), "the end of the text")


def requests_elsewhere(driver, address):
    """URLs that the browser asked for since its log was read, and that are not of the page."""
    events = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    urls = {event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"}
    assert urls, "the log of a page that asked for nothing says nothing"
    return [url for url in urls if not url.startswith((address, f"blob:{address}", "data:", "chrome:"))]


def set_value(driver, selector, value):
    """Type into a field in place of what it holds."""
    field = element(driver, selector)
    field.clear()
    field.send_keys(value)


@contextlib.contextmanager
def page_of_models(width, height, packages=()):
    """A browser with the page as `onnx-textgen demo` opens it; without packages, with the embedded models."""
    where: dict[str, Any] = {"device": "cpu", "threads": None}
    page = make_page(make_registry(packages, **where), opener_of=functools.partial(opener, **where))
    served = serve(page, host="127.0.0.1", port=0)
    try:
        with chromium(width, height) as driver:
            go_to_page(driver, served.address)
            yield driver
    finally:
        served.close()


def take_picture(driver, path, *, parts=()):
    """Save what is seen, or the rectangle around some parts of it."""
    driver.execute_script("document.activeElement.blur(); scrollTo(0, 0); document.documentElement.style.overflow = 'hidden'")
    time.sleep(0.5)  # the scrolling and the fading of the focus ring
    picture = Image.open(io.BytesIO(driver.get_screenshot_as_png()))
    if parts:
        places = [element(driver, part).rect for part in parts]
        left, top = (min(place[side] for place in places) - 8 for side in ("x", "y"))
        right, bottom = (max(place[side] + place[size] for place in places) + 8 for side, size in (("x", "width"), ("y", "height")))
        picture = picture.crop((left, top, right, bottom))
    picture.convert("RGB").quantize(128).save(path, optimize=True)
    print(f"{path}: {path.stat().st_size / 1000:.0f} KB")


def take_picture_of_write(path=PICTURES["Write"]):
    """A finished text, with a token that was not the likeliest."""
    with page_of_models(1280, 1000) as driver:
        open_tab(driver, "Write", "#generate")
        set_value(driver, SEED, "9")
        write(driver)
        chosen = elements(driver, "#text .token.band-3")[0]
        place = chosen.get_attribute("data-place")
        chosen.click()
        wait_until(driver, lambda: f"token {place}," in element(driver, "#bars p").text, "its alternatives")
        take_picture(driver, path)


def walk_to(driver, stage, prompt=None):
    """Open Look inside at a stage, by its number from 1; without a prompt, with the one that it comes with."""
    open_tab(driver, "Look inside", "#walk")
    if prompt is not None:
        set_value(driver, "#walk-prompt textarea", prompt)
    element(driver, "#walk").click()
    wait_until(driver, lambda: "1. Text" in element(driver, "#picture").text, "the first picture")
    elements(driver, "#stages button")[stage - 1].click()
    wait_until(driver, lambda: f"{stage}. " in element(driver, "#picture").text, "the stage")


def take_picture_of_truncation(path=PICTURES["Truncation"]):
    """What top-p leaves at temperature 1."""
    with page_of_models(1280, 920) as driver:
        walk_to(driver, 8, "Once upon a time, there was a little")
        set_value(driver, "#walk-sampling input[aria-label='number input for Temperature']", "1")
        wait_until(driver, lambda: len(elements(driver, "#picture tr.drawn")) > 3, "more tokens that are left")
        take_picture(driver, path)


def take_picture_of_attention(path=PICTURES["Attention"]):
    """The heat map of a head."""
    with page_of_models(1280, 1500) as driver:
        walk_to(driver, 5, "The dog had a red ball. One day, the ball rolled away and")
        element(driver, "#layer input[type=range]").send_keys(*[Keys.ARROW_RIGHT] * 3)
        wait_until(driver, lambda: "In layer 4, head 1" in element(driver, "#picture").text, "the layer")
        take_picture(driver, path, parts=["#whose", "#picture .heat"])


def take_picture_of_chat(package, path=PICTURES["Chat"]):
    """Several answers to one question, of which the last can be seen as a whole, in a list of several conversations."""
    with page_of_models(1280, 900, [package]) as driver:
        open_tab(driver, "Chat", "#send")
        for text in QUESTIONS:
            element(driver, "[data-does=new]").click()
            wait_until(driver, lambda: elements(driver, "#turns .empty"), "an empty chat")
            set_value(driver, "#message textarea", text)
            element(driver, "#message textarea").send_keys(Keys.ENTER)
            wait_until(driver, lambda: elements(driver, "#turns [aria-busy=false] [data-does=retry]"), "an answer")
        for count in range(2, 30):
            element(driver, "#turns [data-does=retry]").click()
            wait_until(driver, lambda count=count: is_whole(driver, count), "another answer")
            if driver.execute_script(FITS):
                break
        take_picture(driver, path)


def take_picture_of_speech(package, sound, path=PICTURES["Transcribe"]):
    """A sound that is written down, while a line of it is heard."""
    with page_of_models(1280, 760, [package]) as driver:
        wait_until(driver, lambda: elements(driver, "#sound input[type=file]"), "the tab")[0].send_keys(sound)
        wait_until(driver, lambda: "seconds" in element(driver, "#sound [role=status]").text, "the sound")
        element(driver, "#transcribe").click()
        wait_until(driver, lambda: "finished" in element(driver, "#transcribe-status").text, "the end")
        elements(driver, "#said li button")[1].click()
        wait_until(driver, lambda: elements(driver, "#said [data-heard]"), "the line that is heard")
        take_picture(driver, path)


FITS = """const all = document.querySelector("#messages");
const isCutOff = all.textContent.includes("max new tokens");
return all.scrollHeight <= all.clientHeight && !isCutOff && all.querySelectorAll(".code").length"""


def is_whole(driver, count):
    """Whether the answer of that number is there."""
    pagers = elements(driver, "#turns [aria-busy=false] .pager")
    return bool(pagers) and f"{count}/{count}" in pagers[0].text


if __name__ == "__main__":
    take_picture_of_write()
    take_picture_of_truncation()
    take_picture_of_attention()
    if sys.argv[1:]:
        take_picture_of_chat(sys.argv[1])
    if sys.argv[2:]:
        take_picture_of_speech(*sys.argv[2:])
