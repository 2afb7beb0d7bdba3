"""What holds for every tab where a model runs, in a real browser: Stop, an error of the model, two people at once, a reload."""

import contextlib
import re
from typing import NamedTuple

import pytest

import onnx_textgen
from onnx_textgen_demo.models import ModelRegistry
from onnx_textgen_demo.pictures.stage_pictures import STAGES
from support.browser import close_messages, element, elements, open_page, open_tab, set_value, wait_until
from support.paced_runs import PacedRuns, make_chatty

NEW_TOKENS = 200


class Tab(NamedTuple):
    """Where one starts and stops a run, and where it is told how far it is."""

    name: str
    start: str
    stop: str
    note: str
    text: str
    """What the model wrote, or measured."""
    done: str


TABS = [
    Tab("Write", "#generate", "#stop", "#status", "#text .token", "reached max new tokens"),
    Tab("Chat", "#send", "#chat-stop", "#chat-main", "#turns .turn", "reached max new tokens"),
    Tab("Compare", "#compare", "#compare-stop", "#cards", "#cards .text", "reached max new tokens"),
    Tab("Measure", "#measure", "#measure-stop", "#measure-note", "#measure-table tbody td", "tiny-ort, fp32"),
]
WORKING = re.compile("writing|reading|measuring|measured up to")
every_tab = pytest.mark.parametrize("tab", TABS, ids=lambda tab: tab.name)


@pytest.fixture(scope="module")
def model():
    return make_chatty(NEW_TOKENS)


@pytest.fixture
def runs(monkeypatch):
    return PacedRuns(monkeypatch)


def go_to(driver, address, tab):
    open_page(driver, address)
    open_tab(driver, tab.name, tab.start)


def start(driver, tab, text="a cat"):
    if tab.name == "Chat":
        set_value(driver, "#message textarea", text)
    element(driver, tab.start).click()


def wait_for_work(driver, tab, runs, more=5):
    """Until the tab says that it works, and the model has run some times more."""
    before = runs.count
    wait_until(driver, lambda: WORKING.search(note_of(driver, tab)) and runs.count > before + more, "a run under way")
    wait_for_buttons(driver, tab, can_stop=True)


def wait_for_buttons(driver, tab, *, can_stop):
    """Until a run can be stopped but not started, or the other way round."""
    if tab.name != "Chat":  # which shows one button in place of the other
        can_press = lambda: [element(driver, button).is_enabled() for button in (tab.start, tab.stop)]  # noqa: E731
        wait_until(driver, lambda: can_press() == [not can_stop, can_stop], f"the buttons, can stop: {can_stop}")


def note_of(driver, tab):
    return element(driver, tab.note).text


def shown_in(driver, tab):
    """What the page shows; of Chat without the list of conversations, which all tabs of a browser share."""
    return element(driver, "#chat-main" if tab.name == "Chat" else "body").text


def stop(driver, tab, runs):
    element(driver, tab.stop).click()
    wait_until(driver, lambda: "stopped by you" in note_of(driver, tab), "the word that it stopped")
    told = runs.count
    wait_until(driver, lambda: runs.stand_still, "standstill")
    assert runs.count < told + 30, "work went on behind the word"


@contextlib.contextmanager
def another_person(driver):
    """A second tab of the browser, which Gradio takes for another visitor."""
    first = driver.current_window_handle
    driver.switch_to.new_window("tab")
    try:
        yield
    finally:
        driver.close()
        driver.switch_to.window(first)


@pytest.mark.slow
@every_tab
def test_stop_ends_the_run_and_another_one_may_follow(chromium, served, model, runs, tab):
    runs.seconds = 0.03
    go_to(chromium, served(model), tab)
    for _ in range(2):
        wait_for_buttons(chromium, tab, can_stop=False)
        start(chromium, tab)
        wait_for_work(chromium, tab, runs)
        stop(chromium, tab, runs)
    assert not WORKING.search(note_of(chromium, tab))
    assert "Traceback" not in element(chromium, "body").text


@pytest.mark.slow
@every_tab
def test_an_error_in_mid_run_is_told_and_the_next_run_is_done(chromium, served, runs, tab):
    model = make_chatty(40)
    go_to(chromium, served(model), tab)
    runs.fails_at = 70 if tab.name == "Measure" else runs.count + 20
    start(chromium, tab)
    told = lambda: [each.text for each in elements(chromium, f"{tab.note}, .toast-text")]  # noqa: E731
    wait_until(chromium, lambda: "<b>no memory</b>" in "\n".join(told()), "the line about the error")
    wait_until(chromium, lambda: not WORKING.search(note_of(chromium, tab)), "a tab that no longer says that it works")
    if tab.name != "Compare":  # which goes on with the other ways
        assert tab.done not in note_of(chromium, tab)
    assert "Traceback" not in element(chromium, "body").text
    close_messages(chromium)
    wait_for_buttons(chromium, tab, can_stop=False)
    start(chromium, tab)
    wait_until(chromium, lambda: tab.done in note_of(chromium, tab), "a run after the error")
    wait_until(chromium, lambda: "no memory" not in note_of(chromium, tab), "the end of the line about the error")


