"""`onnx-textgen score`: the log-probabilities of a text, token by token, or the bits per byte of a file of documents."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...errors import OptionError, PromptError
from .. import options
from ..terminal import screen, tables

if TYPE_CHECKING:
    from ...api.model import Model
    from ...results import Choice, Score


@dataclass(frozen=True, slots=True)
class Total:
    """The score of all documents together."""

    documents: int
    tokens: int
    """Scored tokens; the first token of a text is not scored, because no token comes before it."""
    bytes: int
    """UTF-8 bytes of the texts."""
    bits_per_byte: float
    perplexity: float


def score_text(
    text: Annotated[
        str | None, typer.Argument(metavar="TEXT", help="Text to score; - reads it from stdin.", show_default=False)
    ] = None,
    *,
    model: options.ModelOption = None,
    file: Annotated[Path | None, typer.Option(metavar="F", help="Score this UTF-8 file instead of TEXT.")] = None,
    separator: Annotated[str | None, typer.Option(metavar="S", help="Lines equal to S divide the file into documents.")] = None,
    max_bytes: Annotated[int | None, typer.Option(metavar="N", min=1, help="Leave out documents of more UTF-8 bytes.")] = None,
    limit: Annotated[int | None, typer.Option(metavar="N", min=1, help="Score the first N documents only.")] = None,
    source: Annotated[
        str | None, typer.Option(metavar="SOURCE", help="Score TEXT as what an encoder-decoder writes for this source.")
    ] = None,
    continuation: Annotated[str | None, typer.Option(metavar="TEXT", help="Score this text, given TEXT before it.")] = None,
    choice: Annotated[list[str] | None, typer.Option(metavar="TEXT", help="Rank this continuation of TEXT; repeatable.")] = None,
    stride: Annotated[
        int | None, typer.Option(metavar="N", help="Read a text longer than the context in windows N tokens apart.")
    ] = None,
    logprobs: Annotated[int, typer.Option(metavar="K", help="Show the K most likely tokens at each position.")] = 0,
    adapter: Annotated[str | None, typer.Option(metavar="NAME", help="Score with this LoRA adapter of the package.")] = None,
    device: options.DeviceOption = "auto",
    threads: options.ThreadsOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Show how likely the model finds a text.

    Each token's log-probability, or with --file the bits per byte of a file's documents.

    Try:
        onnx-textgen score "The cat sat on the mat"
        onnx-textgen score "The dog wagged its" --choice " tail" --choice " nose"
        onnx-textgen score --file stories.txt --separator "<|endoftext|>"
    """
    if file is None:
        if separator is not None or max_bytes is not None or limit is not None:
            raise OptionError("--separator, --max-bytes and --limit choose documents of a --file; give a file")
        if text is None:
            raise OptionError("score needs a TEXT, - for stdin, or --file F")
        if choice and (continuation is not None or source is not None or stride is not None or logprobs):
            raise OptionError(
                "--continuation, --source, --stride and --logprobs score one text, --choice ranks continuations; leave one out"
            )
        single = options.read_text(text)
        loaded = options.load_model(model, device, threads)
        if choice:
            print_choices(loaded.rank(single, choice, adapter=adapter), as_json)
        else:
            score = loaded.score(
                single, continuation=continuation, source=source, stride=stride, logprobs=logprobs, adapter=adapter
            )
            print_score(loaded, score, as_json)
    else:
        if text is not None:
            raise OptionError("a TEXT and --file exclude each other; leave one out")
        if continuation is not None or source is not None or choice or logprobs:
            raise OptionError("--continuation, --source, --choice and --logprobs need a TEXT, not a --file; leave them out")
        documents = read_documents(file, separator, max_bytes, limit)
        print_total(score_documents(options.load_model(model, device, threads), documents, stride, adapter), as_json)


def read_documents(file: Path, separator: str | None, max_bytes: int | None, limit: int | None) -> list[str]:
    """The documents of a file to score, without the line breaks around them.

    `max_bytes` leaves out longer ones, `limit` all after the first. Raises `PromptError` if the file cannot be read, or has none.
    """
    try:
        content = file.read_text(encoding="utf-8")
    except OSError as error:
        raise PromptError(f"cannot read {file}: {error.strerror}; name a text file") from error
    except UnicodeDecodeError as error:
        raise PromptError(f"{file} is not UTF-8 text (byte {error.start}); convert it first, for example with iconv") from error
    fitting = (text for text in split_documents(content, separator) if max_bytes is None or len(text.encode()) <= max_bytes)
    documents = list(itertools.islice(fitting, limit))
    if not documents:
        raise PromptError(f"{file} has no document to score; check --separator and --max-bytes")
    return documents


