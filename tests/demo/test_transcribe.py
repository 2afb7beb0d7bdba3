"""The tab Transcribe in a real browser: a file, the microphone, what is written down, and what is refused."""

from __future__ import annotations

import base64
import io
import json
import time
import wave
from pathlib import Path

import numpy as np
import pytest
from selenium.webdriver.common.by import By

import onnx_textgen
from onnx_textgen.errors import AudioError
from onnx_textgen.speech.subtitles import as_srt, as_vtt
from onnx_textgen_demo.speech.segments_pane import segments_html
from onnx_textgen_demo.speech.sound_pane import MOST_SECONDS, RATE, samples_of
from support import browser as browser_tools
from support.axe import axe_script
from support.browser import PHONE, close_messages, element, elements, set_value, wait_until, window

pytest.importorskip("torch", reason="exports a model of speech")
from support.tiny_whisper import open_whisper

pytestmark = pytest.mark.slow
FAKE_MICROPHONE = ["--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]


@pytest.fixture(scope="module")
def heard(tmp_path_factory):
    return open_whisper(tmp_path_factory.mktemp("whisper"))


def wave_of(samples, rate=RATE):
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1 if samples.ndim == 1 else samples.shape[1])
        writer.setsampwidth(2)
        writer.setframerate(rate)
        writer.writeframes(samples.astype("<i2").tobytes())
    return file.getvalue()


@pytest.fixture(scope="module")
def samples():
    times = np.arange(5 * RATE) / RATE
    return (8000 * np.sin(2 * np.pi * (300 + 200 * times) * times)).astype(np.int16)


@pytest.fixture
def file(tmp_path: Path, samples) -> Path:
    path = tmp_path / "talk.wav"
    path.write_bytes(wave_of(samples))
    return path


def open_transcribe(driver, address):
    driver.get(address)
    wait_until(driver, lambda: elements(driver, "#sound") and element(driver, "#sound").is_displayed(), "the tab")


def told(driver):
    return element(driver, "#sound [role=status]").text


def choose(driver, path, words="seconds"):
    element(driver, "#sound input[type=file]").send_keys(str(path))
    wait_until(driver, lambda: words in told(driver), words)


def transcribe(driver):
    wait_until(driver, element(driver, "#transcribe").is_enabled, "the end of what was before")
    element(driver, "#transcribe").click()
    wait_until(driver, lambda: "finished" in element(driver, "#transcribe-status").text, "the end")


def lines_of(driver):
    return [each.get_attribute("textContent") for each in elements(driver, "#said li span")]


def saved(driver):
    """The files that the links save, by their forms."""
    found = {each.get_attribute("download"): each.get_attribute("href") for each in elements(driver, "#said a")}
    return {name.partition(".")[2]: base64.b64decode(url.partition(",")[2]).decode() for name, url in found.items()}


def pick(driver, field, words):
    element(driver, f"{field} input").click()
    options = lambda: [each for each in elements(driver, "[role=option]") if words in each.text]  # noqa: E731
    wait_until(driver, options, words)[0].click()


def test_a_file_is_written_down_as_the_model_does(chromium, served, heard, samples, file):
    open_transcribe(chromium, served(heard))
    assert [each.text for each in elements(chromium, "button[role=tab]")] == ["Transcribe"]
    choose(chromium, file)
    transcribe(chromium)
    want = heard.transcribe(samples, sampling_rate=RATE)
    assert want.segments and lines_of(chromium) == [each.text.strip() for each in want.segments]
    files = saved(chromium)
    assert (files["srt"], files["vtt"]) == (as_srt(want.segments), as_vtt(want.segments))
    assert files["txt"] == f"{want.text}\n" and json.loads(files["json"])["text"] == want.text
    assert f"language {want.language}" in " ".join(element(chromium, "#transcribe-status").text.split())
    pick(chromium, "#language", "German")
    element(chromium, "#task").find_element(By.CSS_SELECTOR, "label:last-of-type input").click()
    set_value(chromium, "#expected textarea", "Bern, Basel")
    transcribe(chromium)
    options = {"language": "de", "task": "translate", "initial_prompt": "Bern, Basel"}
    want = heard.transcribe(samples, sampling_rate=RATE, **options)
    wait_until(chromium, lambda: saved(chromium).get("txt") == f"{want.text}\n", "the other text")


