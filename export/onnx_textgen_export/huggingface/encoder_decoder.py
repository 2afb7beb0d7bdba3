"""A transformers encoder-decoder (T5, BART, Marian ...): what a probe finds out about it, and how its two halves run.

The encoder also computes the keys and values of every layer's cross-attention, once per source text. The decoder takes them as
inputs, and attends by the model's own code, with a cache that grows. No architecture is named: what the layers keep is found by a
probe.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, DynamicLayer, EncoderDecoderCache

from onnx_textgen.speech.features import INPUT_FEATURES, features_of

from ..errors import ExportError
from ..layers.eager_attention import (
    CACHE_NAMES,
    PROBE_ROWS,
    CacheLayout,
    LayerCacheLayout,
    check_known,
    describe,
    make_cache,
    presents,
    tensors_of,
)
from ..layers.experts import EXPERTS
from ..sources.source import CacheTensor
from .probed_model import attention_as, experts_as

SOURCE_TOKENS = 5
"""Of a probe."""


class KeptLayer(DynamicLayer):  # type: ignore[no-untyped-call]  # transformers' caches are half typed
    """Keys and values of a cross-attention: given, or kept when they are computed."""

    def __init__(self, key: Tensor | None = None, value: Tensor | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.keys, self.values, self.is_initialized = key, value, True

    def update(self, key_states: Tensor, value_states: Tensor, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        """Keep what is computed; it is computed once."""
        self.keys, self.values = key_states, value_states
        return key_states, value_states

    def get_seq_length(self) -> int:
        """Tokens of the source."""
        return 0 if self.keys is None else self.keys.shape[-2]


class EncoderDecoder:
    """A model, what a probe found out about it, and how its two halves run."""

    def __init__(self, module: PreTrainedModel) -> None:
        self.module = module
        config = module.config.get_text_config(decoder=True)
        self.padding_id: int | None = getattr(config, "pad_token_id", None)
        self.trial_id = 3 if self.padding_id != 3 else 4
        named = inspect.signature(module.forward).parameters
        argument = next((name for name in CACHE_NAMES if name in named), "")
        self.features = features_taken(module)
        """Mels and frames, of a model that reads sound."""
        ids, begin = (torch.arange(PROBE_ROWS * count).reshape(PROBE_ROWS, count) for count in (SOURCE_TOKENS, 1))
        with torch.no_grad():
            self.read = cast(Any, module).get_encoder()(**self.taken(ids, torch.ones_like(ids)), return_dict=True)
            made = module(encoder_outputs=self.read, decoder_input_ids=begin, use_cache=True)
        found = getattr(made, argument, None)
        if not isinstance(found, EncoderDecoderCache):
            raise ExportError(f"{type(module).__name__} keeps no cache of an encoder-decoder that transformers knows")
        self.vocab_size: int = made.logits.shape[-1]
        self.width: int = self.read.last_hidden_state.shape[-1]
        layers, cross = list[LayerCacheLayout](), list[CacheTensor]()
        both = zip(cast(Any, found).self_attention_cache.layers, cast(Any, found).cross_attention_cache.layers, strict=True)
        for index, (own, other) in enumerate(both):
            check_known(index, own)
            tensors = [(path, of_decoder(describe(index, path, tensor))) for path, tensor in tensors_of(own)]
            layers.append(LayerCacheLayout(index, tuple(tensors)))
            cross += [of_encoder(index, path, tensor, self.read.last_hidden_state.shape[1]) for path, tensor in tensors_of(other)]
        if not layers or len(cross) != 2 * len(layers):
            raise ExportError(f"{type(module).__name__} has layers without cross-attention, which cannot be exported")
        self.layout = CacheLayout(argument, tuple(layers), has_cross_attention=True)
        self.cross = tuple(cross)

    def taken(self, source: Tensor, mask: Tensor | None = None) -> dict[str, Tensor]:
        """What the model takes of a source: ids [batch, source], which may stand for features, or features themselves."""
        if self.features is None:
            return {"input_ids": source} | ({} if mask is None else {"attention_mask": mask})
        if not source.is_floating_point():
            source = torch.stack([torch.from_numpy(features_of(each, *self.features)) for each in source.tolist()])
        return {INPUT_FEATURES: source}

    def reference(self, ids: Tensor, source_ids: Tensor) -> Tensor:
        """Logits [1, tokens, vocabulary] of ids [1, tokens] after a source [1, source], without a cache."""
        with attention_as(self.module, "eager"):
            logits: Tensor = self.module(**self.taken(source_ids), decoder_input_ids=ids, use_cache=False).logits
        return logits

    def states(self, source_ids: Tensor, source_mask: Tensor | None = None) -> Tensor:
        """The encoder's hidden states [batch, source, width]."""
        mask = torch.ones_like(source_ids) if source_mask is None else source_mask
        with attention_as(self.module, "eager"), experts_as(self.module, EXPERTS):
            found: Tensor = cast(Any, self.module).get_encoder()(**self.taken(source_ids, mask))[0]
        return found

    def attentions(self, ids: Tensor, source_ids: Tensor) -> list[Tensor]:
        """Attention weights of ids [1, tokens] after a source [1, source], without a cache: see `attention_weights`."""
        with attention_as(self.module, "eager"):
            found = self.module(**self.taken(source_ids), decoder_input_ids=ids, use_cache=False, output_attentions=True)
        return self.attention_weights(found)

    def attention_weights(self, found: Any) -> list[Tensor]:  # noqa: ANN401 - each model has its own class of outputs
        """The decoder's attention weights among what a run has returned.

        Of each layer over the text [batch, heads, new, tokens], then of each layer over the source [batch, heads, new, source].
        """
        weights = [each for name in ("decoder_attentions", "cross_attentions") for each in getattr(found, name, None) or ()]
        if len(weights) != len(self.cross) or any(each is None or each.dim() != 4 for each in weights):
            raise ExportError(
                f"no attention maps: {type(self.module).__name__} does not return the weights of its attention; "
                "leave out --attention-maps"
            )
        return weights

    def encode(self, source: Tensor, source_mask: Tensor | None = None) -> list[Tensor]:
        """The encoder's hidden states, then keys and values of each layer's cross-attention, in the order of `cross`.

        A source of sound has no mask.
        """
        hidden, rows = self.states(source, source_mask), source.shape[0]
        if source_mask is None:
            source_mask = torch.ones(hidden.shape[:2], dtype=torch.int64)
        begin = source[:, :1] if self.features is None else torch.full((rows, 1), self.trial_id)
        layers = [KeptLayer() for _ in self.layout.layers]
        cache = self.cache(self.empty_pasts(rows), layers, is_filled=False)
        self.decode(begin, torch.ones_like(begin), hidden, source_mask, cache)
        return [hidden, *(cast(Tensor, tensor) for layer in layers for tensor in (layer.keys, layer.values))]

    def encoded(self, source_ids: Tensor) -> list[Tensor]:
        """Return the decoder's inputs for a source [batch, source]: its mask, and the keys and values of its cross-attention."""
        hidden, *cross = self.encode(source_ids, torch.ones_like(source_ids) if self.features is None else None)
        return [torch.ones(hidden.shape[:2], dtype=torch.int64), *cross]

    def empty_pasts(self, rows: int) -> list[Tensor]:
        """The decoder's own cache before its first token."""
        sizes, shapes = {"batch": rows, "length": 0}, (tensor.shape for tensor in self.layout.tensors)
        return [torch.zeros([sizes[size] if isinstance(size, str) else size for size in shape]) for shape in shapes]

    def cache(self, pasts: Sequence[Tensor], cross: Sequence[KeptLayer], *, is_filled: bool) -> Cache:
        """The cache that the model expects; `is_filled`: the keys and values of its cross-attention are known."""
        made = cast(Any, EncoderDecoderCache)(make_cache(self.layout, pasts), Cache(layers=[]))
        made.cross_attention_cache = Cache(layers=list(cross))
        made.is_updated = dict.fromkeys(range(len(cross)), is_filled)
        return cast(Cache, made)

    def run_decoder(
        self, ids: Tensor, mask: Tensor | None, pasts: Sequence[Tensor], *, attentions: bool = False
    ) -> tuple[Tensor, list[Tensor]]:
        """Logits and presents, then with `attentions` the `attention_weights`.

        `pasts`: the decoder's cache, then what `encoded` returns.
        """
        count = len(self.layout.tensors)
        source_mask, *cross = pasts[count:]
        layers = [KeptLayer(key, value) for key, value in zip(cross[::2], cross[1::2], strict=True)]
        hidden = torch.zeros(*source_mask.shape, self.width)  # only its shape is looked at: keys and values are known
        cache = self.cache(pasts[:count], layers, is_filled=True)
        found = self.decode(ids, mask, hidden, source_mask, cache, output_attentions=attentions)
        kept = presents(self.layout, cast(Any, cache).self_attention_cache)
        return found.logits, [*kept, *self.attention_weights(found)] if attentions else kept

    def decode(
        self,
        ids: Tensor,
        mask: Tensor | None,
        hidden: Tensor,
        source_mask: Tensor,
        cache: Cache,
        *,
        output_attentions: bool = False,
    ) -> Any:  # noqa: ANN401 - each model has its own class of outputs
        """Run the decoder; returns `logits` [batch, new, vocabulary] and the further outputs that were requested."""
        given: dict[str, Any] = {self.layout.argument: cache} | ({} if mask is None else {"decoder_attention_mask": mask})
        with attention_as(self.module, "eager"), experts_as(self.module, EXPERTS):
            return self.module(
                encoder_outputs=type(self.read)(last_hidden_state=hidden),
                attention_mask=source_mask,
                decoder_input_ids=ids,
                use_cache=True,
                **({"output_attentions": True} if output_attentions else {}),
                **given,
            )


