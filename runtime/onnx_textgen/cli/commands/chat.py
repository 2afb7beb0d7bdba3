"""`onnx-textgen chat`: a session in the terminal."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...errors import OnnxTextgenError, OptionError
from ...options.checks import shown
from .. import options
from ..generation_options import with_options
from ..terminal import line_input, screen
from ..terminal.chat_session import Chat, run_entry
from ..terminal.chat_settings import NAMES

if TYPE_CHECKING:
    from ...api.model import Model
    from ..terminal.own_tools import OwnTools

GREETING = "/help shows the commands, Ctrl-C stops an answer, Ctrl-D ends"


@with_options(NAMES)
def hold_session(
    folder: options.FolderArgument = None,
    *,
    model: options.ModelOption = None,
    system: Annotated[str, typer.Option(metavar="TEXT", help="System prompt, before the whole session.")] = "",
    chat_template_kwargs: Annotated[
        str | None, typer.Option(metavar="JSON", help='Variables of the chat template, such as {"enable_thinking": false}.')
    ] = None,
    tools: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A Python file with functions that the model may call, each after asking you."),
    ] = None,
    response_template: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="How answers are divided, as transformers has it; default: the package's own."),
    ] = None,
    device: options.DeviceOption = "auto",
    threads: options.ThreadsOption = None,
    assistant_model: options.AssistantOption = None,
    prefix_folder: options.PrefixOption = None,
    image: options.ImageOption = None,
    stats: options.StatsOption = True,
    generation: Mapping[str, Any],
) -> None:
    """Talk with a model, line by line.

    /help shows the commands, Ctrl-C stops an answer and keeps it, Ctrl-D ends.

    Try:
        onnx-textgen chat DIR
        onnx-textgen chat owner/name
        onnx-textgen chat DIR --system "You answer in one sentence."
        onnx-textgen chat DIR --tools my_tools.py
        onnx-textgen chat DIR --image photo.jpg
    """
    own = None if tools is None else read_tools(tools)

    def open_model(name: str | None, assistant: str | None = None) -> Model:
        opened = options.load_model(
            name, device, threads, assistant, prefix_folder=prefix_folder, response_template=response_template
        )
        options.check_assistant(assistant, opened.generator.config(generation))
        check_model(opened, own)
        return opened

    loaded = open_model(options.one_folder(folder, model), assistant_model)
    chat = Chat(
        loaded,
        generation,
        system,
        read_variables(chat_template_kwargs),
        own,
        open_model=open_model,
        shows_stats=stats,
    )
    loaded.generator.config(chat.options)  # raises now for options that would fail at every question
    if "adapter" in generation:
        loaded.generator.for_adapter(generation["adapter"])
    for file in image or ():
        chat.add_picture(file)
    screen.note(GREETING)
    with line_input.history():
        converse(chat)


def check_model(model: Model, own: OwnTools | None) -> None:
    """Say what a model cannot do in a chat; raises `OptionError` if it cannot do what is asked."""
    _ = model.tokenizer  # raises for a package without one
    if model.chat_template is None:
        if own is not None:
            raise OptionError(f"{model.manifest.name} has no chat template, so it cannot call tools; leave --tools out")
        screen.note(f"{model.manifest.name} has no chat template: it continues one text, to which you add lines")
    elif own is not None and not model.chats.calls_tools:
        screen.note(f"how {model.manifest.name} writes calls is not known, so they stay text; give --response-template FILE")


def read_tools(path: Path) -> OwnTools:
    """The functions of a file, with a warning of what they can do."""
    from ..terminal.own_tools import OwnTools  # noqa: PLC0415  (only for chats with tools)

    own = OwnTools(path)
    for line in own.functions.warning():
        screen.note(line)
    return own


def read_variables(given: str | None) -> dict[str, Any] | None:
    """The variables of a chat template, given as JSON; raises `OptionError`."""
    try:
        variables = None if given is None else json.loads(given)
    except ValueError as error:
        raise OptionError(f"--chat-template-kwargs should be JSON, found {shown(given)} ({error})") from error
    if variables is not None and not isinstance(variables, dict):
        raise OptionError(
            f'--chat-template-kwargs should be a JSON object, such as {{"enable_thinking": false}}, found {shown(given)}'
        )
    return variables


def converse(chat: Chat) -> None:
    """Read entries and run them until `/bye` or the end of the input, or two Ctrl-C; an error is one line."""
    is_again = False
    while True:
        at_prompt = True
        try:
            entry = line_input.read_entry()
            at_prompt = is_again = False
            run_entry(chat, entry)
        except EOFError:
            if line_input.is_interactive():
                screen.note("")
            return
        except OnnxTextgenError as error:
            screen.note(f"error: {' '.join(str(error).split())}")
        except KeyboardInterrupt:
            if not line_input.is_interactive():
                raise
            if at_prompt and is_again:
                screen.note("")
                return
            is_again = at_prompt
            screen.note(f"\n{'Ctrl-C again, ' if at_prompt else ''}/bye or Ctrl-D ends the session")
