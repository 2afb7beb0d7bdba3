"""The size of a package and the cost of making it, from shapes alone; and whether the disk has room for it.

The size follows the layouts that `passes/quantization` writes and is within 2 % of the real one; memory and time are estimates
for the two cores and the disk that the constants of `CostModel` were measured on.
"""

from __future__ import annotations

import dataclasses
import functools
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import torch
from torch import nn

from onnx_textgen.package.manifest import Precision, Target
from onnx_textgen.recipes.sources import BLOCK, BLOCKS, SUPER_BLOCK, SUPER_BLOCKS

from ..errors import ExportError
from ..passes.quantization.lossless import FORM_OF_KIND
from ..passes.quantization.options import SMALLEST_TABLE, Quantization

Kind = Literal["matrix", "table", "shared", "head", "experts", "other"]
"""What a parameter is: a matrix of a product; a table whose rows are gathered; both (a tied embedding); the output layer; the
stacked matrices of a mixture of experts; anything else."""
Stage = Literal["estimate", "trace", "read", "calibrate", "round", "compare"]
"""What takes time: the estimate of 4 bits; the graph; texts by PyTorch; the search for codes; writing and measuring; the proof."""
NARROWEST_EXPERT = 16
"""Three-dimensional parameters with a smaller side are convolutions."""
BITS_OF_KEPT: Mapping[str, tuple[float, float]] = {
    kind: (
        8 * (BLOCKS[kind] / BLOCK if kind in BLOCKS else SUPER_BLOCKS[kind] / SUPER_BLOCK),
        form.bytes_of(SUPER_BLOCK) * 8 / SUPER_BLOCK,
    )
    for kind, form in FORM_OF_KIND.items()
}
"""Bits per weight, scales included, of kinds of GGUF: in the file, and in a package that is kept as stored."""
LARGER = 1.15
"""Share of the bytes of kept matrices in their file from which a forecast names a smaller form."""
ALIGNMENT, SMALLEST_OUTSIDE = 64, 1024
"""Alignment and smallest size of tensors in the weights' file, in bytes; smaller ones are stored in the graph (see `writer`)."""
GRAPH_BYTES, GRAPH_BYTES_PER_LAYER = 100_000, 12_000
"""Size of `model.onnx` without weights."""
USUAL_SPEED = 1.5e11
"""Operations per second of products in float32 on the machine of `CostModel`'s seconds."""
SPARE_BYTES = 16 << 20
"""Disk space beyond the weights: tokenizer, manifest, and the file system's own data."""


@dataclasses.dataclass(frozen=True, slots=True)
class Stored:
    """One parameter of a decoder; a matrix as (outputs, inputs)."""

    shape: tuple[int, ...]
    kind: Kind
    form: str = ""
    """As the source stores it quantised; empty: not quantised."""

    @property
    def elements(self) -> int:
        """Number of elements."""
        count = 1
        for size in self.shape:
            count *= size
        return count


