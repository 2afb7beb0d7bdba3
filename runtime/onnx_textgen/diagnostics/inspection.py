"""The pipeline made visible: what one prompt becomes at every stage, with the numbers of a real run.

prompt -> token ids -> embeddings -> decoder layers over the cache -> logits -> softmax -> sampling -> next token -> append.
Everything is data; the command line and the demo draw it.
"""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..inference.decoder import Decoder
from ..inference.graph_runner import Logits
from ..inference.prefill import prefill
from ..options.generation_config import GenerationConfig
from ..sampling.draw import Candidates, uniform
from ..sampling.sampler import Chooser
from ..sampling.truncation import softmax

if TYPE_CHECKING:
    from ..api.model import Model


@dataclasses.dataclass(frozen=True, slots=True)
class Token:
    """One id, and what a person reads for it."""

    id: int
    piece: str


@dataclasses.dataclass(frozen=True, slots=True)
class Candidate:
    """One of the likeliest next tokens."""

    token: Token
    logit: float
    """As the model gave it."""
    probability: float
    """Softmax of the logits as the model gave them, over the whole vocabulary."""
    cut_by: str | None
    """The filter that removed it: `top_k`, `top_p`, `min_p`, or `temperature` where that is 0; None: it could be drawn."""
    draw_probability: float
    """With which it could be drawn after the whole chain; 0 where it was cut."""


@dataclasses.dataclass(frozen=True, slots=True)
class Weighing:
    """What the sampling chain makes of a row of logits."""

    candidates: tuple[Candidate, ...]
    """Likeliest first."""
    remaining: dict[str, int]
    """How many tokens each stage of the chain left, in its order; `vocabulary` first."""
    drawn_from: Candidates
    """What the last stage left; its scores become the probabilities of the draw by softmax."""
    chosen: Token
    random_number: float | None
    """From 0 to below 1, what the token was drawn with; None at temperature 0, where nothing is drawn."""
    rule: str
    """Why this one, in words."""


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """One run of the model and the token that came of it."""

    fed: tuple[Token, ...]
    """The whole prompt in the first step, then the token before."""
    first_position: int
    """Position in the text of the first token fed."""
    cached_tokens: int
    """Tokens whose keys and values the cache holds after the run."""
    cache_shape: tuple[int, ...]
    """[rows, key/value heads, capacity in tokens, head size] of the first layer's keys; of its state, where it has no keys."""
    other_cache_shapes: tuple[tuple[int, ...], ...]
    """Those of the other keys, values and states that differ from it, each once."""
    cache_bytes: int
    """Of all layers' keys and values for the cached tokens, and of their states."""
    logits_shape: tuple[int, ...]
    candidates: tuple[Candidate, ...]
    """Likeliest first."""
    remaining: dict[str, int]
    """How many tokens each stage of the chain left, in its order; `vocabulary` first."""
    chosen: Token
    rule: str
    """Why this one, in words."""


@dataclasses.dataclass(frozen=True, slots=True)
class Inspection:
    """A prompt's way through the pipeline."""

    tokens: tuple[Token, ...]
    """The prompt's."""
    embeddings_shape: tuple[int, ...]
    """[batch, tokens, width] of the vectors that enter the first layer."""
    precision: str
    quantization: dict[str, Any]
    """How the weights were made smaller; empty where they were not."""
    proof: dict[str, Any]
    """What the certificate sums up about the package against PyTorch; empty where it does not."""
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    config: GenerationConfig
    seed: int
    steps: tuple[Step, ...]
    text: str
    """Of the tokens that were chosen."""


def inspect_steps(
    model: Model, prompt: str | Sequence[int], *, config: GenerationConfig, steps: int = 3, candidates: int = 10
) -> Inspection:
    """Run `steps` steps of generation after `prompt` and keep what each stage held; an end-of-text id ends it early.

    `config.seed` None takes a fresh seed, as `generate` does. Raises what `generate` raises.
    """
    ids = model.encode(prompt)
    seed = secrets.randbits(31) if config.seed is None else config.seed
    decoder, geometry = model.new_context(), model.manifest.geometry
    has_text = model.has_tokenizer
    chooser = Chooser(
        dataclasses.replace(config, seed=seed),
        prompt_ids=ids,
        eos_ids=model.manifest.eos_ids,
        piece=model.tokenizer.piece if has_text else None,
    )
    taken: list[Step] = []
    new_ids: list[int] = []
    while len(taken) < steps and len(ids) + len(new_ids) <= geometry.context_length:
        first = len(decoder.token_ids[0])
        logits = prefill(decoder, ids + new_ids)
        taken.append(look_at_step(model, decoder, logits, chooser, new_ids, first=first, limit=candidates))
        new_ids.append(taken[-1].chosen.id)
        if new_ids[-1] in model.manifest.eos_ids:
            break
    return Inspection(
        tokens=tuple(tokens_of(model, ids)),
        embeddings_shape=(1, len(ids), geometry.hidden_size),
        precision=model.manifest.precision,
        quantization=model.manifest.quantization,
        proof=model.manifest.summary,
        layers=geometry.layers,
        heads=geometry.heads,
        kv_heads=geometry.kv_heads,
        head_size=geometry.head_size,
        config=config,
        seed=seed,
        steps=tuple(taken),
        text=model.tokenizer.decode(new_ids) if has_text else "",
    )


