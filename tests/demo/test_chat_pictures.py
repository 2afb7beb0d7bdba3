"""Pictures in a chat in a real browser: shown, read by the model, and kept by the browser."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import onnx_textgen
from onnx_textgen.errors import OptionError
from onnx_textgen_demo.conversation.stored import read_tree
from onnx_textgen_demo.conversation.user_pictures import read_pictures
from support.browser import element, elements, wait_until
from support.chat_page import kept, open_chat, open_empty_chat, press, say, turns_of, wait_for_turns
from support.drawn_numbers import drawn
from support.paced_runs import make_chatty

QUESTION = "What number is this?"


@pytest.fixture(scope="module")
def digits():
    return onnx_textgen.load("digits", threads=1, device="cpu")


@pytest.fixture
def address(served, digits):
    return served(digits)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a.png"
    path.write_bytes(drawn("305"))
    return path


def choose(driver, path):
    element(driver, "#pictures input[type=file]").send_keys(str(path))
    wait_until(driver, lambda: elements(driver, "#pictures img"), "the picture")


def sizes_of_pictures(driver):
    script = 'return [...document.querySelectorAll("#turns .pictures img")].map((image) => image.naturalWidth)'
    return driver.execute_script(script)


def test_a_picture_is_read_and_kept(chromium, address, file):
    open_empty_chat(chromium, address)
    choose(chromium, file)
    say(chromium, QUESTION)
    (_, asked), (_, answer) = wait_for_turns(chromium, 2)
    assert asked == QUESTION and answer.startswith("305")
    assert sizes_of_pictures(chromium) == [64]
    wait_until(chromium, lambda: not elements(chromium, "#pictures img"), "the empty field")
    say(chromium, "What is the last digit?")  # about the picture of the first message
    wait_for_turns(chromium, 4)
    open_chat(chromium, address)
    assert wait_for_turns(chromium, 4)[0] == ("user", QUESTION)
    assert sizes_of_pictures(chromium) == [64]
    (conversation,) = kept(chromium).values()
    assert read_tree(conversation["conversation"]).nodes[0].message["images"][0].startswith("data:image/jpeg;base64,")


def test_another_answer_and_another_question_have_the_picture(chromium, address, file):
    open_empty_chat(chromium, address)
    choose(chromium, file)
    say(chromium, QUESTION)
    wait_for_turns(chromium, 2)
    press(chromium, "retry")
    wait_for_turns(chromium, 2)
    assert turns_of(chromium)[1][1].startswith("305")
    assert sizes_of_pictures(chromium) == [64]


def test_a_model_of_text_has_no_field_for_pictures(chromium, served):
    open_empty_chat(chromium, served(make_chatty(24)))
    assert not [each for each in elements(chromium, "#pictures") if each.is_displayed()]


def test_pictures_are_made_small_and_can_be_removed(chromium, address, tmp_path):
    large = tmp_path / "large.jpg"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (1500, 900, 3), dtype=np.uint8)).save(large)
    (tmp_path / "text.png").write_bytes(b"no picture")
    open_empty_chat(chromium, address)
    choose(chromium, large)
    assert chromium.execute_script('return document.querySelector("#pictures img").naturalHeight') == 768
    element(chromium, "#pictures input[type=file]").send_keys(str(tmp_path / "text.png"))
    wait_until(chromium, lambda: "no picture" in element(chromium, "#pictures [role=status]").text, "the note")
    chromium.execute_script("arguments[0].click()", element(chromium, "#pictures li button"))
    wait_until(chromium, lambda: not elements(chromium, "#pictures img"), "no picture")


@pytest.mark.parametrize(
    "value", ["x", [5], ["https://example.org/a.png"], ['data:image/png;base64,AA" onerror="x'], ["data:image/svg+xml;base64,AA=="]]
)
def test_what_is_no_picture_of_this_page_is_refused(value):
    with pytest.raises(OptionError) as error:
        read_pictures(value)
    assert "\n" not in str(error.value)
    with pytest.raises(OptionError):
        read_tree([{"role": "user", "content": "x", "images": value}])
