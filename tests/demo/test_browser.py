"""The page in a real browser: type, generate, watch the text grow, stop it."""

import pytest
from selenium.webdriver.common.keys import Keys

import onnx_textgen
from onnx_textgen.errors import ModelError
from onnx_textgen.package.locate import DEFAULT_PACKAGE, embedded_packages
from onnx_textgen_demo.models import ModelRegistry
from onnx_textgen_demo.tabs.write import EXAMPLES
from support.browser import (
    PHONE,
    SEED,
    close_messages,
    element,
    elements,
    generate,
    open_page,
    requests_elsewhere,
    set_value,
    status_of,
    text_of,
    wait_until,
    window,
    write,
)
from support.scripted_model import PIECES, TINY_PACKAGE, ScriptedModel


@pytest.fixture
def slow():
    return ScriptedModel(seconds_per_token=0.02, later_seconds=2)


def stop(driver, slow):
    """Press Stop, and wait until the model writes no more."""
    element(driver, "#stop").click()
    wait_until(driver, lambda: slow.open_streams == 0, "the end of the model's stream")


def can_press(driver):
    """Whether Generate, New seed and Stop are enabled."""
    return [element(driver, button).is_enabled() for button in ("#generate", "#again", "#stop")]


def marked(driver):
    """The token whose alternatives are shown."""
    return [each.get_attribute("data-place") for each in elements(driver, "#text [aria-current]")]


@pytest.mark.slow
def test_a_typed_prompt_is_continued_while_one_watches(chromium, served):
    if DEFAULT_PACKAGE not in embedded_packages():
        pytest.skip("this checkout has no embedded model")
    open_page(chromium, served(onnx_textgen.load()))
    assert DEFAULT_PACKAGE in element(chromium, ".masthead").get_attribute("textContent")
    assert "cpu" in element(chromium, ".masthead").get_attribute("textContent")
    set_value(chromium, "#prompt textarea", "Lily had a red ball. One day,")
    write(chromium)
    assert len(text_of(chromium)) > 20
    assert "tokens/s" in status_of(chromium)
    assert len({span.value_of_css_property("background-color") for span in elements(chromium, "#text .token")}) > 1
    assert len(elements(chromium, "#bars tr")) >= 10


def test_text_tokens_and_bars_grow_while_the_model_writes(chromium, served, slow):
    open_page(chromium, served(slow))
    generate(chromium)
    for shown in (
        lambda: len(text_of(chromium)),
        lambda: len(elements(chromium, "#text .token")),
        lambda: int(element(chromium, "#bars p").text.partition("as token ")[2].partition(",")[0] or 0),
    ):
        first = wait_until(chromium, shown, "something to see")
        wait_until(chromium, lambda: shown() > first, "more of it")  # noqa: B023  (called at once)
    assert "writing" in status_of(chromium)
    assert slow.open_streams == 1
    stop(chromium, slow)


def test_stop_ends_a_long_generation(chromium, served, slow):
    open_page(chromium, served(slow))
    generate(chromium)
    wait_until(chromium, lambda: len(text_of(chromium)) > 20, "some text")
    element(chromium, "#stop").click()
    wait_until(chromium, lambda: "finished: cancelled" in status_of(chromium), "the word that it stopped")
    wait_until(chromium, lambda: slow.open_streams == 0, "the end of the model's stream")
    written = slow.streamed_tokens
    text = text_of(chromium)
    assert written < 256
    wait_until(chromium, lambda: text_of(chromium) == text and slow.streamed_tokens == written, "standstill")
    generate(chromium)
    wait_until(
        chromium, lambda: slow.streamed_tokens > written and "writing" in status_of(chromium), "a second text after the first"
    )
    stop(chromium, slow)


def test_leaving_the_page_ends_the_generation(chromium, served, slow):
    open_page(chromium, served(slow))
    generate(chromium)
    wait_until(chromium, lambda: len(text_of(chromium)) > 20, "some text")
    chromium.get("about:blank")
    wait_until(chromium, lambda: slow.open_streams == 0, "the end of the model's stream")
    assert slow.streamed_tokens < 256


