"""Records what one prompt becomes at every stage of the pipeline, with the numbers of a real run.

prompt -> token ids -> embeddings -> decoder layers over the cache -> logits -> softmax -> sampling -> next token -> append.
An encoder-decoder reads the prompt as its source, and the steps are those of the text that it writes.
The records are data; the command line and the demo show them.
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
from ..sampling.draw import Candidates, truncate, uniform
from ..sampling.sampler import Chooser
from ..sampling.truncation import softmax

if TYPE_CHECKING:
    from ..api.model import Model


@dataclasses.dataclass(frozen=True, slots=True)
class Token:
    """One id and its piece, the text that a person reads."""

    id: int
    piece: str


@dataclasses.dataclass(frozen=True, slots=True)
class Candidate:
    """One of the most likely next tokens."""

    token: Token
    logit: float
    """The model's logit, before the chain."""
    probability: float
    """Softmax of the model's logits over the whole vocabulary."""
    cut_by: str | None
    """The stage that removed the token: `top_k`, `top_p`, `min_p`, or `temperature` if that is 0; None: it can be drawn."""
    draw_probability: float
    """The probability of the token in the draw after the whole chain; 0 if a stage removed it."""


@dataclasses.dataclass(frozen=True, slots=True)
class SamplingInspection:
    """Steps of the sampling chain on a row of logits."""

    candidates: tuple[Candidate, ...]
    """Most likely first."""
    remaining: dict[str, int]
    """Number of tokens that each stage of the chain keeps, in its order; `vocabulary` first."""
    drawn_from: Candidates
    """The candidates after the last stage; softmax of their scores gives the probabilities of the draw."""
    chosen: Token
    random_number: float | None
    """The random number of the draw, from 0 to below 1; None at temperature 0, which draws nothing."""
    rule: str
    """How the token was chosen, in words."""


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """One run of the model and the token chosen after it."""

    fed: tuple[Token, ...]
    """The whole prompt in the first step, then the token of the step before."""
    first_position: int
    """Position in the text of the first token fed."""
    cached_tokens: int
    """Tokens whose keys and values the cache holds after the run."""
    cache_shape: tuple[int, ...]
    """[rows, key/value heads, capacity in tokens, head size] of the first layer's keys; of its state, if it has no keys."""
    other_cache_shapes: tuple[tuple[int, ...], ...]
    """The different shapes among the other keys, values and states, each once."""
    cache_bytes: int
    """Bytes of all layers' keys and values for the cached tokens, and of their states."""
    logits_shape: tuple[int, ...]
    candidates: tuple[Candidate, ...]
    """Most likely first."""
    remaining: dict[str, int]
    """Number of tokens that each stage of the chain keeps, in its order; `vocabulary` first."""
    chosen: Token
    rule: str
    """How the token was chosen, in words."""


@dataclasses.dataclass(frozen=True, slots=True)
class Inspection:
    """The stages of the pipeline for one prompt."""

    source: tuple[Token, ...]
    """Tokens of the source that an encoder-decoder has read; empty for a decoder."""
    tokens: tuple[Token, ...]
    """Tokens of the prompt; of an encoder-decoder those that every text begins with."""
    embeddings_shape: tuple[int, ...]
    """[batch, tokens, width] of the vectors that enter the first layer; in an encoder-decoder that of the encoder."""
    precision: str
    quantization: dict[str, Any]
    """How the weights were quantised; empty if they were not."""
    proof: dict[str, Any]
    """The summary of the certificate, which compares the package with PyTorch; empty if there is none."""
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    config: GenerationConfig
    seed: int
    steps: tuple[Step, ...]
    text: str
    """Text of the chosen tokens."""


def inspect_steps(
    model: Model, prompt: str | Sequence[int], *, config: GenerationConfig, steps: int = 3, candidates: int = 10
) -> Inspection:
    """Run `steps` steps of generation after `prompt` and record each stage; an end-of-text id ends it early.

    As for `generate`, the prompt of an encoder-decoder is the source, and a `config.seed` of None draws a new seed. `candidates`:
    number of most likely tokens to record per step. Raises what `generate` raises.
    """
    source_ids, ids = source_and_beginning(model, prompt, config)
    seed = secrets.randbits(31) if config.seed is None else config.seed
    decoder, geometry = context_after(model, source_ids), model.manifest.geometry
    has_text = model.generator.opened.has_tokenizer
    chooser = Chooser(
        dataclasses.replace(config, seed=seed),
        prompt_ids=ids,
        eos_ids=model.manifest.eos_ids,
        piece=model.tokenizer.piece if has_text else None,
    )
    done: list[Step] = []
    new_ids: list[int] = []
    while len(done) < steps and len(ids) + len(new_ids) <= geometry.context_length:
        first = len(decoder.token_ids[0])
        logits = prefill(decoder, ids + new_ids)
        done.append(inspect_step(model, decoder, logits, chooser, new_ids, first=first, limit=candidates))
        new_ids.append(done[-1].chosen.id)
        if new_ids[-1] in model.manifest.eos_ids:
            break
    return Inspection(
        source=tuple(tokens_of(model, source_ids)),
        tokens=tuple(tokens_of(model, ids)),
        embeddings_shape=(1, len(source_ids or ids), geometry.hidden_size),
        precision=model.manifest.precision,
        quantization=model.manifest.quantization,
        proof=model.manifest.summary,
        layers=geometry.layers,
        heads=geometry.heads,
        kv_heads=geometry.kv_heads,
        head_size=geometry.head_size,
        config=config,
        seed=seed,
        steps=tuple(done),
        text=model.tokenizer.decode(new_ids) if has_text else "",
    )


