"""An open package: its manifest, graph, tokenizer and template, and new decoders with empty caches. It generates nothing itself."""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ..backends.huge_pages import new_memory_in_huge_pages
from ..backends.onnxruntime_session import OnnxRuntimeSession, open_session
from ..backends.protocol import ClosedGraph, Graph
from ..backends.signature import LOGITS, CacheTensor
from ..backends.variants.adapter_graph import open_with_adapters
from ..encoders.encoder import Encoder
from ..encoders.text_encoder import TextEncoder
from ..errors import LOG, OptionError, PackageError, TemplateError
from ..images.image_reader import ImageReader
from ..inference.capabilities import Capabilities
from ..inference.decoder import Decoder
from ..inference.prompt_engine import PromptEngine
from ..kv_cache.memory_plan import MemoryPlan, plan, source_bytes, whole_bytes
from ..options.checks import shown, whole_number
from ..package.adapters import read_listed_adapters
from ..package.integrity import checking_files, package_bytes, package_digest
from ..package.manifest import ATTENTION_GRAPH, GRAPH, INT8_CACHE_GRAPH, TOKENIZER, Manifest, adapter_file
from ..text.tokenizer import TextTokenizer

if TYPE_CHECKING:
    from ..chat.chat_format import ChatFormat


@dataclasses.dataclass(eq=False, repr=False)
class OpenModel:
    """The data that all parts of a `Model` share. It does not change, except that `close` releases the graph."""

    folder: Path
    manifest: Manifest
    graph: Graph
    optional_tokenizer: TextTokenizer | None
    """None for a model that works on token ids only."""
    chat_template: str | None
    response_template: Mapping[str, Any] | None = None
    """How answers are read; None: as the chat template shows."""
    encoder: Encoder | None = None
    """The other half of an encoder-decoder."""
    prompt_engine: PromptEngine | None = None
    """Engine that computes long prompts, if that is not the graph."""
    capacity: int | None = None
    """Tokens that a new cache has memory for at first; None: the backend's choice."""
    graph_name: str = GRAPH
    images: ImageReader | None = None
    """What reads pictures, of a model that does."""
    exact_history: bool = False
    """Whether generated tokens are computed again when they become part of a prompt."""
    opening: threading.RLock = dataclasses.field(default_factory=threading.RLock)
    """Held while the graph with adapters is opened."""

    @property
    def is_closed(self) -> bool:
        """Whether the graph was released."""
        return isinstance(self.graph, ClosedGraph)

    def close(self) -> None:
        """Release the graph, and that with adapters; any later use of them raises `ModelError`."""
        with self.opening:
            self.graph, self.encoder = cast("Graph", ClosedGraph()), None
            if self.images is not None:
                self.images.close()
            if self.prompt_engine is not None:
                self.prompt_engine.close()
            if (adapted := self.__dict__.pop("adapted", None)) is not None:
                adapted.close()
            for read in ("capabilities", "cache_tensors", "attention_graph", "text_encoder"):
                self.__dict__.pop(read, None)

    @property
    def tokenizer(self) -> TextTokenizer:
        """The package's tokenizer; raises `PackageError` if it has none."""
        if self.optional_tokenizer is None:
            raise PackageError(f"{self.folder} has no {TOKENIZER} and works on token ids only; export it again with --tokenizer")
        return self.optional_tokenizer

    @property
    def has_tokenizer(self) -> bool:
        """Whether the package has a tokenizer; without one the model works on token ids only."""
        return self.optional_tokenizer is not None

    def refuse_encoder_decoder(self, why: str) -> None:
        """Raise `OptionError` for an encoder-decoder; `why` says what it does not do."""
        if self.manifest.encoder is not None:
            raise OptionError(
                f"{self.manifest.name} is an encoder-decoder: it reads a source, writes a text for it, and {why}; "
                "give the source to generate"
            )

    def require_decoder(self, why: str) -> None:
        """Raise `OptionError` for any other model; `why` says what an encoder-decoder does not do."""
        self.refuse_encoder_decoder(why)
        self.refuse_text_encoder()

    def refuse_text_encoder(self) -> None:
        """Raise `OptionError` for a text encoder, which generates nothing."""
        if self.manifest.text_encoder is not None:
            does = "makes vectors: call embed" if self.manifest.pair_scoring is None else "scores pairs of texts: call rerank"
            raise OptionError(f"{self.manifest.name} is an encoder, which writes no text and {does}")

    @functools.cached_property
    def text_encoder(self) -> TextEncoder | None:
        """What reads texts, if the model is a text encoder; raises `PackageError` for another graph than one of these."""
        if self.manifest.text_encoder is None:
            return None
        return TextEncoder(cast("OnnxRuntimeSession", self.graph), self.manifest.pad_id)  # or a closed graph, which says so

    @property
    def bos_token(self) -> str:
        """The token that begins a text, as chat templates write it; empty if there is none."""
        return "" if self.manifest.bos_id is None else self.tokenizer.piece(self.manifest.bos_id)

    @property
    def eos_token(self) -> str:
        """The token that ends a text, as chat templates write it; empty if there is none."""
        return self.tokenizer.piece(self.manifest.eos_ids[0]) if self.manifest.eos_ids else ""

    @functools.cached_property
    def chat_format(self) -> ChatFormat:
        """How chats are written and read; raises `TemplateError` if the package has no chat template."""
        from ..chat.chat_format import ChatFormat  # noqa: PLC0415 - only chats need what reads answers, which takes 40 ms

        self.require_decoder("answers no chat")
        if self.chat_template is None:
            raise TemplateError(f"{self.manifest.name} has no chat template; give it a plain text")
        tokens = {"bos_token": self.bos_token, "eos_token": self.eos_token}
        return ChatFormat(self.chat_template, self.tokenizer, **tokens, response_template=self.response_template)

    def piece(self, token_id: int) -> str:
        """The text of one id, for a person to read; `<5>` if the package has no tokenizer."""
        return f"<{token_id}>" if self.optional_tokenizer is None else self.optional_tokenizer.piece(token_id)

    @functools.cached_property
    def capabilities(self) -> Capabilities:
        """Capabilities of the graph, read once for all decoders over it."""
        return Capabilities.of(self.graph, self.manifest.geometry)

    def new_context(self, *, output: str = LOGITS, adapter: str | None = None, exact_history: bool = False) -> Decoder:
        """An empty decoder of one row; `output` is the output of the graph that it reads."""
        return self.new_rows(1, adapter, output=output, exact_history=exact_history)

    def weight_bytes(self) -> int:
        """Bytes of graph and weights."""
        return package_bytes(self.folder, self.manifest)

    def new_graph_context(self, adapter: str | None = None) -> Decoder:
        """An empty decoder of one row without the second engine: the graph computes long prompts too."""
        decoder = self.new_context(adapter=adapter, exact_history=True)
        decoder.prompt_engine = None
        return decoder

    def new_rows(self, rows: int, adapter: str | None = None, *, output: str = LOGITS, exact_history: bool = False) -> Decoder:
        """An empty decoder of `rows` rows, which have the adapter until another one is set; `exact_history`: in any case."""
        self.refuse_text_encoder()
        opened = self.for_adapter(adapter)
        return Decoder(
            opened.graph,
            self.manifest.geometry,
            rows=rows,
            capacity=self.capacity,
            output=output,
            capabilities=opened.capabilities if output == LOGITS else None,
            adapter=adapter,
            encoder=self.encoder,
            prompt_engine=self.prompt_engine if opened is self and output == LOGITS else None,
            exact_history=self.exact_history or exact_history or output != LOGITS,
            images=None if self.images is None else self.images.rows,
        )

    def for_adapter(self, name: str | None) -> OpenModel:
        """The model whose graph has the adapter of this name: this one for None, else one that all adapters share.

        Raises `OptionError` for an adapter that the package does not have, and where adapters cannot run.
        """
        if name is None or name in self.graph.adapters:
            return self
        if not isinstance(name, str) or name not in self.manifest.adapters:
            names = ", ".join(self.manifest.adapters)
            remedy = f"choose one of: {names}" if names else f"add one with: onnx-textgen adapter add {self.folder.name} ADAPTER"
            raise OptionError(f"{self.manifest.name} has no adapter {shown(name)}; {remedy}")
        with self.opening:
            return self if self.is_closed else self.adapted  # a closed one raises at its next use

    @functools.cached_property
    def adapted(self) -> OpenModel:
        """The model over its graph with all its adapters, opened at its first use; its weights take memory a second time.

        The files are checked again because time has passed.
        """
        graph, folder, manifest = self.graph, self.folder, self.manifest
        if not isinstance(graph, OnnxRuntimeSession):
            raise OptionError(f"adapters run on ONNX Runtime, and {folder.name} is open on {graph.device}; load it with device cpu")
        if self.graph_name == INT8_CACHE_GRAPH:
            raise OptionError(f"{INT8_CACHE_GRAPH} has scales of keys and values without adapters; load the folder {folder.name}")
        with new_memory_in_huge_pages(), checking_files(folder, manifest, folder / self.graph_name):
            opened = open_with_adapters(graph, lambda: read_listed_adapters(folder, manifest))
        LOG.info("%s: opened again with the adapters %s", folder, ", ".join(opened.adapters))
        return dataclasses.replace(self, graph=opened, prompt_engine=None)

    @functools.cached_property
    def cache_tensors(self) -> tuple[CacheTensor, ...]:
        """The tensors that the graph passes from one run to the next."""
        return self.graph.cache_tensors

    def memory(self, tokens: int | None = None, batch: int = 1, *, source_tokens: int | None = None) -> MemoryPlan:
        """The memory that the caches of `batch` texts of `tokens` tokens each take; None: a full context.

        `source_tokens`: those of each source of an encoder-decoder; None: as many as it reads.
        """
        most = self.manifest.geometry.context_length
        length = most if tokens is None else whole_number("tokens", tokens, 0, most)
        encoder = self.manifest.encoder
        count = 0 if encoder is None else encoder.source_length if source_tokens is None else source_tokens
        if self.manifest.speech is not None:
            count = self.manifest.speech.places  # each window is as long
        source = source_bytes(self.graph.encoder_inputs, count)
        second = 0
        if self.prompt_engine is not None and self.prompt_engine.computes(length):
            second = whole_bytes(self.cache_tensors, length)
        return plan(self.cache_tensors, length, whole_number("batch", batch, 1), source_bytes=source, second_bytes=second)

    @functools.cached_property
    def digest(self) -> str:
        """A sha256 of this graph and its weights; files without a hash in the manifest are read to compute it."""
        return package_digest(self.folder, self.manifest, self.graph_name)

    @property
    def adapter_digests(self) -> dict[str, str]:
        """The sha256 of the file of each adapter."""
        return {name: self.manifest.files[adapter_file(name)].sha256 for name in self.manifest.adapters}

    @functools.cached_property
    def attention_graph(self) -> OnnxRuntimeSession:
        """The graph that returns attention weights, opened at its first use; the files are checked again because time has passed.

        It runs on the CPU: ONNX Runtime's attention on CUDA returns no weights after softmax (microsoft/onnxruntime#28351).
        Raises `PackageError` if the package was exported without `--attention-maps`.
        """
        if not self.manifest.has_attention_maps:
            raise PackageError(f"{self.folder} has no attention maps; export it again with --attention-maps")
        graph = self.folder / ATTENTION_GRAPH
        with checking_files(self.folder, self.manifest, graph):
            return open_session(graph, device="cpu", threads=self.graph.threads)


def read_tokenizer(folder: Path, manifest: Manifest) -> TextTokenizer | None:
    """The tokenizer that a manifest lists, checked by its hash; None if it lists none."""
    if (listed := manifest.files.get(TOKENIZER)) is None:
        return None
    return TextTokenizer.from_file(folder / TOKENIZER, sha256=listed.sha256, eos_ids=manifest.eos_ids, bos_id=manifest.bos_id)
