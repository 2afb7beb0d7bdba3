"""`onnx-textgen inspect`: shows each stage of the pipeline for one prompt, with the numbers of a real run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from .. import options
from ..terminal import certificate, screen, tables

if TYPE_CHECKING:
    from ...diagnostics.inspection import Candidate, Inspection, Step, Token

MOST_FED = 6
"""Last tokens of a long prompt that are listed with its positions."""
MOST_ROWS = 32
"""Rows of the table of tokens; of a longer prompt it has the first and the last ones."""
BAR_COLUMNS = 12
"""Terminal columns of the bar for a probability of 1."""


def inspect_prompt(
    prompt: options.PromptArgument = None,
    *,
    model: options.ModelOption = None,
    token_ids: options.TokenIdsOption = None,
    steps: Annotated[int, typer.Option(metavar="N", min=1, max=1000, help="Tokens to generate.")] = 3,
    candidates: Annotated[int, typer.Option(metavar="N", min=1, max=100, help="Most likely tokens to show in each step.")] = 8,
    temperature: options.TemperatureOption = None,
    top_k: options.TopKOption = None,
    top_p: options.TopPOption = None,
    min_p: options.MinPOption = None,
    seed: options.SeedOption = None,
    device: options.DeviceOption = "auto",
    threads: options.ThreadsOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Follow PROMPT through the pipeline, step by step.

    From text to ids, through the model, to the next tokens, with the numbers of a real run. An encoder-decoder reads PROMPT as its
    source.

    Try:
        onnx-textgen inspect "Once upon a time" --top-k 40 --top-p 0.9 --seed 7
    """
    from ...diagnostics.inspection import inspect_steps  # noqa: PLC0415  (imports the model's code)

    start = options.read_prompt(prompt, token_ids, model)
    loaded = options.load_model(model, device, threads)
    wanted = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p, "seed": seed}
    inspection = inspect_steps(loaded, start, config=loaded.generator.config(wanted), steps=steps, candidates=candidates)
    if as_json:
        screen.print_json(inspection)
    else:
        draw(start, inspection)


def draw(prompt: str | list[int], inspection: Inspection) -> None:
    """Print the stages in the pipeline's order."""
    given = inspection.source or inspection.tokens
    print_stage(
        [
            ("1 source" if inspection.source else "1 prompt", screen.quoted(prompt) if isinstance(prompt, str) else "token ids"),
            ("2 token ids", f"{len(given)} tokens"),
        ]
    )
    print_tokens(given)
    if inspection.source:
        print_stage([("  encoder", "reads them once; the text begins with:")])
        print_tokens(inspection.tokens)
    width = ", ".join("?" if size is None else f"{size:,}" for size in inspection.embeddings_shape)
    heads = f"{inspection.heads} heads of size {inspection.head_size} over {inspection.kv_heads} of keys and values"
    print_stage(
        [
            ("3 embeddings", f"[batch, tokens, width] = [{width}]"),
            ("4 positions", f"0 to {len(given) - 1}"),
            ("5 layers", f"{inspection.layers}, each with {heads}"),
            ("  weights", certificate.precision_in_words(inspection.precision, inspection.quantization)),
            *([("  proof", proof)] if (proof := certificate.summary_in_words(inspection.proof)) else []),
        ]
    )
    for number, step in enumerate(inspection.steps, start=1):
        draw_step(number, step)
    print_stage([("10 text", screen.quoted(inspection.text))])


