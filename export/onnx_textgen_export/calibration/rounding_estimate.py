"""A fast estimate of what rounding will cost, made before anything is traced or calibrated.

The divergences caused by rounding single blocks approximately add up. So one pass of PyTorch runs a batch of copies of a text: one
through the unrounded model, and one for each of a few blocks and the output layer, with only that part rounded. The divergences of
these blocks are extrapolated to the others.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

from onnx_textgen.package.manifest import Target

from ..package.forecast import has_inputs_first, in_words, matrix_bytes, stored_parameters
from ..passes.quantization.lossless import find_form, keeps_numbers, may_keep
from ..passes.quantization.options import EIGHT_BIT_BLOCK, FINER_BLOCK, Quantization
from ..passes.quantization.rounding import Rounding
from ..proof.probe_text import probe_ids
from ..sources.source import Source
from ..tokenization.text_assets import TextAssets
from ..weights.streamed import Forward, Weights, blocks_of, forward_within
from .attempts import Budget

SAMPLED = 4
"""Blocks to round, evenly spread."""
WORK = 1e11
"""Parameters times tokens of the pass."""
FEWEST_TOKENS, MOST_TOKENS = 32, 256
MOST_LOGITS = 1 << 27
"""Logits of all copies of the text."""
CALIBRATED = 0.13
"""Ratio of the divergence of calibrated blocks of 16 to the estimated one of plain rounding in blocks of 32: 0.055 of 0.44 on
SmolLM2-135M."""


@dataclasses.dataclass(frozen=True, slots=True)
class Estimate:
    """The estimated cost of rounding."""

    plain_kl: float
    """Mean divergence with 4 bits for every matrix, without calibration, in nats per token."""
    narrow_bytes: int
    """Size with 4 bits for every matrix, in the smallest blocks that are tried."""
    wide_bytes: int
    """Size with 8 bits."""
    calibrates: bool

    def describe(self, budget: Budget, limit: float, *, is_fixed: bool = False) -> str:
        """One line for the user; `is_fixed`: the user chose the bits.

        Assumes that the divergence of a calibrated mix falls linearly with the share of 8-bit weights.
        """
        said = f"estimate: 4 bits alone lose about KL {self.plain_kl:.2g}{' (uncalibrated)' if self.calibrates else ''}"
        left = self.plain_kl * (CALIBRATED if self.calibrates else 1.0)
        if is_fixed or budget.strict_bits or budget.target_bytes is not None:
            return said
        if left <= limit:
            return f"{said}; within KL {limit:g} they take about {in_words(self.narrow_bytes)}"
        if not self.calibrates:
            return f"{said}; more matrices get 8 bits, step by step, until KL {limit:g} holds: at most {in_words(self.wide_bytes)}"
        size = (self.narrow_bytes - self.wide_bytes) * limit / left + self.wide_bytes
        return f"{said}; a mix with 8 bits within KL {limit:g} takes about {in_words(size)}"


def estimate_rounding(
    source: Source, weights: Weights, assets: TextAssets, options: Quantization, budget: Budget, *, target: Target
) -> Estimate:
    """Round a few blocks and the output layer; raises `ValueError` with the reason if that allows no estimate."""
    blocks = [block for block in blocks_of(source.module).values() if matrices_of(block)]
    parameters = stored_parameters(source.module)
    if not blocks:
        raise ValueError("the model has no blocks of one kind")
    if any(each.kind == "experts" for each in parameters):
        raise ValueError("what the experts of a mixture lose depends on which are selected")
    places = (np.arange(SAMPLED) + 0.5) / SAMPLED * len(blocks)
    chosen = [blocks[index] for index in dict.fromkeys(places.astype(int).tolist())]
    parts = [*chosen, source.head] if source.head is not None else chosen
    count = int(min(max(WORK / sum(each.elements for each in parameters), FEWEST_TOKENS), MOST_TOKENS))
    count = min(count, max(MOST_LOGITS // ((1 + len(parts)) * source.geometry.vocab_size), 1))
    ids = torch.tensor([probe_ids(source, assets.tokenizer)[:count]]).repeat(1 + len(parts), 1)
    plain, keeps = dataclasses.replace(options, method="rtn"), keeps_numbers(target, options)
    with contextlib.ExitStack() as stack:
        runs = [stack.enter_context(rounded_for(part, row, plain, keeps=keeps)) for row, part in enumerate(parts, start=1)]
        stack.enter_context(weights.present())
        stack.enter_context(torch.no_grad())
        logits = source.reference(ids)
    if not all(runs):
        raise ValueError("the model's blocks are not run one by one")
    wanted = logits[0].float().log_softmax(-1)
    costs = [divergence(wanted, one) for one in logits[1:]]
    in_blocks, in_head = costs[: len(chosen)], costs[len(chosen) :]
    total = sum(in_blocks) / len(in_blocks) * len(blocks) + sum(in_head)
    sizes = [each.shape for each in parameters if each.kind != "other" and len(each.shape) == 2]
    calibrates = options.method == "calibrated" and budget.calibrates and assets.tokenizer is not None
    narrow_bytes, wide_bytes = (
        sum(matrix_bytes(outputs, inputs, bits, form) for outputs, inputs in sizes)
        for bits, form in zip((4, 8), outer_forms(options, calibrates=calibrates), strict=True)
    )
    return Estimate(total, narrow_bytes, wide_bytes, calibrates)


def outer_forms(options: Quantization, *, calibrates: bool) -> tuple[Quantization, Quantization]:
    """The narrowest and the widest form that a matrix may get (see `code_search.forms`)."""
    if not calibrates:
        return options, options
    narrow = dataclasses.replace(options, block_size=FINER_BLOCK if options.finer_blocks else options.block_size)
    return narrow, dataclasses.replace(options, block_size=EIGHT_BIT_BLOCK, symmetric=True)


def divergence(wanted: Tensor, logits: Tensor) -> float:
    """Mean KL divergence, in nats per token, from log-probabilities [tokens, vocabulary]."""
    return float((wanted.exp() * (wanted - logits.float().log_softmax(-1))).sum(-1).mean())


@contextlib.contextmanager
def rounded_for(block: nn.Module, row: int, options: Quantization, *, keeps: bool) -> Iterator[list[bool]]:
    """Within the context, one row of a batch runs through a block with rounded matrices; yields a list, non-empty once that ran."""
    ran = list[bool]()

    def twice(forward: Forward) -> Forward:
        def run(*given: object, **named: object) -> object:
            plain = forward(*given, **named)
            with rounded(block, options, keeps=keeps):
                changed = forward(*given, **named)
            target, source = (each if isinstance(each, Tensor) else each[0] for each in (plain, changed))  # type: ignore[index]
            target[row] = source[row]
            ran.append(True)
            return plain

        return run

    with forward_within(block, twice):
        yield ran


@contextlib.contextmanager
def rounded(module: nn.Module, options: Quantization, *, keeps: bool) -> Iterator[None]:
    """Within the context, the matrices of a module are rounded; with `keeps`, not those that are stored without loss."""
    before = {layer: layer.get_parameter("weight") for layer in matrices_of(module)}
    try:
        for layer, weight in before.items():
            numbers, inputs_first = weight.detach().clone(), has_inputs_first(layer)
            form = find_form(numbers.numpy(), inputs_first=inputs_first) if keeps else None
            if form is None or not may_keep(form, options.bits, options, is_table=False):
                Rounding(options, options.bits, gathered=False, inputs_first=inputs_first)(numbers)
                layer.weight = nn.Parameter(numbers, requires_grad=False)
        yield
    finally:
        for layer, weight in before.items():
            layer.weight = weight


def matrices_of(block: nn.Module) -> list[nn.Module]:
    """The layers of a block that multiply with a matrix."""
    return [layer for layer in block.modules() if is_linear(layer)]


def is_linear(layer: nn.Module) -> bool:
    """Return whether a layer multiplies with a matrix."""
    weight = getattr(layer, "weight", None)
    return isinstance(weight, nn.Parameter) and weight.dim() == 2 and not isinstance(layer, nn.Embedding)
