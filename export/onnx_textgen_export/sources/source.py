"""`Source`, one interface for every kind of decoder that can be exported.

`own_module` makes one from a user's module, `huggingface` from a transformers model; nothing after that tells them apart.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from onnx_textgen.package.manifest import Geometry, Target

from ..errors import ExportError
from .attention import EagerLayer
from .image_rows import ImagePart

Traceable = Callable[[Target, Tensor, Tensor, list[Tensor]], tuple[Tensor, list[Tensor]]]
"""What the tracer calls: target, input_ids, attention_mask and pasts in; logits and presents out, both as `Source.cache` lists."""
Attentions = Callable[[Tensor, int], list[Tensor]]
"""For ids [1, tokens] and a number of last rows: PyTorch's attention weights [1, heads, rows, tokens] per attention layer."""
NO_LENGTH = (
    "does not say how long its texts may be; add --context-length N (in Python: context_length=N), where N is the most tokens that "
    "you will use: the length it was trained on, or more if it has no positions, as with ALiBi or a recurrent state"
)


@dataclasses.dataclass(frozen=True, slots=True)
class CacheTensor:
    """One tensor that the decoder takes and returns updated."""

    name: str
    """The graph's input, `past_...`."""
    present: str
    """The graph's output."""
    shape: tuple[int | str, ...]
    """Sizes; "batch" and "length" (tokens so far) mark the dynamic ones. A tensor without "length" is a state."""


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Border:
    """A number of tokens beyond which a decoder computes differently."""

    length: int
    what: str

    def in_words(self) -> str:
        """In words, for a report.

        >>> Border(4096, "the window of").in_words()
        'the window of 4,096'
        """
        return f"{self.what} {self.length:,}"


@dataclasses.dataclass(frozen=True, slots=True)
class EncoderPart:
    """The encoder of an encoder-decoder, which reads a source text once."""

    call: Callable[..., list[Tensor]]
    """Source ids [batch, source] and their mask in, or features; hidden states [batch, source, width] out, then `cross`."""
    cross: tuple[CacheTensor, ...]
    """Keys and values of the cross-attention: inputs of the decoder by `name`, outputs of the encoder by `present`."""
    reference: Callable[[Tensor, Tensor], Tensor]
    """Plain PyTorch: logits [batch, tokens, vocabulary] of ids [batch, tokens] after sources [batch, source]."""
    states: Callable[[Tensor], Tensor]
    """Plain PyTorch: hidden states [1, source, width] of a source [1, source]."""
    call_with_attentions: Traceable
    """`Source.call`, with the attention weights after the presents: of each layer over the text [batch, heads, new, tokens], then
    of each layer over the source [batch, heads, new, source]."""
    attentions: Callable[[Tensor, Tensor], list[Tensor]]
    """Plain PyTorch: these weights of ids [1, tokens] after a source [1, source]."""
    source_length: int
    """Most tokens of a source."""
    start_ids: tuple[int, ...]
    """Ids that every text begins with."""
    suppressed_ids: tuple[int, ...] = ()
    """Ids that no text may have."""
    features: tuple[int, int] | None = None
    """Of an encoder that reads sound: mels and frames of what it takes. Source ids stand for these then, see `features_of`."""