@dataclasses.dataclass(frozen=True, slots=True)
class CostModel:
    """Costs of an export as measured on 2 cores, with PyTorch and ONNX Runtime on the CPU."""

    base_bytes: int = 600_000_000
    """Memory of a process that has loaded the libraries and traced a model."""
    copies_of_largest: float = 2.0
    copies_at_int8: float = 5.5
    """float32 copies of the largest tensor while PyTorch reads texts, or codes are found; int8 reads an output layer whole."""
    copies_of_logits: float = 3.4
    """float32 copies of the logits that the proof compares."""
    compared_tokens: int = 1100
    compared_logits: int = 1 << 25
    estimated_tokens: int = 4096
    estimated_logits: int = 1 << 27
    """Of the proof's longest text, and of the estimate of 4 bits: tokens, and the most logits at a time."""
    moments: float = 4.0
    """float32 matrices [in, in] while the codes of a calibrated layer are found."""
    hidden_states_per_layer: float = 1.0
    """Kept through the forward pass of calibration, [tokens, hidden size] in float32, for each layer."""
    hidden_states_of_a_block: float = 4.0
    """Kept, in the same unit, while the backward pass goes through one block."""
    session_factor: float = 1.0
    """Memory of an ONNX Runtime session relative to a file of floats."""
    mix_factor: float = 1.4
    """Bytes of a calibrated int4 package, which takes more bits where its budget needs them, relative to those of 4 bits alone."""
    quantised_session_factor: float = 2.4
    """The same for a quantised package: its files, and what the kernels repack."""
    start_seconds: float = 12.0
    """Libraries, graph passes, opening sessions."""
    seconds_per_layer: float = 0.8
    """Tracing and passes."""
    seconds_per_billion: dict[str, float] = dataclasses.field(
        default_factory=lambda: {"fp32": 50.0, "fp16": 50.0, "int8": 90.0, "int4": 110.0}
    )
    """Reading, quantising and writing a billion parameters, and running single tokens of the proof."""
    stored_seconds_per_billion: float = 35.0
    """The same for matrices of a GGUF file that are kept."""
    shares_of_written: dict[Stage, float] = dataclasses.field(
        default_factory=lambda: {"estimate": 0.1, "round": 0.5, "compare": 0.4}
    )
    """Of these seconds, by the stage that takes them."""
    seconds_per_token_of_a_billion: float = 0.03
    """Reading a token, by PyTorch or the package, with a billion parameters."""
    search_seconds_per_billion: dict[str, float] = dataclasses.field(default_factory=lambda: {"int8": 155.0, "int4": 200.0})
    """Finding the codes of a billion calibrated parameters."""
    share_of_products: float = 0.5
    """Of all seconds, those that products in float32 take; the others depend less on the processor."""


@functools.cache
def speed_of_products() -> float:
    """Operations per second of a float32 product on this machine; the fastest of some, measured once in a process."""
    left, right, seconds = torch.ones(512, 1024), torch.ones(1024, 2048), list[float]()
    for _ in range(5):
        start = time.perf_counter()
        torch.mm(left, right)
        seconds.append(time.perf_counter() - start)
    return 2 * left.numel() * right.shape[1] / min(seconds)


@dataclasses.dataclass(frozen=True, slots=True)
class Forecast:
    """Disk, memory and time that an export will need."""

    package_bytes: int
    memory_bytes: int
    stages: Mapping[Stage, float]
    """Seconds of each."""
    scratch_bytes: int = 0
    """Disk that is needed besides until the export ends: the codes of calibrated matrices, in every form they may be stored in."""

    @property
    def seconds(self) -> float:
        """Of all stages."""
        return sum(self.stages.values())

    def describe(self, *, is_limit: bool = False) -> str:
        """One line for the user; is_limit: matrices may keep forms that take fewer bytes, which shows only when they are read."""
        disk = f"{'at most' if is_limit else 'about'} {in_words(self.package_bytes)} on disk"
        disk += f" ({in_words(self.package_bytes + self.scratch_bytes)} until it is done)" if self.scratch_bytes else ""
        return f"{disk}, {in_words(self.memory_bytes)} of memory, {self.seconds:.0f} s"


def in_words(count: float) -> str:
    """A number of bytes in words.

    >>> in_words(1_234_000_000), in_words(56_000)
    ('1.2 GB', '0.1 MB')
    """
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def stored_parameters(module: nn.Module, forms: Mapping[str, str] | None = None) -> list[Stored]:
    """Every parameter of a decoder once, by what its layer does with it; unmaterialized ones suffice.

    forms: how the source stores parameters that it holds quantised, by name.
    """
    tables: set[int] = set()
    matrices: set[int] = set()
    inputs_first: set[int] = set()
    for layer in module.modules():
        weight = getattr(layer, "weight", None)
        if not isinstance(weight, nn.Parameter) or weight.dim() != 2:
            continue
        (tables if isinstance(layer, nn.Embedding) else matrices).add(id(weight))
        if has_inputs_first(layer):
            inputs_first.add(id(weight))
    rows = {tuple(parameter.shape) for parameter in module.parameters() if id(parameter) in tables}
    found: list[Stored] = []
    for name, parameter in module.named_parameters():
        key, shape = id(parameter), tuple(parameter.shape)
        kind: Kind = "table" if key in tables else "matrix" if key in matrices else "other"
        if key in tables and key in matrices:
            kind = "shared"
        elif kind == "matrix" and shape in rows:
            kind = "head"
        elif len(shape) == 3 and min(shape[1:]) >= NARROWEST_EXPERT:
            kind = "experts"
        found.append(Stored(shape[::-1] if key in inputs_first else shape, kind, (forms or {}).get(name, "")))
    return found


