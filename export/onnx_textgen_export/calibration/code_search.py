"""Finds codes for every matrix of a decoder from its inputs on real text, and what an error in its outputs would cost.

For int4 each matrix is rounded to 4 bits (in blocks of 32 and of 16) and to 8, compensated (`compensate`) by input moments in which
a token is weighted by its influence on the predictions (`observe`); the loss in those moments is the estimate by which `mix`
chooses. Inputs of matrices in 8 bits are also smoothed (`passes/quantization/smoothing`), so that rounding them loses less. int8
needs no backward pass, and weights all tokens equally.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from torch import Tensor

from ..package.forecast import matrix_bytes
from ..passes.quantization.options import Bits, Quantization
from ..passes.quantization.plan import FoundCodes, Plan
from ..passes.quantization.quantizers import Codes, Floats
from ..passes.quantization.smoothing import Rows
from ..reports import Report
from ..sources.source import Source
from ..weights.streamed import Weights
from .compensate import Moments, joined, round_compensated, round_uncompensated
from .matrices import Matrix, layers_of
from .mix import Choice, Mix
from .observe import read_gradients, read_inputs
from .plan import make_plan
from .restored import OUTPUTS_AT_A_TIME

SMOOTHING = 0.5
"""Power of an input's root mean square by which it is divided (SmoothQuant's alpha)."""


@dataclasses.dataclass(slots=True)
class Statistics:
    """Statistics of the inputs of one matrix."""

    waiting: set[str]
    """Parameters whose gradients have not arrived yet."""
    importance: Tensor | float = 0.0
    """Weight of each token."""
    moments: Tensor | float = 0.0
    """[in, in], weighted by importance."""
    squares: Tensor | float = 0.0
    """[in]."""
    tokens: int = 0

    def add(self, inputs: Tensor, importance: Tensor | None = None) -> None:
        """Add the inputs [tokens, in] of some tokens."""
        weighted = inputs if importance is None else inputs * importance[:, None]
        self.moments = self.moments + weighted.T @ inputs
        self.squares = self.squares + inputs.square().sum(0)
        self.tokens += len(inputs)


@dataclasses.dataclass(frozen=True, slots=True)
class Calibrated:
    """The codes found for a decoder's matrices, and the estimated loss of each choice."""

    matrices: dict[str, Matrix]
    choices: dict[str, list[Choice]]
    codes: dict[tuple[str, int, int], FoundCodes]
    """By matrix, bits and block size."""
    folder: Path
    options: Quantization

    def plan(self, mix: Mix) -> Plan:
        """Return what `quantize` needs to store the matrices in these forms."""
        return make_plan(self.matrices, {name: self.codes[name, choice.bits, choice.block_size] for name, choice in mix.items()})

    def find_codes(self, matrix: Matrix, seen: Statistics) -> None:
        """Find a matrix's codes in every form that it may be stored in; `seen`: statistics of all its inputs."""
        assert isinstance(seen.moments, Tensor), "inputs were added"
        assert isinstance(seen.squares, Tensor), "inputs were added"
        values, moments = matrix.read(), Moments(seen.moments.numpy())
        scale = 1 / (2 * len(values) * seen.tokens)
        scales = smoothing_of(np.sqrt(seen.squares.numpy() / seen.tokens)) if matrix.maker is not None else None
        for bits, block_size in forms(matrix, self.options):
            symmetric, smoothing = self.options.symmetric or bits != self.options.bits, scales if bits == 8 else None
            given = moments if smoothing is None else moments.smoothed(smoothing)
            rounded = round_compensated if is_compensated(bits, values, self.options) else round_uncompensated
            found, loss = list[Codes](), 0.0
            for rows in some_at_a_time(values):
                wanted = rows if smoothing is None else rows * smoothing
                codes, lost = rounded(wanted, given, bits, block_size, symmetric=symmetric)
                found.append(codes)
                loss += lost * scale
            where, inputs = self.folder_of(matrix, bits, block_size), values.shape[1]
            stored = FoundCodes.save(
                where, joined(found), bits=bits, block_size=block_size, inputs=inputs, smoothing=smoothing, loss=loss
            )
            self.add_choice(matrix, stored)

    def take_saved(self, matrix: Matrix) -> bool:
        """Take the codes of a matrix that an interrupted export left; return False if some are missing."""
        wanted = [(self.folder_of(matrix, *form), form) for form in forms(matrix, self.options)]
        if not all(where.exists() for where, _ in wanted):
            return False
        for where, (bits, block_size) in wanted:
            self.add_choice(matrix, FoundCodes.saved(where, bits=bits, block_size=block_size, inputs=matrix.sizes[1]))
        return True

    def folder_of(self, matrix: Matrix, bits: Bits, block_size: int) -> Path:
        """The folder of a matrix's codes in one form."""
        return self.folder / f"{list(self.matrices).index(matrix.name)}-{bits}-{block_size}"

    def add_choice(self, matrix: Matrix, stored: FoundCodes) -> None:
        """Add codes that a matrix may be stored as."""
        form = dataclasses.replace(self.options, block_size=stored.block_size, symmetric=stored.symmetric)
        size = matrix_bytes(*matrix.sizes, stored.bits, form)
        self.codes[matrix.name, stored.bits, stored.block_size] = stored
        self.choices.setdefault(matrix.name, []).append(Choice(stored.bits, stored.block_size, size, stored.loss))


