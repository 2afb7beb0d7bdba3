"""The page with an encoder-decoder: Write has a source and a text, and tabs that show nothing of such a model say what it is."""

import contextlib
import re
from pathlib import Path

import numpy as np
import pytest
from gradio_client import Client
from selenium.webdriver.common.by import By

import onnx_textgen
from onnx_textgen_demo.pictures import stage_pictures
from onnx_textgen_demo.pictures.embeddings import embeddings_of
from onnx_textgen_demo.pictures.step_inspection import StepInspector
from onnx_textgen_demo.tabs import measure
from onnx_textgen_demo.tabs.write import EXAMPLES
from support.browser import (
    PHONE,
    element,
    elements,
    generate,
    open_page,
    open_tab,
    set_value,
    status_of,
    text_of,
    wait_until,
    window,
    write,
)
from support.patient_http import LONGEST_WAIT

FOLDER = Path(__file__).parents[1] / "packages" / "numbers"
TEXT = "four thousand and seventy one"


@pytest.fixture(scope="module")
def numbers():
    return onnx_textgen.load(FOLDER, threads=1, device="cpu")


@pytest.fixture(scope="module")
def story():
    return onnx_textgen.load("story", threads=1, device="cpu")


def write_of(driver, source):
    set_value(driver, "#prompt textarea", source)
    write(driver)


def pick(driver, name):
    element(driver, "#picker input").click()
    named = f"[role=option][aria-label='{name}']"
    wait_until(driver, lambda: elements(driver, named), f"the model {name}")[0].click()


def label_of(driver, field):
    return element(driver, f"{field} [data-testid=block-info]").text


@pytest.mark.parametrize("size", [None, PHONE], ids=["desktop", "phone"])
def test_source_and_text_are_two_texts(chromium, served, numbers, size):
    with window(chromium, *size) if size else contextlib.nullcontext():
        open_page(chromium, served(numbers))
        assert label_of(chromium, "#prompt") == "Source"
        assert not element(chromium, "#generate").is_enabled(), "there is no source"
        assert not [each for each in elements(chromium, "#examples") if each.is_displayed()]
        write_of(chromium, "4071")
        assert element(chromium, "#text .source").text == "4071"
        assert element(chromium, "#text .sheet").get_attribute("textContent") == text_of(chromium) == TEXT
        assert [each.text for each in elements(chromium, "#text h2")] == ["Source", "Text"]
        assert "finished: eos" in status_of(chromium)
        assert len(elements(chromium, "#text .token")) == 5
        assert len(elements(chromium, "#bars tr")) >= 10
        assert not elements(chromium, "#bars [data-alternative]"), "its text has no branches"
        frame, source, sheet = (element(chromium, f"#text {part}").rect for part in (".written", ".source", ".sheet"))
        assert frame["y"] < source["y"] < source["y"] + source["height"] <= sheet["y"]
        assert sheet["x"] + sheet["width"] <= frame["x"] + frame["width"]
        assert chromium.execute_script("return document.documentElement.scrollWidth <= innerWidth")


def test_a_long_source_leaves_room_for_the_text(chromium, served, numbers):
    open_page(chromium, served(numbers))
    write_of(chromium, "\n".join("1" for _ in range(120)))
    source, sheet = (element(chromium, f"#text {part}").rect for part in (".source", ".sheet"))
    assert source["height"] < sheet["height"]
    assert chromium.execute_script("const it = document.querySelector('#text .source'); return it.scrollHeight > it.clientHeight")


def test_a_source_that_is_too_long_is_one_line(chromium, served, numbers):
    open_page(chromium, served(numbers))
    set_value(chromium, "#prompt textarea", "1" * 200)
    generate(chromium)
    wait_until(chromium, lambda: "the source has 201 tokens" in status_of(chromium), "the problem")


def test_tabs_that_show_nothing_of_it_say_what_it_is_until_another_model_is_picked(chromium, served, numbers, story):
    open_page(chromium, served(numbers, story))
    open_tab(chromium, "Chat")
    wait_until(chromium, lambda: "numbers cannot chat" in element(chromium, "#no-chat").text, "the reason")
    assert "It is an encoder-decoder: it reads a source" in element(chromium, "#no-chat").text
    pick(chromium, "story")
    wait_until(chromium, lambda: "story cannot chat" in element(chromium, "#no-chat").text, "the other model")
    assert "It has no chat template" in element(chromium, "#no-chat").text
    open_tab(chromium, "Look inside", "#walk")
    wait_until(chromium, lambda: label_of(chromium, "#walk-prompt") == "Prompt", "the field of a decoder")
    open_tab(chromium, "Write")
    wait_until(chromium, lambda: label_of(chromium, "#prompt") == "Prompt", "the field of a decoder")
    wait_until(chromium, lambda: element(chromium, "#examples").is_displayed(), "the examples")
    set_value(chromium, "#prompt textarea", EXAMPLES["A kite"])
    pick(chromium, "numbers")
    wait_until(chromium, lambda: label_of(chromium, "#prompt") == "Source", "the field of an encoder-decoder")
    wait_until(chromium, lambda: not element(chromium, "#prompt textarea").get_attribute("value"), "no story as a source")
    write_of(chromium, "7")
    assert text_of(chromium) == "seven"