def has_inputs_first(layer: nn.Module) -> bool:
    """Return whether a layer's matrix is [in, out], as that of transformers' Conv1D is (GPT-2's)."""
    return type(layer).__name__ == "Conv1D"


def weight_bytes(stored: Stored, precision: Precision, options: Quantization | None, target: Target = "ort") -> int:
    """Return the bytes of one parameter in the weights' file; `options`: quantisation settings, None for floats."""
    plain = stored.elements * (2 if precision == "fp16" or (options is not None and options.activations) else 4)
    if options is not None and stored.kind == "experts":
        count, outputs, inputs = stored.shape
        return count * matrix_bytes(outputs, inputs, options.bits, options, row_scales=target != "ort")
    if options is None or stored.kind == "other" or len(stored.shape) != 2:
        return plain
    if target == "ort" and is_kept(stored, options):
        return int(stored.elements * BITS_OF_KEPT[stored.form][1] / 8)
    outputs, inputs = stored.shape
    is_table = stored.kind in ("table", "shared")
    if is_table and (outputs < SMALLEST_TABLE or inputs % options.block_size):
        if stored.kind == "table":
            return plain
        return plain + matrix_bytes(outputs, inputs, options.head_bits or options.bits, options)  # no longer shared
    bits = (options.head_bits or options.bits) if stored.kind in ("head", "shared") else options.bits
    if is_table and target == "standard":
        bits = 8
    return matrix_bytes(outputs, inputs, bits, options, table=is_table)


def is_kept(stored: Stored, options: Quantization | None) -> bool:
    """Return whether a package that is kept as stored holds the numbers of a parameter of a GGUF file."""
    if options is None or not options.keeps_stored or options.activations or stored.kind == "experts":
        return False
    return stored.form in BITS_OF_KEPT


def larger_than_source(parameters: Sequence[Stored], options: Quantization | None) -> str | None:
    """Say how much larger the kept matrices are than in their file, and what is smaller; None if they are not."""
    kept = [each for each in parameters if is_kept(each, options)]
    before, after = (sum(each.elements * BITS_OF_KEPT[each.form][place] / 8 for each in kept) for place in (0, 1))
    if after <= LARGER * before:
        return None
    return (
        f"kept as stored, {in_words(before)} of the file take {in_words(after)}, because ONNX Runtime has products of 4 and 8 bits "
        "only; --precision int4 is smaller, and rounds within a budget"
    )


