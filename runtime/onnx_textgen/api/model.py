"""The model that a user works with: every call of the library, each passed to the part that does the work."""

from __future__ import annotations

import contextlib
import functools
import operator
import warnings
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Self, Unpack, cast, overload

from ..backends.freed_memory import return_freed_memory
from ..backends.protocol import Graph
from ..backends.signature import LOGITS
from ..cancellation import Cancellation, CancelScope
from ..encoders.encoder import Encoder
from ..errors import OptionError
from ..generation.async_bridge import call, iterate
from ..images.image_reader import ImageReader
from ..inference.decoder import Decoder
from ..inference.prefill import Progress
from ..inference.prefix_cache import PrefixStore
from ..inference.prompt_engine import PromptEngine
from ..kv_cache.memory_plan import MemoryPlan, bytes_for_prefixes
from ..options.defaults import ROWS
from ..options.generation_config import with_options
from ..options.keywords import ChatOptions, Options, TemplateInputs
from ..package.manifest import GRAPH, Manifest
from ..package.retrieval import Pooling
from ..results import Choice, Chunk, Generation, RankedDocument, Score, Segment, Transcription
from ..tasks.attention_maps import AttentionMaps
from ..tasks.embedder import Embedder
from ..tasks.embeddings import Vectors
from ..tasks.open_model import OpenModel, read_tokenizer
from ..tasks.prompt_encoder import PromptEncoder
from ..tasks.scorer import Measure, Scorer
from ..tasks.text_generator import TextGenerator
from ..text.prompts import Prompt, is_batch
from ..text.tokenizer import TextTokenizer

if TYPE_CHECKING:  # imported at first use: a text needs none of them, and with what reads answers they take 40 ms
    from ..answers.records import ChatAnswer, ChatChunk
    from ..tasks.chat_encoder import ChatEncoder
    from ..tasks.reranker import Reranker
    from .session import Session

Prompts = list[str] | list[list[int]]
MOVED: Mapping[str, tuple[str, str]] = {
    "adapters": ("manifest.adapters", ""),
    "calls_tools": ("chats.calls_tools", ""),
    "config": ("generator.config", ""),
    "embedder": ("_embedder", "embed()"),
    "encoder": ("generator.encoder", ""),
    "has_tokenizer": ("generator.opened.has_tokenizer", ""),
    "opened": ("generator.opened", ""),
    "piece": ("generator.opened.piece", ""),
    "prefixes": ("generator.prefixes", ""),
    "reranker": ("_reranker", "rerank()"),
    "scorer": ("_scorer", "score(), rank() or attentions()"),
    "thinks": ("chats.thinks", ""),
}
"""Attributes of version 0.2: where each is now, and what to use instead if that is private."""