@pytest.mark.parametrize("size", [None, PHONE], ids=["desktop", "phone"])
def test_a_person_sees_which_digits_a_word_looks_at(chromium, served, numbers, size):
    with window(chromium, *size) if size else contextlib.nullcontext():
        open_page(chromium, served(numbers))
        open_tab(chromium, "Look inside", "#walk")
        assert label_of(chromium, "#walk-prompt") == "Source"
        set_value(chromium, "#walk-prompt textarea", "4071")
        element(chromium, "#walk").click()
        wait_until(chromium, lambda: "1. Text" in element(chromium, "#picture").text, "the first picture")
        assert "the source" in element(chromium, "#picture h2").text
        elements(chromium, "#stages button")[stage_pictures.ATTENTION].click()
        wait_until(chromium, lambda: "In layer 1, head 1 it looks" in element(chromium, "#picture").text, "the heat map")
        for word in ("four", "thousand", "and"):
            element(chromium, "#next-token").click()
            wait_until(chromium, lambda word=word: f"token, {word}, is the one" in element(chromium, "#picture").text, word)
        heat = element(chromium, "#picture .heat")
        assert [each.text for each in heat.find_elements(By.CSS_SELECTOR, ".at")] == ["4", "0", "7", "1", "</s>"]
        assert [each.text for each in heat.find_elements(By.CSS_SELECTOR, ".looks")] == ["<pad>", "four", "thousand", "and"]
        assert len(heat.find_elements(By.CSS_SELECTOR, "[role=img] i")) == 4 * 5
        assert chromium.execute_script("return document.documentElement.scrollWidth <= innerWidth")


def test_the_heat_map_has_the_shares_of_the_source_and_folds_those_of_the_text(numbers):
    inspector = StepInspector(numbers, "4071", numbers.generator.config({"temperature": 0, "seed": 1}))
    while inspector.can_step():
        inspector.step()
    assert [step.sampling.chosen.piece for step in inspector.steps] == [*TEXT.split(), "</s>"]
    inspector.select_head(1, 2)
    maps = numbers.attentions(inspector.chosen_before(3), source="4071")
    shown = stage_pictures.attention_picture(inspector, 3)
    of_source, of_text = shown.split("<details><summary>How it looks back at its own text")
    grid = of_source.partition("legend")[0]
    cells = [float(each) for each in re.findall(r"--strength:([0-9.]+)%", grid)]
    np.testing.assert_allclose(cells, 100 * np.sqrt(maps.cross_weights[1, 2].ravel()), atol=0.06)
    grid = of_text.partition("legend")[0]
    cells = [float(each) for each in re.findall(r"--strength:([0-9.]+)%", grid)]
    np.testing.assert_allclose(cells, 100 * np.sqrt(maps.weights[1, 2][np.tril_indices(4)]), atol=0.06)


def test_of_a_long_source_the_tokens_that_are_looked_at_most_are_shown(numbers):
    inspector = StepInspector(numbers, "1" * 90, numbers.generator.config({"temperature": 0, "seed": 1}))
    inspector.step()
    shown = stage_pictures.attention_picture(inspector, 0)
    assert "Of the 91 tokens of the source, the 48 that are looked at most are shown" in shown
    cells = [float(each) / 100 for each in re.findall(r"--strength:([0-9.]+)%", shown.partition("legend")[0])]
    weights = np.sort(numbers.attentions([], source="1" * 90).cross_weights[0, 0, 0])[::-1]
    assert sum(cell**2 for cell in cells) == pytest.approx(weights[:48].sum(), abs=0.01)


def test_the_embeddings_of_a_source_are_rows_of_the_encoders_table(numbers):
    found = embeddings_of(numbers, (5, 2, 5))
    weights = (FOLDER / "onnx" / "model.onnx_data").read_bytes()
    assert all(row.tobytes() in weights for row in found)


def test_ways_to_write_are_compared_for_a_source(chromium, served, numbers):
    open_page(chromium, served(numbers))
    open_tab(chromium, "Compare", "#compare")
    assert label_of(chromium, "#compare-prompt") == "Source"
    set_value(chromium, "#compare-prompt textarea", "4071")
    element(chromium, "#compare").click()
    wait_until(chromium, lambda: len(elements(chromium, "#cards .text")) == 6, "all texts")
    assert elements(chromium, "#cards .text")[0].text == TEXT
    assert not elements(chromium, "#cards .continued"), "the source is no beginning of the text"
    score = numbers.score(numbers.tokenizer.encode(TEXT, add_special_tokens=False), source="4071")
    likely = sum(score.continuation_logprobs) / 5
    assert f"log-probability per token {likely:.2f}" in " ".join(element(chromium, "#cards article").text.split())


def test_it_is_measured_at_growing_sources(chromium, served, numbers):
    open_page(chromium, served(numbers))
    open_tab(chromium, "Measure", "#measure")
    element(chromium, "#measure").click()
    wait_until(chromium, lambda: "numbers, fp32" in element(chromium, "#measure-note").text, "the end")
    rows = [each.text.split() for each in elements(chromium, "#measure-table tbody tr")]
    assert [row[0] for row in rows] == ["32", "64", "128"] == [str(length) for length in measure.lengths(128)]


def test_programs_give_the_source_as_the_prompt(served, numbers):
    client = Client(served(numbers), verbose=False, httpx_kwargs={"timeout": LONGEST_WAIT})
    with contextlib.closing(client):
        answer = client.submit("4071", temperature=0, api_name="/generate").result(timeout=LONGEST_WAIT)
    assert (answer["text"], answer["finish_reason"], answer["stats"]["prompt_tokens"]) == (TEXT, "eos", 5)
