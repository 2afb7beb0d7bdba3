"""`POST /v1/audio/transcriptions` and `/v1/audio/translations`: what is said in a sound, which a form holds."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import HTTPException
from fastapi.exceptions import RequestValidationError
from pydantic import Field, ValidationError
from starlette.datastructures import FormData, UploadFile

from onnx_textgen import Cancellation, Model, Transcription
from onnx_textgen.speech.subtitles import SUBTITLES

from ..requests.body import Request

if TYPE_CHECKING:
    from fastapi import Request as HTTPRequest

    from ..serving.work_queue import Compute

MOST_FIELDS = 64
CHARSET = re.compile(r"charset\s*=(?!\s*\"?utf-?8\"?\s*(;|$))")
"""Another encoding of the fields, some of which take long to decode."""
Form = Literal["json", "text", "srt", "verbose_json", "vtt"]
TYPES = {"json": "application/json", "verbose_json": "application/json"}
"""Of answers; the others are plain text."""


class AudioRequest(Request):
    """The fields of the form but the file."""

    language: str | None = None
    prompt: str = ""
    """Text that comes before."""
    response_format: Form = "json"
    temperature: Annotated[float, Field(ge=0, le=1)] = 0
    """0: as usual, hotter where a text is repetitive or unlikely."""
    timestamp_granularities: list[Literal["segment"]] | None = None
    stream: bool | None = None
    """Not followed, as by OpenAI's `whisper-1`."""
    chunking_strategy: str | None = None


def described() -> dict[str, Any]:
    """The form for `/openapi.json`."""
    schema = AudioRequest.model_json_schema()
    schema["properties"] = {"file": {"type": "string", "format": "binary"}, **schema["properties"]}
    schema["required"] = ["file"]
    return {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": schema}}}}


@dataclasses.dataclass(frozen=True, slots=True)
class Heard:
    """The answer to one request."""

    name: str
    model: Model
    body: AudioRequest
    sound: bytes
    task: Literal["transcribe", "translate"]
    operation: str = "transcription"

    async def whole(self, compute: Compute) -> str:
        """See `Work`."""
        body = self.body
        needs_times = body.response_format in {*SUBTITLES, "verbose_json"} or body.timestamp_granularities is not None

        def write(cancel: Cancellation) -> Transcription:
            return self.model.transcribe(
                self.sound,
                language=body.language,
                task=self.task,
                initial_prompt=body.prompt,
                temperature=body.temperature or None,
                cancel=cancel,
            )

        made = await compute(write)
        if (subtitles := SUBTITLES.get(body.response_format)) is not None:
            return subtitles(made.segments)
        if body.response_format == "text":
            return f"{made.text}\n"
        return json.dumps({"text": made.text} | (self.details(made) if needs_times else {}), ensure_ascii=False)

    def details(self, made: Transcription) -> dict[str, Any]:
        """What `verbose_json` has besides the text."""
        segments = [
            {
                "id": number,
                "seek": round(each.start * 100),
                "start": each.start,
                "end": each.end,
                "text": each.text,
                "tokens": each.token_ids,
                "temperature": each.temperature,
                "avg_logprob": each.mean_logprob,
                "compression_ratio": each.compression_ratio,
                "no_speech_prob": each.no_speech_prob,
            }
            for number, each in enumerate(made.segments)
        ]
        return {"task": self.task, "language": made.language, "duration": made.duration, "segments": segments}


async def read_form(http: HTTPRequest) -> tuple[AudioRequest, bytes]:
    """The fields and the file of a form; raises `RequestValidationError`, and 400 for no form or no file."""
    kind = http.headers.get("content-type", "").lower()
    if not kind.startswith("multipart/form-data"):
        raise HTTPException(400, "the body should be a form with the sound as its file: multipart/form-data")
    if CHARSET.search(kind):
        raise HTTPException(400, "the fields of the form should be UTF-8, without another charset")
    async with http.form(max_files=1, max_fields=MOST_FIELDS) as form:
        file = form.get("file")
        if not isinstance(file, UploadFile):
            raise HTTPException(400, "the form has no file; give the sound as its field file")
        return fields_of(form), await file.read()


def fields_of(form: FormData) -> AudioRequest:
    """The fields of a form; raises `RequestValidationError`."""
    given: dict[str, Any] = {name: value for name, value in form.items() if name != "file" and value}
    for name in ("timestamp_granularities", "timestamp_granularities[]"):
        if given.pop(name, None) is not None:
            given["timestamp_granularities"] = form.getlist(name)
    given = {name.removesuffix("[]"): value for name, value in given.items()}
    try:
        return AudioRequest.model_validate(given)
    except ValidationError as error:
        errors = error.errors(include_url=False)
        raise RequestValidationError([{**each, "loc": ("body", *each["loc"])} for each in errors], body=given) from error
