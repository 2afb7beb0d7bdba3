"""`POST /v1/audio/transcriptions` and `/v1/audio/translations`, by OpenAI's own client against a live server."""

from __future__ import annotations

import io
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from onnx_textgen import Model
from onnx_textgen.speech.subtitles import as_srt, as_vtt
from support.live_server import served

pytest.importorskip("torch", reason="exports a model of speech")
from support.tiny_whisper import open_whisper

pytestmark = pytest.mark.slow
RATE = 16_000


def wav(seconds: float) -> bytes:
    times = np.arange(int(seconds * RATE)) / RATE
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(RATE)
        writer.writeframes((8000 * np.sin(2 * np.pi * (300 + 200 * times) * times)).astype("<i2").tobytes())
    return file.getvalue()


SOUND = wav(3)


@pytest.fixture(scope="module")
def heard(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return open_whisper(tmp_path_factory.mktemp("whisper"))


@pytest.fixture(scope="module")
def url(heard: Model, story: Model) -> Iterator[str]:
    with served({"heard": heard, "story": story}) as (found, _):
        yield found


@pytest.fixture
def client(url: str) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0) as found:
        yield found


def test_every_form_of_answer_is_that_of_transcribe(client: Any, heard: Model) -> None:
    want = heard.transcribe(SOUND, language="de")
    given: dict[str, Any] = {"model": "heard", "file": ("a.wav", SOUND), "language": "de"}
    assert client.audio.transcriptions.create(**given).text == want.text
    assert client.audio.transcriptions.create(**given, response_format="text") == f"{want.text}\n"
    assert client.audio.transcriptions.create(**given, response_format="srt") == as_srt(want.segments)
    assert client.audio.transcriptions.create(**given, response_format="vtt") == as_vtt(want.segments)
    whole = client.audio.transcriptions.create(**given, response_format="verbose_json", timestamp_granularities=["segment"])
    assert (whole.text, whole.language, whole.duration) == (want.text, "de", want.duration)
    assert [(each.start, each.end, each.text) for each in whole.segments] == [
        (each.start, each.end, each.text) for each in want.segments
    ]


@pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")  # of the client, for this route
def test_translations_are_those_of_the_task(client: Any, heard: Model) -> None:
    want = heard.transcribe(SOUND, task="translate", initial_prompt="names")
    assert client.audio.translations.create(model="heard", file=("a.wav", SOUND), prompt="names").text == want.text


@pytest.mark.parametrize(
    ("fields", "sound", "why"),
    [
        ({}, b"abc", "the sound cannot be read"),
        ({"response_format": "xml"}, SOUND, "response_format: should be"),
        ({"timestamp_granularities[]": ["segment", "word"]}, SOUND, "should be 'segment'"),
        ({"language": "xx"}, SOUND, "no language"),
        ({"colour": "red"}, SOUND, "no parameter"),
        ({"model": "story"}, SOUND, "reads no sound"),
        ({}, None, "the form has no file"),
    ],
)
def test_what_is_wrong_gets_one_line(fields: dict[str, Any], sound: bytes | None, why: str, url: str) -> None:
    files = {"file": ("a.wav", sound)} if sound is not None else {"other": ("a", b"x")}
    answer = httpx.post(f"{url}/v1/audio/transcriptions", data={"model": "heard"} | fields, files=files, timeout=60)
    message = answer.json()["error"]["message"]
    assert answer.status_code == 400 and why in message and "\n" not in message


def test_an_encoding_that_takes_long_is_refused(url: str) -> None:
    headers = {"Content-Type": "multipart/form-data; boundary=x; charset=punycode"}
    answer = httpx.post(f"{url}/v1/audio/transcriptions", content=b"--x--\r\n", headers=headers)
    assert answer.status_code == 400 and "UTF-8" in answer.json()["error"]["message"]


def test_an_empty_field_is_none(url: str) -> None:
    sent = {"files": {"file": ("a.wav", SOUND)}, "data": {"model": "heard", "language": "", "prompt": ""}}
    assert httpx.post(f"{url}/v1/audio/transcriptions", timeout=60, **sent).status_code == 200  # type: ignore[arg-type]


def test_another_body_than_a_form_is_refused(url: str) -> None:
    answer = httpx.post(f"{url}/v1/audio/transcriptions", json={"model": "heard", "file": "/etc/passwd"})
    assert answer.status_code == 400 and "multipart/form-data" in answer.json()["error"]["message"]


def test_no_file_of_the_server_is_read(url: str, tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(SOUND)
    answer = httpx.post(
        f"{url}/v1/audio/transcriptions", files={"file": ("a", str(tmp_path / "a.wav").encode())}, data={"model": "heard"}
    )
    assert answer.status_code == 400


@pytest.mark.parametrize(("origin", "status"), [("http://evil.example", 403), ("null", 403), (None, 200), ("own", 200)])
def test_pages_of_other_origins_send_no_forms(origin: str | None, status: int, url: str) -> None:
    headers = {} if origin is None else {"Origin": url if origin == "own" else origin}
    sent = {"files": {"file": ("a.wav", SOUND)}, "data": {"model": "heard"}}
    assert httpx.post(f"{url}/v1/audio/transcriptions", headers=headers, timeout=60, **sent).status_code == status  # type: ignore[arg-type]


def test_forms_may_be_larger_than_other_bodies(url: str) -> None:
    large = SOUND + bytes(6 * 2**20)  # after the end of its data
    answer = httpx.post(f"{url}/v1/audio/transcriptions", files={"file": ("a.wav", large)}, data={"model": "heard"}, timeout=60)
    assert answer.status_code == 200
    answer = httpx.post(f"{url}/v1/audio/transcriptions", files={"file": ("a.wav", bytes(26 * 2**20))}, timeout=60)
    assert answer.status_code == 413
