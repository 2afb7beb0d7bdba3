"""The vision part of a model: from the numbers of one picture to the rows that take the place of its tokens' embeddings.

It is the model itself, run on the tokens of one picture up to its text decoder: the rows are what it writes into the embeddings
there. So whatever lies between the vision encoder and that place is part of it, and no architecture is named.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import math
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
from onnx_textgen.package.manifest import Target

from ..errors import ExportError, innermost
from ..huggingface.probed_model import attention_as
from ..image_processors.grids import Grid, GridForm, Made, grid_in, made_of
from ..layers.encoder_attention import ATTENTION, OWN, counted_calls
from .packed_attention import by_groups
from .read_out_values import ReadOutValues, Site

DEEPER = "deepstack_visual_embeds"
"""The argument of a text decoder with rows for each of its first layers, which are added to what the layer returns."""
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


@dataclasses.dataclass(frozen=True, slots=True)
class Seen:
    """What a processor makes of a picture, as a vision part takes it."""

    pixels: Tensor
    """Its numbers; of a grid, in the shape of `GridForm.split`."""
    grid: Grid | None = None
    """Tokens down and across, if they vary."""


class VisionPart(nn.Module):
    """A model up to its text decoder, on the tokens of one picture."""

    def __init__(self, model: PreTrainedModel, token_id: int, tokens: int, name: str, constants: Mapping[str, Tensor]) -> None:
        """`tokens`: of the picture, each `token_id`; `name`: of the numbers of the picture; `constants`: what else it takes."""
        super().__init__()
        self.module = model  # under the name that `attach_weights` knows
        self.token_id, self.tokens, self.name, self.constants = token_id, tokens, name, dict(constants)
        self.takes_positions = "position_ids" in inspect.signature(model.forward).parameters
        self.form: GridForm | None = None
        """How the numbers of the picture follow its grid; None: all pictures have one shape."""
        self.known: list[tuple[Site, Made]] | None = None
        """Values read out of tensors in the trial runs."""
        self.noted: list[tuple[Site, Any]] = []
        """Those of the last run."""
        self.attention = OWN
        """How its attention is traced."""
        self.deeper = 0
        """How many layers of the text decoder get separate rows, which follow those for the embeddings."""

    def forward(self, pixels: Tensor) -> Tensor:
        """Rows [tokens, width] of one picture; of a grid [height, width, width of a row]."""
        if self.form is None:
            return self.rows(pixels, self.tokens, self.constants, (0, 0))
        height, width = grid_in(self.form.split, pixels.shape)
        constants = {name: make(height, width) for name, make in self.form.constants.items()}
        own = pixels.reshape([each(height, width) for each in self.form.shape])
        if self.takes_positions:
            constants["position_ids"] = torch.arange(height * width)[None]  # else it computes those that its decoder would take
        rows = self.rows(own, height * width, constants, (height, width))
        return rows.reshape(height, width, rows.shape[-1])

    def rows(self, pixels: Tensor, tokens: int, constants: Mapping[str, Tensor], grid: Grid) -> Tensor:
        """The rows [tokens, width] that the model writes into the embeddings."""
        checking = contextlib.nullcontext() if self.known is None else unchecked()
        known = None if self.known is None else [(site, make(*grid)) for site, make in self.known]
        ids, given = torch.full((1, tokens), self.token_id), dict[str, Any]()
        with WrittenRows() as written, ReadOutValues(known) as reading, without_text(self.module, given.update), checking:
            self.module(input_ids=ids, **constants, **{self.name: pixels}, use_cache=False)
        self.noted = reading.noted
        if written.rows is None:
            raise ExportError(f"{type(self.module).__name__} takes images in a way that is not known")
        rows: Tensor = written.rows.reshape(-1, written.rows.shape[-1])
        deeper: list[Tensor] = given.get(DEEPER) or []
        self.deeper = len(deeper)
        return torch.cat([rows, *deeper], dim=1)

    def run(self, seen: Seen) -> Tensor:
        """The rows [tokens, width] of a picture, by PyTorch alone."""
        known, self.known = self.known, None
        with torch.no_grad(), attention_as(self.module, OWN):
            rows: Tensor = self(seen.pixels)
        self.known = known
        return rows.reshape(-1, rows.shape[-1])

    def rehearse(self, pictures: Sequence[Seen]) -> None:
        """Find how the values that are read out of tensors follow the grid, by a run for each picture as it will be traced."""
        self.known, notes = None, list[list[tuple[Site, Any]]]()
        for each in pictures:
            with torch.no_grad(), self.traceable():
                self(each.pixels)
            notes.append(self.noted)
        sites = [[site for site, _ in each] for each in notes]
        if any(each != sites[0] for each in sites):
            raise ExportError(f"{type(self.module).__name__} computes otherwise for pictures of other sizes")
        grids = [each.grid or (0, 0) for each in pictures]
        values = zip(*([value for _, value in each] for each in notes), strict=True)
        self.known = [(site, made_of(each, grids)) for site, each in zip(sites[0], values, strict=True)]

    def choose_attention(self, sample: Seen, target: Target) -> None:
        """Choose how its attention is traced: by one operator if all of it goes through transformers' interface."""
        self.attention = ATTENTION if target == "ort" else OWN
        try:
            with torch.no_grad(), counted_calls() as calls, self.traceable():
                self(sample.pixels)
        except Exception:  # noqa: BLE001 - whatever the model's own code raises with another attention
            calls = []
        if not calls:
            self.attention = OWN

    @contextlib.contextmanager
    def traceable(self) -> Iterator[None]:
        """Within the context, its attention is computed in the way that is traced."""
        groups = by_groups(self.module) if self.attention == ATTENTION else contextlib.nullcontext()
        with attention_as(self.module, self.attention), groups:
            yield


@contextlib.contextmanager
def without_text(model: nn.Module, note: Callable[[dict[str, Any]], None] = lambda given: None) -> Iterator[None]:
    """Within the context, the text decoder returns its embeddings; `note` gets its arguments."""
    decoder: Any = cast(Any, model).get_decoder()
    if decoder is None or decoder is model:
        raise ExportError(f"{type(model).__name__} has no separate text decoder")
    own = decoder.forward

    def forward(*_: object, **given: Any) -> BaseModelOutputWithPast:  # noqa: ANN401 - the decoder's arguments
        note(given)
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


def open_vision(part: VisionPart, pictures: Sequence[Seen], target: Target) -> None:
    """Prepare a vision part to be traced; raises `ExportError` if its code fails."""
    name = type(part.module).__name__
    try:
        rows = part.run(pictures[0])
        part.choose_attention(pictures[0], target)
        part.rehearse(pictures)
    except ExportError as error:
        if target == "standard":
            raise ExportError(f"{error}, at the target standard; --target ort may take it") from error
        raise
    except Exception as error:
        raise ExportError(f"{name} fails on a picture: {first_line(innermost(error))}") from error
    tokens = math.prod(pictures[0].grid) if pictures[0].grid else part.tokens
    if len(rows) != tokens:
        raise ExportError(f"{name} makes {len(rows)} rows of a picture with {tokens} tokens")