def look_at_step(
    model: Model, decoder: Decoder, logits: Logits, chooser: Chooser, new_ids: list[int], *, first: int, limit: int
) -> Step:
    """Everything about the run that gave `logits` [vocabulary] for the tokens from position `first` on."""
    cache, held = decoder.cache, decoder.token_ids[0]
    shapes = dict.fromkeys(tensor.sized(decoder.rows, cache.capacity) for tensor in cache.tensors)
    weighing = weigh(model, logits, chooser, new_ids, limit=limit)
    return Step(
        fed=tuple(tokens_of(model, held[first:])),
        first_position=first,
        cached_tokens=len(held),
        cache_shape=next(iter(shapes)),
        other_cache_shapes=tuple(shapes)[1:],
        cache_bytes=sum(tensor.bytes_for(len(held)) for tensor in cache.tensors),
        logits_shape=(1, logits.size),
        candidates=weighing.candidates,
        remaining=weighing.remaining,
        chosen=weighing.chosen,
        rule=weighing.rule,
    )


def weigh(model: Model, logits: Logits, chooser: Chooser, new_ids: list[int], *, limit: int) -> Weighing:
    """What `chooser` makes of logits [vocabulary] behind `new_ids`, and what becomes of the `limit` likeliest tokens."""
    chosen = chooser.choose(logits, new_ids)
    scores = chooser.process(logits, new_ids)
    stages = [Candidates("penalties", None, scores)] if scores is not logits else []
    stages += chooser.stages(scores, new_ids)
    remaining = {one.stage: int(np.isfinite(one.scores).sum()) for one in stages}
    return Weighing(
        candidates=likeliest(model, logits, stages, limit),
        remaining={"vocabulary": logits.size, **remaining},
        drawn_from=stages[-1],
        chosen=tokens_of(model, [chosen])[0],
        random_number=None if chooser.config.temperature == 0 else uniform(chooser.place(new_ids)),
        rule=rule_of(chooser, new_ids),
    )


def likeliest(model: Model, logits: Logits, stages: list[Candidates], limit: int) -> tuple[Candidate, ...]:
    """The `limit` likeliest tokens, and what the chain does with each."""
    order = np.argsort(-logits, kind="stable")[:limit]
    probabilities, last = softmax(logits), stages[-1]
    draw = Candidates(last.stage, last.ids, softmax(last.scores))
    return tuple(
        Candidate(
            token=token,
            logit=float(logits[token.id]),
            probability=float(probabilities[token.id]),
            cut_by=next((one.stage for one in stages if score_in(one, token.id) == -np.inf), None),
            draw_probability=max(0.0, score_in(draw, token.id)),
        )
        for token in tokens_of(model, order.tolist())
    )


def score_in(left: Candidates, token_id: int) -> float:
    """The score of an id after a stage; -inf where it is not left."""
    if left.ids is None:
        return float(left.scores[token_id])
    place = int(np.searchsorted(left.ids, token_id))
    return float(left.scores[place]) if place < left.ids.size and left.ids[place] == token_id else -np.inf


def rule_of(chooser: Chooser, new_ids: list[int]) -> str:
    """How a step's token was chosen."""
    if chooser.config.temperature == 0:
        return "temperature 0: the likeliest token"
    place = chooser.place(new_ids)
    return f"drawn by its probability with the random number {uniform(place):.6f} of seed {place.seed}, step {place.step}"


def tokens_of(model: Model, ids: Sequence[int]) -> list[Token]:
    """Ids with their pieces; a model that takes and gives ids alone has none, and shows `<5>`."""
    return [Token(int(token_id), model.piece(int(token_id))) for token_id in ids]
