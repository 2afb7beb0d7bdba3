"""The modules that sentence-transformers runs after a model: from the states of a text's tokens to its vector.

They are part of the graph, so that every runtime gives the makers' vectors. Scaling to length 1, if it comes last, is left to the
runtime, which may keep only the first numbers before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from onnx_textgen.errors import first_line
from onnx_textgen.package.hf_settings import read_json

from ..errors import ExportError
from ..tokenization.retrieval_settings import pooling_modes
from ..weights.tensor_files import TensorFiles

ACTIVATIONS = frozenset({"Identity", "Tanh", "ReLU", "GELU", "SiLU", "Sigmoid", "Mish", "ELU", "Softplus"})
"""Classes of torch.nn that a Dense layer may apply."""
Modules = Sequence[tuple[str, Path]]
"""Names and folders, in their order."""


class Pooling(nn.Module):
    """States [batch, tokens, width] and their mask to vectors [batch, width times the number of modes]."""

    def __init__(self, modes: Sequence[str]) -> None:
        super().__init__()
        if unknown := [mode for mode in modes if not hasattr(self, mode)] or not modes:
            raise ExportError(f"its pooling is {unknown[0] if isinstance(unknown, list) else 'missing'}, which is not known here")
        self.modes = tuple(modes)

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        """Vectors of the modes, one after the other."""
        weights = mask.unsqueeze(-1).to(states.dtype)
        return torch.cat([getattr(self, mode)(states, weights) for mode in self.modes], dim=1)

    def cls(self, states: Tensor, weights: Tensor) -> Tensor:
        """The state of the first token."""
        return states[:, 0]

    def mean(self, states: Tensor, weights: Tensor) -> Tensor:
        """The mean over the tokens."""
        return (states * weights).sum(1) / weights.sum(1).clamp(min=1e-9)

    def mean_sqrt_len_tokens(self, states: Tensor, weights: Tensor) -> Tensor:
        """The sum over the tokens, divided by the root of their number."""
        return (states * weights).sum(1) / weights.sum(1).clamp(min=1e-9).sqrt()

    def weightedmean(self, states: Tensor, weights: Tensor) -> Tensor:
        """The mean over the tokens, with weights 1, 2, 3 ... by position."""
        return self.mean(states, weights * weights.cumsum(1))

    def max(self, states: Tensor, weights: Tensor) -> Tensor:
        """The largest number in each place."""
        return states.masked_fill(weights == 0, -1e9).amax(1)

    def lasttoken(self, states: Tensor, weights: Tensor) -> Tensor:
        """The state of the last token."""
        last = (weights.squeeze(-1).cumsum(1) == weights.sum(1)) & (weights.squeeze(-1) > 0)
        return (states * last.unsqueeze(-1)).sum(1)


class Dense(nn.Module):
    """A linear layer with an activation."""

    def __init__(self, settings: Mapping[str, Any], tensors: TensorFiles) -> None:
        super().__init__()
        named = str(settings.get("activation_function", "torch.nn.modules.activation.Tanh"))
        name = named.rpartition(".")[2]
        if not named.startswith("torch.nn.modules.") or name not in ACTIVATIONS:
            raise ExportError(f"its Dense layer uses {named:.100}, which is not known here")
        self.linear = nn.Linear(settings["in_features"], settings["out_features"], bias=bool(settings.get("bias", True)))
        self.activation = getattr(nn, name)()
        self.load_state_dict({each: tensors.read(each).float() for each in tensors.names() if each.startswith("linear.")})

    def forward(self, vectors: Tensor) -> Tensor:
        """Vectors [batch, out_features] of vectors [batch, in_features]."""
        found: Tensor = self.activation(self.linear(vectors))
        return found


class LayerNorm(nn.Module):
    """A norm of vectors."""

    def __init__(self, settings: Mapping[str, Any], tensors: TensorFiles) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(settings["dimension"])
        self.load_state_dict({each: tensors.read(each).float() for each in tensors.names()})

    def forward(self, vectors: Tensor) -> Tensor:
        """Vectors of the same size."""
        found: Tensor = self.norm(vectors)
        return found


class Normalize(nn.Module):
    """Scales vectors to length 1."""

    def forward(self, vectors: Tensor) -> Tensor:
        """Vectors of the same size."""
        return nn.functional.normalize(vectors, dim=1)


class SentenceModules(nn.Module):
    """All modules after the model, the last `Normalize` left out."""

    def __init__(self, pooling: Pooling, others: Sequence[nn.Module] = ()) -> None:
        super().__init__()
        self.pooling, self.others = pooling, nn.ModuleList(others)

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        """Vectors [batch, width] of the states [batch, tokens, hidden size] of texts."""
        vectors: Tensor = self.pooling(states, mask)
        for module in self.others:
            vectors = module(vectors)
        return vectors


def read_sentence_modules(modules: Modules, *, allow_pickle: bool) -> SentenceModules:
    """The modules after the model; raises `ExportError` for unknown and damaged ones, in words that follow a folder's name."""
    try:
        return make_modules(modules, allow_pickle=allow_pickle)
    except KeyError as error:
        raise ExportError(f"the settings of a module after its model lack {error}") from error
    except (TypeError, ValueError, RuntimeError) as error:  # settings that do not fit the weights
        raise ExportError(f"the modules after its model are damaged: {first_line(error)}") from error


def make_modules(modules: Modules, *, allow_pickle: bool) -> SentenceModules:
    """`read_sentence_modules`, with the errors of settings that do not fit the weights."""
    made = list[nn.Module]()
    kinds = [kind for kind, _ in modules]
    for kind, folder in modules[1:]:
        settings = read_json(folder / "config.json")
        if kind == "Pooling" and not made:
            if not settings.get("include_prompt", True):
                raise ExportError("its pooling leaves out the tokens of the prompt, which is not known here")
            made.append(Pooling(pooling_modes(settings)))
        elif kind == "Dense" and made:
            made.append(Dense(settings, TensorFiles(folder, allow_pickle=allow_pickle)))
        elif kind == "LayerNorm" and made:
            made.append(LayerNorm(settings, TensorFiles(folder, allow_pickle=allow_pickle)))
        elif kind == "Normalize" and made:
            made.append(Normalize())
        elif kind != "Dropout":
            raise ExportError(f"its modules are {', '.join(kinds)}, which are not known here in this order")
    if not made or not isinstance(made[0], Pooling):
        raise ExportError(f"its modules are {', '.join(kinds)}, without a pooling")
    if isinstance(made[-1], Normalize):
        made.pop()
    return SentenceModules(made[0], made[1:])