def test_bad_input_shows_a_readable_line_and_the_next_try_works(chromium, served):
    open_page(chromium, served(onnx_textgen.load(TINY_PACKAGE)))
    set_value(chromium, "#prompt textarea", "a cat")
    set_value(chromium, SEED, "seven <b>7</b>")
    generate(chromium)
    wait_until(chromium, lambda: "seed should be a whole number" in status_of(chromium), "the line about the seed")
    assert "Traceback" not in element(chromium, "body").text
    assert not elements(chromium, "#status .state b")
    set_value(chromium, SEED, "7")
    write(chromium)


def test_a_pressed_token_shows_its_alternatives(chromium, served):
    open_page(chromium, served(ScriptedModel()))
    write(chromium)
    for index in (2, 12):  # before and after a line end
        elements(chromium, "#text .token")[index].click()
        wait_until(chromium, lambda: f"token {index + 1}," in element(chromium, "#bars p").text, "its bars")  # noqa: B023


@pytest.mark.slow
def test_the_chosen_token_is_marked_and_arrow_keys_go_from_one_to_the_next(chromium, served):
    open_page(chromium, served(ScriptedModel()))
    write(chromium)
    elements(chromium, "#text .token")[2].click()
    wait_until(chromium, lambda: marked(chromium) == ["3"], "the mark on it")
    for key, place in ((Keys.ARROW_RIGHT, 4), (Keys.ARROW_LEFT, 3), (Keys.ARROW_LEFT, 2)):
        element(chromium, "#text .sheet").send_keys(key)
        wait_until(chromium, lambda: marked(chromium) == [str(place)], "the mark on another")  # noqa: B023  (called at once)
        assert f"token {place}," in element(chromium, "#bars p").text
    element(chromium, "#bars .steps button").click()
    wait_until(chromium, lambda: marked(chromium) == ["1"], "the mark on the first")
    before, after = (each.is_enabled() for each in elements(chromium, "#bars .steps button"))
    assert (before, after) == (False, True)


def test_a_token_that_a_person_looks_at_stays_the_one_while_the_text_goes_on(chromium, served, slow):
    open_page(chromium, served(slow))
    generate(chromium)
    wait_until(chromium, lambda: len(elements(chromium, "#text .token")) > 5, "some text")
    elements(chromium, "#text .token")[1].click()
    wait_until(chromium, lambda: marked(chromium) == ["2"], "the mark on it")
    written = len(elements(chromium, "#text .token"))
    wait_until(chromium, lambda: len(elements(chromium, "#text .token")) > written + 5, "more text")
    assert marked(chromium) == ["2"]
    stop(chromium, slow)


def test_the_end_of_a_long_text_is_followed_until_a_person_scrolls_up_to_read(chromium, served, slow):
    open_page(chromium, served(slow))
    generate(chromium)
    top = lambda: chromium.execute_script("return document.querySelector('#text .sheet')?.scrollTop")  # noqa: E731
    seen = wait_until(chromium, top, "a text that is longer than its frame")
    wait_until(chromium, lambda: top() > seen, "the end in sight")
    chromium.execute_script("document.querySelector('#text .sheet').scrollTop = 0")
    wait_until(chromium, lambda: top() == 0, "the beginning in sight")
    written = len(elements(chromium, "#text .token"))
    wait_until(chromium, lambda: len(elements(chromium, "#text .token")) > written + 10, "more text")
    assert top() == 0
    stop(chromium, slow)


