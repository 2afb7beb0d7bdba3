"""How the decoder of an encoder-decoder is run over its cache: the first way that computes what the model itself does is traced.

Rows of a batch have different lengths, so each counts its own positions. Models count from the length of the past; their tables of
positions are found by trying them, and looked up by row instead.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from onnx_textgen.package.manifest import Target

from ..errors import ExportError
from ..sources.onnx_attention import positions_from_mask
from .encoder_decoder import SOURCE_TOKENS, EncoderDecoder
from .path_choice import TOLERANCE, difference, feed_in_chunks, first_right

TRIAL_TOKENS = 24
SOME_POSITIONS, MOST_OFFSET = 4, 8
"""Positions by which a table is recognised, and the last row at which the first position may be."""


@dataclasses.dataclass(frozen=True, slots=True)
class PositionTable:
    """A module of the decoder that looks positions up in a table."""

    module: nn.Module
    name: str
    """The attribute of the module that holds the table, which is read at each use: weights are present only meanwhile."""
    offset: int
    """The row of the first position."""

    def rows(self, positions: Tensor) -> Tensor:
        """The rows [batch, new, width] of positions [batch, new]."""
        return nn.functional.embedding(positions + self.offset, getattr(self.module, self.name))


@contextlib.contextmanager
def positions_by_row(tables: Sequence[PositionTable], positions: Tensor) -> Iterator[None]:
    """Within the context, tables give each row its own `positions` [batch, new]; the model counts from the length of the past."""
    own = [table.module.forward for table in tables]

    def lookup(table: PositionTable) -> Callable[..., Tensor]:
        return lambda *_, **__: table.rows(positions)

    try:
        for table in tables:
            table.module.forward = lookup(table)
        yield
    finally:
        for table, forward in zip(tables, own, strict=True):
            table.module.forward = forward


def position_tables(model: EncoderDecoder) -> list[PositionTable]:
    """The tables of positions, found by feeding one id several times: they alone return successive rows of a table."""
    found = list[PositionTable]()

    def look(module: nn.Module, _: object, output: object) -> None:
        name = "weight" if hasattr(module, "weight") else "weights"
        rows = getattr(module, name, None)
        if isinstance(rows, Tensor) and isinstance(output, Tensor) and rows.dim() == 2 and output.shape[-1] == rows.shape[1]:
            given = output.reshape(-1, output.shape[-1])
            for offset in range(min(MOST_OFFSET, len(rows) - SOME_POSITIONS) if len(given) == SOME_POSITIONS else 0):
                if torch.equal(given, rows[offset : offset + SOME_POSITIONS]):
                    found.append(PositionTable(module, name, offset))
                    return

    hooks = [module.register_forward_hook(look) for module in cast(Any, model.module).get_decoder().modules()]
    try:
        ids = torch.full((1, SOME_POSITIONS), model.trial_id)
        with torch.no_grad():
            encoded = model.encoded(torch.full((1, SOURCE_TOKENS), model.trial_id))
            found.clear()
            model.run_decoder(ids, torch.ones_like(ids), [*model.empty_pasts(1), *encoded])
    finally:
        for hook in hooks:
            hook.remove()
    return found


@dataclasses.dataclass(frozen=True, slots=True)
class DecoderPath:
    """One way to run the decoder over its cache."""

    model: EncoderDecoder
    tables: tuple[PositionTable, ...]
    knows_padding: bool
    one_token: bool

    def call(self, target: Target, input_ids: Tensor, attention_mask: Tensor, pasts: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Run, also while tracing; `pasts`: the cache, then what the encoder gives."""
        return self.run(input_ids, attention_mask, pasts)

    def call_with_attentions(
        self, target: Target, input_ids: Tensor, attention_mask: Tensor, pasts: list[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        """`call`, with the attention weights after the presents."""
        return self.run(input_ids, attention_mask, pasts, attentions=True)

    def run(
        self, input_ids: Tensor, attention_mask: Tensor, pasts: list[Tensor], *, attentions: bool = False
    ) -> tuple[Tensor, list[Tensor]]:
        """See `EncoderDecoder.run_decoder`."""
        if not self.knows_padding:
            return self.model.run_decoder(input_ids, None, pasts, attentions=attentions)
        with positions_by_row(self.tables, positions_from_mask(attention_mask, input_ids.shape[1])):
            return self.model.run_decoder(input_ids, attention_mask, pasts, attentions=attentions)


def decoder_paths(model: EncoderDecoder) -> Iterator[Callable[[], DecoderPath]]:
    """The paths to try, the fastest first."""
    tables = tuple(position_tables(model))
    for one_token in (False, True):
        yield functools.partial(DecoderPath, model, tables, knows_padding=True, one_token=one_token)
        yield functools.partial(DecoderPath, model, (), knows_padding=False, one_token=one_token)  # rows run one at a time


def choose_path(model: EncoderDecoder) -> DecoderPath:
    """The first path that computes what the model does; raises `ExportError` with the reason against the last one."""
    return first_right(decoder_paths(model), check_path, model.module)


def check_path(path: DecoderPath) -> None:
    """Raise `ExportError` if a path does not compute what the model does: in pieces, and in a batch with padded rows."""
    model = path.model
    generator = torch.Generator().manual_seed(0)
    source, ids = (
        torch.randint(0, model.vocab_size - 1, (1, count), generator=generator) for count in (SOURCE_TOKENS, TRIAL_TOKENS)
    )
    if model.padding_id is not None:
        source, ids = (torch.where(each == model.padding_id, model.trial_id, each) for each in (source, ids))
    with torch.no_grad():
        encoded, want = model.encoded(source), model.reference(ids, source)

        def run(ids: Tensor, mask: Tensor, pasts: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
            return path.call("ort", ids, mask, [*pasts, *encoded])

        sizes = [1] * TRIAL_TOKENS if path.one_token else [TRIAL_TOKENS - 4, 3, 1]
        error = difference(feed_in_chunks(run, model.empty_pasts(1), ids, sizes), want)
        if error > TOLERANCE:
            raise ExportError(f"over a cache its logits differ from its own by {error:.1e}")
        if path.knows_padding:
            check_padding(path, ids, source)


def check_padding(path: DecoderPath, ids: Tensor, source: Tensor) -> None:
    """Run the last token of two texts in one batch, joined as the runtime joins them: the shorter text is padded on its left.

    Its source is shorter too, and padded on its right. Raises `ExportError` if padding changes the logits.
    """
    model, cut = path.model, 2
    texts, sources = (ids, ids[:, cut:]), (source, source[:, :-cut])
    rows = [[*fed(path, text[:, :-1], read), *model.encoded(read)] for text, read in zip(texts, sources, strict=True)]
    shapes = [*(each.shape for each in model.layout.tensors), ("batch", "source_length"), *(each.shape for each in model.cross)]
    pasts = [joined(pair, shape) for pair, shape in zip(zip(*rows, strict=True), shapes, strict=True)]
    mask = torch.ones(2, ids.shape[1], dtype=torch.int64)
    mask[1, :cut] = 0
    logits, _ = path.call("ort", ids[:, -1:].expand(2, 1), mask, pasts)
    for row, (text, read) in enumerate(zip(texts, sources, strict=True)):
        error = difference(logits[row, -1], model.reference(text, read)[0, -1])
        if error > TOLERANCE:
            raise ExportError(
                f"in a batch with a longer text its logits differ by {error:.1e}: positions or masks ignore the padding"
            )


def fed(path: DecoderPath, ids: Tensor, source: Tensor) -> list[Tensor]:
    """The decoder's cache after these ids."""
    pasts, encoded, size = path.model.empty_pasts(1), path.model.encoded(source), 1 if path.one_token else ids.shape[1]
    for start in range(0, ids.shape[1], size):
        mask = torch.ones(1, start + size, dtype=torch.int64)
        _, pasts = path.call("ort", ids[:, start : start + size], mask, [*pasts, *encoded])
    return pasts


def joined(pair: tuple[Tensor, Tensor], shape: Sequence[int | str]) -> Tensor:
    """Two rows of a tensor of this shape as one batch: the shorter is padded with zeros, before its tokens or after its source."""
    axis = next((axis for axis, size in enumerate(shape) if size in {"length", "source_length"}), None)
    if axis is None:
        return torch.cat(pair)
    padding = list(pair[1].shape)
    padding[axis] = pair[0].shape[axis] - padding[axis]
    zeros = pair[1].new_zeros(padding)
    return torch.cat([pair[0], torch.cat([zeros, pair[1]] if shape[axis] == "length" else [pair[1], zeros], dim=axis)])
