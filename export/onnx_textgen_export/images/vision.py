"""The vision part of a model: from the numbers of one picture to the rows that take the place of its tokens' embeddings.

It is the model itself, run on the tokens of one picture up to its text decoder: the rows are what it writes into the embeddings
there. So whatever lies between the vision encoder and that place is part of it, and no architecture is named.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast
from unittest import mock

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast

from onnx_textgen.errors import first_line

from ..errors import ExportError, innermost
from ..huggingface.probed_model import attention_as
from ..layers.encoder_attention import ATTENTION, OWN, counted_calls
from .read_out_values import ReadOutValues, Site

SCATTERING = frozenset({Tensor.masked_scatter, torch.masked_scatter, Tensor.masked_scatter_})


class WrittenRows(TorchFunctionMode):
    """Within the context, `rows` gets what a model writes into the embeddings; the embeddings stay."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: Tensor | None = None

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:  # noqa: ANN401 - the signature is PyTorch's
        if func in SCATTERING:
            self.rows = args[2] if len(args) > 2 else (kwargs or {})["source"]
            return args[0]
        return func(*args, **(kwargs or {}))


class VisionPart(nn.Module):
    """A model up to its text decoder, on the tokens of one picture."""

    def __init__(self, model: PreTrainedModel, ids: Tensor, names: Sequence[str], constants: Mapping[str, Tensor]) -> None:
        """`ids` [1, tokens]: those of one picture; `names`: of the numbers that depend on it; `constants`: what else it takes."""
        super().__init__()
        self.module = model  # under the name that `attach_weights` knows
        self.ids, self.names, self.constants = ids, tuple(names), dict(constants)
        self.known: list[tuple[Site, Any]] | None = None
        """Values read out of tensors in the trial run."""
        self.noted: list[tuple[Site, Any]] = []
        """Those of the last run."""

    def forward(self, *pixels: Tensor) -> Tensor:
        """Rows [tokens, width] of one picture."""
        given = dict(zip(self.names, pixels, strict=True))
        checking = contextlib.nullcontext() if self.known is None else unchecked()
        with WrittenRows() as written, ReadOutValues(self.known) as reading, without_text(self.module), checking:
            self.module(input_ids=self.ids, **self.constants, **given, use_cache=False)
        self.noted = reading.noted
        if written.rows is None:
            raise ExportError(f"{type(self.module).__name__} takes images in a way that is not known")
        rows: Tensor = written.rows.reshape(-1, written.rows.shape[-1])
        return rows

    def rehearse(self, pixels: Sequence[Tensor]) -> Tensor:
        """Run once in PyTorch, and note the values that are read out of tensors; returns the rows."""
        self.known = None
        with torch.no_grad(), attention_as(self.module, OWN):
            rows: Tensor = self(*pixels)
        self.known = self.noted
        return rows

    def attention(self, pixels: Sequence[Tensor]) -> str:
        """How its attention can be traced: by one operator if all of it goes through transformers' interface."""
        try:
            with torch.no_grad(), counted_calls() as calls, attention_as(self.module, ATTENTION):
                self(*pixels)
        except Exception:  # noqa: BLE001 - whatever the model's own code raises with another attention
            return OWN
        return ATTENTION if calls else OWN


@contextlib.contextmanager
def without_text(model: nn.Module) -> Iterator[None]:
    """Within the context, the text decoder returns its embeddings."""
    decoder: Any = cast(Any, model).get_decoder()
    if decoder is None or decoder is model:
        raise ExportError(f"{type(model).__name__} has no separate text decoder")
    own = decoder.forward

    def forward(*_: object, **given: Any) -> BaseModelOutputWithPast:  # noqa: ANN401 - the decoder's arguments
        return BaseModelOutputWithPast(last_hidden_state=given["inputs_embeds"])

    decoder.forward = forward
    try:
        yield
    finally:
        decoder.forward = own


@contextlib.contextmanager
def unchecked() -> Iterator[None]:
    """Within the context, transformers does not compare counts, for which a graph has no operator."""
    with mock.patch.dict(os.environ, {"TRANSFORMERS_DISABLE_TORCH_CHECK": "1"}):
        yield


def open_vision(model: PreTrainedModel, ids: Tensor, pixels: Mapping[str, Tensor], constants: Mapping[str, Tensor]) -> VisionPart:
    """The vision part, rehearsed; raises `ExportError` if its code fails."""
    part = VisionPart(model, ids, tuple(pixels), constants)
    try:
        rows = part.rehearse(tuple(pixels.values()))
    except ExportError:
        raise
    except Exception as error:
        raise ExportError(f"{type(model).__name__} fails on a picture: {first_line(innermost(error))}") from error
    if len(rows) != ids.shape[1]:
        raise ExportError(f"{type(model).__name__} makes {len(rows)} rows of a picture with {ids.shape[1]} tokens")
    return part
