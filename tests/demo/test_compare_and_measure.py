"""Texts side by side, and the benchmark as plots, in a real browser; and that long work can be stopped."""

import math
import re
import threading
from concurrent.futures import Future

import pytest
from hypothesis import given
from hypothesis import strategies as st
from selenium.webdriver.common.by import By

import onnx_textgen
from onnx_textgen_demo.background import in_background
from onnx_textgen_demo.pictures import plots
from onnx_textgen_demo.tabs import compare, measure
from support.browser import element, elements, open_page, open_tab, wait_until
from support.scripted_model import TINY_PACKAGE


@pytest.fixture(scope="module")
def model():
    return onnx_textgen.load(TINY_PACKAGE)


def test_every_way_writes_its_text_with_its_numbers(chromium, served, model):
    open_page(chromium, served(model))
    open_tab(chromium, "Compare", "#compare")
    element(chromium, "#compare").click()
    wait_until(chromium, lambda: len(elements(chromium, "#cards .status")) == len(compare.WAYS), "all texts")
    titles = [each.text for each in elements(chromium, "#cards h2")]
    assert titles == list(compare.WAYS)


def test_the_log_probability_is_the_models_own(model):
    answer = model.generate("a cat", max_new_tokens=8, temperature=0, logprobs=0)
    expected = sum(answer.logprobs[: len(answer.token_ids)]) / len(answer.token_ids)
    assert math.isclose(compare.logprob_per_token(model, answer), expected, abs_tol=1e-4)


def test_a_way_that_a_model_refuses_says_so_on_its_card():
    cards = [compare.Card("m", "Greedy", problem="the prompt is <b>empty</b>")]
    assert "&lt;b&gt;" in compare.draw(cards)


def test_long_work_is_told_to_stop_when_its_generator_is_closed():
    stopped = threading.Event()
    work = in_background(lambda: stopped.wait(300), lambda: None, stopped.set)
    next(work)
    work.close()
    assert stopped.is_set()


def test_work_that_fails_raises_its_own_error():
    def fail():
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        list(in_background(fail, lambda: None))


def test_work_that_ends_just_as_the_wait_for_it_does_keeps_its_result(monkeypatch):
    wait = Future.result

    def wait_too_short(future, timeout=None):
        found = wait(future)
        if timeout is not None:
            raise TimeoutError
        return found

    monkeypatch.setattr(Future, "result", wait_too_short)
    with pytest.raises(StopIteration) as ended:
        next(in_background(lambda: 7, lambda: None))
    assert ended.value.value == 7


def test_a_measurement_fills_plots_and_table(chromium, served, model):
    open_page(chromium, served(model))
    open_tab(chromium, "Measure", "#measure")
    assert not elements(chromium, "#measure-table table") and not element(chromium, "#plots").text, "nothing is measured yet"
    element(chromium, "#measure").click()
    wait_until(chromium, lambda: model.manifest.name in element(chromium, "#measure-note").text, "the end")
    every = measure.lengths(model.manifest.geometry.context_length - measure.NEW_TOKENS)
    longest = every[-1]
    wait_until(chromium, lambda: str(longest) in element(chromium, "#measure-table").get_attribute("textContent"), "the table")
    lengths = [f"{length:,}" for length in every]
    for title, plot in zip(measure.PLOTS.values(), elements(chromium, "#plots .plot"), strict=True):
        assert title in plot.text
        assert len(plot.find_elements(By.CSS_SELECTOR, "circle")) == len(lengths)
        assert [each.text for each in plot.find_elements(By.CSS_SELECTOR, ".length")][:-1] == lengths


@given(st.lists(st.tuples(st.integers(1, 1_000_000), st.floats(0, 1e9)), min_size=1, max_size=16, unique_by=lambda each: each[0]))
def test_every_row_is_a_point_within_its_plot(rows):
    drawn = plots.line_plot(sorted(rows), title="speed", across="tokens")
    places = [tuple(map(float, each)) for each in re.findall(r'<circle cx="([^"]+)" cy="([^"]+)"', drawn)]
    assert len(places) == len(rows)
    assert all(0 <= x <= plots.WIDTH and 0 <= y <= plots.HEIGHT for x, y in places)
    assert [x for x, _ in places] == sorted(x for x, _ in places)
    assert all(f">{plots.number(length)}<" in drawn and f">{plots.number(value)}<" in drawn for length, value in rows)
