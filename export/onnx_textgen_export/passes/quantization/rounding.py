"""Round the module's parameters in place in PyTorch, so that they have the package's values.

Blocks lie along a product's inputs and are rounded independently, so the result is the same although the package concatenates
parameters and reorders their rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Literal

import onnx_ir as ir
from torch import Tensor, nn

from ...sources.stored_form import StoredForm
from ..graph.linear import is_constant
from ..graph.provenance import parameters_of
from .lossless import Form
from .options import Bits, Quantization
from .quantizers import Codes, Floats, make_quantizer, quantize_matrix

NOT_QUANTISED = "not quantised"
Change = Callable[[Tensor], None]
"""Changes a parameter's values in place."""


@dataclasses.dataclass(frozen=True, slots=True)
class Rounding:
    """How the blocks of a parameter are rounded."""

    options: Quantization
    bits: Bits
    gathered: bool
    """It is rounded like an embedding."""
    inputs_first: bool
    """The parameter is [in, out], not [out, in], or a stack of such matrices."""
    is_expert: bool = False
    """The operator for experts reads it, which supports float32 scales only."""

    def __call__(self, parameter: Tensor) -> None:
        """Round a float32 parameter in place."""
        numbers = parameter.numpy()
        for matrix in numbers.reshape(-1, *numbers.shape[-2:]):
            self.round(matrix)

    def round(self, matrix: Floats) -> None:
        """Round a matrix in place."""
        inputs = matrix.shape[0 if self.inputs_first else 1]

        def store(chosen: slice, found: Codes) -> None:
            rows = found.values(self.bits, inputs)
            if self.inputs_first:
                matrix[:, chosen] = rows.T
            else:
                matrix[chosen] = rows

        find = make_quantizer(self.options, self.bits, gathered=self.gathered)
        row_scales = 0 if self.is_expert else self.bits
        quantize_matrix(matrix, find, self.options.block_size, store, inputs_first=self.inputs_first, row_scales=row_scales)


def unchanged(parameter: Tensor) -> None:
    """The change of a parameter that is stored without loss."""


@dataclasses.dataclass(slots=True)
class Roundings:
    """Rounded parameters of one graph, by their names in the graph."""

    products: dict[str, Change] = dataclasses.field(default_factory=dict)
    tables: dict[str, Change] = dataclasses.field(default_factory=dict)
    """Parameters whose rows are gathered."""
    plain: frozenset[str] = frozenset()
    """Parameters that the graph reads unrounded, possibly in addition."""
    arithmetic: Literal["fp32", "fp16"] = "fp32"
    """The precision the graph computes in, which limits how close it is to PyTorch with the same rounded weights."""
    ternary: int = 0
    """Number of matrices stored losslessly in 2 bits."""
    kept: dict[str, int] = dataclasses.field(default_factory=dict)
    """By the form whose numbers matrices already had: the bytes that they take."""
    complete: bool = True
    """Whether everything that was rounded is known to be made of parameters."""

    @property
    def keeps_all(self) -> bool:
        """Whether every matrix is stored with the numbers that it had."""
        return bool(self.kept) and all(change is unchanged for change in (*self.products.values(), *self.tables.values()))

    def sources(self, stored: Mapping[str, StoredForm]) -> dict[str, dict[str, list[str]]]:
        """By the form that matrices have in the source: kinds of layers whose numbers are `kept`, and whose are `rounded`."""
        found: dict[str, dict[str, list[str]]] = {}
        for name in dict.fromkeys([*self.tables, *self.products]):
            is_kept = all(known.get(name, unchanged) is unchanged for known in (self.tables, self.products))
            form = stored[name].name if name in stored else NOT_QUANTISED
            kinds = found.setdefault(form, {}).setdefault("kept" if is_kept else "rounded", [])
            kind = name.removesuffix(".weight").rpartition(".")[2]
            if kind not in kinds:
                kinds.append(kind)
        return found

    def add(self, tensor: ir.TensorProtocol | None, rounding: Rounding, *, product: bool, table: bool) -> None:
        """Record that a tensor, in the orientation of `rounding`, was rounded for a product, a table, or both."""
        parameters = parameters_of(tensor)
        self.complete &= bool(parameters)
        for each in parameters:
            own = dataclasses.replace(rounding, inputs_first=rounding.inputs_first != each.transposed)
            for used, known in ((product, self.products), (table, self.tables)):
                if used:
                    self.complete &= known.setdefault(each.name, own) == own

    def keep(self, tensor: ir.TensorProtocol, form: Form, *, product: bool, table: bool) -> None:
        """Record that a tensor is stored in `form` with the numbers that it has."""
        self.kept[form.name] = self.kept.get(form.name, 0) + form.bytes_of(tensor.size)
        for name in dict.fromkeys(each.name for each in parameters_of(tensor)):
            self.restore({name: unchanged}, product=product, table=table)

    def restore(self, changes: Mapping[str, Change], *, product: bool, table: bool) -> None:
        """Record the changes that give parameters the values of codes found by calibration."""
        for name, change in changes.items():
            for used, known in ((product, self.products), (table, self.tables)):
                if used:
                    self.complete &= known.setdefault(name, change) is change

    def see_plain(self, graph: ir.Graph) -> None:
        """Record what the finished graph reads unrounded."""
        left = (value.const_value for value in graph.initializers.values() if is_constant(value))
        self.plain = frozenset(each.name for tensor in left for each in parameters_of(tensor))

    def by_name(self, module: nn.Module) -> dict[str, Change] | None:
        """The change of each parameter of the module, under each of its names; None if the changes are not fully known.

        A tied parameter has more than one name, and may be rounded in a product but not in a table: then its name in an embedding
        stands for the table.
        """
        names: dict[int, list[str]] = {}
        for name, parameter in module.named_parameters(remove_duplicate=False):
            names.setdefault(id(parameter), []).append(name)
        found: dict[str, Change] = {}
        for each in names.values():
            product, table = (next((known[name] for name in each if name in known), None) for known in (self.products, self.tables))
            split = self.plain.intersection(each) or (product and table and product != table)
            if not split or (product is None and table is None):
                one = product or table
                found |= {name: one for name in each if one is not None}
                continue
            gathering = [name for name in each if isinstance(module.get_submodule(name.rpartition(".")[0]), nn.Embedding)]
            if not 0 < len(gathering) < len(each) or (product and table and self.plain.intersection(each)):
                return None
            for name in each:
                if (one := table if name in gathering else product) is not None:
                    found[name] = one
        return found if self.complete else None
