"""The tab Compare: continues one prompt in different ways, or by different models, side by side."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import gradio as gr

from onnx_textgen import Cancellation
from onnx_textgen.errors import OnnxTextgenError

from ..background import in_background
from ..buttons import RunButtons, at_the_end
from ..encoder_decoders import is_encoder_decoder, name_of_prompt, prompt_for
from ..error_messages import shown_errors
from ..limits import MAX_PROMPT_CHARS, QUICK, RUNNING, checked
from ..models import ModelRegistry
from ..sampling_controls import read_seed
from ..view import ENDINGS

if TYPE_CHECKING:
    from gradio.events import Dependency

    from onnx_textgen import Generation, Model

OFF = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
WAYS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "Greedy": ("always the most likely token", {"temperature": 0}),
    "Temperature 1": ("drawn with the model's probabilities", {"temperature": 1.0, **OFF}),
    "Top-k 40": ("drawn from the 40 most likely", {"temperature": 1.0, **OFF, "top_k": 40}),
    "Top-p 0.9": ("drawn from the most likely that hold 90 %", {"temperature": 1.0, **OFF, "top_p": 0.9}),
    "Min-p 0.1": ("drawn from those at least a tenth as likely as the most likely", {"temperature": 1.0, **OFF, "min_p": 0.1}),
    "Beam search, 4": ("a search for the most likely text", {"num_beams": 4}),
}
EXAMPLE = "Once upon a time, there was a little owl who"


@dataclasses.dataclass(slots=True)
class Card:
    """One of the compared texts."""

    model: str
    way: str
    answer: Generation | None = None
    logprob: float | None = None
    """Mean log-probability of a new token under the model itself, the same measure for all texts."""
    problem: str | None = None


Frame = tuple[list[Card], str]
"""Values for the components: the cards, and their HTML."""


def make_tab(registry: ModelRegistry, picker: gr.Dropdown, picked: Dependency) -> None:
    """Add the tab's components in the current Gradio context, and their listeners."""
    written = gr.State()
    first = registry.model()
    example = "" if is_encoder_decoder(first) else EXAMPLE
    prompt = gr.Textbox(example, label=name_of_prompt(first), max_lines=6, max_length=MAX_PROMPT_CHARS, elem_id="compare-prompt")
    ways = gr.CheckboxGroup(list(WAYS), value=list(WAYS), label="Ways to choose tokens", elem_id="ways")
    with gr.Row(equal_height=True):
        has_choice = len(registry.names) > 1
        models = gr.CheckboxGroup(
            registry.names, value=registry.names[:1], label="Models", visible=has_choice, elem_id="compare-models", min_width=280
        )
        length = gr.Slider(1, 256, 60, step=1, precision=0, label="Max new tokens", min_width=280)
        seed = gr.Textbox("7", label="Seed", info="One for all of them.", max_lines=1, min_width=280)
    with gr.Row():
        start = gr.Button("Write side by side", variant="primary", scale=2, min_width=120, elem_id="compare")
        stop = gr.Button("Stop", scale=1, min_width=80, interactive=False, elem_id="compare-stop")
    cards = gr.HTML(draw([]), apply_default_css=False, elem_id="cards")

    def compare(text: str, chosen_ways: list[str], names: list[str], new_tokens: int, typed_seed: str) -> Iterator[Frame]:
        asked = [Card(name, way) for name in names for way in chosen_ways]
        with shown_errors():
            options = {"max_new_tokens": new_tokens, "seed": read_seed(typed_seed)}
            for card in asked:
                yield asked, draw(asked)
                try:
                    yield from fill(card, registry, checked(text), options, asked)
                except OnnxTextgenError as error:
                    card.problem = str(error)
        yield asked, draw(asked)

    buttons = RunButtons((start,), stop)
    pressed = gr.on([start.click, prompt.submit], buttons.running, None, buttons.outputs, **QUICK)
    run = pressed.then(compare, [prompt, ways, models, length, seed], [written, cards], **RUNNING)
    at_the_end(run, lambda asked: [draw(asked or [], stopped=True), *buttons.at_rest()], [written], [cards, *buttons.outputs])
    stop.click(None, cancels=[run])
    picked.then(lambda name: [name], picker, models, **QUICK)
    picked.then(lambda name, typed: prompt_for(registry.loaded(name), typed, [EXAMPLE]), [picker, prompt], prompt, **QUICK)


def fill(card: Card, registry: ModelRegistry, prompt: str, options: Mapping[str, Any], cards: list[Card]) -> Iterator[Frame]:
    """Generate a card's text. Cards run one after the other, so that each has the machine to itself."""
    model, cancel = registry.model(card.model), Cancellation()
    settings = {**options, **WAYS[card.way][1]}
    answer: Generation = yield from in_background(
        lambda: model.generate(prompt, cancel=cancel, **settings), lambda: (cards, draw(cards)), cancel.cancel
    )
    card.answer = answer
    card.logprob = logprob_per_token(model, answer)


def logprob_per_token(model: Model, answer: Generation) -> float | None:
    """Mean log-probability of a text under its model; None for an empty text."""
    if not answer.token_ids:
        return None
    if answer.source_ids:
        score = model.score(list(answer.token_ids), source=list(answer.source_ids))
    else:
        score = model.score(list(answer.prompt_ids), continuation=list(answer.token_ids))
    return sum(score.continuation_logprobs) / len(answer.token_ids)


def draw(cards: Sequence[Card], *, stopped: bool = False) -> str:
    """All cards in a grid. `stopped`: unfinished cards stay unfinished."""
    if not cards:
        return '<p class="hint">Each way writes its own text, shown with its log-probability under the model and its speed.</p>'
    named = len({card.model for card in cards}) > 1
    active = next((card for card in cards if not (card.answer or card.problem)), None)

    def waiting(card: Card) -> str:
        return ENDINGS["cancelled"] if stopped else "writing ..." if card is active else "waits"

    return f'<div class="cards">{"".join(draw_card(card, named=named, waiting=waiting(card)) for card in cards)}</div>'


def draw_card(card: Card, *, named: bool, waiting: str) -> str:
    """One text with its figures; `waiting`: the message before there is a text."""
    title = f"{card.way} - {card.model}" if named else card.way
    if card.problem:
        body = f'<p class="problem" role="alert">{escape(card.problem)}</p>'
    elif card.answer is None:
        body = f"<p>{waiting}</p>"
    else:
        stats, reason = card.answer.stats, card.answer.finish_reason
        likely = "-" if card.logprob is None else f"{card.logprob:.2f}"
        text = "text" if card.answer.source_ids else "text continued"
        body = (
            f'<p class="{text}">{escape(card.answer.text)}</p>'
            f'<div class="status"><span>log-probability per token <b>{likely}</b></span>'
            f"<span>tokens <b>{stats.generated_tokens:,}</b></span>"
            f"<span>tokens/s <b>{stats.decode_tokens_per_second:,.0f}</b></span>"
            f"<span>{ENDINGS.get(reason, reason)}</span></div>"
        )
    return f"<article><h2>{escape(title)}</h2><p class=way>{WAYS[card.way][0]}</p>{body}</article>"