@pytest.mark.slow
@every_tab
def test_two_people_run_at_once_and_neither_sees_or_stops_the_other(chromium, served, model, runs, tab):
    runs.seconds = 0.1
    address = served(model)
    go_to(chromium, address, tab)
    start(chromium, tab, "the first")
    wait_for_work(chromium, tab, runs)
    runs.seconds = 2  # the first must still be at it when the second has stopped
    with another_person(chromium):
        go_to(chromium, address, tab)
        runs.seconds = 0.1
        assert not WORKING.search(note_of(chromium, tab))
        assert not [each for each in elements(chromium, tab.text) if each.text.strip()]
        start(chromium, tab, "the second")
        wait_for_work(chromium, tab, runs)
        assert "the first" not in shown_in(chromium, tab)
        element(chromium, tab.stop).click()
        wait_until(chromium, lambda: "stopped by you" in note_of(chromium, tab), "the word that it stopped")
    wait_for_work(chromium, tab, runs)
    assert "stopped" not in note_of(chromium, tab)
    assert "the second" not in shown_in(chromium, tab)
    stop(chromium, tab, runs)


@pytest.mark.slow
@every_tab
def test_a_reload_in_mid_run_ends_it_and_gives_a_fresh_page(chromium, served, model, runs, tab):
    runs.seconds = 0.03
    address = served(model)
    go_to(chromium, address, tab)
    start(chromium, tab)
    wait_for_work(chromium, tab, runs)
    go_to(chromium, address, tab)
    wait_until(chromium, lambda: runs.stand_still, "the end of the run")
    assert not WORKING.search(note_of(chromium, tab))
    if tab.name != "Chat":  # its conversation is kept by the browser, and opened again
        assert not [each for each in elements(chromium, tab.text) if each.text.strip()]


def test_two_packages_write_side_by_side_each_its_own_text(chromium, served, model):
    packages = {"first": model, "other": onnx_textgen.load("tiny-transformer")}
    compare = TABS[2]
    go_to(chromium, served(ModelRegistry({name: lambda name=name: packages[name] for name in packages})), compare)
    boxes = lambda: [*elements(chromium, "#ways input"), *elements(chromium, "#compare-models input")]  # noqa: E731
    chosen = lambda: [box.is_selected() for box in boxes()]  # noqa: E731
    wait_until(chromium, lambda: chosen() == [*[True] * 6, True, False], "the choice that the tab comes with")
    for box in [*boxes()[1:5], boxes()[-1]]:
        box.click()
    wait_until(chromium, lambda: chosen() == [True, *[False] * 4, True, True, True], "another choice")
    set_value(chromium, "#compare-prompt textarea", "a cat")
    start(chromium, compare)
    wait_until(chromium, lambda: len(elements(chromium, "#cards .status")) == 4, "four texts")
    shown = dict(zip((each.text for each in elements(chromium, "#cards h2")), elements(chromium, "#cards .text"), strict=True))
    for name, package in packages.items():
        expected = package.generate("a cat", max_new_tokens=60, temperature=0).text
        assert shown[f"Greedy - {name}"].get_attribute("textContent") == expected.replace("\r", "\n")  # as HTML has it


@pytest.mark.slow
def test_the_walk_of_a_person_outlives_an_error_and_is_not_that_of_another(chromium, served, model, runs):
    address = served(model)
    walk = Tab("Look inside", "#walk", "", "#picture", "#picture", "")
    shows = lambda words: wait_until(chromium, lambda: words in note_of(chromium, walk), words)  # noqa: E731
    go_to(chromium, address, walk)
    runs.fails_at = runs.count + 2
    start(chromium, walk)
    for number in range(1, len(STAGES) + 1):
        shows(f"{number}. ")
        element(chromium, "#next").click()
    wait_until(chromium, lambda: "<b>no memory</b>" in element(chromium, "body").text, "the line about the error")
    assert f"{len(STAGES)}. " in note_of(chromium, walk)
    element(chromium, "#next").click()
    shows("new token 2")
    assert "4. " in note_of(chromium, walk)
    with another_person(chromium):
        go_to(chromium, address, walk)
        assert "new token 2" not in note_of(chromium, walk)
        start(chromium, walk)
        shows("1. ")
    element(chromium, "#next").click()
    shows("5. ")
    go_to(chromium, address, walk)  # a reload
    assert "new token" not in note_of(chromium, walk)