def test_a_time_plays_the_sound_from_there(chromium, served, heard, samples, file):
    open_transcribe(chromium, served(heard))
    choose(chromium, file)
    transcribe(chromium)
    last = elements(chromium, "#said li button")[-1]
    last.click()
    player = 'return document.querySelector("#sound audio").currentTime'
    assert chromium.execute_script(player) >= float(last.get_attribute("data-start"))


def test_two_channels_of_another_rate_are_joined(chromium, served, heard, tmp_path):
    times = np.arange(2 * 44_100) / 44_100
    left, right = (8000 * np.sin(2 * np.pi * hertz * times) for hertz in (300, 500))
    path = tmp_path / "two.wav"
    path.write_bytes(wave_of(np.stack([left, right], axis=1), 44_100))
    open_transcribe(chromium, served(heard))
    choose(chromium, path)
    value = chromium.execute_async_script(
        "const done = arguments[0], fetched = window.fetch;"
        "window.fetch = (url, how) => { if (String(url).includes('queue/join')) { const { data } = JSON.parse(how.body);"
        "  const sound = data.find((each) => typeof each === 'string' && each.length > 1000); if (sound) done(sound); }"
        "  return fetched(url, how); };"
        "document.querySelector('#transcribe').click()"
    )
    made = samples_of(value) / 1.0
    times = np.arange(2 * RATE) / RATE
    want = sum(4000 * np.sin(2 * np.pi * hertz * times) for hertz in (300, 500))
    assert len(made) == len(want)
    assert np.abs(made - want)[200:-200].max() < 100


@pytest.fixture
def driver():
    """A browser with a microphone, which beeps."""
    if None in browser_tools.programs():
        pytest.skip("needs chromium and chromedriver: apt-get install chromium chromium-driver")
    with browser_tools.chromium(flags=FAKE_MICROPHONE) as found:
        yield found


def test_the_microphone_is_recorded(driver, served, heard):
    open_transcribe(driver, served(heard))
    record = element(driver, "#sound .record")
    record.click()
    wait_until(driver, lambda: told(driver) == "recording ...", "the recording")
    time.sleep(1.5)
    assert record.get_attribute("aria-pressed") == "true"
    record.click()
    wait_until(driver, lambda: "seconds" in told(driver), "the recording")
    assert told(driver).startswith("Recording, ") and record.text == "Record"
    transcribe(driver)
    assert lines_of(driver) or "Nobody speaks" in element(driver, "#said").text


def test_a_recording_is_one_and_has_an_end(driver, served, heard, file):
    """Two presses while the browser asks, a file meanwhile, and nobody who ends it."""
    open_transcribe(driver, served(heard))
    driver.execute_script(
        "const devices = navigator.mediaDevices, given = devices.getUserMedia.bind(devices), timeout = window.setTimeout;"
        "window.streams = [];"
        "window.setTimeout = (call, time) => { if (time < 1e6) return timeout(call, time); window.endInTime = call; };"
        "devices.getUserMedia = (how) => new Promise((resolve) => timeout(async () => {"
        "  streams.push(await given(how)); resolve(streams.at(-1)); }, 300));"
        "for (let press = 0; press < 3; press++) document.querySelector('#sound .record').click();"
    )
    wait_until(driver, lambda: told(driver) == "recording ...", "the recording")
    choose(driver, file, "end that first")
    driver.execute_script("endInTime()")
    wait_until(driver, lambda: told(driver).startswith("Recording, "), "the end by time")
    tracks = "return streams.flatMap((stream) => stream.getTracks().map((track) => track.readyState))"
    assert driver.execute_script(tracks) == ["ended"]
    choose(driver, file, "talk.wav, ")


