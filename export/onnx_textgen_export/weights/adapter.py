"""A LoRA adapter, as PEFT saves it, merged into the weights of its base, one tensor at a time.

LoRA: https://arxiv.org/abs/2106.09685; rank-stabilised scales: https://arxiv.org/abs/2312.03732; DoRA: https://arxiv.org/abs/2402.09353
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import regex
import torch
from torch import Tensor

from onnx_textgen.backends.variants.adapter_file import LowRank
from onnx_textgen.errors import first_line
from onnx_textgen.options.checks import shown
from onnx_textgen.package.hf_settings import read_json

from ..errors import ExportError
from .tensor_files import TensorFiles

SETTINGS = "adapter_config.json"
PREFIX = "base_model.model."
WHOLE, ROWS = "whole", "token_adapter.trainable_tokens_delta"
PART = re.compile(
    r"(?P<layer>.+)\.(?P<part>lora_A|lora_B|lora_embedding_A|lora_embedding_B|lora_magnitude_vector|token_adapter\.trainable_tokens_delta)"
    r"(?P<own>\.weight|\.bias)?"
)
MERGED_BY_PEFT = "merge it with PEFT (model.merge_and_unload()), and export what it saves"
CHANGES_THE_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga", "mica")
"""Initialisations with which an adapter belongs to another base than the one that it names, or computes something else."""
OTHER_COMPUTATIONS = ("alora_invocation_tokens", "arrow_config", "layer_replication", "target_parameters", "megatron_config")
MATCH_SECONDS = 0.1
"""Most time for one pattern of an adapter's settings, which come from the hub."""
KNOWN_USES = ("use_rslora", "use_dora")


class Adapter:
    """The tensors of an adapter folder, by the parameter of the base that they change."""

    def __init__(self, folder: Path, *, allow_pickle: bool = False) -> None:
        """Open a folder; raises `ExportError` if it holds no adapter, or one that is more than a change of weights."""
        self.folder = folder
        self.settings = read_settings(folder)
        self.files = TensorFiles(folder, allow_pickle=allow_pickle)
        self.parts: dict[str, dict[str, str]] = {}
        """By parameter, then by part: the name in the file."""
        for name in self.files.names():
            parameter, part = parse(name)
            self.parts.setdefault(parameter, {})[part] = name

    @property
    def base(self) -> str:
        """Name of the adapter's base; empty if it does not say."""
        return str(self.settings.get("base_model_name_or_path") or "")

    def keeps_ties(self, parameter: str) -> bool:
        """Return whether a parameter that is tied to this one changes with it, as PEFT has it."""
        return bool(self.settings.get("ensure_weight_tying")) or set(self.parts[parameter]) == {ROWS}

    def shape(self, parameter: str) -> tuple[int, ...] | None:
        """The shape of a parameter that the adapter replaces; None for one that it changes."""
        name = self.parts[parameter].get(WHOLE)
        return None if name is None else self.files.shape(name)

    def merged(self, parameter: str, read: Callable[[], Tensor]) -> Tensor:
        """A parameter with the adapter, in float32; `read` reads it without."""
        found = {part: self.files.read(name).float() for part, name in self.parts[parameter].items()}
        weight = found[WHOLE] if WHOLE in found else read().to(torch.float32, copy=True)
        if ROWS in found:
            self.check(parameter, weight[: len(found[ROWS])], found[ROWS])
            weight[self.token_ids(parameter)] = found[ROWS]
        if "bias" in found:
            self.check(parameter, weight, found["bias"])
            weight += self.scale(parameter, self.rank(parameter)) * found["bias"]
        for prefix, inputs_first in (("lora_", bool(self.settings.get("fan_in_fan_out"))), ("lora_embedding_", True)):
            if f"{prefix}A" in found:
                weight = self.with_product(parameter, weight, found, prefix, inputs_first=inputs_first)
        return weight

    def with_product(
        self, parameter: str, weight: Tensor, found: Mapping[str, Tensor], prefix: str, *, inputs_first: bool
    ) -> Tensor:
        """The weight plus a product of low rank; with DoRA, the length of each output's weights is the adapter's."""
        narrow, wide = found[f"{prefix}A"], found.get(f"{prefix}B")
        if narrow.ndim != 2 or wide is None or wide.ndim != 2 or narrow.shape[0] != wide.shape[1]:
            raise ExportError(f"{self.folder}: the two matrices for {parameter} do not belong together; copy the adapter again")
        change = self.scale(parameter, narrow.shape[0]) * (wide @ narrow)
        rows = weight.T if inputs_first else weight
        self.check(parameter, rows, change)
        rows = rows + change
        length = found.get("lora_magnitude_vector")
        if length is not None:
            rows = rows * (length / torch.linalg.norm(rows, dim=1))[:, None]
        return rows.T.contiguous() if inputs_first else rows

    def low_rank(self) -> dict[str, LowRank]:
        """The products of low rank by parameter, with their scales; raises `ExportError` for an adapter that is more than these."""
        found = dict[str, LowRank]()
        for parameter, parts in self.parts.items():
            if parts.keys() != {"lora_A", "lora_B"}:
                raise ExportError(
                    f"{self.folder} changes {parameter} by more than a product of two matrices (DoRA, a bias, embeddings, a whole "
                    "layer), which can only be merged; give --adapter without NAME="
                )
            narrow, wide = (self.files.read(parts[part]).float() for part in ("lora_A", "lora_B"))
            if narrow.ndim != 2 or wide.ndim != 2 or narrow.shape[0] != wide.shape[1]:
                raise ExportError(f"{self.folder}: the two matrices for {parameter} do not belong together; copy the adapter again")
            scaled = self.scale(parameter, narrow.shape[0]) * wide
            found[parameter] = LowRank(narrow.T.contiguous().numpy(), scaled.T.contiguous().numpy())
        return found

    def check(self, parameter: str, weight: Tensor, change: Tensor) -> None:
        """Raise `ExportError` for a change whose shape is not the weight's."""
        if weight.shape != change.shape:
            raise ExportError(
                f"{self.folder} changes {parameter} by a matrix {list(change.shape)}, and the base has {list(weight.shape)}; "
                f"{self.right_base()}"
            )

    def right_base(self) -> str:
        """Return the remedy for an adapter of another base."""
        return "give the base that it was trained on" + (f", {self.base}" if self.base else "")

    def rank(self, parameter: str) -> int:
        """The rank of the products of the layer that has this bias."""
        layer = parameter.rpartition(".")[0]
        parts = self.parts.get(f"{layer}.weight", {})
        if "lora_A" not in parts:
            raise ExportError(f"{self.folder} changes {parameter} and no weight of that layer; copy the adapter again")
        return self.files.shape(parts["lora_A"])[0]

    def scale(self, parameter: str, rank: int) -> float:
        """Return the factor of a layer's product."""
        layer = parameter.rpartition(".")[0]
        own: Any = self.settings.get("alpha_pattern") or {}
        alpha = self.settings.get("lora_alpha", 8)
        if isinstance(own, Mapping):
            alpha = next((value for key, value in own.items() if matches(key, layer)), alpha)
        if not isinstance(own, Mapping) or not isinstance(alpha, int | float) or not math.isfinite(alpha) or rank < 1:
            raise ExportError(f"{self.folder}: {SETTINGS} gives {shown(layer)} no scale that is a number; copy the adapter again")
        return float(alpha) / (math.sqrt(rank) if self.settings.get("use_rslora") else rank)

    def token_ids(self, parameter: str) -> list[int]:
        """The rows of an embedding that the adapter replaces."""
        given: Any = self.settings.get("trainable_token_indices") or []
        layer, ids = parameter.rpartition(".")[0], given
        if isinstance(given, dict):
            ids = next((value for key, value in given.items() if matches(re.escape(key), layer)), [])
        if len(ids) != self.files.shape(self.parts[parameter][ROWS])[0]:
            raise ExportError(f"{self.folder}: {SETTINGS} does not name the tokens of {parameter}; copy the adapter again")
        return [int(each) for each in ids]


