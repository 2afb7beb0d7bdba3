"""Options of weight-only quantisation; the arithmetic is in `quantizers`, the graph in `stored_matrices`."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, get_args

from ...errors import ExportError
from ..graph.products import Part

Method = Literal["rtn", "k_quant", "hqq", "calibrated"]
Bits = Literal[2, 4, 8]
"""Bits of stored codes; 2 are for lossless storage (see `ternary`) and cannot be asked for."""
WIDTHS = (4, 8)
BLOCK_SIZES = (16, 32, 64, 128, 256)
EIGHT_BIT_BLOCK = 64
"""Block size of matrices of 8 bits in a calibrated int4 package."""
FINER_BLOCK = 16
SMALLER_BLOCKS = (32,)
"""Block sizes that int8 tries next: smaller blocks also round inputs more finely."""
SMALLEST_TABLE = 1024
"""Tables with fewer rows (of positions, for example) are not quantised: they save too little."""


@dataclasses.dataclass(frozen=True, slots=True)
class Quantization:
    """How the matrices of a decoder are stored; norms, biases and small tables are unchanged.

    >>> Quantization(4).describe()
    'int4, block 32, symmetric, k_quant'
    >>> Quantization(4, symmetric=False, head_bits=8).describe()
    'int4, block 32, asymmetric, k_quant, head int8'
    """

    bits: Bits
    """Bits of every matrix, unless a field below overrides them."""
    block_size: int = 32
    """Weights, along the input dimension, that share one scale."""
    finer_blocks: bool = False
    """If `block_size` misses the budget, 4-bit matrices may get blocks of 16 before they get 8 bits: smaller packages, whose
    products are slower on some processors."""
    symmetric: bool = True
    """Zero is the middle code; otherwise each block has a zero point, which costs 4 or 8 bits more per block."""
    method: Method = "k_quant"
    """`rtn` rounds to the nearest code; `k_quant` searches each block's scale (and zero point) for the least weighted squared
    error; `hqq` (half-quadratic quantisation) finds fractional zero points that ignore outliers; `calibrated` minimises the error
    on the inputs of each layer on real text, and is k_quant for tables that no layer multiplies with (see `calibration`)."""
    head_bits: Bits | None = None
    """Bits of the output layer, and so of a tied embedding; None: as the others."""
    sensitive_bits: Bits | None = None
    """Bits of the layers most sensitive to rounding, apart from the head: the values' and the feed-forward's last projection,
    except for experts at the target `ort`, whose operator has one width."""
    all_bits: Bits | None = None
    """Bits of every product, overriding `bits`, which then applies to tables only; None: as `bits`."""
    activations: Literal["fp16"] | None = None
    """float16 for everything but quantised matrices: inputs of products, the cache and the logits; None: float32."""
    accuracy_level: Literal[0, 1, 4] = 4
    """Arithmetic of products in ONNX Runtime: 4 is int8, 1 float32, 0 leaves the choice to it."""
    keeps_stored: bool = False
    """Matrices keep their numbers also where that takes more bytes or operators than rounding them to the bits asked for."""

    def __post_init__(self) -> None:
        widths = {"head bits": self.head_bits, "sensitive bits": self.sensitive_bits, "all bits": self.all_bits}
        for name, bits in [("bits", self.bits), *widths.items()]:
            if bits not in WIDTHS and (bits is not None or name == "bits"):
                raise ExportError(f"weights can be stored in 4 or 8 bits, found {name} {bits!r}; take 4 or 8")
        if self.block_size not in BLOCK_SIZES:
            raise ExportError(f"a block has 16, 32, 64, 128 or 256 weights, found {self.block_size!r}; take one of these")
        if self.method not in get_args(Method):
            raise ExportError(f"the quantizers are calibrated, k_quant, rtn and hqq, found {self.method!r}; take one of these")
        if self.accuracy_level not in (0, 1, 4):
            raise ExportError(f"the accuracy level is 0, 1 or 4, found {self.accuracy_level!r}; take 4 for speed, 1 for exactness")
        if self.activations not in (None, "fp16"):
            raise ExportError(f"activations are fp16 or fp32, found {self.activations!r}; take one of these")
        if self.method == "hqq" and self.symmetric:
            raise ExportError("hqq optimises zero points, which a symmetric code does not have; add --asymmetric")
        if self.method == "hqq" and self.bits != 4:
            raise ExportError("hqq has fractional zero points, which ONNX Runtime takes at 4 bits only; take int4, or k_quant")

    def bits_of(self, part: Part) -> Bits:
        """Bits of a product with this role."""
        if self.all_bits is not None:
            return self.all_bits
        if part == "head":
            return self.head_bits or self.bits
        return (self.sensitive_bits if part in ("values", "feed-forward out") else None) or self.bits

    def calibrated_forms(self, *, inputs: int | None = None) -> list[tuple[Bits, int]]:
        """Bits and block sizes that calibration finds codes in.

        inputs: of a matrix that is a table of embeddings too, which only whole blocks can store.

        >>> Quantization(4, finer_blocks=True).calibrated_forms(), Quantization(8, block_size=64).calibrated_forms()
        ([(4, 32), (4, 16), (8, 64)], [(8, 64), (8, 32)])
        """
        if self.bits == 8:
            return [(8, size) for size in dict.fromkeys((self.block_size, *SMALLER_BLOCKS)) if size <= self.block_size]
        wide = EIGHT_BIT_BLOCK if inputs is None or inputs % EIGHT_BIT_BLOCK == 0 else self.block_size
        narrow = dict.fromkeys((self.block_size, *((FINER_BLOCK,) if self.finer_blocks else ())))
        return [*((4, size) for size in narrow), (8, wide)]

    def describe(self) -> str:
        """In words, for a line of a report."""
        words = [f"int{self.bits}", f"block {self.block_size}", "symmetric" if self.symmetric else "asymmetric", self.method]
        words += [f"{self.activations} activations"] if self.activations is not None else []
        words += [f"head int{self.head_bits}"] if self.head_bits not in (None, self.bits) else []
        words += [f"all products int{self.all_bits}"] if self.all_bits not in (None, self.bits) else []
        words += [f"sensitive layers int{self.sensitive_bits}"] if self.sensitive_bits not in (None, self.bits) else []
        return ", ".join(words)

    def as_record(self) -> dict[str, Any]:
        """As plain data, for the manifest, without unset fields; what was kept is counted there by form."""
        record = dataclasses.asdict(self) | {"finer_blocks": self.finer_blocks or None, "keeps_stored": None}
        return {name: value for name, value in record.items() if value is not None}


DEFAULTS: dict[str, Quantization] = {
    "int8": Quantization(8, block_size=64, method="calibrated"),
    "int4": Quantization(4, finer_blocks=True, symmetric=False, method="calibrated"),
}
"""By the name of the precision; see docs/precision.md for the measurements that chose them."""


def default_for(precision: str, width: int) -> Quantization | None:
    """The default of a precision for a model of that width, None where it is not quantised.

    An embedding is quantised in whole blocks only, so blocks are smaller if they would not divide the width.

    >>> default_for("int8", 320).describe(), default_for("int8", 96).describe()
    ('int8, block 64, symmetric, calibrated', 'int8, block 32, symmetric, calibrated')
    """
    options = DEFAULTS.get(precision)
    if options is not None and width % options.block_size:
        return dataclasses.replace(options, block_size=32)
    return options