def matrix_bytes(
    outputs: int, inputs: int, bits: int, options: Quantization, *, table: bool = False, row_scales: bool = True
) -> int:
    """Bytes of codes, scales and zero points of a matrix that is quantised in blocks along its inputs.

    row_scales: scales take 8 bits per block and a float32 per row; else a float32 per block, as the operator for experts requires.
    """
    blocks = -(-inputs // options.block_size)
    codes = outputs * blocks * options.block_size * bits // 8
    zeros = 0
    if not options.symmetric:
        fractional = options.method == "hqq" and bits == 4 and not table
        zeros = outputs * (blocks * 4 if fractional else -(-blocks * bits // 8))
    return codes + outputs * (blocks + 4 if row_scales else 4 * blocks) + zeros


def file_bytes(sizes: Iterable[int]) -> int:
    """Bytes of a weights' file for tensors of these sizes, each aligned to 64 bytes, without the small ones."""
    end = 0
    for size in sizes:
        if size >= SMALLEST_OUTSIDE:
            end += -end % ALIGNMENT + size
    return end


def estimate_export(
    parameters: Sequence[Stored],
    *,
    layers: int,
    precision: Precision = "fp32",
    options: Quantization | None = None,
    target: Target = "ort",
    resident_bytes: int = 0,
    calibrated_numbers: int = 0,
    tokens: Mapping[Stage, float] | None = None,
    speed: float = USUAL_SPEED,
    costs: CostModel | None = None,
) -> Forecast:
    """Disk, memory and time that an export of these parameters will need.

    options: of int8 and int4. resident_bytes: float32 parameters that stay in memory, in the module, while the package is compared.
    calibrated_numbers: the tokens of a backward pass, times the hidden size; 0: no backward pass. tokens: what PyTorch and the
    package read in each stage, in forward passes. speed: of products on this machine.
    """
    costs = costs or CostModel()
    weights = file_bytes(weight_bytes(each, precision, options, target) for each in parameters)
    billions = sum(each.elements for each in parameters) / 1e9
    searched = costs.search_seconds_per_billion[precision] if options is not None and options.method == "calibrated" else 0.0
    kept = sum(each.elements for each in parameters if is_kept(each, options)) / max(sum(each.elements for each in parameters), 1)
    written = kept * costs.stored_seconds_per_billion + (1 - kept) * costs.seconds_per_billion[precision]
    needed = memory_needed(parameters, layers, options, weights=weights, calibrated_numbers=calibrated_numbers, costs=costs)
    seconds: dict[Stage, float] = {
        "trace": costs.start_seconds + layers * costs.seconds_per_layer,
        "calibrate": billions * searched,
    }
    for stage, share in costs.shares_of_written.items():
        seconds[stage] = billions * written * share
    for stage, count in (tokens or {}).items():
        seconds[stage] = seconds.get(stage, 0) + billions * count * costs.seconds_per_token_of_a_billion
    slower = 1 - costs.share_of_products + costs.share_of_products * USUAL_SPEED / speed
    return Forecast(
        package_bytes=weights + GRAPH_BYTES + layers * GRAPH_BYTES_PER_LAYER,
        memory_bytes=resident_bytes + needed,
        stages={stage: slower * each for stage, each in seconds.items()},
        scratch_bytes=scratch_needed(parameters, options),
    )


def scratch_needed(parameters: Sequence[Stored], options: Quantization | None) -> int:
    """Bytes of the codes that calibration finds, one for each weight in each form."""
    if options is None or options.method != "calibrated":
        return 0
    return len(options.calibrated_forms()) * sum(each.elements for each in parameters if each.kind in ("matrix", "head", "shared"))


def memory_needed(
    parameters: Sequence[Stored],
    layers: int,
    options: Quantization | None,
    *,
    weights: int,
    calibrated_numbers: int,
    costs: CostModel,
) -> int:
    """Bytes of memory of the stage that needs most; arguments: see `estimate_export`, and the bytes of the package's weights."""
    largest = max((each.elements * 4 for each in parameters), default=0)
    vocabulary = max((each.shape[0] for each in parameters if each.kind in ("head", "shared")), default=0)
    compared = 4 * costs.copies_of_logits * min(costs.compared_tokens * vocabulary, costs.compared_logits)
    if options is None:
        return int(costs.base_bytes + compared + costs.session_factor * weights)
    reading = costs.copies_of_largest * largest
    widest = max((each.shape[1] for each in parameters if each.kind in ("matrix", "head", "shared")), default=0)
    states = calibrated_numbers * (layers * costs.hidden_states_per_layer + costs.hidden_states_of_a_block)
    moments = costs.moments * widest**2 if options.method == "calibrated" else 0.0
    weights = int(weights * (costs.mix_factor if moments and options.bits == 4 else 1))
    stages = {
        "estimate": reading + 4 * min(costs.estimated_tokens * vocabulary, costs.estimated_logits),
        "calibrate": (costs.copies_at_int8 * largest if moments and options.bits == 8 else reading) + 4 * (moments + states),
        "compare": largest + compared + costs.quantised_session_factor * weights,
    }
    return int(costs.base_bytes + max(stages.values()))


def check_disk(target: Path, needed_bytes: int) -> None:
    """Raise `ExportError` if the disk of `target` has no room for it; writes nothing."""
    target = target.resolve()
    where = next(parent for parent in (target, *target.parents) if parent.exists())
    free = shutil.disk_usage(where).free
    if free < needed_bytes + SPARE_BYTES:
        raise ExportError(
            f"{target} will take {in_words(needed_bytes)} and its disk has {in_words(free)} free; "
            "free some space, give another --out, or take a smaller --precision"
        )