@dataclasses.dataclass(frozen=True, slots=True)
class Source:
    """A decoder, ready for tracing and for comparison."""

    module: nn.Module
    """Owns the weights."""
    call: Traceable
    reference: Callable[[Tensor], Tensor]
    """Plain PyTorch: logits [1, tokens, vocabulary] of ids [1, tokens], by code that the export does not change.

    An encoder-decoder reads the same ids as their source."""
    head: nn.Module | None
    """The layer whose output is the logits, so that they are computed only at the asked positions; None: slice the logits."""
    geometry: Geometry
    windows: tuple[int, ...]
    """Sliding windows and chunks in use, empty where every layer sees everything."""
    cache: tuple[CacheTensor, ...]
    """The tensors that `call` takes and returns, in this order."""
    one_token: bool = False
    """The graph takes one token per row and run, because a recurrent layer does."""
    attention_path: str = "fused"
    """How its attention is traced: "fused" (one operator) or "own" (its own code)."""
    padding_id: int | None = None
    """An id that gets no position, so that no text may contain it; None if the model has no such id."""
    attentions: Attentions | None = None
    """Attention weights in PyTorch, where a decoder's attention goes through `cached_attention`; None otherwise."""
    has_assumed_length: bool = False
    """Whether nothing names the context length, so that a usual one was taken."""
    encoder: EncoderPart | None = None
    """The other half of an encoder-decoder; then `call` takes the encoder's mask and `EncoderPart.cross` after the pasts."""
    images: ImagePart | None = None
    """Where the rows of images go; None: the decoder reads text alone."""
    rotary_switch: int | None = None
    """Beyond this many tokens keys are rotated by other frequencies, so the cache of a text that crosses it is recomputed."""

    def logits(self, ids: Sequence[int], source_ids: Sequence[int] = ()) -> Tensor:
        """PyTorch's logits [tokens, vocabulary] of a text, and of an encoder-decoder after a source."""
        if self.encoder is None:
            return self.reference(torch.tensor([list(ids)]))[0]
        return self.encoder.reference(torch.tensor([list(ids)]), torch.tensor([list(source_ids)]))[0]

    @property
    def borders(self) -> tuple[Border, ...]:
        """The lengths beyond which the decoder computes differently, in order; a proof should cross them."""
        switch = [Border(self.rotary_switch, "the rotary switch at")] if self.rotary_switch is not None else []
        return tuple(sorted([*(Border(window, "the window of") for window in self.windows), *switch]))


def context_length_of(module: nn.Module, given: int | None) -> int:
    """The context length given, or what the module's config says."""
    found = given or getattr(getattr(module, "config", None), "context_length", None)
    if not isinstance(found, int):
        raise ExportError(f"{type(module).__name__} {NO_LENGTH}")
    return found


def width_of(module: nn.Module) -> int:
    """The width of the token embedding. A transformers model names it: its first embedding may be of positions in pictures."""
    named = getattr(module, "get_input_embeddings", None)
    if named is not None and isinstance(found := named(), nn.Embedding):
        return found.embedding_dim
    for part in module.modules():
        if isinstance(part, nn.Embedding):
            return part.embedding_dim
    raise ExportError(f"{type(module).__name__} has no nn.Embedding for its tokens")


def key_value_cache(kept: Sequence[tuple[int, Tensor, Tensor]]) -> tuple[CacheTensor, ...]:
    """The cache of attention layers, from the tensors of a probe: layer number, key and value [batch, heads, tokens, size]."""
    return tuple(
        CacheTensor(
            f"past_key_values.{layer}.{part}", f"present.{layer}.{part}", ("batch", tensor.shape[1], "length", tensor.shape[3])
        )
        for layer, key, value in kept
        for part, tensor in (("key", key), ("value", value))
    )


def make_geometry(
    module: nn.Module, cache: tuple[CacheTensor, ...], logits: Tensor, *, heads: int, context_length: int
) -> Geometry:
    """Sizes read from a probe; heads and head size are those of the first attention layer."""
    keys = [tensor.shape for tensor in cache if tensor.name.endswith(".key")]
    kv_heads, head_size = (int(keys[0][1]), int(keys[0][3])) if keys else (1, 1)
    return Geometry(
        layers=max(len(keys), 1),
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        hidden_size=width_of(module),
        vocab_size=logits.shape[-1],
        context_length=context_length,
    )


def fits_in_place(layers: Sequence[EagerLayer]) -> bool:
    """Return whether GroupQueryAttention can replace the layers: keys and values of one size, a multiple of 8, and no chunks."""
    return all(
        layer.key is not None
        and layer.value is not None
        and layer.key.shape == layer.value.shape
        and layer.key.shape[3] % 8 == 0
        and layer.form.chunk is None
        for layer in layers
    )


def windows_of(layers: Sequence[EagerLayer]) -> tuple[int, ...]:
    """The windows and chunks in use."""
    return tuple(sorted({size for layer in layers for size in (layer.form.window, layer.form.chunk) if size}))
