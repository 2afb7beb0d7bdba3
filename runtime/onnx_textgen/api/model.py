"""The model a user holds: every call of the library, each passed on to the part that does it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, Self, Unpack, cast, overload

from ..backends.protocol import Graph
from ..backends.signature import LOGITS
from ..cancellation import Cancellation
from ..errors import OptionError
from ..generation.async_bridge import call, iterate
from ..generation.engine import ROWS
from ..inference.attention_maps import AttentionMaps
from ..inference.decoder import Decoder
from ..inference.embeddings import Pooling, Vectors
from ..inference.prefill import Progress
from ..inference.prefix_cache import PrefixStore
from ..kv_cache.memory_plan import MemoryPlan
from ..options.generation_config import GenerationConfig
from ..options.keywords import Options
from ..package.manifest import GRAPH, Manifest
from ..results import Choice, Chunk, Generation, Score
from ..text.prompts import Prompt, is_batch
from ..text.tokenizer import TextTokenizer
from .conversation import Conversation
from .open_model import OpenModel, read_tokenizer
from .prompt_encoder import PromptEncoder
from .scorer import Measure, Scorer
from .text_generator import TextGenerator

MOST_ROWS = 256
PREFIX_CACHE = 256 * 2**20
"""Bytes of keys and values kept from earlier calls, unless the caller says otherwise."""
Prompts = list[str] | list[list[int]]


class Model:
    """A model folder at work. Safe to use from several threads: their texts are decoded together, one step of the graph for all."""

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
        tokenizer, self.prefixes = read_tokenizer(folder, manifest), PrefixStore(prefix_cache)
        self.opened = OpenModel(folder, manifest, session, tokenizer, chat_template, capacity, graph_name)
        self.encoder = PromptEncoder(self.opened)
        self.generator = TextGenerator(self.opened, self.encoder, self.prefixes, batch_size=batch_size)
        self.scorer = Scorer(self.opened, self.encoder)

    def close(self) -> None:
        """Release the graph, its weights and all keys and values now rather than when Python gets to it; safe to call twice.

        What computes raises `ModelError` from then on, sessions included; call it when no text is being generated. `with load() as
        model:` closes at its end.
        """
        self.opened.close()
        self.generator.close()

    def __repr__(self) -> str:
        context, place = self.encoder.context_length, "closed" if self.opened.is_closed else f"on {self.device}"
        return f"<onnx_textgen.Model {self.manifest.name!r}: {self.manifest.precision}, context of {context:,} tokens, {place}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"an open model cannot be pickled or copied; open {self.folder} where it is wanted: onnx_textgen.load(...)")

    @property
    def folder(self) -> Path:
        """The package's folder."""
        return self.opened.folder

    @property
    def manifest(self) -> Manifest:
        """What the package says of itself: geometry, precision, special tokens, certificate."""
        return self.opened.manifest

    @property
    def graph(self) -> Graph:
        """The graph on its engine."""
        return self.opened.graph

    @property
    def chat_template(self) -> str | None:
        """The package's chat template (Jinja), if it has one."""
        return self.opened.chat_template

    @property
    def has_tokenizer(self) -> bool:
        """Whether the package has one; without it a model takes and gives token ids."""
        return self.opened.tokenizer_if_any is not None

    @property
    def tokenizer(self) -> TextTokenizer:
        """The package's tokenizer; raises `PackageError` where it has none and works on token ids only."""
        return self.opened.tokenizer

    @property
    def device(self) -> str:
        """Where it runs: `cpu` or `cuda:0`."""
        return str(self.graph.device)

    def piece(self, token_id: int) -> str:
        """The text of one id, for a person to read; `<5>` where the package has no tokenizer."""
        return self.opened.piece(token_id)

    def memory(self, tokens: int | None = None, batch: int = 1) -> MemoryPlan:
        """What keys and values of `tokens` tokens take (default: a full context), in `batch` texts at once."""
        return self.opened.memory(tokens, batch)

    def new_context(self, *, output: str = LOGITS) -> Decoder:
        """An empty decoder; pass the same one to `stream` call after call, and what their prompts share is computed once."""
        return self.opened.new_context(output=output)

    def session(self) -> Conversation:
        """An empty session: a text or a chat that is appended to and generated from, taken back, forked and saved.

        >>> session = load().session()
        >>> session.append("Once upon a time")
        >>> session.generate(max_new_tokens=3, temperature=0).finish_reason
        'length'
        """
        return Conversation(self.generator)

    def load_session(self, path: str | Path) -> Conversation:
        """A session that `Conversation.save` wrote; raises `PackageError` for a file of another model, or none at all."""
        return Conversation.load(self.generator, path)

    def encode(self, prompt: Prompt, *, new_tokens: int = 1, any_length: bool = False) -> list[int]:
        """One prompt's token ids, checked: not empty, inside the vocabulary, with room for `new_tokens` more."""
        return self.encoder.encode(prompt, new_tokens=new_tokens, any_length=any_length)

    def encode_chat(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Token ids of a chat, through the model's template, up to where the next answer begins; checked as `encode` does.

        Raises `TemplateError` where there is no template, or it refuses the messages.
        """
        return self.encoder.encode_chat(messages)

    def config(self, options: Mapping[str, Any]) -> GenerationConfig:
        """The options of a call over the package's defaults, as `generate` would take them; raises `OptionError`."""
        return self.generator.config(options)

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
        config = self.generator.config(options)
        return self.generator.stream(prompt, config, context=context, on_progress=on_progress, cancel=cancel)

    @overload
    def generate(self, prompt: Prompt, *, cancel: Cancellation | None = None, **options: Unpack[Options]) -> Generation: ...

    @overload
    def generate(self, prompt: Prompts, *, cancel: Cancellation | None = None, **options: Unpack[Options]) -> list[Generation]: ...

    def generate(
        self, prompt: Prompt | Prompts, *, cancel: Cancellation | None = None, **options: Unpack[Options]
    ) -> Generation | list[Generation]:
        """Generate a whole text; a list of prompts gives a list of texts, computed side by side.

        `options` are those of `GenerationConfig`. The same prompt and seed give the same text alone, in any row of a list, and
        streamed. `cancel` ends the texts from another thread, and gives what there is. Raises `PromptError` and `OptionError`.
        """
        config, prompts = self.generator.config(options), prompt if is_batch(prompt) else [prompt]
        found = self.generator.generate(prompts, config, cancel)  # type: ignore[arg-type]
        return found if is_batch(prompt) else found[0]

    @overload
    async def agenerate(self, prompt: Prompt, *, cancel: Cancellation | None = ..., **options: Unpack[Options]) -> Generation: ...

    @overload
    async def agenerate(
        self, prompt: Prompts, *, cancel: Cancellation | None = ..., **options: Unpack[Options]
    ) -> list[Generation]: ...

    async def agenerate(
        self, prompt: Prompt | Prompts, *, cancel: Cancellation | None = None, **options: Unpack[Options]
    ) -> Generation | list[Generation]:
        """`generate` for asyncio: the event loop runs meanwhile. Cancelling the task ends the work, as `cancel` does."""
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

    @overload
    def score(
        self,
        text: Prompt,
        *,
        continuation: Prompt | None = ...,
        logprobs: int = ...,
        stride: int | None = ...,
        cancel: Cancellation | None = ...,
    ) -> Score: ...

    @overload
    def score(
        self, text: Prompts, *, logprobs: int = ..., stride: int | None = ..., cancel: Cancellation | None = ...
    ) -> list[Score]: ...

    def score(
        self,
        text: Prompt | Prompts,
        *,
        continuation: Prompt | None = None,
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
        if is_batch(text) and continuation is not None:
            raise OptionError("a list of texts takes no continuation; score the pairs one by one")
        given, texts = {"logprobs": logprobs, "stride": stride, "cancel": cancel}, text if is_batch(text) else [text]
        scores = [self.scorer.score(each, continuation, **given) for each in texts]  # type: ignore[arg-type]
        return scores if is_batch(text) else scores[0]

    def rank(self, prompt: str, choices: Sequence[str], *, by: Measure = "total") -> list[Choice]:
        """The choices as continuations of the prompt, the likeliest first, by their whole probability, per token or per byte.

        The prompt is computed once. Raises `PromptError` and `OptionError`.

        >>> [choice.text for choice in load().rank("The dog wagged its", [" tail", " seven"])]
        [' tail', ' seven']
        """
        return self.scorer.rank(prompt, choices, by=by)

    def embed(self, text: Prompt | Prompts, *, pooling: Pooling = "mean", normalize: bool = True) -> Vectors:
        """A text as one vector [width], or a list of texts as vectors [texts, width]: hidden states of its tokens, float32.

        `pooling`: their mean, or the last token's, which alone has seen the whole text; a model trained to embed says which.
        `normalize` makes vectors of length 1. Raises `PackageError` for a package without hidden states, and `PromptError`.

        >>> load().embed("A dog.")  # doctest: +SKIP
        array([0.02, -0.11, ...], dtype=float32)
        """
        texts = text if is_batch(text) else [text]
        vectors = self.scorer.embed(texts, pooling=pooling, normalize=normalize)  # type: ignore[arg-type]
        return vectors if is_batch(text) else cast("Vectors", vectors[0])

    def attentions(self, text: Prompt, *, last: int | None = None) -> AttentionMaps:
        """How much each token of a text (or of token ids) looks at each one before it, in every layer and head.

        `weights` is float32 [layers, heads, tokens, tokens]: shares from 0 to 1, a row for each token that looks. `last` gives
        the rows of the last so many tokens alone, [layers, heads, last, tokens]. Raises `PackageError` for a package that was not
        exported with `--attention-maps`, and `PromptError`, also for a text whose maps take more than 256 MiB.

        >>> maps = load().attentions("The dog ran")
        >>> maps.weights.shape, maps.pieces
        ((6, 5, 4, 4), ('<s>', 'The', ' dog', ' ran'))
        """
        return self.scorer.attentions(text, last=last)
