"""The pictures of the tab Look inside: one for each stage of the pipeline, from the values of a `StepInspector`.

Pure functions from data to HTML. Every text from a model or a prompt is escaped here.
"""

from __future__ import annotations

from collections.abc import Callable
from html import escape

import numpy as np

from onnx_textgen.diagnostics.inspection import Candidate, Token
from onnx_textgen.sampling.draw import apply_temperature
from onnx_textgen.sampling.truncation import softmax

from ..view import percent, visible
from .attention_heat_map import attention_picture
from .drawing import MOST_SHOWN, bar_rows, count, pieces
from .embeddings import embeddings_of
from .layer_numbers import layers_table
from .step_inspection import InspectedStep, StepInspector
from .strips import Numbers, scale_legend, scale_of, strip

LARGEST = 0.004
"""A token with a smaller share of the draw is drawn together with its neighbours."""
SMALLEST_TRUNCATED = 0.01
"""The bar of a removed token with a smaller share is not drawn, because it would be too small to see."""
OPTION_NAMES = {"top_k": "top-k", "top_p": "top-p", "min_p": "min-p"}


def picture(inspector: StepInspector | None, stage: int, number: int) -> str:
    """A stage (see `STAGES`) of a step (0 = the first new token)."""
    if inspector is None:
        text = "Press <b>Walk through</b>: the prompt goes through the model, a stage at a time."
        return f'<section class="picture"><p>{text}</p></section>'
    name, draw, is_of_step = STAGES[stage]
    place = f"new token {number + 1}" if is_of_step else "the source" if inspector.source_ids else "the prompt"
    body = draw(inspector, number)
    return f'<section class="picture" aria-live="polite"><h2>{stage + 1}. {name} <small>{place}</small></h2>{body}</section>'


def stage_line(stage: int) -> str:
    """All stages in a row, with the current one marked. Each is a button; all are disabled for stage -1 (none)."""
    state = {stage: " aria-current=step"} if stage >= 0 else dict.fromkeys(range(len(STAGES)), " disabled")
    items = "".join(
        f'<li><button type="button" data-place="{index}"{state.get(index, "")}>{name}</button></li>'
        for index, (name, _, _) in enumerate(STAGES)
    )
    return f'<nav class="stages" aria-label="Stages of the pipeline"><ol>{items}</ol></nav>'


def text_picture(inspector: StepInspector, number: int) -> str:
    """The prompt as typed."""
    return (
        f"<p>A text of {count(len(inspector.prompt), 'character')}, {count(len(inspector.prompt.encode()), 'byte')}. "
        f"{what_is_done(inspector)}The model does not read letters, so the text is split into pieces of its vocabulary.</p>"
        f'<p class="sheet">{escape(inspector.prompt)}</p>'
    )


def what_is_done(inspector: StepInspector) -> str:
    """What the two halves of an encoder-decoder do with the source; empty for a decoder."""
    if not inspector.source_ids:
        return ""
    return "The <b>encoder</b> reads this <b>source</b> once, and then the <b>decoder</b> writes a text for it, a token at a time. "


def tokens_picture(inspector: StepInspector, number: int) -> str:
    """Pieces and ids."""
    size = inspector.model.manifest.geometry.vocab_size
    return (
        f"<p>{count(len(inspector.tokens), 'token')}: each is a piece of text with a fixed number, its id, in a vocabulary of "
        f"{size:,}. ␣ is a space.</p>{pieces(inspector.tokens)}"
    )


