"""The linear layers of a graph, which the exporter records in the graph's metadata: where an adapter's products are added.

A product of the graph may compute several parameters of the module together, with their outputs in another order, and its inputs
may arrive divided by factors that its weights were multiplied with. The record says so for each product.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import json
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ...errors import PackageError
from ...installation import upgrade

KEY = "linear_layers"
"""The metadata entry."""
VERSION = 1
Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
ElementType = Literal["float32", "float16"]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class LinearLayer:
    """A product with stored weights [in, out]."""

    input: str
    """The graph's name of its inputs, [batch, tokens, in] or, over latent keys and values, [batch, 1, tokens, in]."""
    output: str
    """The graph's name of its outputs, which may include a bias."""
    inputs: int
    parameters: tuple[tuple[str, Ints], ...]
    """In the order of its outputs: the name of a parameter in the module, and which of that parameter's outputs come here."""
    divisors: Floats | None = None
    """[in]: what its inputs were divided by; None: nothing."""
    output_divisors: Floats | None = None
    """[out]: what its outputs are divided by; None: nothing."""
    dimensions: int = 3
    """Of inputs and outputs: 3 or 4."""

    @property
    def outputs(self) -> int:
        """Number of outputs."""
        return sum(len(outputs) for _, outputs in self.parameters)


@dataclasses.dataclass(frozen=True, slots=True)
class LinearLayers:
    """The record of one graph."""

    layers: tuple[LinearLayer, ...]
    element_type: ElementType
    """The type of inputs and outputs."""

    def to_json(self) -> str:
        """The text of the metadata entry."""
        found = [
            {
                "input": each.input,
                "output": each.output,
                "inputs": each.inputs,
                **({"dimensions": each.dimensions} if each.dimensions != 3 else {}),
                "parameters": [[name, to_runs(outputs)] for name, outputs in each.parameters],
                **({"divisors": to_text(each.divisors)} if each.divisors is not None else {}),
                **({"output_divisors": to_text(each.output_divisors)} if each.output_divisors is not None else {}),
            }
            for each in self.layers
        ]
        return json.dumps({"version": VERSION, "element_type": self.element_type, "layers": found}, separators=(",", ":"))

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, str]) -> LinearLayers:
        """Read the record of a graph; raises `PackageError` if it has none, or one that is not understood."""
        if KEY not in metadata:
            raise PackageError("its graph does not say where its linear layers are; export the model again")
        try:
            found = json.loads(metadata[KEY])
            if found["version"] != VERSION or found["element_type"] not in ("float32", "float16"):
                raise PackageError(f"its graph describes its linear layers in another form; upgrade with: {upgrade()}")
            counts = (abs(count) for each in found["layers"] for _, runs in each["parameters"] for _, _, count in runs)
            if sum(counts) > MOST_OUTPUTS_OF_ALL:  # before memory is allocated for them
                raise ValueError("it has more outputs than any model")
            layers = tuple(read_layer(each) for each in found["layers"])
            if unclear_parameters(layers):
                raise ValueError("it names an output twice, or leaves one out")
            return cls(layers, found["element_type"])
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError, binascii.Error) as error:
            raise PackageError("its graph's record of linear layers is damaged; export the model again") from error


def read_layer(found: Mapping[str, Any]) -> LinearLayer:
    """Read one layer; raises `ValueError`, `KeyError` or `TypeError` for one that is damaged."""
    parameters = tuple((str(name), from_runs(runs)) for name, runs in found["parameters"])
    layer = LinearLayer(
        str(found["input"]),
        str(found["output"]),
        int(found["inputs"]),
        parameters,
        from_text(found["divisors"]) if "divisors" in found else None,
        from_text(found["output_divisors"]) if "output_divisors" in found else None,
        found.get("dimensions", 3),
    )
    if layer.dimensions not in (3, 4):
        raise ValueError("it has other dimensions than a layer")
    for factors, size in ((layer.divisors, layer.inputs), (layer.output_divisors, layer.outputs)):
        if factors is not None and (len(factors) != size or not np.all(np.isfinite(factors) & (factors > 0))):
            raise ValueError("its divisors do not belong to it")
    return layer


def unclear_parameters(layers: Iterable[LinearLayer]) -> set[str]:
    """The parameters whose outputs the layers do not compute exactly once, as where a module runs twice."""
    outputs: dict[str, list[Ints]] = {}
    inputs: dict[str, set[int]] = {}
    for layer in layers:
        for name, here in layer.parameters:
            outputs.setdefault(name, []).append(here)
            inputs.setdefault(name, set()).add(layer.inputs)
    every = {name: np.sort(np.concatenate(parts)) for name, parts in outputs.items()}
    return {name for name, each in every.items() if not np.array_equal(each, np.arange(len(each))) or len(inputs[name]) > 1}


MOST_OUTPUTS = 2**24
"""Limit for the outputs of a layer, as for each number of a geometry."""
MOST_OUTPUTS_OF_ALL = 2**26
"""Limit for the outputs of all layers together; the largest models have some 20 million."""


def to_runs(numbers: Ints) -> list[list[int]]:
    """Numbers as arithmetic sequences: first, step, count.

    >>> to_runs(np.array([0, 2, 4, 1, 3, 5, 9]))
    [[0, 2, 3], [1, 2, 3], [9, 1, 1]]
    """
    runs, start = list[list[int]](), 0
    steps = np.diff(numbers)
    while start < len(numbers):
        end = start + 1
        if end < len(numbers):
            others = np.flatnonzero(steps[start:] != steps[start])
            end = start + int(others[0]) + 1 if len(others) else len(numbers)
        runs.append([int(numbers[start]), int(steps[start]) if end > start + 1 else 1, end - start])
        start = end
    return runs


def from_runs(runs: Iterable[Iterable[int]]) -> Ints:
    """The inverse of `to_runs`; raises `ValueError` or `TypeError` for anything else."""
    parts, total = list[Ints](), 0
    for first, step, count in runs:
        if not all(type(each) is int for each in (first, step, count)) or step == 0 or not 0 < count <= MOST_OUTPUTS:
            raise ValueError("it is not a sequence of outputs")
        total += count
        if total > MOST_OUTPUTS:
            raise ValueError("it has more outputs than any layer")
        if not all(0 <= end < MOST_OUTPUTS for end in (first, first + step * (count - 1))):
            raise ValueError("it names outputs that no layer has")
        parts.append(first + step * np.arange(count))
    return np.concatenate(parts)


def to_text(factors: Floats) -> str:
    """Factors that float16 represents exactly, as text."""
    half = factors.astype("<f2")
    assert np.array_equal(half.astype(np.float32), factors), "calibration chooses such factors"
    return base64.b64encode(half.tobytes()).decode()


def from_text(text: str) -> Floats:
    """The inverse of `to_text`; raises `ValueError` for other text."""
    return np.frombuffer(base64.b64decode(text, validate=True), "<f2").astype(np.float32)