def test_what_is_written_is_copied_where_there_is_no_clipboard(chromium, served, heard, file):
    open_transcribe(chromium, served(heard))
    choose(chromium, file)
    transcribe(chromium)
    chromium.execute_script(
        "Object.defineProperty(navigator, 'clipboard', { value: undefined, configurable: true });"
        "document.addEventListener('copy', () => { window.copied = getSelection().toString(); });"
    )
    element(chromium, "#said .copy").click()
    wait_until(chromium, lambda: element(chromium, "#said .copy").text == "Copied", "the copy")
    assert chromium.execute_script("return window.copied") == "\n".join(lines_of(chromium))
    assert chromium.execute_script("return document.activeElement.matches('.copy')")


def test_what_is_no_sound_gets_one_line(chromium, served, heard, file, tmp_path):
    broken = tmp_path / "broken.mp3"
    broken.write_bytes(b"no sound at all" * 100)
    open_transcribe(chromium, served(heard))
    choose(chromium, broken, "is no sound that this browser reads")
    element(chromium, "#transcribe").click()
    wait_until(chromium, lambda: "there is no sound yet" in element(chromium, "#transcribe-status").text, "the line")
    close_messages(chromium)
    choose(chromium, file)
    transcribe(chromium)
    assert lines_of(chromium)
    choose(chromium, broken, "is no sound that this browser reads")
    wait_until(chromium, lambda: not lines_of(chromium), "the end of what another sound says")


def test_another_model_has_its_own_tabs(chromium, served, heard):
    story = onnx_textgen.load("story", threads=1, device="cpu")
    chromium.get(served(story, heard))
    tabs = 'return [...document.querySelectorAll("button[role=tab]CHOSEN")].map((tab) => tab.textContent.trim())'
    shown = lambda: chromium.execute_script(tabs.replace("CHOSEN", ""))  # noqa: E731
    selected = lambda: chromium.execute_script(tabs.replace("CHOSEN", "[aria-selected=true]"))  # noqa: E731
    wait_until(chromium, lambda: "Write" in shown(), "the page")
    texts = shown()
    assert "Transcribe" not in texts
    pick(chromium, "#picker", heard.manifest.name)
    wait_until(chromium, lambda: shown() == ["Transcribe"] == selected(), "the tab of speech")
    pick(chromium, "#picker", "story")
    wait_until(chromium, lambda: shown() == texts and selected() == ["Write"], "the tabs of text")


@pytest.mark.parametrize("size", [None, PHONE], ids=["desktop", "phone"])
def test_axe_finds_nothing(chromium, served, heard, file, size):
    script = axe_script()
    with window(chromium, *(size or browser_tools.DESKTOP)):
        open_transcribe(chromium, served(heard))
        choose(chromium, file)
        transcribe(chromium)
        still = "return getComputedStyle(document.querySelector('#transcribe')).opacity === '1'"  # a button fades in
        wait_until(chromium, lambda: chromium.execute_script(still), "a page at rest")
        chromium.execute_script(script)
        found = chromium.execute_async_script("axe.run().then(arguments[0])")["violations"]
        nodes = [f"{each['id']}: {node['html'][:160]}" for each in found for node in each["nodes"] if each["id"] != "region"]
        assert nodes == []
        if size:
            assert chromium.execute_script("return document.documentElement.scrollWidth") <= size[0]


@pytest.mark.parametrize(
    "value",
    [None, "", 5, ["AAAA"], "AA==", "no base64", {"a": 1}, "AAAA" * (MOST_SECONDS * RATE)],
    ids=lambda value: str(value)[:10],
)
def test_samples_of_no_browser_are_refused(value):
    with pytest.raises(AudioError) as error:
        samples_of(value)
    assert "\n" not in str(error.value)


def test_texts_of_models_are_no_html():
    segment = onnx_textgen.Segment(0.0, 1.0, "<img src=x>", (), -0.1, 0.0, 0.0, 1.0)
    made = segments_html([segment], onnx_textgen.Transcription("<img src=x>", "en", (segment,), 1.0))
    assert "<img" not in made and "&lt;img" in made
