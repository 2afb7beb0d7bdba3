"""Generates texts for prompts and options: makes a `Continuation` for each, and runs it in the model's engine or a beam search."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..cancellation import Cancellation, CancelScope
from ..errors import OptionError, PromptError
from ..generation.beam_driver import BeamDriver, best_drawn, joined
from ..generation.continuation import Continuation, Limits
from ..generation.engine import Engine
from ..generation.own_context import stream_over
from ..generation.request import Request
from ..images.image_rows import without_images
from ..inference.decoder import Decoder
from ..inference.prefill import Progress
from ..inference.prefix_cache import PrefixStore
from ..kv_cache.memory_plan import check_fits
from ..options.generation_config import GenerationConfig
from ..options.maker_settings import SEARCH
from ..options.merging import make_generation_config
from ..results import Chunk, Generation
from ..sampling.grammar import Rules
from ..sampling.thinking import Rule
from ..speculation.draft_model import Assistant, Source
from ..speculation.drafter import RUN_COSTS, Drafter
from ..speculation.prompt_lookup import PromptLookup
from ..speculation.verification import Verification
from ..text.prompts import Prompt
from .open_model import OpenModel
from .prompt_encoder import PromptEncoder

if TYPE_CHECKING:
    from ..chat.chat_format import Turn


class TextGenerator:
    """Generates with one open model. Safe to use from several threads: their texts are decoded together."""

    def __init__(self, opened: OpenModel, encoder: PromptEncoder, prefixes: PrefixStore, *, batch_size: int) -> None:
        self.opened, self.encoder, self.prefixes = opened, encoder, prefixes
        geometry, eos_ids = opened.manifest.geometry, opened.manifest.eos_ids
        self.limits = Limits(frozenset(eos_ids), geometry.context_length, geometry.vocab_size)
        self.batch_size = batch_size
        """Most texts that are decoded together."""
        self.engine = self.new_engine()
        self.rules = Rules(opened.optional_tokenizer, vocab_size=geometry.vocab_size, eos_ids=eos_ids)
        self.verification = Verification(opened.graph, geometry, opened.weight_bytes)
        self.assistant: Source | None = None
        """The draft model, if one was loaded."""
        self.adapted: TextGenerator | None = None
        """Generates texts with adapters, once there are any: the graph without them is faster."""

    def new_engine(self) -> Engine:
        """An engine without requests."""
        encoder, prompt_engine = self.opened.encoder, self.opened.prompt_engine
        return Engine(self.opened.new_rows, self.prefixes, rows=self.batch_size, encoder=encoder, prompt_engine=prompt_engine)

    def for_adapter(self, name: str | None) -> TextGenerator:
        """Return the generator for an adapter: this one for None, else one that all adapters share; raises `OptionError`."""
        opened = self.opened.for_adapter(name)
        if opened is self.opened:
            return self
        with opened.opening:
            if self.adapted is None:
                self.adapted = TextGenerator(opened, self.encoder, self.prefixes, batch_size=self.batch_size)
            self.adapted.assistant = self.assistant
            return self.adapted

    def close(self) -> None:
        """Release the caches and the draft model; `Model.close` calls it."""
        self.prefixes.clear()
        self.engine = self.new_engine()
        self.verification = Verification(self.opened.graph, self.opened.manifest.geometry, self.opened.weight_bytes)
        self.assistant = self.adapted = None

    def config(self, options: Mapping[str, Any], *, searches: bool = False) -> GenerationConfig:
        """The options of a call: `options`, then the package's defaults; raises `OptionError`.

        searches: whether the call can be a beam search; any other leaves out the package's default of one.
        """
        self.opened.refuse_text_encoder()
        defaults = self.opened.manifest.generation
        if not searches and options.get("num_beams") is None:
            defaults = {name: value for name, value in defaults.items() if name not in SEARCH}
        config = make_generation_config(defaults, options)
        if self.assistant is None and options.get("num_assistant_tokens"):
            raise OptionError("num_assistant_tokens needs a draft model; pass assistant_model to load()")
        if (record := self.opened.manifest.encoder) is not None and record.suppressed_ids:
            suppressed = tuple((token_id,) for token_id in record.suppressed_ids)
            config = dataclasses.replace(config, bad_words_ids=(*config.bad_words_ids, *suppressed))
        return config

    def stream(
        self,
        prompt: Prompt,
        config: GenerationConfig,
        *,
        context: Decoder | None = None,
        on_progress: Callable[[Progress], None] | None = None,
        cancel: Cancellation | None = None,
    ) -> Generator[Chunk, None, None]:
        """Stream the chunks of one text; raises errors of the prompt and the options at once, not at the first chunk."""
        if context is not None and (context.graph is not self.opened.graph or context.rows != 1):
            raise OptionError(
                "this context belongs to another model, or has another adapter; take one from this model's new_context()"
            )
        if config.has_several_texts:
            raise OptionError("a stream generates one text; for more, call generate()")
        request = Request(self.begin(prompt, config), CancelScope(cancel, config.max_time), on_progress=on_progress)
        return self.engine.chunks(request) if context is None else stream_over(context, request)

    def generate(self, prompts: Sequence[Prompt], config: GenerationConfig, cancel: Cancellation | None) -> list[Generation]:
        """Generate a text for each prompt, by beam search or by drawing."""
        return (self.search if config.num_beams > 1 else self.draw)(prompts, config, cancel)

    def draw(self, prompts: Sequence[Prompt], config: GenerationConfig, cancel: Cancellation | None) -> list[Generation]:
        """Draw `config.texts` texts for each prompt as rows of the engine, and return the best as one result per prompt."""
        groups = [self.begin_samples(each, config, config.texts) for each in prompts]
        scopes = [CancelScope(cancel, config.max_time) for _ in groups]
        requests = [
            Request(text, scope, streams=False, caller=groups)
            for group, scope in zip(groups, scopes, strict=True)
            for text in group
        ]
        self.engine.finish(requests)
        compares, count = config.best_of is not None, config.num_return_sequences
        return [joined([text.result() for text in best_drawn(group, count, compares=compares)]) for group in groups]

    def search(self, prompts: Sequence[Prompt], config: GenerationConfig, cancel: Cancellation | None) -> list[Generation]:
        """Run a beam search for one prompt after the other, each with a separate decoder."""
        scope, found = CancelScope(cancel, config.max_time), list[Generation]()
        for prompt in prompts:
            continuation, decoder = self.begin(prompt, config), self.opened.new_rows(config.num_beams, config.adapter)
            self.prefixes.prepare(decoder, continuation.prompt_ids)
            found.append(BeamDriver(decoder, continuation).search(scope))
        return found

    def begin_samples(
        self, prompt: Prompt, config: GenerationConfig, count: int, *, turn: Turn | None = None
    ) -> list[Continuation]:
        """Begin `count` continuations of one prompt and one seed, with different sample numbers and no tokens yet."""
        first = self.begin(prompt, config, turn=turn)
        others = (
            self.begin(first.source_ids or first.prompt_ids, first.config, sample=sample, turn=turn, first=first)
            for sample in range(1, count)
        )
        return [first, *others]

    def begin(
        self,
        prompt: Prompt,
        config: GenerationConfig,
        *,
        sample: int = 0,
        turn: Turn | None = None,
        first: Continuation | None = None,
        source_ids: Sequence[int] | None = None,
    ) -> Continuation:
        """Begin a continuation of `prompt`, with no token yet; draws a seed if the caller gave none.

        `turn`: the answer of a chat that it is, which may have to follow a rule besides the options. `first`: another sample of the
        same, with no token yet, whose rule this one gets too. `source_ids`: what the encoder reads, if the prompt begins its text.

        Raises `PromptError`, and `OptionError` for options that this model cannot follow or that need too much memory.
        """
        if config.seed is None:
            config = dataclasses.replace(config, seed=secrets.randbits(31))
        self.encoder.check_options(config)
        if source_ids is None:
            source_ids, prompt_ids = self.source_and_prompt(prompt, config)
        else:
            prompt_ids = self.encoder.encode(prompt)
        rows = config.num_beams if config.num_beams > 1 else min(config.texts, self.batch_size)
        longest = self.limits.longest(len(prompt_ids), config.max_new_tokens)
        wanted = self.opened.memory(longest, rows, source_tokens=len(source_ids))
        self.prefixes.make_room(wanted)
        check_fits(wanted)
        constraint: Rule | None
        if first is not None:
            constraint = None if first.constraint is None else first.constraint.fork()
        else:
            constraint = self.rules.constraint(config) if turn is None else turn.rule(self.rules, config)
        drafter, verifier = self.drafter(without_images(prompt_ids), config, sample), None
        if drafter is not None and config.draft_verification == "exact":
            verifier = self.verification.verifier() if drafter.length else None
            drafter = None if verifier is None else drafter
        made = Continuation(
            self.opened.optional_tokenizer if turn is None else turn.tokenizer,
            prompt_ids,
            config,
            self.limits,
            sample=sample,
            constraint=constraint,
            drafter=drafter,
            verifier=verifier,
            source_ids=source_ids,
        )
        if self.opened.images is not None:
            made.images = self.opened.images.rows.of(prompt_ids)
        return made

    def source_and_prompt(self, prompt: Prompt, config: GenerationConfig) -> tuple[list[int], list[int]]:
        """Return what the encoder reads and what the text continues; a decoder reads no source and continues the prompt."""
        needed = config.max_new_tokens if config.context_limit == "error" else 1
        if self.opened.manifest.encoder is not None:
            if self.opened.manifest.speech is not None and isinstance(prompt, str):
                raise PromptError(f"{self.opened.manifest.name} reads sound; give a file to transcribe")
            begin = self.encoder.start_ids(config.tgt_lang)
            return self.encoder.encode_source(prompt, config.src_lang), self.encoder.encode(begin, new_tokens=needed)
        if config.src_lang is not None or config.tgt_lang is not None:
            raise OptionError("src_lang and tgt_lang are for encoder-decoders with many languages; leave them out")
        return [], self.encoder.encode(prompt, new_tokens=needed)

    def drafter(self, prompt_ids: Sequence[int], config: GenerationConfig, sample: int) -> Drafter | None:
        """The drafter of a text: prompt lookup, the draft model, or None."""
        if config.has_several_texts:
            return None
        if config.prompt_lookup_num_tokens:
            most, longest = config.prompt_lookup_num_tokens, config.max_matching_ngram_size
            return PromptLookup(prompt_ids, most, longest, run_cost=RUN_COSTS[config.draft_verification])
        if self.assistant is None or not config.num_assistant_tokens:
            return None
        tokenizer = self.opened.optional_tokenizer
        piece = tokenizer.piece if tokenizer is not None else None
        vocab_size, eos_ids = self.limits.vocab_size, self.limits.eos_ids
        return Assistant(self.assistant, prompt_ids, config, vocab_size=vocab_size, eos_ids=eos_ids, piece=piece, sample=sample)