def read_settings(folder: Path) -> dict[str, Any]:
    """The adapter's settings; raises `ExportError` if they ask for more than a change of weights."""
    settings = read_json(folder / SETTINGS)
    if not settings:
        raise ExportError(f"{folder} has no {SETTINGS}; give the folder of a LoRA adapter that PEFT saved")
    kind = settings.get("peft_type")
    if kind != "LORA":
        raise ExportError(f"{folder} holds an adapter of the type {kind}, and only LORA is read; {MERGED_BY_PEFT}")
    other = [name for name in OTHER_COMPUTATIONS if settings.get(name)]
    other += [name for name, value in settings.items() if name.startswith("use_") and name not in KNOWN_USES and value]
    start = settings.get("init_lora_weights")
    if isinstance(start, str) and start.startswith(CHANGES_THE_BASE):
        other.append(f"init_lora_weights {start}")
    if other:
        raise ExportError(f"{folder} uses {other[0]}, which is not read; {MERGED_BY_PEFT}")
    return settings


def parse(name: str) -> tuple[str, str]:
    """The parameter of the base that a tensor changes, and which part of the change it is.

    >>> parse("base_model.model.model.layers.0.mlp.up_proj.lora_A.weight")
    ('model.layers.0.mlp.up_proj.weight', 'lora_A')
    >>> parse("base_model.model.lm_head.weight")
    ('lm_head.weight', 'whole')
    """
    path = name.removeprefix(PREFIX)
    match = PART.fullmatch(path)
    if match is None:
        return path.replace(".base_layer.", "."), WHOLE
    layer = match["layer"].removesuffix(".base_layer")
    return (f"{layer}.bias", "bias") if match["own"] == ".bias" else (f"{layer}.weight", match["part"])


def matches(pattern: str, layer: str) -> bool:
    """Return whether a pattern of PEFT's settings matches a layer: all of its name, or the end of it."""
    try:
        return regex.fullmatch(rf"(.*\.)?({pattern})", layer, timeout=MATCH_SECONDS) is not None
    except (regex.error, TimeoutError) as error:
        why = f"takes more than {MATCH_SECONDS} s" if isinstance(error, TimeoutError) else first_line(error)
        raise ExportError(f"{SETTINGS} holds {shown(pattern)}, which is no pattern of names ({why}); fix it") from error
