"""The Hugging Face door: any decoder whose attention goes through transformers' `AttentionInterface`.

transformers lets one register an attention function and a mask function, and takes any cache object. Ours hand the new keys and
values of each layer to `cached_attention`, so no architecture needs code of its own. Models with attention code of their own do
not pass through here; the probe then finds no layer that attended and says so.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from onnx_textgen.errors import first_line

from .attention import LayerCache, cached_attention
from .errors import ExportError
from .sources import Caches, Source, source_from_cached

ATTENTION = "onnx_textgen"
HARMLESS = frozenset({"position_ids", "cache_position"})  # they say what the cache and the mask know already
CURRENT: ContextVar[PassThroughCache] = ContextVar("onnx_textgen_cache")


class PassThroughCache:
    """Stands in for a transformers cache: `update` hands the new keys and values through and notes whose turn it is."""

    is_compileable = False
    is_initialized = True

    def __init__(self, layers: Caches) -> None:
        self.layers = layers
        self.current: LayerCache | None = None

    def update(self, key: Tensor, value: Tensor, layer_idx: int, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        """Give back only the new keys and values."""
        self.current = self.layers[layer_idx]
        return key, value

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Zero: positions are given, and the past is known to the layers alone."""
        return 0

    def get_query_offset(self, layer_idx: int = 0) -> int:
        """Zero, for the same reason."""
        return 0

    def get_mask_sizes(self, query: Tensor | int, layer_idx: int) -> tuple[int, int]:
        """Length and offset of a mask that nobody will make."""
        return (query.shape[0] if isinstance(query, Tensor) else query), 0

    def get_max_cache_shape(self, layer_idx: int = 0) -> int:
        """No limit."""
        return -1

    @property
    def is_sliding(self) -> list[bool]:
        """None is: windows are the attention function's business."""
        return [False] * len(self)

    def __len__(self) -> int:
        return len(self.layers)


def attention(  # noqa: PLR0917 - the signature is transformers'
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **rest: object,
) -> tuple[Tensor, None]:
    """transformers' attention signature -> `cached_attention`; returns [batch, new, heads, head_size]."""
    layer, CURRENT.get().current = CURRENT.get().current, None
    if unknown := [name for name, value in rest.items() if isinstance(value, Tensor) and name not in HARMLESS]:
        raise ExportError(f"{type(module).__name__} gives its attention {unknown[0]}, which no target here knows")
    if layer is None:
        raise ExportError(f"{type(module).__name__} attends without updating the cache, so its attention cannot be traced")
    output = cached_attention(query, key, value, layer, scale=scaling, window=sliding_window, softcap=softcap)
    return output.transpose(1, 2), None


AttentionInterface.register(ATTENTION, attention)
AttentionMaskInterface.register(ATTENTION, lambda *args, **kwargs: None)  # the target's operator masks


@contextlib.contextmanager
def attention_as(model: PreTrainedModel, name: str) -> Iterator[None]:
    """Run `model` with another attention implementation for a while."""
    before = model.config._attn_implementation
    model.set_attn_implementation(name)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def output_layer(model: PreTrainedModel) -> nn.Module | None:
    """The layer that makes the logits, where the model names it."""
    return cast("nn.Module | None", cast(Any, model).get_output_embeddings())


def source_from_model(model: PreTrainedModel, *, context_length: int | None = None) -> Source:
    """A source from a transformers causal language model."""
    config = model.config.get_text_config()
    length = context_length or getattr(config, "max_position_embeddings", None)
    if not isinstance(length, int):
        raise ExportError(f"{config.model_type} does not say how long its context is; pass context_length=N")

    def forward(input_ids: Tensor, position_ids: Tensor, caches: Caches) -> Tensor:
        token = CURRENT.set(PassThroughCache(caches))
        try:
            with attention_as(model, ATTENTION):
                output = model(input_ids=input_ids, position_ids=position_ids, past_key_values=CURRENT.get(), use_cache=True)
        finally:
            CURRENT.reset(token)
        logits: Tensor = output.logits
        return logits

    def reference(ids: Tensor) -> Tensor:
        with attention_as(model, "eager"):
            logits: Tensor = model(input_ids=ids, use_cache=False).logits
        return logits

    return source_from_cached(model, forward, reference=reference, head=output_layer(model), context_length=length)


def load_model(folder: Path) -> PreTrainedModel:
    """Open a local checkpoint folder in float32; weights in safetensors only, no code from the folder."""
    if not (folder / "config.json").is_file():
        raise ExportError(f"{folder} has no config.json; give the folder of a Hugging Face checkpoint")
    if not list(folder.glob("*.safetensors")):
        pickles = [path.name for path in folder.iterdir() if path.suffix in {".bin", ".pt", ".pth", ".ckpt", ".pkl"}]
        found = f"only {pickles[0]}, a pickle, which can run code when opened" if pickles else "no weights"
        raise ExportError(f"{folder} holds {found}; save it again with model.save_pretrained(DIR, safe_serialization=True)")
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        cast(Any, disable_progress_bar)()
        loader = cast(Any, AutoModelForCausalLM)  # the stubs do not know output_loading_info
        model, report = loader.from_pretrained(
            folder, config=config, dtype=torch.float32, local_files_only=True, use_safetensors=True, output_loading_info=True
        )
    except (ValueError, KeyError, OSError, RuntimeError, SafetensorError) as error:
        raise ExportError(f"transformers cannot open {folder}: {first_line(error)}") from error
    if missing := sorted(report["missing_keys"]):
        raise ExportError(f"{folder} lacks the weights of {missing[0]} ({len(missing)} in all); the checkpoint is incomplete")
    if not isinstance(model, PreTrainedModel):
        raise ExportError(f"{folder} is no causal language model")
    return model
