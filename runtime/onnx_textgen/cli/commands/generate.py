"""`onnx-textgen generate`: text on stdout as it comes, numbers on stderr.

A person at a terminal sees the prompt before the text; a pipe or a file gets the new text alone.
"""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...errors import OptionError
from .. import options
from ..generation_options import OPTIONS, with_options
from ..terminal import screen, token_display

if TYPE_CHECKING:
    from ...api.model import Model
    from ...cancellation import Cancellation
    from ...options.generation_config import GenerationConfig
    from ...results import Chunk

MOST_OF_PROMPT = 500
"""Characters of a prompt that are shown before its text."""
CUT_OFF = "the text ended before it followed its rule to the end"


@with_options(tuple(OPTIONS))
def generate_text(
    prompt: options.PromptArgument = None,
    *,
    model: options.ModelOption = None,
    token_ids: options.TokenIdsOption = None,
    device: options.DeviceOption = "auto",
    threads: options.ThreadsOption = None,
    assistant_model: options.AssistantOption = None,
    show_tokens: Annotated[
        bool, typer.Option("--show-tokens", help="Colour each token by its probability; without colours, a line for each.")
    ] = False,
    as_json: options.JsonOption = False,
    generation: Mapping[str, Any],
) -> None:
    """Go on from PROMPT.

    Try:
        onnx-textgen generate "Once upon a time" --max-new-tokens 64
        onnx-textgen generate "The dog" --temperature 0 --stop "."
        onnx-textgen generate "The dog" --num-beams 4 --num-return-sequences 2
        onnx-textgen generate "The dog" --show-tokens
        cat prompt.txt | onnx-textgen generate - --model DIR --seed 7 --json
    """
    start = options.read_prompt(prompt, token_ids, model)
    loaded = options.load_model(model, device, threads, assistant_model)
    config = loaded.config(generation)
    options.check_assistant(assistant_model, config)
    weighs = "logprobs" in generation and not as_json
    if config.gives_several:
        check_several(show_tokens=show_tokens, weighs=weighs)
        with ctrl_c_cancels() as cancel:
            answer = screen.answer_of(loaded.generate(start, cancel=cancel, **generation))
        if not as_json:
            write_several(answer, start, loaded)
    else:
        wanted = {"logprobs": 0, **generation} if show_tokens else generation
        show = None if as_json else make_display(start, loaded, show_tokens=show_tokens, weighs=weighs)
        answer = screen.collect(loaded.stream(start, on_progress=screen.prefill_progress, **wanted), show)
    if as_json:
        screen.print_json(answer.as_json())
    else:
        end_text(answer, loaded, config, show_tokens=show_tokens, weighs=weighs)
    if answer.finish_reason == screen.CANCELLED:
        raise typer.Exit(130)
    if answer.follows_rule is False:
        screen.note(f"error: {CUT_OFF} (stop: {answer.finish_reason}); give it more room with --max-new-tokens")
        raise typer.Exit(1)


def check_several(*, show_tokens: bool, weighs: bool) -> None:
    """Raise `OptionError` for what shows one text while it is written, where several are asked for."""
    if show_tokens:
        raise OptionError("--show-tokens shows one text while it is written, not several; leave it out")
    if weighs:
        raise OptionError("--logprobs shows one text token by token, not several; add --json, or leave it out")


def make_display(start: str | list[int], model: Model, *, show_tokens: bool, weighs: bool) -> Callable[[Chunk], None]:
    """What shows the chunks of a stream: with what was weighed at each place, in colours where those are, or as text."""
    if weighs:
        return token_display.make_weighed(model)
    if show_tokens and not token_display.is_coloured(model):
        return token_display.make_lines(model)
    show = token_display.make_coloured() if show_tokens else screen.writer(sys.stdout)
    before = [beginning_of(start, model)]  # written with the first chunk: until then the line may show how far the prompt is read

    def show_after_prompt(chunk: Chunk) -> None:
        if before:
            screen.write_dim(before.pop())
        show(chunk)

    return show_after_prompt


def write_several(answer: screen.Answer, start: str | list[int], model: Model) -> None:
    """The texts one after the other, numbered where they are several."""
    for number, one in enumerate(answer.sequences or (answer,), start=1):
        if answer.sequences:
            typer.echo("\n" * (number > 1) + f"[{number}] ", nl=False)
        screen.write_dim(beginning_of(start, model))
        screen.write(one.text, sys.stdout)


def beginning_of(start: str | list[int], model: Model) -> str:
    """The prompt as it stands before a text, of a long one the end; nothing where ids have no text, or nobody looks."""
    if not sys.stdout.isatty() or not model.has_tokenizer:
        return ""
    text = start if isinstance(start, str) else model.tokenizer.decode(start)
    return text if len(text) <= MOST_OF_PROMPT else f"... {text[-MOST_OF_PROMPT:]}"


@contextlib.contextmanager
def ctrl_c_cancels() -> Iterator[Cancellation]:
    """Within it the first Ctrl-C ends the texts, which are kept as far as they are; the next one ends the process as ever."""
    from ...cancellation import Cancellation  # noqa: PLC0415  (the model's code)

    cancel, before = Cancellation(), signal.getsignal(signal.SIGINT)

    def end(_: int, __: object) -> None:
        signal.signal(signal.SIGINT, before)
        cancel.cancel()

    signal.signal(signal.SIGINT, end)
    try:
        yield cancel
    finally:
        signal.signal(signal.SIGINT, before)


def end_text(answer: screen.Answer, model: Model, config: GenerationConfig, *, show_tokens: bool, weighs: bool) -> None:
    """What stands behind a text: the end of its line, and the numbers."""
    is_coloured = show_tokens and not weighs and token_display.is_coloured(model)
    if is_coloured or not (show_tokens or weighs):
        # A package without a tokenizer has no text to show: its ids then, as --token-ids takes them.
        typer.echo("" if model.has_tokenizer else ",".join(map(str, answer.token_ids)))
    if is_coloured:
        token_display.show_legend()
    screen.remark(screen.stats_line(answer, is_drawn=config.is_drawn))