def is_compensated(bits: Bits, values: Floats, options: Quantization) -> bool:
    """Return whether compensation is worth its time: not for 8 bits in an int4 package, nor if inputs outnumber outputs."""
    return bits == 4 or (options.bits == 8 and values.shape[1] <= len(values))


def some_at_a_time(values: Floats) -> Iterator[Floats]:
    """The rows of a matrix [out, in], in slices."""
    for start in range(0, len(values), OUTPUTS_AT_A_TIME):
        yield values[start : start + OUTPUTS_AT_A_TIME]


def forms(matrix: Matrix, options: Quantization) -> list[tuple[Bits, int]]:
    """Bits and block sizes that a matrix may be stored in under these options."""
    return options.calibrated_forms(inputs=matrix.sizes[1] if matrix.shared else None)


def smoothing_of(sizes: Floats) -> Floats:
    """The divisors, around 1, of inputs with these root mean squares; float16 has them exactly, as the graph records them in it."""
    usual = float(np.exp(np.log(np.maximum(sizes, 1e-12)).mean()))
    scales: Floats = np.clip((sizes / usual) ** SMOOTHING, 1e-2, 1e2).astype(np.float16).astype(np.float32)
    return scales


def calibrate(
    source: Source,
    weights: Weights,
    matrices: Sequence[Matrix],
    ids: Tensor,
    *,
    options: Quantization,
    folder: Path,
    report: Report = lambda step: None,
) -> Calibrated:
    """Run the texts `ids` [texts, tokens] and find codes of the matrices, which are written to `folder`.

    `report` is told how many have theirs. Codes that an interrupted export left in `folder` are taken. Raises the errors of the
    module's own code if it cannot be differentiated, which only 4 bits need.
    """
    made = Calibrated({each.name: each for each in matrices}, {}, {}, folder, options)
    layers = layers_of(source, matrices)
    modules = {name: module for name, (_, module) in layers.items()}
    waiting = {
        each.name: Statistics({name for name, (owners, _) in layers.items() if each in owners})
        for each in matrices
        if not made.take_saved(each)
    }

    def find(matrix: Matrix) -> None:
        made.find_codes(matrix, waiting.pop(matrix.name))
        report(f"{len(matrices) - len(waiting):,} of {len(matrices):,} matrices")

    def take_gradients(name: str, inputs: Tensor, gradients: Tensor) -> None:
        for matrix in layers[name][0]:
            if matrix.name not in waiting:
                continue  # found at an earlier use: a layer that runs twice
            seen = waiting[matrix.name]
            seen.importance = seen.importance + gradients[:, matrix.rows].square().sum(-1)
            seen.waiting.discard(name)
            if seen.waiting and matrix.part != "head":
                continue
            assert isinstance(seen.importance, Tensor), "just added to"
            seen.add(inputs, seen.importance)
            seen.importance = 0.0
            if matrix.part != "head":  # which arrives in slices of tokens
                find(matrix)

    def take_inputs(name: str, inputs: Tensor) -> None:
        for matrix in layers[name][0]:
            if matrix.name in waiting:  # the parameters of a matrix have the same inputs
                waiting[matrix.name].add(inputs)
                find(matrix)

    if waiting and options.bits == 8:
        read_inputs(source, weights, ids, modules, take_inputs)
    elif waiting:
        read_gradients(source, weights, ids, modules, take_gradients)
    for name in [name for name, seen in waiting.items() if seen.tokens]:
        find(made.matrices[name])
    forget_unseen(made)
    return made


def forget_unseen(made: Calibrated) -> None:
    """Drop matrices whose inputs are smoothed by the rows of a matrix that no text reached, which is not rounded with them."""
    for name in list(made.choices):
        maker = made.matrices[name].maker
        if isinstance(maker, Rows) and maker.weight not in made.choices:
            del made.choices[name]
