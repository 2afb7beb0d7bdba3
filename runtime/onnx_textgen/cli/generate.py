"""`onnx-textgen generate`: text on stdout as it comes, numbers on stderr."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from ..artifact import TOKENIZER
from ..errors import OptionError
from . import options, screen


def generate_text(
    prompt: options.PromptArgument = None,
    *,
    model: options.ModelOption = None,
    token_ids: options.TokenIdsOption = None,
    max_new_tokens: options.MaxNewTokensOption = None,
    temperature: options.TemperatureOption = None,
    top_k: options.TopKOption = None,
    top_p: options.TopPOption = None,
    min_p: options.MinPOption = None,
    seed: options.SeedOption = None,
    stop: options.StopOption = None,
    num_beams: Annotated[int, typer.Option(metavar="N", help="Beams to search with; only 1 is available.")] = 1,
    device: options.DeviceOption = "auto",
    threads: options.ThreadsOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Go on from PROMPT.

    Try:
        onnx-textgen generate "Once upon a time" --max-new-tokens 64
        onnx-textgen generate "The dog" --temperature 0 --stop "."
        cat prompt.txt | onnx-textgen generate - --model DIR --seed 7 --json
    """
    if num_beams != 1:
        raise OptionError(f"--num-beams {num_beams} cannot take effect: this version has no beam search; leave it out")
    start = options.read_prompt(prompt, token_ids, model)
    loaded = options.load_model(model, device, threads)
    chunks = loaded.stream(
        start,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        seed=seed,
        stop=stop or None,
        on_progress=screen.prefill_progress,
    )
    answer = screen.collect(chunks, None if as_json else sys.stdout)
    if as_json:
        screen.print_json(answer)
    else:
        # A package without a tokenizer has no text to show: its ids then, as --token-ids takes them.
        typer.echo("" if TOKENIZER in loaded.manifest.files else ",".join(map(str, answer.token_ids)))
        screen.note(screen.stats_line(answer))
    if answer.finish_reason == screen.CANCELLED:
        raise typer.Exit(130)
