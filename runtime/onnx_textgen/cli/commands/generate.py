"""`onnx-textgen generate`: the text on stdout while it is generated, numbers on stderr.

A terminal shows the prompt before the text; a pipe or a file gets only the new text.
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
    from ...results import Chunk

MOST_OF_PROMPT = 500
"""Last characters of a prompt that are shown before its text."""
CUT_OFF = "the text ended before its constraint was complete"


@with_options(tuple(OPTIONS))
def generate_text(
    prompt: options.PromptArgument = None,
    *,
    model: options.ModelOption = None,
    token_ids: options.TokenIdsOption = None,
    device: options.DeviceOption = "auto",
    threads: options.ThreadsOption = None,
    assistant_model: options.AssistantOption = None,
    prefix_folder: options.PrefixOption = None,
    image: options.ImageOption = None,
    show_tokens: Annotated[
        bool, typer.Option("--show-tokens", help="Colour each token by its probability; without colours, a line for each.")
    ] = False,
    stats: options.StatsOption = True,
    as_json: options.JsonOption = False,
    generation: Mapping[str, Any],
) -> None:
    """Continue PROMPT.

    Try:
        onnx-textgen generate "Once upon a time" --max-new-tokens 64
        onnx-textgen generate "The dog" --temperature 0 --stop "."
        onnx-textgen generate "The dog" --num-beams 4 --num-return-sequences 2
        onnx-textgen generate "The dog" --show-tokens
        cat prompt.txt | onnx-textgen generate - --model DIR --seed 7 --json
    """
    start = options.read_prompt(prompt, token_ids, model)
    loaded = options.load_model(model, device, threads, assistant_model, prefix_folder=prefix_folder)
    config = loaded.generator.config(generation, searches=not show_tokens and assistant_model is None)
    options.check_assistant(assistant_model, config)
    shows_logprobs = "logprobs" in generation and not as_json
    asked = with_pictures(loaded, start, image)
    if config.has_several_texts:
        refuse_displays(show_tokens=show_tokens, shows_logprobs=shows_logprobs)
        with ctrl_c_cancels() as cancel:
            answer = screen.answer_of(loaded.generate(asked, cancel=cancel, **generation))
        if not as_json:
            write_texts(answer, start, loaded)
    else:
        wanted = {"logprobs": 0, **generation} if show_tokens else generation
        show = None if as_json else make_display(start, loaded, show_tokens=show_tokens, shows_logprobs=shows_logprobs)
        answer = screen.collect(loaded.stream(asked, on_progress=screen.prefill_progress, **wanted), show)
    if as_json:
        screen.print_json(answer.as_json())
    else:
        end_output(answer, loaded, show_tokens=show_tokens, shows_logprobs=shows_logprobs)
        if stats:
            screen.note_dim(screen.stats_line(answer, is_drawn=config.is_drawn))
    if answer.finish_reason == screen.CANCELLED:
        raise typer.Exit(130)
    if answer.follows_rule is False:
        screen.note(f"error: {CUT_OFF} (stop: {answer.finish_reason}); allow more tokens with --max-new-tokens")
        raise typer.Exit(1)


def with_pictures(model: Model, prompt: str | list[int], files: list[str] | None) -> str | list[int]:
    """The prompt with the pictures in these files."""
    if not files:
        return prompt
    if not isinstance(prompt, str):
        raise OptionError("--image needs a prompt that is text; leave --token-ids out")
    from ...images.pictures import as_data_url  # noqa: PLC0415 - as the models
    from ...options.checks import is_address  # noqa: PLC0415 - as the models

    return model.encode(prompt, images=[as_data_url(each, fetches=True) if is_address(each) else each for each in files])


def refuse_displays(*, show_tokens: bool, shows_logprobs: bool) -> None:
    """Raise `OptionError` for a display of tokens, which can show only a single text."""
    if show_tokens:
        raise OptionError("--show-tokens shows only a single text; leave it out, or ask for one text")
    if shows_logprobs:
        raise OptionError("--logprobs shows only a single text; add --json, or leave it out")


def make_display(start: str | list[int], model: Model, *, show_tokens: bool, shows_logprobs: bool) -> Callable[[Chunk], None]:
    """Make the function that shows the chunks of a stream: as lines of tokens, as coloured text or as plain text."""
    if shows_logprobs:
        return token_display.make_logprob_lines(model)
    if show_tokens and not token_display.is_coloured(model):
        return token_display.make_lines(model)
    show = token_display.make_coloured_text() if show_tokens else screen.writer(sys.stdout)
    before = [shown_prompt(start, model)]  # written with the first chunk: until then the line may show the prefill's progress

    def show_after_prompt(chunk: Chunk) -> None:
        if before:
            screen.write_dim(before.pop())
        show(chunk)

    return show_after_prompt


def write_texts(answer: screen.Answer, start: str | list[int], model: Model) -> None:
    """Write the texts one after the other, numbered if there is more than one."""
    for number, one in enumerate(answer.sequences or (answer,), start=1):
        if answer.sequences:
            screen.write("\n" * (number > 1) + f"[{number}] ", sys.stdout)
        screen.write_dim(shown_prompt(start, model))
        screen.write(one.text, sys.stdout)


def shown_prompt(start: str | list[int], model: Model) -> str:
    """The prompt, or the end of a long one, to show before a text; empty if stdout is no terminal or there is no tokenizer.

    The text of an encoder-decoder does not continue its source, so that is not shown.
    """
    if not sys.stdout.isatty() or not model.generator.opened.has_tokenizer or model.manifest.encoder is not None:
        return ""
    text = start if isinstance(start, str) else model.tokenizer.decode(start)
    return text if len(text) <= MOST_OF_PROMPT else f"... {text[-MOST_OF_PROMPT:]}"


@contextlib.contextmanager
def ctrl_c_cancels() -> Iterator[Cancellation]:
    """While the context is open, the first Ctrl-C ends the texts and keeps them; the next one ends the process as usual."""
    from ...cancellation import Cancellation  # noqa: PLC0415  (imports the model's code)

    cancel, before = Cancellation(), signal.getsignal(signal.SIGINT)

    def end(_: int, __: object) -> None:
        signal.signal(signal.SIGINT, before)
        cancel.cancel()

    signal.signal(signal.SIGINT, end)
    try:
        yield cancel
    finally:
        signal.signal(signal.SIGINT, before)


def end_output(answer: screen.Answer, model: Model, *, show_tokens: bool, shows_logprobs: bool) -> None:
    """End the line of the text, and write the legend of the colours."""
    is_coloured = show_tokens and not shows_logprobs and token_display.is_coloured(model)
    if is_coloured or not (show_tokens or shows_logprobs):
        # A package without a tokenizer has no text to show; its ids are written as --token-ids takes them.
        screen.write("\n" if model.generator.opened.has_tokenizer else ",".join(map(str, answer.token_ids)) + "\n", sys.stdout)
    if is_coloured:
        token_display.show_legend()