def print_tokens(tokens: tuple[Token, ...]) -> None:
    """Print a table of tokens."""
    table = tables.Table(("position", "id", "piece"), numbers=frozenset({"position", "id"}))
    rows = [(str(position), str(token.id), screen.quoted(token.piece)) for position, token in enumerate(tokens)]
    if len(rows) > MOST_ROWS:
        rows[MOST_ROWS // 2 : -MOST_ROWS // 2] = [("...", "...", f"{len(rows) - MOST_ROWS} more; all of them with --json")]
    for row in rows:
        table.add(*row)
    print_apart(table)


def draw_step(number: int, step: Step) -> None:
    """Print one run of the model and the choice of the next token."""
    screen.make_console().rule(f"step {number}", align="left")
    print_stage(
        [
            ("  fed", fed_in_words(step)),
            *cache_in_words(step),
            ("7 logits", f"[batch, vocabulary] = [{', '.join(f'{size:,}' for size in step.logits_shape)}]"),
            ("  softmax", in_words(step.candidates)),
        ]
    )
    columns = ("id", "piece", "logit", "softmax", "", "can be drawn")
    table = tables.Table((*columns, ""), numbers=frozenset(columns) - {"piece", ""})
    for candidate in step.candidates:
        drawn = f"{candidate.draw_probability:.2%}" if candidate.cut_by is None else f"cut by {candidate.cut_by}"
        is_taken = candidate.token.id == step.chosen.id
        table.add(
            *(str(candidate.token.id), screen.quoted(candidate.token.piece), f"{candidate.logit:.3f}"),
            *(f"{candidate.probability:.2%}", bar(candidate.probability), drawn, "taken" if is_taken else ""),
            style="bold green" if is_taken else "" if candidate.cut_by is None else "dim",
        )
    print_apart(table)
    print_stage(
        [
            ("8 sampling", " -> ".join(f"{name} {count:,}" for name, count in step.remaining.items())),
            ("9 next token", f"{step.chosen.id} {screen.quoted(step.chosen.piece)}, {step.rule}; appended"),
        ]
    )


def bar(probability: float) -> str:
    """A probability as a bar.

    >>> bar(0.5), bar(0.01)
    ('██████', '')
    """
    return "█" * round(probability * BAR_COLUMNS)


def cache_in_words(step: Step) -> list[tuple[str, str]]:
    """The lines about the cache: its tokens, its size and the shapes of its tensors."""
    held = f"{step.cached_tokens} tokens, {screen.size(step.cache_bytes)}"
    if step.other_cache_shapes:
        shapes = (step.cache_shape, *step.other_cache_shapes)
        return [("6 cache", f"{held}; tensors of its layers:"), *(("", shape_in_words(shape)) for shape in shapes)]
    shape = shape_in_words(step.cache_shape)
    return [("6 cache", f"{held}; a layer's keys and its values: {shape}"), ("", "[rows, heads, capacity, size]")]


def shape_in_words(shape: tuple[int, ...]) -> str:
    """Sizes in brackets: `[1, 2, 1,024, 64]`."""
    return f"[{', '.join(f'{size:,}' for size in shape)}]"


def print_apart(table: tables.Table) -> None:
    """Print a table between two blank lines."""
    typer.echo()
    tables.show_table(table)
    typer.echo()


def print_stage(lines: list[tuple[str, str]]) -> None:
    """Print names and values in the same columns for all stages."""
    tables.print_lines(lines, name_width=12)


def fed_in_words(step: Step) -> str:
    """The tokens that were fed, of many the last few, and their positions: `' upon' ' a' at positions 3 to 4`."""
    last = step.first_position + len(step.fed) - 1
    pieces = " ".join(screen.quoted(token.piece) for token in step.fed[-MOST_FED:])
    place = f"position {last}" if len(step.fed) == 1 else f"positions {step.first_position} to {last}"
    return f"{'... ' if len(step.fed) > MOST_FED else ''}{pieces} at {place}"


def in_words(candidates: tuple[Candidate, ...]) -> str:
    """The three most likely tokens: `Paris 85 %, London 7 %`."""
    pieces = [one.token.piece.strip() for one in candidates[:3]]
    names = [piece if piece.isalnum() else screen.quoted(one.token.piece) for piece, one in zip(pieces, candidates, strict=False)]
    return ", ".join(f"{name} {one.probability * 100:.0f} %" for name, one in zip(names, candidates, strict=False))
