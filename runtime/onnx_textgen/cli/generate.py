"""`onnx-textgen generate`: text on stdout as it comes, numbers on stderr."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import typer

from . import options, screen
from .generation_options import OPTIONS, with_options

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
    as_json: options.JsonOption = False,
    generation: Mapping[str, Any],
) -> None:
    """Go on from PROMPT.

    Try:
        onnx-textgen generate "Once upon a time" --max-new-tokens 64
        onnx-textgen generate "The dog" --temperature 0 --stop "."
        onnx-textgen generate "The dog" --num-beams 4 --num-return-sequences 2
        cat prompt.txt | onnx-textgen generate - --model DIR --seed 7 --json
    """
    start = options.read_prompt(prompt, token_ids, model)
    loaded = options.load_model(model, device, threads, assistant_model)
    if loaded.config(generation).gives_several:
        answer = screen.answer_of(loaded.generate(start, **generation))
        screen.write(answer.all_texts, None if as_json else sys.stdout)
    else:
        chunks = loaded.stream(start, on_progress=screen.prefill_progress, **generation)
        answer = screen.collect(chunks, None if as_json else sys.stdout)
    if as_json:
        screen.print_json(answer.as_json())
    else:
        # A package without a tokenizer has no text to show: its ids then, as --token-ids takes them.
        typer.echo("" if loaded.has_tokenizer else ",".join(map(str, answer.token_ids)))
        screen.note(screen.stats_line(answer))
    if answer.finish_reason == screen.CANCELLED:
        raise typer.Exit(130)
    if answer.follows_rule is False:
        screen.note(f"error: {CUT_OFF} (stop: {answer.finish_reason}); give it more room with --max-new-tokens")
        raise typer.Exit(1)
