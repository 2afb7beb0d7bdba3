"""Prompt in, text out: the model a user holds."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import secrets
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn, Self, Unpack, cast, get_args, overload

import numpy as np

from ..backends.onnxruntime_session import Session, open_session
from ..backends.protocol import ClosedGraph, Graph
from ..backends.signature import HIDDEN_STATES, LOGITS, CacheTensor
from ..cancellation import Cancellation, Watch
from ..errors import OptionError, PackageError, PromptError, TemplateError
from ..files.graph_file import refuse_other_files
from ..generation.async_bridge import call, iterate
from ..generation.beam_driver import BeamDriver, best_drawn, joined
from ..generation.continuation import Continuation, Limits
from ..generation.engine import ROWS, Engine
from ..generation.own_context import stream_over
from ..generation.request import Request
from ..inference.attention_maps import AttentionMaps, read_maps
from ..inference.decoder import Decoder
from ..inference.embeddings import Pooling, Vectors, pooled
from ..inference.prefill import Progress
from ..inference.prefix_cache import PrefixStore
from ..inference.scoring import score_tokens, split_pair
from ..kv_cache.memory_plan import MemoryPlan, check_fits, plan
from ..options.checks import shown, whole_number
from ..options.generation_config import MOST_ALTERNATIVES, GenerationConfig, Options, make_generation_config
from ..package.integrity import check_files, package_digest
from ..package.manifest import ATTENTION_GRAPH, GRAPH, TOKENIZER, Manifest
from ..results import Choice, Chunk, Generation, Score
from ..sampling.grammar import Rules
from ..speculation.draft_model import Assistant, Source
from ..speculation.drafter import RUN_COSTS, Drafter
from ..speculation.prompt_lookup import PromptLookup
from ..speculation.verification import Verification
from ..text.chat_template import render_chat
from ..text.prompts import Prompt, is_batch, read_token_ids
from ..text.tokenizer import TextTokenizer
from .conversation import Conversation

MOST_ROWS = 256
PREFIX_CACHE = 256 * 2**20
"""Bytes of keys and values kept from earlier calls, unless the caller says otherwise."""
CHARACTERS_PER_TOKEN = 256
"""No tokenizer makes fewer tokens than one per so many characters; a longer prompt is refused before it is tokenized."""


class Model:
    """A model folder at work. Safe to use from several threads: their texts go on together, one step of the graph for all."""

    def __init__(
        self,
        folder: Path,
        manifest: Manifest,
        session: Graph,
        *,
        chat_template: str | None,
        capacity: int | None = None,
        prefix_cache: int = PREFIX_CACHE,
        batch_size: int = ROWS,
        graph_name: str = GRAPH,
    ) -> None:
        self.folder, self.manifest, self.graph, self.chat_template = folder, manifest, session, chat_template
        self.graph_name = graph_name
        self.capacity = capacity
        self.prefixes = PrefixStore(prefix_cache)
        self.engine = Engine(self.new_rows, self.prefixes, rows=batch_size)
        self.limits = Limits(frozenset(manifest.eos_ids), manifest.geometry.context_length, manifest.geometry.vocab_size)
        self._tokenizer = (
            TextTokenizer.from_file(folder / TOKENIZER, sha256=listed.sha256, eos_ids=manifest.eos_ids, bos_id=manifest.bos_id)
            if (listed := manifest.files.get(TOKENIZER)) is not None
            else None
        )

        self.rules = Rules(self._tokenizer, vocab_size=manifest.geometry.vocab_size, eos_ids=manifest.eos_ids)
        self.verification = Verification(session, manifest.geometry)
        self.assistant: Source | None = None
        """A smaller model that guesses the next tokens; `loading` sets it."""

    def __repr__(self) -> str:
        context, place = self.limits.context_length, "closed" if isinstance(self.graph, ClosedGraph) else f"on {self.device}"
        return f"<onnx_textgen.Model {self.manifest.name!r}: {self.manifest.precision}, context of {context:,} tokens, {place}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the graph, its weights and all keys and values now, not when Python gets around to it; safe to call twice.

        What computes raises `ModelError` from then on; call it when no text is under way. Sessions that are still held keep the
        graph open. `with load() as model:` closes at its end.
        """
        self.graph = cast("Graph", ClosedGraph())
        self.verification, self.assistant = Verification(self.graph, self.manifest.geometry), None
        self.prefixes.clear()
        self.engine = Engine(self.new_rows, self.prefixes, rows=self.engine.scheduler.most_rows)
        for opened in ("cache_tensors", "attention_graph"):
            self.__dict__.pop(opened, None)

    @property
    def has_tokenizer(self) -> bool:
        """Whether the package has one; without it a model takes and gives token ids."""
        return self._tokenizer is not None

    @property
    def tokenizer(self) -> TextTokenizer:
        """The package's tokenizer; raises `PackageError` where it has none and works on token ids only."""
        if self._tokenizer is None:
            raise PackageError(
                f"{self.folder} has no {TOKENIZER}, so it takes and gives token ids; export it again with --tokenizer"
            )
        return self._tokenizer

    def piece(self, token_id: int) -> str:
        """What one id stands for, to a person; `<5>` where the package has no tokenizer."""
        return f"<{token_id}>" if self._tokenizer is None else self._tokenizer.piece(token_id)

    @property
    def device(self) -> str:
        """Where it runs: `cpu` or `cuda:0`."""
        return str(self.graph.device)

    def new_context(self, *, output: str = LOGITS) -> Decoder:
        """An empty cache; pass the same one to several `stream` calls to keep what they share."""
        return Decoder(self.graph, self.manifest.geometry, capacity=self.capacity, output=output)

    def session(self) -> Conversation:
        """An empty session: a text or a chat that is appended to and generated from, taken back, forked and saved.

        >>> session = load().session()
        >>> session.append("Once upon a time")
        >>> session.generate(max_new_tokens=3, temperature=0).finish_reason
        'length'
        """
        return Conversation(self)

    def load_session(self, path: str | Path) -> Conversation:
        """A session that `Conversation.save` wrote; raises `PackageError` for a file of another model, or none at all."""
        return Conversation.load(self, path)

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"an open model cannot be pickled or copied; open {self.folder} where it is wanted: onnx_textgen.load(...)")

    @functools.cached_property
    def digest(self) -> str:
        """What tells this graph and its weights from any other: a sha256 of their own. Files without a hash are read for it."""
        return package_digest(self.folder, self.manifest, self.graph_name)

    def memory(self, tokens: int | None = None, batch: int = 1) -> MemoryPlan:
        """What keys and values of so many tokens take (default: a full context), in so many texts at once."""
        most = self.limits.context_length
        length = most if tokens is None else whole_number("tokens", tokens, 0, most)
        return plan(self.cache_tensors, length, whole_number("batch", batch, 1))

    @functools.cached_property
    def cache_tensors(self) -> tuple[CacheTensor, ...]:
        """All that the graph carries from run to run."""
        return self.graph.cache_tensors

    def new_rows(self, rows: int) -> Decoder:
        """An empty decoder of several rows."""
        return Decoder(self.graph, self.manifest.geometry, rows=rows, capacity=self.capacity)

    def encode_chat(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Token ids of a chat, through the model's template, up to where the next answer begins; checked as `encode` does.

        Raises `TemplateError` where there is no template, or it refuses the messages.
        """
        if self.chat_template is None:
            raise TemplateError(f"{self.manifest.name} has no chat template; give it a plain text")
        bos_id, ends, piece = self.manifest.bos_id, self.manifest.eos_ids, self.tokenizer.piece
        text = render_chat(
            self.chat_template,
            messages,
            bos_token="" if bos_id is None else piece(bos_id),
            eos_token=piece(ends[0]) if ends else "",
        )
        self.check_characters(text)
        return self.encode(self.tokenizer.encode(text, add_special_tokens=False))  # the template has written the special ones

    def encode(self, prompt: Prompt, *, new_tokens: int = 1, any_length: bool = False) -> list[int]:
        """One prompt's token ids, checked: not empty, inside the vocabulary, with room for `new_tokens` more."""
        context = self.limits.context_length
        if isinstance(prompt, str):
            if not prompt:
                begin = f" or the begin token alone: [{self.manifest.bos_id}]" if self.manifest.bos_id is not None else ""
                raise PromptError(f"the prompt is empty; give some text{begin}")
            if not any_length:
                self.check_characters(prompt)
            ids = self.tokenizer.encode(prompt)
        else:
            ids = read_token_ids(prompt)
        self.check_vocabulary(ids)
        if len(ids) + new_tokens > context and not any_length:
            most = context - new_tokens
            raise PromptError(f"the prompt has {len(ids):,} tokens; this model takes {most:,} at most. Shorten it")
        return ids

    def check_vocabulary(self, ids: Sequence[int]) -> None:
        """Raise `PromptError` where one of the ids stands for no row of logits."""
        size = self.limits.vocab_size
        if wrong := [i for i in ids if not 0 <= i < size]:
            raise PromptError(f"token id {shown(wrong[0])} is outside the vocabulary; ids go from 0 to {size - 1}")

    def check_characters(self, text: str) -> None:
        """Raise `PromptError` for a text so long that it need not be tokenized to know."""
        if len(text) > (context := self.limits.context_length) * CHARACTERS_PER_TOKEN:
            raise PromptError(f"the prompt has {len(text):,} characters; this model takes {context:,} tokens. Shorten it")

    def config(self, options: Mapping[str, Any]) -> GenerationConfig:
        """The call's options over the package's defaults; raises `OptionError`."""
        config = make_generation_config(self.manifest.generation, options)
        if self.assistant is None and options.get("num_assistant_tokens"):
            raise OptionError("num_assistant_tokens cannot take effect without a model to guess; give load() an assistant_model")
        return config

    def stream(
        self,
        prompt: Prompt,
        *,
        context: Decoder | None = None,
        on_progress: Callable[[Progress], None] | None = None,
        cancel: Cancellation | None = None,
        **options: Unpack[Options],
    ) -> Generator[Chunk, None, None]:
        """Generate one chunk per token; closing the iterator stops the work.

        `options` are those of `GenerationConfig`, checked at once, not at the first chunk. `context` keeps the cache between
        calls: the tokens a new prompt shares with the last one are not computed again. `on_progress` is told after each part of a
        long prompt. `cancel` ends the text from another thread. Raises `PromptError` and `OptionError`; the latter also later,
        where another stream used the same context in between.

        >>> for chunk in load().stream("Once upon a time", max_new_tokens=3):
        ...     print(chunk.text, end="")
        """
        if context is not None and (context.session is not self.graph or context.rows != 1):
            raise OptionError("this context belongs to another model; take one from this model's new_context()")
        config = self.config(options)
        if config.gives_several:
            raise OptionError("a stream gives one text while it is written; call generate() to search or draw several")
        continuation = self.begin(prompt, config)
        watch = Watch(cancel, config.max_time)
        request = Request(continuation, watch, on_progress=on_progress)
        return self.engine.chunks(request) if context is None else stream_over(context, request)

    @overload
    def generate(
        self, prompt: str | Sequence[int], *, cancel: Cancellation | None = None, **options: Unpack[Options]
    ) -> Generation: ...

    @overload
    def generate(
        self, prompt: list[str] | list[list[int]], *, cancel: Cancellation | None = None, **options: Unpack[Options]
    ) -> list[Generation]: ...

    def generate(
        self,
        prompt: Prompt | list[str] | list[list[int]],
        *,
        cancel: Cancellation | None = None,
        **options: Unpack[Options],
    ) -> Generation | list[Generation]:
        """Generate a whole text; a list of prompts gives a list of texts, computed side by side.

        `options` are those of `GenerationConfig`. The same prompt and seed give the same text alone, in any row of a list, and
        streamed. `cancel` ends the texts from another thread, and gives what there is. Raises `PromptError` and `OptionError`.
        """
        config, prompts = self.config(options), prompt if is_batch(prompt) else [prompt]
        write = self.search if config.num_beams > 1 else self.draw
        found = write(prompts, config, cancel)  # type: ignore[arg-type]
        return found if is_batch(prompt) else found[0]

    @overload
    async def agenerate(
        self, prompt: str | Sequence[int], *, cancel: Cancellation | None = ..., **options: Unpack[Options]
    ) -> Generation: ...

    @overload
    async def agenerate(
        self, prompt: list[str] | list[list[int]], *, cancel: Cancellation | None = ..., **options: Unpack[Options]
    ) -> list[Generation]: ...

    async def agenerate(
        self,
        prompt: Prompt | list[str] | list[list[int]],
        *,
        cancel: Cancellation | None = None,
        **options: Unpack[Options],
    ) -> Generation | list[Generation]:
        """`generate` for asyncio: the event loop goes on meanwhile. Cancelling the task ends the work, as `cancel` does."""
        own = Cancellation(cancel)  # others may share the caller's, which the end of this call must not cancel
        return await call(lambda: self.generate(prompt, cancel=own, **options), own)

    async def astream(
        self, prompt: Prompt, *, cancel: Cancellation | None = None, **options: Unpack[Options]
    ) -> AsyncGenerator[Chunk, None]:
        """`stream` for asyncio: `async for chunk in model.astream(...)`; leaving it, or cancelling the task, ends the work."""
        own = Cancellation(cancel)
        async with contextlib.aclosing(iterate(lambda: self.stream(prompt, cancel=own, **options), own)) as chunks:
            async for chunk in chunks:
                yield chunk

    def draw(self, prompts: Sequence[Prompt], config: GenerationConfig, cancel: Cancellation | None) -> list[Generation]:
        """For each prompt a text, or the best of several, all of them rows of the engine."""
        groups = [self.begin_samples(each, config, config.texts) for each in prompts]
        watches = [Watch(cancel, config.max_time) for _ in groups]
        requests = [
            Request(text, watch, streams=False, caller=groups)
            for group, watch in zip(groups, watches, strict=True)
            for text in group
        ]
        self.engine.finish(requests)
        compares, count = config.best_of is not None, config.num_return_sequences
        return [joined([text.result() for text in best_drawn(group, count, compares=compares)]) for group in groups]

    def search(self, prompts: Sequence[Prompt], config: GenerationConfig, cancel: Cancellation | None) -> list[Generation]:
        """For each prompt what a beam search finds, the best text first."""
        watch, found = Watch(cancel, config.max_time), list[Generation]()
        for prompt in prompts:
            continuation, decoder = self.begin(prompt, config), self.new_rows(config.num_beams)
            self.prefixes.prepare(decoder, continuation.prompt_ids)
            found.append(BeamDriver(decoder, continuation).search(watch))
        return found

    def begin_samples(self, prompt: Prompt, config: GenerationConfig, count: int) -> list[Continuation]:
        """So many texts of one prompt and one seed, which differ in their sample number; none has a token yet."""
        first = self.begin(prompt, config)
        return [first, *(self.begin(first.prompt_ids, first.config, sample=sample) for sample in range(1, count))]

    def begin(self, prompt: Prompt, config: GenerationConfig, *, sample: int = 0) -> Continuation:
        """A continuation of `prompt` that has no token yet; a seed is drawn here where the caller gave none."""
        if config.seed is None:
            config = dataclasses.replace(config, seed=secrets.randbits(31))
        if config.stop and self._tokenizer is None:
            raise OptionError("stop strings need a tokenizer, which this package does not have; stop by max_new_tokens")
        self.check_ids(config)
        needed = config.max_new_tokens if config.context_limit == "error" else 1
        prompt_ids = self.encode(prompt, new_tokens=needed)
        rows = config.num_beams if config.num_beams > 1 else min(config.texts, self.engine.scheduler.most_rows)
        check_fits(self.memory(self.limits.longest(len(prompt_ids), config.max_new_tokens), rows))
        constraint = self.rules.constraint(config)
        drafter, verifier = self.drafter(prompt_ids, config, sample), None
        if drafter is not None and config.draft_verification == "exact":
            verifier = self.verification.verifier() if drafter.length else None
            drafter = None if verifier is None else drafter
        continuation = Continuation(
            self._tokenizer,
            prompt_ids,
            config,
            self.limits,
            sample=sample,
            constraint=constraint,
            drafter=drafter,
            verifier=verifier,
        )
        if config.context_limit == "shift" and continuation.kept_tokens > (most := self.limits.context_length // 2):
            raise OptionError(
                f"n_keep keeps {continuation.kept_tokens:,} tokens; at most half of the context, {most:,}, can be kept"
            )
        return continuation

    def drafter(self, prompt_ids: Sequence[int], config: GenerationConfig, sample: int) -> Drafter | None:
        """What guesses the next tokens of a text, if anything does."""
        if config.gives_several:
            return None
        if config.prompt_lookup_num_tokens:
            most, longest = config.prompt_lookup_num_tokens, config.max_matching_ngram_size
            return PromptLookup(prompt_ids, most, longest, run_cost=RUN_COSTS[config.draft_verification])
        if self.assistant is None or not config.num_assistant_tokens:
            return None
        piece = self._tokenizer.piece if self._tokenizer is not None else None
        vocab_size, eos_ids = self.limits.vocab_size, self.limits.eos_ids
        return Assistant(self.assistant, prompt_ids, config, vocab_size=vocab_size, eos_ids=eos_ids, piece=piece, sample=sample)

    def check_ids(self, config: GenerationConfig) -> None:
        """Raise `OptionError` where an option names an id outside the vocabulary."""
        named = {
            "logit_bias": [token_id for token_id, _ in config.logit_bias],
            "suppress_tokens": config.suppress_tokens,
            "bad_words_ids": [token_id for each in config.bad_words_ids for token_id in each],
        }
        for name, ids in named.items():
            if ids and max(ids) >= (size := self.limits.vocab_size):
                raise OptionError(
                    f"{name} names id {shown(max(ids))}, which is outside the vocabulary; ids go from 0 to {size - 1}"
                )

    @overload
    def score(
        self,
        text: str | Sequence[int],
        *,
        continuation: str | Sequence[int] | None = ...,
        logprobs: int = ...,
        stride: int | None = ...,
        cancel: Cancellation | None = ...,
    ) -> Score: ...

    @overload
    def score(
        self,
        text: list[str] | list[list[int]],
        *,
        logprobs: int = ...,
        stride: int | None = ...,
        cancel: Cancellation | None = ...,
    ) -> list[Score]: ...

    def score(
        self,
        text: Prompt | list[str] | list[list[int]],
        *,
        continuation: str | Sequence[int] | None = None,
        logprobs: int = 0,
        stride: int | None = None,
        cancel: Cancellation | None = None,
    ) -> Score | list[Score]:
        """Log-probabilities of a text (or of token ids) under the model, or of a list of them.

        With a `continuation` the text is a prompt, and the score tells where it ends. `logprobs` gives so many of the likeliest
        tokens at each place. A text longer than the context needs a `stride`, see `scoring.score_tokens`. Raises `PromptError`,
        and `InterruptedRunError` where `cancel` ends it from another thread.

        >>> model = load()
        >>> model.score("The cat", continuation=" sat").continuation_logprobs  # doctest: +SKIP
        (-3.2,)
        """
        count = whole_number("logprobs", logprobs, 0, MOST_ALTERNATIVES)
        if stride is not None:
            stride = whole_number("stride", stride, 1)
        if is_batch(text):
            if continuation is not None:
                raise OptionError("a list of texts takes no continuation; score the pairs one by one")
            return [self.score_one(each, None, count, stride, cancel) for each in text]  # type: ignore[arg-type]
        return self.score_one(text, continuation, count, stride, cancel)  # type: ignore[arg-type]

    def score_one(
        self,
        text: Prompt,
        continuation: str | Sequence[int] | None,
        count: int,
        stride: int | None,
        cancel: Cancellation | None,
    ) -> Score:
        """One text's score."""
        ids, prompt_tokens = self.encode_pair(text, continuation, any_length=stride is not None)
        context, watch = self.new_context(), Watch(cancel)
        with watch.active():
            values, alternatives = score_tokens(context, ids, stride=stride, alternatives=count, piece=self.piece, watch=watch)
        whole = text + continuation if isinstance(text, str) and isinstance(continuation, str) else text
        if not isinstance(whole, str) and self._tokenizer is None:
            size = None
        else:
            size = len((whole if isinstance(whole, str) else self.tokenizer.decode(ids)).encode())
        return Score(tuple(ids), values, size, alternatives, prompt_tokens)

    def encode_pair(
        self, text: Prompt, continuation: str | Sequence[int] | None, *, any_length: bool = False
    ) -> tuple[list[int], int]:
        """Token ids of a text and its continuation, and how many are the text's, where there is a continuation."""
        if continuation is None:
            return self.encode(text, new_tokens=0, any_length=any_length), 0
        if isinstance(text, str) != isinstance(continuation, str):
            raise PromptError("prompt and continuation are one text and one list of ids; give both as text, or both as ids")
        if isinstance(text, str) and isinstance(continuation, str):
            self.encode(text + continuation, new_tokens=0, any_length=any_length)
            return split_pair(self.tokenizer.encode, text, continuation)
        prompt_ids = self.encode(text, new_tokens=0, any_length=any_length)
        return self.encode([*prompt_ids, *read_token_ids(continuation)], new_tokens=0, any_length=any_length), len(prompt_ids)

    @overload
    def embed(self, text: str | Sequence[int], *, pooling: Pooling = ..., normalize: bool = ...) -> Vectors: ...

    @overload
    def embed(self, text: list[str] | list[list[int]], *, pooling: Pooling = ..., normalize: bool = ...) -> Vectors: ...

    def embed(self, text: Prompt | list[str] | list[list[int]], *, pooling: Pooling = "mean", normalize: bool = True) -> Vectors:
        """A text as one vector [width], or a list of texts as vectors [texts, width]: hidden states of its tokens, float32.

        `pooling`: their mean, or the last token's, which alone has seen the whole text; a model trained to embed says which.
        `normalize` makes vectors of length 1. Raises `PackageError` for a package without hidden states, and `PromptError`.

        >>> load().embed("A dog.")  # doctest: +SKIP
        array([0.02, -0.11, ...], dtype=float32)
        """
        if not isinstance(pooling, str) or pooling not in get_args(Pooling):
            raise OptionError(f"pooling should be one of {', '.join(map(repr, get_args(Pooling)))}, found {shown(pooling)}")
        if self.graph.name_of(HIDDEN_STATES) not in self.graph.outputs:
            raise PackageError(f"{self.folder} gives no hidden states to embed by; export it again with --hidden-states")
        texts = [self.encode(each, new_tokens=0) for each in (text if is_batch(text) else [text])]  # type: ignore[arg-type]
        vectors = np.stack([pooled(self.new_context(output=HIDDEN_STATES), ids, pooling) for ids in texts])
        if normalize:
            vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.finfo(np.float32).tiny)
        return vectors if is_batch(text) else vectors[0]

    @property
    def has_attention_maps(self) -> bool:
        """Whether the package was exported with what `attentions` needs."""
        return ATTENTION_GRAPH in self.manifest.files

    @functools.cached_property
    def attention_graph(self) -> Session:
        """The graph that gives attention, opened when it is first asked for; its files are checked again, as time has passed.

        It runs on the CPU: ONNX Runtime's attention on CUDA gives no weights after softmax (microsoft/onnxruntime#28351).
        """
        if not self.has_attention_maps:
            raise PackageError(f"{self.folder} has no attention maps; export it again with --attention-maps")
        graph = self.folder / ATTENTION_GRAPH
        check_files(self.folder, self.manifest)
        refuse_other_files(graph, self.manifest.files)
        return open_session(graph, device="cpu", threads=self.graph.threads)

    def attentions(self, text: Prompt, *, last: int | None = None) -> AttentionMaps:
        """How much each token of a text (or of token ids) looks at each one before it, in every layer and head.

        `weights` is float32 [layers, heads, tokens, tokens]: shares from 0 to 1, a row for each token that looks. `last` gives
        the rows of the last so many tokens alone, [layers, heads, last, tokens]. Raises `PackageError` for a package that was not
        exported with `--attention-maps`, and `PromptError`, also for a text whose maps take more than 256 MiB.

        >>> maps = load().attentions("The dog ran")
        >>> maps.weights.shape, maps.pieces
        ((6, 5, 4, 4), ('<s>', 'The', ' dog', ' ran'))
        """
        rows = None if last is None else whole_number("last", last, 1)
        graph, ids = self.attention_graph, self.encode(text, new_tokens=0)
        check_fits(plan(graph.cache_tensors, len(ids)))
        layers, weights = read_maps(graph, self.manifest.geometry, ids, rows=rows)
        return AttentionMaps(tuple(ids), tuple(self.piece(token_id) for token_id in ids), layers, weights)

    def rank(self, prompt: str, choices: Sequence[str], *, by: Literal["total", "token", "byte"] = "total") -> list[Choice]:
        """The choices as continuations of the prompt, the likeliest first, by their whole probability, per token or per byte.

        The prompt is computed once. Raises `PromptError` and `OptionError`.

        >>> [choice.text for choice in load().rank("The dog wagged its", [" tail", " seven"])]
        [' tail', ' seven']
        """
        values = {"total": "logprob", "token": "logprob_per_token", "byte": "logprob_per_byte"}
        if by not in values:
            raise OptionError(f"by should be one of {', '.join(map(repr, values))}, found {shown(by)}")
        if isinstance(choices, str) or not choices or not all(choices):
            raise OptionError("choices should be a list of texts, none of them empty")
        context, ranked = self.new_context(), list[Choice]()
        for text in choices:
            ids, count = self.encode_pair(prompt, text)
            found, _ = score_tokens(context, ids, first=max(1, count))
            total = math.fsum(found)
            ranked.append(Choice(text, total, total / len(found), total / len(text.encode())))
        return sorted(ranked, key=lambda choice: -getattr(choice, values[by]))