def source_and_beginning(model: Model, prompt: str | Sequence[int], config: GenerationConfig) -> tuple[list[int], list[int]]:
    """Return what an encoder-decoder reads and what its text begins with; for a decoder nothing and the prompt."""
    if model.manifest.encoder is None:
        return [], model.encode(prompt)
    encoder = model.generator.encoder
    return encoder.encode_source(prompt, config.src_lang), encoder.start_ids(config.tgt_lang)


def context_after(model: Model, source_ids: Sequence[int]) -> Decoder:
    """An empty decoder, which has read the source if there is one."""
    decoder = model.new_context()
    if source_ids:
        decoder.read_source(source_ids)
    return decoder


def inspect_step(
    model: Model, decoder: Decoder, logits: Logits, chooser: Chooser, new_ids: list[int], *, first: int, limit: int
) -> Step:
    """Record the last run of `decoder`, which fed the tokens from position `first` on and returned `logits` [vocabulary]."""
    cache, cached_ids = decoder.cache, decoder.token_ids[0]
    shapes = dict.fromkeys(tensor.sized(decoder.rows, tensor.held(cache.capacity)) for tensor in cache.tensors)
    sampling = inspect_sampling(model, logits, chooser, new_ids, limit=limit)
    return Step(
        fed=tuple(tokens_of(model, cached_ids[first:])),
        first_position=first,
        cached_tokens=len(cached_ids),
        cache_shape=next(iter(shapes)),
        other_cache_shapes=tuple(shapes)[1:],
        cache_bytes=sum(tensor.bytes_for(len(cached_ids)) for tensor in cache.tensors),
        logits_shape=(1, logits.size),
        candidates=sampling.candidates,
        remaining=sampling.remaining,
        chosen=sampling.chosen,
        rule=sampling.rule,
    )


def inspect_sampling(model: Model, logits: Logits, chooser: Chooser, new_ids: list[int], *, limit: int) -> SamplingInspection:
    """Record how `chooser` samples from logits [vocabulary] after `new_ids`, with the `limit` most likely tokens."""
    chosen = chooser.choose(logits, new_ids)
    scores = chooser.process(logits, new_ids)
    stages = [Candidates("penalties", None, scores)] if scores is not logits else []
    stages += truncate(scores, chooser.config)
    remaining = {one.stage: int(np.isfinite(one.scores).sum()) for one in stages}
    return SamplingInspection(
        candidates=most_likely(model, logits, stages, limit),
        remaining={"vocabulary": logits.size, **remaining},
        drawn_from=stages[-1],
        chosen=tokens_of(model, [chosen])[0],
        random_number=None if chooser.config.temperature == 0 else uniform(chooser.place(new_ids)),
        rule=rule_of(chooser, new_ids),
    )


def most_likely(model: Model, logits: Logits, stages: list[Candidates], limit: int) -> tuple[Candidate, ...]:
    """The `limit` most likely tokens, and what the stages of the chain do with each."""
    order = np.argsort(-logits, kind="stable")[:limit]
    probabilities, last = softmax(logits), stages[-1]
    draw = Candidates(last.stage, last.ids, softmax(last.scores))
    return tuple(
        Candidate(
            token=token,
            logit=float(logits[token.id]),
            probability=float(probabilities[token.id]),
            cut_by=next((one.stage for one in stages if score_of(token.id, one) == -np.inf), None),
            draw_probability=max(0.0, score_of(token.id, draw)),
        )
        for token in tokens_of(model, order.tolist())
    )


def score_of(token_id: int, left: Candidates) -> float:
    """The score of an id after a stage; -inf if the id is not among its candidates."""
    if left.ids is None:
        return float(left.scores[token_id])
    index = int(np.searchsorted(left.ids, token_id))
    return float(left.scores[index]) if index < left.ids.size and left.ids[index] == token_id else -np.inf


def rule_of(chooser: Chooser, new_ids: list[int]) -> str:
    """How a step's token was chosen, in words."""
    if chooser.config.temperature == 0:
        return "temperature 0: the most likely token"
    place = chooser.place(new_ids)
    return f"drawn by its probability with the random number {uniform(place):.6f} of seed {place.seed}, step {place.step}"


def tokens_of(model: Model, ids: Sequence[int]) -> list[Token]:
    """Ids with their pieces; without a tokenizer the piece is the id, as in `<5>`."""
    return [Token(int(token_id), model.generator.opened.piece(int(token_id))) for token_id in ids]