class Model:
    """An open model. Safe to use from several threads: their texts are decoded together, one run of the graph per step for all."""

    def __init__(
        self,
        folder: Path,
        manifest: Manifest,
        graph: Graph,
        *,
        chat_template: str | None,
        tokenizer: TextTokenizer | None = None,
        capacity: int | None = None,
        prefix_cache: int | None = None,
        batch_size: int = ROWS,
        graph_name: str = GRAPH,
        encoder: Encoder | None = None,
        prompt_engine: PromptEngine | None = None,
        response_template: Mapping[str, Any] | None = None,
        exact_history: bool = False,
        images: ImageReader | None = None,
    ) -> None:
        """`tokenizer`: that of the folder, if it was read already."""
        tokenizer = tokenizer or read_tokenizer(folder, manifest)
        self._opened = OpenModel(
            *(folder, manifest, graph, tokenizer, chat_template, response_template),
            *(encoder, prompt_engine, capacity, graph_name),
            exact_history=exact_history,
            images=images,
        )
        self._encoder = PromptEncoder(self._opened)
        store = PrefixStore(bytes_for_prefixes() if prefix_cache is None else prefix_cache)
        self.generator = TextGenerator(self._opened, self._encoder, store, batch_size=batch_size)
        """Begins texts and runs them: for programs that run many at once, such as servers."""
        self._scorer = Scorer(self._opened, self._encoder)
        self._embedder = Embedder(self._opened, self._encoder)

    @functools.cached_property
    def chats(self) -> ChatEncoder:
        """Encodes chats, and says what the model's chats can do."""
        from ..tasks.chat_encoder import ChatEncoder  # noqa: PLC0415

        return ChatEncoder(self._encoder)

    @functools.cached_property
    def _reranker(self) -> Reranker:
        from ..tasks.reranker import Reranker  # noqa: PLC0415

        return Reranker(self._opened, self.chats)

    def close(self) -> None:
        """Release the graph, its weights and all keys and values at once, not at garbage collection; safe to call twice.

        Call it when no text is being generated. Later calls that need the graph raise `ModelError`, those of sessions too.
        `with load() as model:` closes at its end.
        """
        self.generator.prefixes.close()
        self._opened.close()
        self.generator.close()
        return_freed_memory()

    if not TYPE_CHECKING:  # type checkers should know none of the old names

        def __getattr__(self, name: str) -> Any:  # noqa: ANN401
            if name not in MOVED:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            place, instead = MOVED[name]
            warnings.warn(f"Model.{name} goes in the next release; use {instead or place}", DeprecationWarning, stacklevel=2)
            found = operator.attrgetter(place)(self)
            return tuple(found) if name == "adapters" else found

    def __repr__(self) -> str:
        context, place = self._encoder.context_length, "closed" if self._opened.is_closed else f"on {self.device}"
        return (
            f"<onnx_textgen.Model {self.manifest.name!r}: {self.manifest.precision_name}, context of {context:,} tokens, {place}>"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"an open model cannot be pickled or copied; open {self.folder} where it is needed: onnx_textgen.load(...)")

    @property
    def folder(self) -> Path:
        """The package's folder."""
        return self._opened.folder

    @property
    def manifest(self) -> Manifest:
        """The package's description: geometry, precision, special tokens, certificate."""
        return self._opened.manifest

    @property
    def graph(self) -> Graph:
        """The graph on its engine."""
        return self._opened.graph

    @property
    def chat_template(self) -> str | None:
        """The package's chat template (Jinja), if it has one."""
        return self._opened.chat_template

    @property
    def tokenizer(self) -> TextTokenizer:
        """The package's tokenizer; raises `PackageError` if it has none."""
        return self._opened.tokenizer

    @property
    def device(self) -> str:
        """The device that the graph runs on, `cpu` or `cuda:0`, and that of long prompts if it is another: `cpu, openvino`."""
        second = self._opened.prompt_engine
        return str(self.graph.device) if second is None else f"{self.graph.device}, {second.device}"

    def memory(self, tokens: int | None = None, batch: int = 1, *, source_tokens: int | None = None) -> MemoryPlan:
        """The memory that the caches of `batch` texts of `tokens` tokens each take; default: a full context.

        `source_tokens`: those of each source of an encoder-decoder; default: as many as it reads.
        """
        return self._opened.memory(tokens, batch, source_tokens=source_tokens)

    def new_context(self, *, output: str = LOGITS, adapter: str | None = None) -> Decoder:
        """An empty decoder, to feed token ids to and read logits from; `adapter`: the LoRA adapter of its texts."""
        return self._opened.new_context(output=output, adapter=adapter)

    def session(self, **inputs: Unpack[TemplateInputs]) -> Session:
        """An empty session: a text or a chat that can be appended to, generated from, rolled back, forked and saved.

        `inputs`: what the template of a chat gets at every turn.

        >>> session = load().session()
        >>> session.append("Once upon a time")
        >>> session.generate(max_new_tokens=3, temperature=0).finish_reason
        'length'
        """
        from .session import Session  # noqa: PLC0415

        self._opened.require_decoder("keeps no session")
        return Session(self.generator, inputs)

    def load_session(self, path: str | Path, **inputs: Unpack[TemplateInputs]) -> Session:
        """Read a session that `Session.save` wrote; raises `PackageError` for any other file, or one of another model.

        `inputs` are those of `session`; the file does not hold them.
        """
        from .session import Session  # noqa: PLC0415

        self._opened.require_decoder("keeps no session")
        return Session.load(self.generator, path, inputs)

    def encode(self, prompt: Prompt, *, images: Sequence[object] = (), new_tokens: int = 1, any_length: bool = False) -> list[int]:
        """One prompt's token ids, checked: not empty, in the vocabulary, and (unless `any_length`) `new_tokens` more fit.

        images: pictures for the places of the model's placeholder, such as `<image>`, in a text; those without a place come first.
        Each is a path, the bytes of a file, a data URL, an array [height, width, 3] or an image of Pillow. Ids below 0 name their
        rows, which are kept in memory for the last pictures, so use them soon. Raises `PromptError`, and `ImageError`.
        """
        return self._encoder.encode(prompt, images=images, new_tokens=new_tokens, any_length=any_length)

    def encode_infill(self, prefix: str, suffix: str, *, suffix_first: bool | None = None) -> list[int]:
        r"""Token ids of a prompt for the text between a prefix and a suffix, by the model's control tokens.

        `suffix_first`: whether the suffix comes before the prefix; default: as the model's family was trained. Raises `PromptError`
        if the model has no such tokens.

        >>> model.generate(model.encode_infill("def add(a, b):\n", "\n\nprint(add(1, 2))")).text  # doctest: +SKIP
        '    return a + b'
        """
        return self._encoder.encode_infill(prefix, suffix, suffix_first=suffix_first)

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        continue_final_message: bool = False,
        add_generation_prompt: bool | None = None,
        **inputs: Unpack[TemplateInputs],
    ) -> list[int]:
        """Token ids of a chat by the model's template, up to the beginning of the next answer; checked as `encode` does.

        `continue_final_message`: the last message is the beginning of the answer, and the ids end with it. `add_generation_prompt`:
        whether the ids end where an answer begins; default: unless a message is continued. Raises `TemplateError` if the package
        has no template, or the template refuses the messages, and `PromptError`.
        """
        ending = {"continue_final_message": continue_final_message, "add_generation_prompt": add_generation_prompt}
        return self.chats.encode(messages, **ending, **inputs)  # type: ignore[arg-type]

    def chat(
        self, messages: Sequence[Mapping[str, Any]], *, cancel: Cancellation | None = None, **options: Unpack[ChatOptions]
    ) -> ChatAnswer:
        """Generate the next answer of a chat, divided into its text, its thinking and its tool calls.

        `options` are those of `TurnInputs` and `GenerationConfig`; without `max_new_tokens` an answer may fill the context, where
        `generate` ends after 256 tokens. Without `seed` two equal calls differ, unless `temperature` is 0. Tools may be Python
        functions with annotations and a docstring: the model is told of them, and `answer.tool_calls` says which it wants called,
        and with which arguments; nothing is called here. With a grammar (`pip install "onnx-textgen[grammar]"`) arguments always
        fit the function. Raises `TemplateError`, `PromptError` and `OptionError`.

        >>> answer = model.chat([{"role": "user", "content": "Is it raining in Oslo?"}], tools=[get_weather])  # doctest: +SKIP
        >>> [(call.name, call.arguments) for call in answer.tool_calls]  # doctest: +SKIP
        [('get_weather', {'city': 'Oslo'})]
        """
        answers = [chunk.answer for chunk in self.stream_chat(messages, cancel=cancel, **options) if chunk.answer is not None]
        return answers[0]

    def stream_chat(
        self, messages: Sequence[Mapping[str, Any]], *, cancel: Cancellation | None = None, **options: Unpack[ChatOptions]
    ) -> Generator[ChatChunk, None, None]:
        """`chat`, one chunk after the other; the last chunk has the whole answer. Closing the iterator ends the answer."""
        from ..tasks.chats import divided, stream_answer  # noqa: PLC0415

        inputs, others = divided(options)
        return stream_answer(self.generator, self.chats.turn(messages, **inputs), others, cancel)

    async def achat(
        self, messages: Sequence[Mapping[str, Any]], *, cancel: Cancellation | None = None, **options: Unpack[ChatOptions]
    ) -> ChatAnswer:
        """`chat` for asyncio: it does not block the event loop. Cancelling the task ends the answer, as `cancel` does."""
        own = Cancellation(cancel)
        return await call(lambda: self.chat(messages, cancel=own, **options), own)

    async def astream_chat(
        self, messages: Sequence[Mapping[str, Any]], *, cancel: Cancellation | None = None, **options: Unpack[ChatOptions]
    ) -> AsyncGenerator[ChatChunk, None]:
        """`stream_chat` for asyncio; leaving the loop or cancelling the task ends the answer."""
        own = Cancellation(cancel)
        async with contextlib.aclosing(iterate(lambda: self.stream_chat(messages, cancel=own, **options), own)) as chunks:
            async for chunk in chunks:
                yield chunk

    def stream(
        self,
        prompt: Prompt,
        *,
        context: Decoder | None = None,
        on_progress: Callable[[Progress], None] | None = None,
        cancel: Cancellation | None = None,
        **options: Unpack[Options],
    ) -> Generator[Chunk, None, None]:
        """Generate a text, one chunk per token; closing the iterator ends it.

        `options` are those of `GenerationConfig`; they are checked at once, not at the first chunk. `on_progress` is called
        after each part of a long prompt. `cancel` ends the text from another thread. `context` is deprecated: a session does it.
        Raises `PromptError` and `OptionError`.

        >>> for chunk in load().stream("Once upon a time", max_new_tokens=3):
        ...     print(chunk.text, end="")
        """
        if context is not None:
            instead = "a session keeps its cache between texts, see Model.session()"
            warnings.warn(f"context= of Model.stream goes in the next release: {instead}", DeprecationWarning, stacklevel=2)
        config = self.generator.config(options)
        generator = self.generator.for_adapter(config.adapter)
        return generator.stream(prompt, config, context=context, on_progress=on_progress, cancel=cancel)

    @overload
    def generate(self, prompt: Prompt, *, cancel: Cancellation | None = None, **options: Unpack[Options]) -> Generation: ...

    @overload
    def generate(self, prompt: Prompts, *, cancel: Cancellation | None = None, **options: Unpack[Options]) -> list[Generation]: ...

    def generate(
        self, prompt: Prompt | Prompts, *, cancel: Cancellation | None = None, **options: Unpack[Options]
    ) -> Generation | list[Generation]:
        """Generate a whole text; for a list of prompts, a list of texts, which are decoded together.

        `options` are those of `GenerationConfig`; without `max_new_tokens` a text ends after 256 tokens, where the answer of `chat`
        may fill the context. The same prompt and seed give the same text alone, in any row of a list, and streamed; without `seed`
        two equal calls differ, unless `temperature` is 0. `cancel`, from another thread, ends the texts and keeps them so far.
        Raises `PromptError` and `OptionError`.
        """
        config, prompts = self.generator.config(options, searches=True), prompt if is_batch(prompt) else [prompt]
        found = self.generator.for_adapter(config.adapter).generate(prompts, config, cancel)  # type: ignore[arg-type]
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
        """`generate` for asyncio: it does not block the event loop. Cancelling the task ends the texts, as `cancel` does."""
        own = Cancellation(cancel)  # other calls may share the caller's object, so the end of this call must not cancel it
        return await call(lambda: self.generate(prompt, cancel=own, **options), own)

    async def astream(
        self, prompt: Prompt, *, cancel: Cancellation | None = None, **options: Unpack[Options]
    ) -> AsyncGenerator[Chunk, None]:
        """`stream` for asyncio: `async for chunk in model.astream(...)`; leaving the loop or cancelling the task ends the text."""
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
        source: Prompt | None = ...,
        logprobs: int = ...,
        stride: int | None = ...,
        cancel: Cancellation | None = ...,
        adapter: str | None = ...,
    ) -> Score: ...

    @overload
    def score(
        self,
        text: Prompts,
        *,
        logprobs: int = ...,
        stride: int | None = ...,
        cancel: Cancellation | None = ...,
        adapter: str | None = ...,
    ) -> list[Score]: ...

    def score(
        self,
        text: Prompt | Prompts,
        *,
        continuation: Prompt | None = None,
        source: Prompt | None = None,
        logprobs: int = 0,
        stride: int | None = None,
        cancel: Cancellation | None = None,
        adapter: str | None = None,
    ) -> Score | list[Score]:
        """Log-probabilities of a text (or of token ids) under the model; for a list of texts, a list of scores.

        With a `continuation` the text is its prompt, and the score says where the prompt ends. `source`: what an encoder-decoder
        reads before; its text is scored with the end. `logprobs`: number of most likely
        tokens to return at each position. A text longer than the context needs a `stride`, see `scoring.score_tokens`. `adapter`:
        the LoRA adapter to score with. Raises `PromptError` and `OptionError`, and `InterruptedRunError` if `cancel` ends it from
        another thread.

        >>> model = load()
        >>> model.score("The cat", continuation=" sat").continuation_logprobs  # doctest: +SKIP
        (-3.2,)
        """
        if is_batch(text) and not (continuation is None and source is None):
            raise OptionError("a list of texts takes no continuation and no source; score the pairs one by one")
        given = {"source": source, "logprobs": logprobs, "stride": stride, "cancel": cancel, "adapter": adapter}
        texts = text if is_batch(text) else [text]
        scores = [self._scorer.score(each, continuation, **given) for each in texts]  # type: ignore[arg-type]
        return scores if is_batch(text) else scores[0]

    def rank(self, prompt: str, choices: Sequence[str], *, by: Measure = "total", adapter: str | None = None) -> list[Choice]:
        """Score the choices as continuations of the prompt, and return them most likely first.

        `by`: what is compared, the log-probability of the whole continuation, per token or per byte. The prompt is computed once.
        `adapter`: the LoRA adapter to score with.
        Raises `PromptError` and `OptionError`.

        >>> [choice.text for choice in load().rank("The dog wagged its", [" tail", " seven"])]
        [' tail', ' seven']
        """
        return self._scorer.rank(prompt, choices, by=by, adapter=adapter)

    def rerank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        top_n: int | None = None,
        prompt: str | None = None,
        prompt_name: str | None = None,
        cancel: Cancellation | None = None,
        adapter: str | None = None,
    ) -> list[RankedDocument]:
        """Score documents for a query, and return them most relevant first; with `top_n`, only that many.

        A reranker (`manifest.reranking`) gives its own scores; `prompt`, or the name of one of its prompts, is its instruction. Any
        other model gives the log-probability per token of the query after the document. `cancel` ends the call from another thread.
        `adapter`: the LoRA adapter to score with. Raises `OptionError`, `PromptError`, `InterruptedRunError`, and `PackageError`
        for a reranker of an unknown kind.

        >>> load().rerank("capital of France", ["Bread is baked.", "Paris is in France."])[0].index  # doctest: +SKIP
        1
        """
        given = {"top_n": top_n, "prompt": prompt, "prompt_name": prompt_name, "cancel": cancel, "adapter": adapter}
        return self._reranker.rerank(query, documents, **given)  # type: ignore[arg-type]

    def embed(
        self,
        text: Prompt | Prompts,
        *,
        pooling: Pooling | None = None,
        normalize: bool | None = None,
        dimensions: int | None = None,
        prompt: str | None = None,
        prompt_name: str | None = None,
        cancel: Cancellation | None = None,
        adapter: str | None = None,
    ) -> Vectors:
        """Embed a text as a vector [width], or a list of texts as vectors [texts, width], float32, pooled from hidden states.

        What is not given is as the package says (`manifest.embedding`), else the mean over the tokens, of length 1. `pooling`:
        `"mean"`, `"weightedmean"` (weights 1, 2, 3 ...), or `"last"`, the token that alone attends to the whole text. `normalize`
        scales to length 1. `dimensions`: numbers of a vector to keep, for models that were trained for it (Matryoshka). `prompt`,
        or the name of one of the package's prompts: what is written before each text. `cancel` ends the call from another thread.
        `adapter`: the LoRA adapter to embed with. Raises `OptionError`, `PromptError`, `InterruptedRunError`, and `PackageError`
        if the package has no hidden states.

        >>> load().embed("A dog.")  # doctest: +SKIP
        array([0.02, -0.11, ...], dtype=float32)
        """
        texts, scope = text if is_batch(text) else [text], CancelScope(cancel)
        encoded = self._embedder.encode(texts, prompt=prompt, prompt_name=prompt_name)  # type: ignore[arg-type]
        given = {"pooling": pooling, "normalize": normalize, "dimensions": dimensions, "adapter": adapter, "scope": scope}
        vectors = self._embedder.vectors(encoded, **given)  # type: ignore[arg-type]
        return vectors if is_batch(text) else cast("Vectors", vectors[0])

    def transcribe(
        self,
        sound: object,
        *,
        sampling_rate: int | None = None,
        language: str | None = None,
        task: str = "transcribe",
        timestamps: bool = True,
        temperature: float | Sequence[float] | None = None,
        initial_prompt: str = "",
        condition_on_previous_text: bool = True,
        cancel: Cancellation | None = None,
        max_time: float | None = None,
        on_segment: Callable[[Segment], None] | None = None,
    ) -> Transcription:
        """Write down what is said in a sound of any length, with a model that reads sound (Whisper).

        sound: a path or the bytes of a file (WAV; FLAC, OGG, MP3 and others with the extra `audio`), or samples [samples] or
        [samples, channels] at `sampling_rate` (default: the model's): float from -1 to 1, int16 or int32. `language`: its code,
        such as `"en"`; None: the model hears it. `task`: `"translate"` writes English. `timestamps=False` writes each window of
        30 seconds without times. `temperature`: one, or those to try until a text is neither repetitive nor unlikely (default: 0 to
        1 in steps of 0.2). `initial_prompt`: text that is said to come before, for names and spelling.
        `condition_on_previous_text`: each window sees the text before it. `on_segment` gets each segment when it is written.
        Raises `AudioError`, `OptionError` and `InterruptedRunError`.
        """
        from ..speech.transcriber import Asked, Transcriber, temperatures_of  # noqa: PLC0415

        asked = Asked(
            CancelScope(cancel, max_time),
            temperatures_of(temperature),
            language=language,
            task=task,
            timestamps=timestamps,
            initial_prompt=initial_prompt,
            condition_on_previous_text=condition_on_previous_text,
        )
        return Transcriber(self.generator).transcribe(sound, sampling_rate, asked, on_segment)

    def attentions(self, text: Prompt, *, source: Prompt | None = None, last: int | None = None) -> AttentionMaps:
        """Attention weights of a text (or of token ids): how much each token attends to each token up to itself.

        `weights` is float32 [layers, heads, tokens, tokens] from 0 to 1, with one row per query token. `last`: number of last
        tokens to return rows for, [layers, heads, last, tokens]. `source`: what an encoder-decoder reads before the text;
        `cross_weights` [layers, heads, tokens, source tokens] is how much each token attends to it. Raises `PackageError` for a
        package that was exported without `--attention-maps`, `OptionError`, and `PromptError`, also for a text whose maps take more
        than 256 MiB.

        >>> maps = load().attentions("The dog ran")
        >>> maps.weights.shape, maps.pieces
        ((6, 5, 4, 4), ('<s>', 'The', ' dog', ' ran'))
        """
        return self._scorer.attentions(text, source=source, last=last)


Model.generate.__doc__ = with_options(Model.generate.__doc__)
