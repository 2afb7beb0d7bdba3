"""A first guess, in seconds, of what rounding will cost: before anything is traced or calibrated.

The divergences that single roundings cause add up, near enough. So one pass of PyTorch carries a text several times side by side:
once untouched, and once for each of some blocks, which that copy alone goes through rounded. What these cost is carried over to the
other blocks; the output layer is rounded too, behind the untouched copy.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

from ..forecast import in_words, matrix_bytes, stored_parameters
from ..passes.quantization import Quantization
from ..passes.rounding import Rounding
from ..probe_text import probe_ids
from ..sources import Source
from ..text_assets import TextAssets
from ..weights import Forward, Weights, blocks_of, forward_within

SAMPLED = 4
"""Blocks, evenly spread."""
WORK = 1e11
"""Parameters times tokens."""
FEWEST_TOKENS, MOST_TOKENS = 32, 256
CALIBRATED = 0.13
"""What calibration in blocks of 16 leaves of the divergence of plain rounding in blocks of 32, as estimated: 0.055 of 0.44 on
SmolLM2-135M."""


@dataclasses.dataclass(frozen=True, slots=True)
class Estimate:
    """What rounding is thought to cost."""

    plain_kl: float
    """Mean divergence where every matrix has 4 bits, without calibration, in nats per token."""
    narrow_bytes: int
    """Of matrices of 4 bits in blocks of 16."""
    wide_bytes: int
    """Of 8 bits in blocks of 64."""

    def describe(self, budget: float) -> str:
        """One line for the user: a mix keeps to the budget as if its divergence fell evenly with the share of 8-bit weights."""
        left = self.plain_kl * CALIBRATED
        share = min(max(1 - budget / left, 0.0), 1.0) if left > 0 else 0.0
        size = (1 - share) * self.narrow_bytes + share * self.wide_bytes
        return (
            f"estimate: 4 bits alone lose about KL {self.plain_kl:.2g} (uncalibrated); "
            f"a mix with 8 bits within KL {budget:g} takes about {in_words(size)}"
        )


def estimate(source: Source, weights: Weights, assets: TextAssets, options: Quantization) -> Estimate | None:
    """Round a few blocks and the output layer; None for a source whose blocks are not found, or not run as modules."""
    blocks = [block for block in blocks_of(source.module).values() if matrices_of(block)]
    parameters = stored_parameters(source.module)
    if not blocks:
        return None
    places = (np.arange(SAMPLED) + 0.5) / SAMPLED * len(blocks)
    chosen = [blocks[index] for index in dict.fromkeys(places.astype(int).tolist())]
    count = int(min(max(WORK / sum(each.elements for each in parameters), FEWEST_TOKENS), MOST_TOKENS))
    ids = torch.tensor([probe_ids(source, assets.tokenizer)[:count]]).repeat(1 + len(chosen), 1)
    plain, heads = dataclasses.replace(options, method="rtn"), list[Tensor]()
    with contextlib.ExitStack() as stack:
        runs = [stack.enter_context(rounded_for(block, row, plain)) for row, block in enumerate(chosen, start=1)]
        if source.head is not None:
            stack.enter_context(rounded_besides(source.head, plain, heads))
        stack.enter_context(weights.present())
        stack.enter_context(torch.no_grad())
        logits = source.reference(ids).float()
    if not all(runs):
        return None
    wanted = logits[0].log_softmax(-1)
    costs = [divergence(wanted, one) for one in logits[1:]]
    total = sum(costs) / len(costs) * len(blocks) + sum(divergence(wanted, one) for one in heads)
    sizes = [each.shape for each in parameters if each.kind != "other" and len(each.shape) == 2]
    narrow, wide = (dataclasses.replace(options, block_size=size, symmetric=size == 64) for size in (16, 64))
    narrow_bytes, wide_bytes = (
        sum(matrix_bytes(outputs, inputs, bits, form) for outputs, inputs in sizes) for bits, form in ((4, narrow), (8, wide))
    )
    return Estimate(total, narrow_bytes, wide_bytes)


def divergence(wanted: Tensor, logits: Tensor) -> float:
    """Mean KL divergence, in nats per token, from log-probabilities [tokens, vocabulary]."""
    return float((wanted.exp() * (wanted - logits.float().log_softmax(-1))).sum(-1).mean())


@contextlib.contextmanager
def rounded_for(block: nn.Module, row: int, options: Quantization) -> Iterator[list[bool]]:
    """Let one row of a batch go through a block whose matrices are rounded; yields a list that says once it did."""
    ran = list[bool]()

    def twice(forward: Forward) -> Forward:
        def run(*given: object, **named: object) -> object:
            plain = forward(*given, **named)
            with rounded(block, options):
                changed = forward(*given, **named)
            target, source = (each if isinstance(each, Tensor) else each[0] for each in (plain, changed))  # type: ignore[index]
            target[row] = source[row]
            ran.append(True)
            return plain

        return run

    with forward_within(block, twice):
        yield ran


@contextlib.contextmanager
def rounded_besides(head: nn.Module, options: Quantization, found: list[Tensor]) -> Iterator[None]:
    """Let the output layer run once more for the first row, rounded; its logits [tokens, vocabulary] go to `found`."""

    def twice(forward: Forward) -> Forward:
        def run(hidden: Tensor) -> object:
            with rounded(head, options):
                found.append(forward(hidden[:1])[0])  # type: ignore[index]
            return forward(hidden)

        return run

    with forward_within(head, twice):
        yield


@contextlib.contextmanager
def rounded(module: nn.Module, options: Quantization) -> Iterator[None]:
    """The matrices of a module, rounded for a while; transformers' Conv1D are [in, out]."""
    before = {layer: layer.get_parameter("weight") for layer in matrices_of(module).values()}
    try:
        for layer, weight in before.items():
            numbers = weight.detach().clone()
            Rounding(options, options.bits, gathered=False, inputs_first=type(layer).__name__ == "Conv1D")(numbers)
            layer.weight = nn.Parameter(numbers, requires_grad=False)
        yield
    finally:
        for layer, weight in before.items():
            layer.weight = weight


def matrices_of(block: nn.Module) -> dict[str, nn.Module]:
    """The layers of a block that multiply with a matrix, by the names of those matrices."""
    found = {f"{name}.weight" if name else "weight": layer for name, layer in block.named_modules()}
    return {name: layer for name, layer in found.items() if is_linear(layer)}


def is_linear(layer: nn.Module) -> bool:
    """Whether a layer multiplies with a matrix."""
    weight = getattr(layer, "weight", None)
    return isinstance(weight, nn.Parameter) and weight.dim() == 2 and not isinstance(layer, nn.Embedding)