def of_decoder(tensor: CacheTensor) -> CacheTensor:
    """A tensor of the decoder's own attention, by the name that other exporters of encoder-decoders use."""
    before, _, kind = tensor.name.rpartition(".")
    return CacheTensor(f"{before}.decoder.{kind}", f"{tensor.present.rpartition('.')[0]}.decoder.{kind}", tensor.shape)


def features_taken(module: PreTrainedModel) -> tuple[int, int] | None:
    """Mels and frames of the sound that a model reads, all of one length; None for text. Raises `ExportError` for other sound."""
    if module.main_input_name == "input_ids":
        return None
    mels, positions = (getattr(module.config, name, None) for name in ("num_mel_bins", "max_source_positions"))
    strides = [layer.stride[0] for layer in cast(Any, module).get_encoder().children() if isinstance(layer, nn.Conv1d)]
    if module.main_input_name != INPUT_FEATURES or not isinstance(mels, int) or not isinstance(positions, int) or not strides:
        raise ExportError(f"{type(module).__name__} reads sound in another way than Whisper, which cannot be exported yet")
    return mels, positions * math.prod(strides)


def of_encoder(index: int, path: str, tensor: Tensor, source_tokens: int) -> CacheTensor:
    """A key or value of a cross-attention: an input of the decoder, and an output of the encoder."""
    if path not in {"key", "value"} or tensor.shape[2] != source_tokens:
        raise ExportError(f"layer {index} keeps cross-attention of the shape {tuple(tensor.shape)}, which cannot be exported")
    shape = ("batch", tensor.shape[1], "source_length", tensor.shape[3])
    return CacheTensor(f"past_key_values.{index}.encoder.{path}", f"present.{index}.encoder.{path}", shape)
