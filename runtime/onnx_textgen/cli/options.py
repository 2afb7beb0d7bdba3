"""Options that several commands share, and the functions that read them."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..api.fetching import fetch_model
from ..errors import OptionError, PromptError
from . import interrupts
from .terminal import screen
from .terminal.line_input import as_unicode

if TYPE_CHECKING:
    from ..api.model import Model
    from ..options.generation_config import GenerationConfig

MODEL_HELP = "Model folder, a name from: onnx-textgen list, or owner/name on the Hugging Face hub."

DEFAULT_PROMPT = "Once upon a time"
PROMPT_HELP = f'Text to continue. Without it, what a pipe brings; if none, an embedded model gets "{DEFAULT_PROMPT}".'
PIPE_SECONDS = 2.0

MODEL_VARIABLE = "ONNX_TEXTGEN_MODEL"


def complete_model(incomplete: str) -> list[str]:
    """Names of models for shell completion; if none fits, the shell completes folders itself."""
    from ..hub.model_cache import cached_packages  # noqa: PLC0415
    from ..package.locate import embedded_packages  # noqa: PLC0415

    return [name for name in (*embedded_packages(), *cached_packages()) if name.startswith(incomplete)]


ModelOption = Annotated[
    str | None,
    typer.Option("--model", "-m", metavar="DIR", help=MODEL_HELP, envvar=MODEL_VARIABLE, autocompletion=complete_model),
]
FolderArgument = Annotated[
    str | None, typer.Argument(metavar="DIR", help=MODEL_HELP, show_default=False, autocompletion=complete_model)
]
DEVICE_HELP = (
    "auto, cpu, cuda, openvino, openvino:bf16, hybrid or hybrid:bf16 (long prompts by openvino, text by cpu), webgpu, "
    "tensorrt-rtx, mlx or qnn; auto takes CUDA where it works."
)
DeviceOption = Annotated[str, typer.Option(metavar="D", help=DEVICE_HELP, envvar="ONNX_TEXTGEN_DEVICE")]
ThreadsOption = Annotated[
    int | None, typer.Option(metavar="N", help="CPU threads; all cores unless given.", envvar="ONNX_TEXTGEN_THREADS")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")]

PromptArgument = Annotated[str | None, typer.Argument(metavar="PROMPT", help=PROMPT_HELP, show_default=False)]
TokenIdsOption = Annotated[str | None, typer.Option(metavar="5,17,300", help="Token ids instead of PROMPT.")]
TemperatureOption = Annotated[
    float | None,
    typer.Option(metavar="T", help="Randomness; 0 always takes the most likely token. Default: the model's, else 0.8."),
]
TopKOption = Annotated[int | None, typer.Option(metavar="K", help="Draw from the K most likely tokens; 0: from all.")]
TopPOption = Annotated[float | None, typer.Option(metavar="P", help="Draw from the most likely tokens that together reach P.")]
MinPOption = Annotated[
    float | None, typer.Option(metavar="P", help="Exclude tokens less than P times as likely as the most likely one.")
]
AssistantOption = Annotated[
    str | None,
    typer.Option(
        "--assistant-model", metavar="DIR", help="A smaller model with the same tokenizer that drafts; changes only the speed."
    ),
]
PrefixOption = Annotated[
    Path | None,
    typer.Option(
        "--prefix-folder", metavar="DIR", help="Folder where beginnings of prompts are saved for later calls.", show_default=False
    ),
]
ImageOption = Annotated[
    list[str] | None,
    typer.Option(
        "--image",
        metavar="FILE",
        help="A picture that the prompt is about; may be repeated.",
        show_default=False,
    ),
]
StatsOption = Annotated[bool, typer.Option("--stats/--no-stats", help="Show speed, seed and why it ended below each text.")]
SeedOption = Annotated[int | None, typer.Option(metavar="N", help="Same seed, same text.")]


def load_model(
    model: str | None,
    device: str,
    threads: int | None,
    assistant_model: str | None = None,
    *,
    prefix_folder: Path | None = None,
    response_template: Path | None = None,
) -> Model:
    """Load the model that these options name; if `auto` chose an accelerator, stderr says which."""
    import onnx_textgen  # noqa: PLC0415

    for each in (model, assistant_model):
        fetch_model(each, screen.note, screen.progress)
    screen.progress(f"loading {model or 'the model'} ...")
    try:
        # The first use of `load` imports ONNX Runtime, which takes half a second.
        with contextlib.nullcontext() if "onnxruntime" in sys.modules else interrupts.ending_at_once():
            loaded = onnx_textgen.load(
                model,
                device=device,
                threads=threads,
                assistant_model=assistant_model,
                prefix_folder=prefix_folder,
                response_template=response_template,
            )
    finally:
        screen.progress("")
    if device == "auto" and loaded.device != "cpu":
        typer.echo(f"device: {loaded.device}", err=True)
    return loaded


def check_assistant(assistant_model: str | None, config: GenerationConfig) -> None:
    """Raise `OptionError` for an assistant model that would draft nothing."""
    if assistant_model is None:
        return
    if config.has_several_texts:
        why = "with more than one text, because only a single text is drafted"
    elif config.prompt_lookup_num_tokens:
        why = "with --prompt-lookup-num-tokens, which drafts instead of it"
    elif not config.num_assistant_tokens:
        why = "with --num-assistant-tokens 0"
    else:
        return
    raise OptionError(f"--assistant-model cannot take effect {why}; leave one of them out")


def one_folder(argument: str | None, option: str | None) -> str | None:
    """The model folder from the argument or from `--model`; the argument wins over the environment variable.

    Raises `OptionError` if both are given.
    """
    if argument is not None and option not in (None, os.environ.get(MODEL_VARIABLE)):
        raise OptionError(f"two models are named, {argument} and {option}; leave one out")
    return argument if argument is not None else option


def read_text(argument: str, *, instead: str = "give some text") -> str:
    """The argument, or all of stdin for `-`; raises `OptionError` if it is empty, `PromptError` if stdin is empty or not UTF-8."""
    if argument != "-":
        if not argument:
            raise OptionError(f"the prompt is empty; {instead}")
        return as_unicode(argument)
    text = decoded(typer.get_binary_stream("stdin").read())
    if not text:
        raise PromptError(f"stdin is empty; {instead}")
    return text


def piped_text() -> str | None:
    """The text that comes through stdin, if that is a pipe or a file with one, without its last line break; else None.

    A pipe that stays open and empty is one that this process has only inherited (from a service, a container, a scheduler): after
    `PIPE_SECONDS` it counts as none, which stderr says. Raises `PromptError` for text that is not UTF-8.
    """
    try:
        number = sys.stdin.fileno()
        mode = os.fstat(number).st_mode
    except (AttributeError, OSError, ValueError):  # closed, or not a stream of the system
        return None
    if not any(is_kind(mode) for is_kind in (stat.S_ISFIFO, stat.S_ISREG, stat.S_ISSOCK)):  # a terminal, or /dev/null
        return None
    parts = list[bytes]()
    # Not through Python's buffer, whose lock a waiting thread would hold at the end of the process.
    reader = threading.Thread(target=lambda: parts.extend(iter(lambda: os.read(number, 65536), b"")), daemon=True)
    reader.start()
    reader.join(PIPE_SECONDS)
    if reader.is_alive() and not parts:
        screen.note(f"nothing came through stdin in {PIPE_SECONDS:.0f} s, so it is not read; - waits for it")
        return None
    reader.join()
    text = decoded(b"".join(parts)).removesuffix("\n").removesuffix("\r")
    return text or None


def decoded(content: bytes) -> str:
    """The text of stdin; raises `PromptError` if it is not UTF-8."""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise PromptError(f"stdin is not UTF-8 text (byte {error.start}); convert it first, for example with iconv") from error


def read_token_ids(text: str) -> list[int]:
    """Parse `5,17,300`; raises `OptionError`."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise OptionError(f"--token-ids takes whole numbers with commas between, like 5,17,300; found {text!r}") from error


def read_prompt(prompt: str | None, token_ids: str | None, model: str | None) -> str | list[int]:
    """The prompt as text or token ids; without either, what a pipe brings, else the default prompt of an embedded model.

    Raises `OptionError` if both are given, or if another model gets neither.
    """
    from ..package.locate import embedded_packages  # noqa: PLC0415

    if prompt is not None and token_ids is not None:
        raise OptionError("a PROMPT and --token-ids exclude each other; leave one out")
    if token_ids is not None:
        return read_token_ids(token_ids)
    if prompt is not None:
        return read_text(prompt, instead='give some text, or --token-ids N with the "begins with id" that onnx-textgen info shows')
    if (text := piped_text()) is not None:
        return text
    if model is not None and model not in embedded_packages():
        raise OptionError(f"with --model {model} a PROMPT is needed (or text through a pipe, or --token-ids)")
    return DEFAULT_PROMPT