def embeddings_picture(inspector: StepInspector, number: int) -> str:
    """Vectors and positions."""
    first = max(0, len(inspector.tokens) - MOST_SHOWN)
    shown = inspector.tokens[first:]
    found = embeddings_of(inspector.model, tuple(token.id for token in shown))
    width = inspector.model.manifest.geometry.hidden_size if found is None else found.shape[1]
    vectors = f"{width:,} numbers" if width else "a vector"
    intro = (
        f"<p>Each id picks its row of a table: {vectors} that stand for the token, the <b>embedding</b>. The order of the text "
        f"goes in as <b>positions</b>, 0 to {len(inspector.tokens) - 1}. Shape [batch, tokens, width] = "
        f"<b>[1, {len(inspector.tokens):,}, {f'{width:,}' if width else '?'}]</b>.</p>"
    )
    if found is None:
        return f"{intro}<p>The graph of this package does not show its table, so the numbers are not drawn here.</p>"
    scale = scale_of(found)
    rows = "".join(
        f"<tr><td>{position}</td><td>{token.id:,}</td><th scope=row><code>{escape(visible(token.piece))}</code></th>"
        f'<td>{strip(numbers, scale)}</td><td class="numbers">{some_of(numbers)}</td></tr>'
        for position, (token, numbers) in enumerate(zip(shown, found, strict=True), start=first)
    )
    return (
        f"{intro}<p>A cell for each number, line by line:</p>{scale_legend(scale)}"
        '<div class="scroll" tabindex="0"><table class="facts wide"><thead><tr><th>position</th><th>id</th><th>piece</th>'
        '<th>embedding</th><th class="numbers">its first numbers</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def some_of(numbers: Numbers) -> str:
    """The first numbers of a row.

    >>> some_of(np.array([0.25, -1, 0, 3], np.float32))
    '0.250, -1.000, 0.000 …'
    """
    return ", ".join(f"{each:.3f}" for each in numbers[:3]) + (" …" if numbers.size > 3 else "")


def layers_picture(inspector: StepInspector, number: int) -> str:
    """The fed tokens, the layers, and the cache after each run so far."""
    geometry, run = inspector.model.manifest.geometry, inspector.steps[number].run
    last = run.first_position + len(run.fed) - 1
    place = f"position {last}" if len(run.fed) == 1 else f"positions {run.first_position} to {last}"
    shape = ", ".join(f"{size:,}" for size in run.cache_shape)
    table = layers_table(inspector.steps[number].layers, escape(visible(run.fed[-1].piece)))
    source = f" and at the {count(len(inspector.tokens), 'token')} of the source" if inspector.source_ids else ""
    return (
        f"<p><b>{count(len(run.fed), 'token')}</b> went in at {place}:</p>{pieces(run.fed)}"
        f"<p>In each of the <b>{count(geometry.layers, 'layer')}</b> every token looks at itself and those before it{source} "
        f"({count(geometry.heads, 'head')} of size {geometry.head_size} over {geometry.kv_heads} of keys and values), then passes "
        f"a feed-forward network.</p>{table}<p>The keys and values of all tokens so far stay in the <b>cache</b>, so the next "
        f"run takes only the new token. It grows with the text; a layer's tensor has shape [{shape}].</p>"
        f"{cache_picture(inspector, number)}"
    )


def cache_picture(inspector: StepInspector, number: int) -> str:
    """The cache after each of the last runs: the tokens it had before, and those that the run added."""
    runs = [step.run for step in inspector.steps[max(0, number - 7) : number + 1]]
    longest = max(run.cached_tokens for run in runs)
    rows = "".join(
        f'<tr class="{"drawn" if run is runs[-1] else "other"}"><th scope="row">{count(run.cached_tokens, "token")}</th>'
        f'<td class="track parts">{part("kept", (run.cached_tokens - len(run.fed)) / longest)}'
        f"{part('added', len(run.fed) / longest)}</td>"
        f'<td class="amount wide">{run.cache_bytes:,} bytes</td></tr>'
        for run in runs
    )
    return (
        '<p class="legend"><span><i class="kept"></i> kept from the run before</span>'
        f'<span><i class="added"></i> added by the run</span></p><div class="bars"><table><tbody>{rows}</tbody></table></div>'
    )


def part(kind: str, share: float) -> str:
    """A part of a bar; `share` is relative to the longest bar."""
    return f'<span class="{kind}" style="width:{100 * share:.2f}%"></span>'


def logits_picture(inspector: StepInspector, number: int) -> str:
    """The row of logits, and the largest of them."""
    step = inspector.steps[number]
    found = step.sampling.candidates
    low, high = float(step.logits.min()), float(step.logits.max())
    rows = bar_rows((one.token, (one.logit - low) / max(high - low, 1e-9), f"{one.logit:.2f}", "", "other") for one in found)
    return (
        f"<p>After the last token the model gives one number to every token of its vocabulary, a <b>logit</b>: shape "
        f"[1, {step.logits.size:,}]. A larger logit is likelier. These range from {low:.2f} to "
        f"{high:.2f}; the {len(found)} largest:</p>"
        f"{rows}"
    )


def softmax_picture(inspector: StepInspector, number: int) -> str:
    """Probabilities before and after temperature."""
    step, temperature = inspector.steps[number], inspector.config.temperature
    tempered = tempered_probabilities(step, temperature)
    rows = bar_rows(
        (one.token, tempered[one.token.id], percent(tempered[one.token.id]), f"{percent(one.probability)} at 1", "drawn")
        for one in step.sampling.candidates
    )
    message = (
        "At <b>temperature 0</b> the most likely token has all of it."
        if temperature == 0
        else f"Divided by the <b>temperature {temperature:g}</b> first: below 1 the likely gain, above 1 the others catch up."
    )
    return (
        "<p><b>Softmax</b> turns logits into probabilities: exp of each, divided by the sum of all. They add up to 100 %. "
        f"{message} Move the slider and watch the bars.</p>{rows}"
    )


def truncation_picture(inspector: StepInspector, number: int) -> str:
    """The tokens that truncation keeps; the bars of removed tokens are hatched."""
    step = inspector.steps[number]
    tempered = tempered_probabilities(step, inspector.config.temperature)

    def row(one: Candidate) -> tuple[Token, float, str, str, str]:
        if one.cut_by is None:
            return one.token, one.draw_probability, percent(one.draw_probability), "", "drawn"
        lost = float(tempered[one.token.id])
        return (
            one.token,
            lost if lost >= SMALLEST_TRUNCATED else 0,
            "0 %",
            f"cut by {OPTION_NAMES.get(one.cut_by, one.cut_by)}",
            "cut",
        )

    funnel = " <span aria-hidden=true>→</span> ".join(
        f"<span>{OPTION_NAMES.get(name, name)} <b>{left:,}</b></span>" for name, left in step.sampling.remaining.items()
    )
    return (
        "<p>There are many unlikely tokens, and one of them now and then spoils a text. <b>Truncation</b> keeps the most likely: "
        "a removed token cannot be drawn, and the others share the 100 %.</p>"
        f'<p class="funnel">tokens left: {funnel}</p>{bar_rows(map(row, step.sampling.candidates))}'
    )


def draw_picture(inspector: StepInspector, number: int) -> str:
    """The line from 0 to 1, and the position of the random number."""
    sampling = inspector.steps[number].sampling
    chosen = f"<code>{escape(visible(sampling.chosen.piece))}</code>"
    if sampling.random_number is None:
        return f"<p>At temperature 0 nothing is drawn: the most likely token, <b>{chosen}</b>, is taken.</p>"
    segments = shares(inspector, number)
    start, end = next((start, end) for token, start, end in segments if token and token.id == sampling.chosen.id)
    parts = "".join(segment(token, start, end, sampling.chosen) for token, start, end in segments)
    return (
        "<p>Each remaining token has a share of the line from 0 to 1, as wide as its probability, in the order of the "
        "ids; unlikely tokens share the grey parts. A <b>random number</b> chooses a point of the line.</p>"
        f'<div class="line"><div class="shares" role="img" aria-label="shares of the tokens from 0 to 1">{parts}</div>'
        f'<div class="needle" style="left:{100 * sampling.random_number:.3f}%"></div></div>'
        f"<p>It is <b>{sampling.random_number:.4f}</b>, and falls in the share of <b>{chosen}</b>, from {start:.4f} to {end:.4f}. "
        f"The number depends only on the seed, {inspector.config.seed}, and the step: the same seed writes the same text.</p>"
    )


def append_picture(inspector: StepInspector, number: int) -> str:
    """The text with its new token."""
    chosen = inspector.steps[number].sampling.chosen
    before = "".join(step.sampling.chosen.piece for step in inspector.steps[:number])
    ended = chosen.id in inspector.model.manifest.eos_ids
    message = (
        "It is an <b>end of text</b>: the model has finished."
        if ended
        else f"It goes to position {len(inspector.ids) + number}, and into the model again: text is written a token at a time."
    )
    return (
        f"<p>The new token, id <b>{chosen.id:,}</b>, is <b>appended</b>. {message}</p>"
        f'<p class="sheet"><span class="prompt">{"" if inspector.source_ids else escape(inspector.prompt)}</span>{escape(before)}'
        f"<mark>{escape(chosen.piece)}</mark></p>"
    )


STAGES: tuple[tuple[str, Callable[[StepInspector, int], str], bool], ...] = (
    ("Text", text_picture, False),
    ("Tokens", tokens_picture, False),
    ("Embeddings", embeddings_picture, False),
    ("Layers, cache", layers_picture, True),
    ("Attention", attention_picture, True),
    ("Logits", logits_picture, True),
    ("Softmax", softmax_picture, True),
    ("Truncation", truncation_picture, True),
    ("Draw", draw_picture, True),
    ("Append", append_picture, True),
)
"""Name, picture, and whether the stage repeats for every new token."""
ATTENTION = next(place for place, (_, draw, _) in enumerate(STAGES) if draw is attention_picture)


def tempered_probabilities(step: InspectedStep, temperature: float) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """Probabilities [vocabulary] after temperature and before truncation."""
    if temperature == 0:
        alone = np.zeros(step.logits.size, np.float32)
        alone[step.sampling.chosen.id] = 1
        return alone
    return softmax(apply_temperature(step.logits, temperature))


def shares(inspector: StepInspector, number: int) -> list[tuple[Token | None, float, float]]:
    """The line of a draw: a token with the start and end of its share; None for a group of unlikely neighbours."""
    sampling, piece = inspector.steps[number].sampling, inspector.model.tokenizer.piece
    left = sampling.drawn_from
    ids = np.arange(left.scores.size) if left.ids is None else left.ids
    ends = np.cumsum(softmax(left.scores), dtype=np.float64)
    ends /= ends[-1]
    starts = np.concatenate([[0.0], ends[:-1]])
    found: list[tuple[Token | None, float, float]] = []
    reached = 0.0
    for index in np.flatnonzero((ends - starts >= LARGEST) | (ids == sampling.chosen.id)).tolist():
        if starts[index] - reached > 1e-9:
            found.append((None, reached, float(starts[index])))
        found.append((Token(int(ids[index]), piece(int(ids[index]))), float(starts[index]), float(ends[index])))
        reached = float(ends[index])
    return [*found, (None, reached, 1.0)] if reached < 1 - 1e-9 else found


def segment(token: Token | None, start: float, end: float, chosen: Token) -> str:
    """A share of the line, labelled with its token if it is wide enough."""
    kind = "rest" if token is None else "drawn" if token.id == chosen.id else "other"
    name = escape(visible(token.piece)) if token else "unlikely ones"
    label = f"<code>{name}</code>" if token and end - start > 0.06 else ""
    return f'<span class="{kind}" style="width:{100 * (end - start):.3f}%" title="{name}: {percent(end - start)}">{label}</span>'
