"""`onnx-textgen transcribe`: writes down what is said in a sound."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ...errors import OptionError
from .. import options
from ..terminal import screen

if TYPE_CHECKING:
    from ...results import Segment

Form = Literal["text", "srt", "vtt", "json"]


def transcribe_sound(
    sound: Annotated[str, typer.Argument(metavar="FILE", help="Sound to write down; - reads it from stdin.", show_default=False)],
    *,
    model: options.ModelOption = None,
    language: Annotated[
        str | None, typer.Option(metavar="CODE", help="Language that is spoken, such as en; else it is heard.")
    ] = None,
    task: Annotated[Literal["transcribe", "translate"], typer.Option(help="translate: write English.")] = "transcribe",
    form: Annotated[Form, typer.Option("--format", help="Form of the output.")] = "text",
    timestamps: Annotated[bool, typer.Option(help="Find when each stretch is said.")] = True,
    initial_prompt: Annotated[str, typer.Option(metavar="TEXT", help="Text that comes before, for names and spelling.")] = "",
    temperature: Annotated[float | None, typer.Option(metavar="T", help="One temperature instead of those up to 1.")] = None,
    device: options.DeviceOption = "auto",
    threads: options.ThreadsOption = None,
) -> None:
    """Write down what is said in a sound.

    WAV is read as it comes; FLAC, OGG, MP3 and other rates need pip install "onnx-textgen[audio]". On a terminal, each line has
    the time at which it is said.

    Try:
        onnx-textgen transcribe talk.wav --model whisper
        onnx-textgen transcribe talk.mp3 --format srt > talk.srt
    """
    from ...speech import subtitles  # noqa: PLC0415

    if not timestamps and form in subtitles.SUBTITLES:
        raise OptionError(f"--format {form} has times; leave out --no-timestamps")
    source = sys.stdin.buffer.read() if sound == "-" else Path(sound)
    loaded = options.load_model(model, device, threads)
    shows_times = timestamps and screen.is_terminal(sys.stdout)

    def show(segment: Segment) -> None:
        if form == "text":
            screen.write_line(subtitles.line_of(segment) if shows_times else segment.text.strip(), sys.stdout)

    made = loaded.transcribe(
        source,
        language=language,
        task=task,
        timestamps=timestamps,
        initial_prompt=initial_prompt,
        temperature=temperature,
        on_segment=show,
    )
    if form == "json":
        screen.print_json(made)
    elif form != "text":
        typer.echo(subtitles.SUBTITLES[form](made.segments), nl=False)