def split_documents(content: str, separator: str | None) -> Iterator[str]:
    r"""Split a text at the lines that equal `separator`; empty documents are left out.

    >>> list(split_documents("One.\n\nTwo.\n---\nThree.\n---\n", "---"))
    ['One.\n\nTwo.', 'Three.']
    """
    lines: list[str] = []
    for line in (*content.split("\n"), separator):
        if line == separator:
            if document := "\n".join(lines).strip("\r\n"):
                yield document
            lines = []
        elif line is not None:
            lines.append(line)


def score_documents(model: Model, documents: list[str], stride: int | None = None, adapter: str | None = None) -> Total:
    """Score each document alone, and add up the log-probabilities."""
    total, tokens, size = 0.0, 0, 0
    for number, document in enumerate(documents, start=1):
        logprobs = model.score(document, stride=stride, adapter=adapter).logprobs
        total += math.fsum(logprobs)
        tokens += len(logprobs)
        size += len(document.encode())
        screen.progress(f"{number} of {len(documents)} documents")
    screen.progress("")
    return Total(len(documents), tokens, size, -total / math.log(2) / size, math.exp(-total / tokens) if tokens else math.nan)


def print_total(total: Total, as_json: bool) -> None:
    """Print the score of all documents."""
    if as_json:
        screen.print_json(total)
        return
    table = tables.Table(tuple(asdict(total)), numbers=frozenset(asdict(total)))
    table.add(
        str(total.documents), f"{total.tokens:,}", f"{total.bytes:,}", f"{total.bits_per_byte:.4f}", f"{total.perplexity:.2f}"
    )
    tables.show_table(table)


def print_choices(ranked: list[Choice], as_json: bool) -> None:
    """Print continuations, most likely first."""
    if as_json:
        screen.print_json(ranked)
        return
    columns = ("log-probability", "per token", "per byte")
    table = tables.Table(("continuation", *columns), numbers=frozenset(columns), prose=frozenset({"continuation"}))
    for one in ranked:
        numbers = (one.logprob, one.logprob_per_token, one.logprob_per_byte)
        table.add(screen.quoted(one.text), *(f"{number:.4f}" for number in numbers))
    tables.show_table(table)


def print_score(model: Model, score: Score, as_json: bool) -> None:
    """Print the score of one text, with a table of its tokens."""
    if as_json:
        values: dict[str, Any] = {"token_ids": score.token_ids, "logprobs": score.logprobs, "text_bytes": score.text_bytes}
        if score.prompt_tokens:
            values |= {"prompt_tokens": score.prompt_tokens, "continuation_logprob": math.fsum(score.continuation_logprobs)}
        if score.alternatives:
            values["alternatives"] = score.alternatives
        screen.print_json({**values, "perplexity": score.perplexity, "bits_per_byte": score.bits_per_byte})
        return
    numbers = frozenset({"position", "id", "log-probability", "probability"})
    others = ("most likely",) if score.alternatives else ()
    columns = ("position", "id", "piece", "log-probability", "probability", *others)
    table = tables.Table(columns, numbers=numbers, prose=frozenset(others))
    unscored = len(score.token_ids) - len(score.logprobs)
    logprobs: list[float | None] = [*[None] * unscored, *(float(value) for value in score.logprobs)]
    for position, (token_id, logprob) in enumerate(zip(score.token_ids, logprobs, strict=True)):
        shown = ("-", "-") if logprob is None else (f"{logprob:.4f}", f"{math.exp(logprob):.2%}")
        alternatives = score.alternatives[position - unscored] if others and position >= unscored else ()
        listed = ", ".join(f"{screen.quoted(one.text)} {math.exp(one.logprob):.0%}" for one in alternatives)
        piece = screen.quoted(model.tokenizer.piece(token_id))
        table.add(str(position), str(token_id), piece, *shown, *([listed] if others else []))
    tables.show_table(table)
    if score.prompt_tokens:
        total = math.fsum(score.continuation_logprobs)
        typer.echo(f"\ncontinuation {total:.4f}, {len(score.continuation_logprobs)} tokens")
    typer.echo(f"\nperplexity {score.perplexity:.2f} | {score.bits_per_byte:.4f} bits per byte")