def test_the_text_stands_there_once_behind_its_prompt_and_is_copied_to_the_letter(chromium, served):
    open_page(chromium, served(ScriptedModel()))
    set_value(chromium, "#prompt textarea", "<b>Once</b>")
    write(chromium)
    text = "".join(PIECES[place % len(PIECES)] for place in range(256))
    assert element(chromium, "#text .sheet").get_attribute("textContent") == "<b>Once</b>" + text
    shown = " ".join(chromium.execute_script("return document.body.innerText").split())
    assert shown.count(" ".join(text.split())) == 1
    assert elements(chromium, "#text .sheet .token.band-1")
    assert [each.get_attribute("textContent") for each in elements(chromium, "#text .prompt")] == ["<b>Once</b>"]
    chromium.execute_script("navigator.clipboard.writeText = async (text) => { window.copied = text; };")
    element(chromium, "#text .copy").click()
    wait_until(chromium, lambda: chromium.execute_script("return window.copied") == "<b>Once</b>" + text, "the copy")
    selected = "getSelection().selectAllChildren(arguments[0]); return getSelection().toString()"
    assert "⏎" not in chromium.execute_script(selected, element(chromium, "#text .sheet"))


def test_the_coloured_tokens_and_their_alternatives_are_seen_without_scrolling(chromium, served):
    with window(chromium, 1280, 800):
        open_page(chromium, served(ScriptedModel(), onnx_textgen.load(TINY_PACKAGE)))
        write(chromium)
        assert chromium.execute_script("return scrollY") == 0
        assert all(element(chromium, part).rect["y"] < 450 for part in ("#text .sheet", "#bars .bars"))
        sheet = element(chromium, "#text .sheet").rect
        assert sheet["y"] + 0.8 * sheet["height"] < 800
        text, alternatives = (element(chromium, part).rect for part in ("#text .written", "#bars .bars"))
        assert (text["y"], text["height"]) == (alternatives["y"], alternatives["height"])
        assert alternatives["x"] > text["x"] + text["width"]


def test_write_is_short_on_a_phone(chromium, served):
    with window(chromium, *PHONE):
        open_page(chromium, served(ScriptedModel(), onnx_textgen.load(TINY_PACKAGE)))
        write(chromium)
        wait_until(chromium, lambda: not element(chromium, SEED).is_displayed(), "options that are folded away")
        assert chromium.execute_script("return document.documentElement.scrollHeight") < 2 * 844


def test_every_button_can_be_pressed_where_it_does_something(chromium, served, slow):
    open_page(chromium, served(slow))
    assert can_press(chromium) == [True, False, False]
    generate(chromium)
    wait_until(chromium, lambda: can_press(chromium) == [False, False, True], "a text under way")
    element(chromium, "#stop").click()
    wait_until(chromium, lambda: can_press(chromium) == [True, True, False], "its end")
    temperature = "#sampling input[aria-label='number input for Temperature']"
    set_value(chromium, temperature, "0")
    wait_until(chromium, lambda: can_press(chromium) == [True, False, False], "nothing that a seed would change")
    set_value(chromium, temperature, "1")
    wait_until(chromium, lambda: can_press(chromium) == [True, True, False], "something that it does")
    element(chromium, "#prompt textarea").send_keys(Keys.CONTROL, "a", Keys.BACKSPACE)
    wait_until(chromium, lambda: can_press(chromium) == [False, False, False], "nothing to go on from")
    set_value(chromium, "#prompt textarea", "a cat")
    wait_until(chromium, lambda: can_press(chromium) == [True, True, False], "something to go on from")


@pytest.mark.slow
def test_the_table_says_in_numbers_what_the_colours_say(chromium, served):
    open_page(chromium, served(ScriptedModel()))
    write(chromium)
    element(chromium, "#table button").click()
    wait_until(chromium, lambda: "␣small" in element(chromium, "#table").text, "the rows")
    assert "45.0 %" in element(chromium, "#table").text


def test_an_example_becomes_the_prompt(chromium, served):
    open_page(chromium, served(ScriptedModel()))
    assert element(chromium, "#prompt textarea").get_attribute("value") == EXAMPLES["A rabbit"]
    example = elements(chromium, "#examples button")[1]
    wanted = EXAMPLES[example.text]
    example.click()
    wait_until(
        chromium, lambda: element(chromium, "#prompt textarea").get_attribute("value") == wanted, "the example in the prompt"
    )


