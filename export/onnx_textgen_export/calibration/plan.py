"""The plan for a graph's matrices after a mix was chosen."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..passes.quantization.plan import Changes, FoundCodes, Plan
from ..passes.quantization.quantizers import Floats
from ..passes.quantization.smoothing import Rows
from ..passes.quantization.split_head import Split
from .matrices import Matrix
from .restored import InTurn, Restored, restored


def make_plan(matrices: Mapping[str, Matrix], found: dict[str, FoundCodes]) -> Plan:
    """The plan for the chosen codes; parts of a matrix with the same form are joined again."""
    gains: dict[str, Floats] = {}
    for name, codes in found.items():
        maker = matrices[name].maker
        if codes.smoothing is not None and isinstance(maker, Rows):
            each = gains.setdefault(maker.weight, np.ones(matrices[maker.weight].sizes[0], np.float32))
            each[maker.start : maker.start + len(codes.smoothing)] /= codes.smoothing
    changes: dict[str, Changes] = {name: restored(codes, matrices[name]) for name, codes in found.items()}
    splits = list[Split]()
    for split in {each.split: None for name, each in matrices.items() if each.split is not None and name in found}:
        both = joined_changes([restored(found[name], matrices[name]) for name in split.parts])
        halves = [found[name] for name in split.parts]
        if len({(each.bits, each.block_size) for each in halves}) > 1:
            changes |= dict.fromkeys(split.parts, both)
            splits.append(split)
            continue
        for name in split.parts:
            del found[name], changes[name]
        found[split.weight] = FoundCodes.joined(halves)
        changes[split.weight] = both
    return Plan(found, gains, changes, splits)


def joined_changes(parts: list[dict[str, Restored]]) -> Changes:
    """The changes that give the parameters the values of all parts."""
    return {name: InTurn([each[name] for each in parts]) for name in parts[0]}
