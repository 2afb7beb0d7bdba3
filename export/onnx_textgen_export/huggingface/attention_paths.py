"""The two ways to run the attention of a transformers model over a cache.

`FusedAttentionPath` hands each layer's attention to one operator, `EagerAttentionPath` traces the model's own attention code.
`path_choice` decides between them. No architecture is named.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from onnx_textgen.package.manifest import Target

from ..errors import ExportError
from ..layers.eager_attention import make_cache, presents, tensors_of
from ..layers.fused_attention import ATTENTION, fused_run, pass_through
from ..layers.mask_kinds import VisibleKind
from ..sources.attention import EagerLayer, LayerCache, RecordingLayer, recorded_weights
from ..sources.onnx_attention import make_traced_layers, positions_from_mask
from ..sources.source import fits_in_place, windows_of
from .probed_model import Model


class FusedAttentionPath:
    """Attention through one operator per layer; the first run classifies the masks, later runs reuse that.

    Layers with states and no keys (convolutions, recurrences) keep their own code; a layer with both is not supported.
    """

    name = "fused"
    position_offset = 0
    padding_id = None

    def __init__(self, model: Model) -> None:
        kinds = [{tensor.name.split(".")[0] for _, tensor in layer.tensors} for layer in model.layout.layers]
        if any("past_key_values" in kind and len(kind) > 1 for kind in kinds):
            raise ExportError("its layers keep states as well as keys and values")
        self.model = model
        self.attending = [layer.index for layer, kind in zip(model.layout.layers, kinds, strict=True) if "past_key_values" in kind]
        if not self.attending:
            raise ExportError("none of its layers attends")
        self.masks: list[VisibleKind] | None = None
        self.layers: list[EagerLayer] = []

    def split(self, pasts: list[Tensor]) -> tuple[list[tuple[Tensor, Tensor]], dict[int, Any]]:
        """Keys and values of the attention layers, and cache layers for the others."""
        pairs, others, left = [], {}, iter(pasts)
        for layer in self.model.layout.layers:
            held = {path: next(left) for path, _ in layer.tensors}
            if layer.index in self.attending:
                pairs.append((held["key"], held["value"]))
            else:
                others[layer.index] = layer.layer(held)
        return pairs, others

    def forward(self, input_ids: Tensor, attention_mask: Tensor, layers: Sequence[LayerCache], others: dict[int, Any]) -> Tensor:
        """Logits; each attention layer uses its entry of `layers`."""
        positions = positions_from_mask(attention_mask, input_ids.shape[1])
        cache = pass_through(dict(zip(self.attending, layers, strict=True)), others)
        with fused_run(self.masks) as run:
            logits = self.model.logits(input_ids, cache, ATTENTION, position_ids=positions)
        self.masks = self.masks or run.masks
        return logits

    def presents(self, pairs: Sequence[tuple[Tensor, ...]], others: dict[int, Any]) -> list[Tensor]:
        """Return the cache tensors of all layers after a run, in the order of the cache."""
        found, left = list[Tensor](), iter(pairs)
        for layer in self.model.layout.layers:
            if layer.index in self.attending:
                found += next(left)
            else:
                held = dict(tensors_of(others[layer.index]))
                found += [held[path] for path, _ in layer.tensors]
        return found

    def run(self, input_ids: Tensor, attention_mask: Tensor, pasts: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Run in PyTorch."""
        pairs, others = self.split(pasts)
        self.layers = [EagerLayer(*pair) for pair in pairs]
        logits = self.forward(input_ids, attention_mask, self.layers, others)
        return logits, self.presents([layer.tensors() for layer in self.layers], others)

    def attentions(self, input_ids: Tensor, rows: int) -> list[Tensor]:
        """Attention weights in PyTorch; see `Source.attentions`."""
        _, others = self.split(self.model.empty_pasts(1))
        layers = [RecordingLayer(rows) for _ in self.attending]
        self.forward(input_ids, torch.ones_like(input_ids), layers, others)
        return recorded_weights(layers)

    def call(self, target: Target, input_ids: Tensor, attention_mask: Tensor, pasts: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Run while tracing."""
        pairs, others = self.split(pasts)
        layers = make_traced_layers(target, pairs, attention_mask, input_ids.shape[1], in_place=fits_in_place(self.layers))
        logits = self.forward(input_ids, attention_mask, layers, others)
        return logits, self.presents([layer.presents() for layer in layers], others)

    def windows(self) -> tuple[int, ...]:
        """The windows that the first run found."""
        return windows_of(self.layers)

    def heads(self) -> int:
        """Query heads of the first attention layer."""
        return self.layers[0].heads


class EagerAttentionPath:
    """Attention by the model's own code; positions and the padding mask are given, or left to the model."""

    name = "own"

    def __init__(self, model: Model, *, position_offset: int | None, knows_padding: bool = True) -> None:
        self.model, self.position_offset, self.knows_padding = model, position_offset, knows_padding

    @property
    def padding_id(self) -> int | None:
        """The id of padding, where positions begin after it because the model gives padding none."""
        return self.position_offset - 1 if self.position_offset else None

    def run(self, input_ids: Tensor, attention_mask: Tensor, pasts: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Run in PyTorch, or while tracing."""
        options: dict[str, object] = {"attention_mask": attention_mask} if self.knows_padding else {}
        if self.position_offset is not None:
            options["position_ids"] = positions_from_mask(attention_mask, input_ids.shape[1]) + self.position_offset
        cache = make_cache(self.model.layout, pasts)
        logits = self.model.logits(input_ids, cache, "eager", **options)
        return logits, presents(self.model.layout, cache)

    def call(self, target: Target, input_ids: Tensor, attention_mask: Tensor, pasts: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Run while tracing."""
        return self.run(input_ids, attention_mask, pasts)

    def windows(self) -> tuple[int, ...]:
        """Windows and chunks that the config names; the model's own code applies them."""
        sizes = [self.config_value(name) for name in ("sliding_window", "attention_chunk_size", "window_size")]
        return tuple(sorted({size for size in sizes if size > 0}))

    def heads(self) -> int:
        """Query heads according to the config, for information; 1 if the layers differ."""
        return self.config_value("num_attention_heads") or 1

    def config_value(self, name: str) -> int:
        """A number of the config; 0 if it is missing or the layers differ in it."""
        try:
            found = getattr(self.model.module.config.get_text_config(decoder=True), name, None)
        except Exception:  # noqa: BLE001 - configs whose layers differ raise various errors
            return 0
        return found if isinstance(found, int) else 0


AttentionPath = FusedAttentionPath | EagerAttentionPath