def test_what_the_model_writes_is_never_run_and_nothing_is_fetched_from_elsewhere(chromium, served):
    chromium.get_log("performance")  # empties it of what earlier pages did
    address = served(ScriptedModel())
    open_page(chromium, address)
    write(chromium)
    assert "onerror" in text_of(chromium)
    assert not elements(chromium, "img[src=x]")
    assert requests_elsewhere(chromium, address) == []


@pytest.mark.slow
@pytest.mark.parametrize("width", [360, 768, 1280])
def test_the_page_fits_every_width(chromium, served, width):
    with window(chromium, width, 900):
        open_page(chromium, served(ScriptedModel(), onnx_textgen.load(TINY_PACKAGE)))
        write(chromium)
        assert chromium.execute_script("return document.documentElement.scrollWidth") <= width


@pytest.mark.slow
def test_a_chosen_alternative_takes_the_place_of_a_token_and_the_text_goes_on(chromium, served):
    model = onnx_textgen.load(TINY_PACKAGE)
    open_page(chromium, served(model))
    set_value(chromium, "#prompt textarea", "a cat")
    set_value(chromium, SEED, "7")
    write(chromium)
    before = [span.text for span in elements(chromium, "#text .token")]
    elements(chromium, "#text .token")[3].click()
    wait_until(chromium, lambda: "token 4," in element(chromium, "#bars p").text, "its bars")
    alternative = wait_until(chromium, lambda: elements(chromium, "#bars th button"), "what may be gone on from")[1]
    piece = alternative.text.replace("␣", " ").strip()
    chromium.execute_script("arguments[0].focus()", alternative)
    alternative.send_keys(Keys.ENTER)
    wait_until(chromium, lambda: "token 4," not in element(chromium, "#bars p").text, "another text")
    wait_until(chromium, lambda: can_press(chromium) == [True, True, False], "the end of the other text")
    after = [span.text for span in elements(chromium, "#text .token")]
    assert after[:3] == before[:3]
    assert after[3].strip() == piece != before[3].strip()


def test_a_new_seed_writes_another_text_of_the_same_prompt(chromium, served):
    open_page(chromium, served(onnx_textgen.load(TINY_PACKAGE)))
    set_value(chromium, SEED, "7")
    write(chromium)
    first = text_of(chromium)
    wait_until(chromium, element(chromium, "#again").is_enabled, "a text that there may be another one of")
    element(chromium, "#again").click()
    wait_until(chromium, lambda: text_of(chromium) not in ("", first) and "finished" in status_of(chromium), "another text")
    assert element(chromium, SEED).get_attribute("value") == ""


def test_an_error_in_mid_stream_leaves_the_text_and_says_what_happened(chromium, served):
    error = ModelError("the logits are not numbers; export the model again")
    open_page(chromium, served(ScriptedModel(seconds_per_token=0.02, fail_after=20, error=error)))
    generate(chromium)
    wait_until(chromium, lambda: "the logits are not numbers" in status_of(chromium), "the line about the error")
    assert text_of(chromium).startswith(" a small cat")
    wait_until(chromium, lambda: can_press(chromium) == [True, True, False], "the end of the text")


@pytest.mark.slow
def test_another_model_is_picked_and_one_that_cannot_load_says_why(chromium, served):
    tiny = onnx_textgen.load(TINY_PACKAGE)
    registry = ModelRegistry({"good": lambda: tiny, "bad": lambda: onnx_textgen.load("no/such/folder")})
    open_page(chromium, served(registry))
    pick(chromium, "bad")
    wait_until(chromium, lambda: "cannot be used: no/such/folder" in element(chromium, ".masthead").text, "the reason")
    generate(chromium)
    wait_until(chromium, lambda: "no/such/folder" in status_of(chromium), "the reason under the text")
    close_messages(chromium)  # they lie over the picker
    pick(chromium, "good")
    wait_until(chromium, lambda: "model good" in element(chromium, ".masthead").get_attribute("textContent"), "the other model")
    write(chromium)


def pick(driver, name):
    element(driver, "#picker input").click()
    option = wait_until(
        driver, lambda: next((each for each in elements(driver, "[role=option]") if each.text.endswith(name)), None), "the model"
    )
    option.click()
