"""A LoRA adapter on both sides of a comparison: in the package's graph, and in the layers of the module in PyTorch."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from onnx_textgen.backends.onnxruntime_session import OnnxRuntimeSession
from onnx_textgen.backends.variants.adapter_file import Changes, LowRank
from onnx_textgen.backends.variants.adapter_graph import open_with_adapters

from ..errors import ExportError


@dataclasses.dataclass(frozen=True, slots=True)
class ProvenAdapter:
    """An adapter of the package that is compared."""

    name: str
    changes: Changes
    """Changes of the parameters in PyTorch."""
    read: Callable[[], Mapping[str, Changes]]
    """Reads all adapters of the package, as the runtime will."""

    def opened(self, session: OnnxRuntimeSession) -> OnnxRuntimeSession:
        """The session's graph with all adapters."""
        return open_with_adapters(session, self.read)

    @contextlib.contextmanager
    def in_layers(self, module: nn.Module) -> Iterator[None]:
        """While the context is open, each changed layer adds the adapter's product to its outputs, unmerged, as PEFT computes it.

        Raises `ExportError` for a layer that the module does not call, whose outputs therefore do not change.
        """
        waiting = set[str]()
        with contextlib.ExitStack() as stack:
            for parameter, change in self.changes.items():
                layer = parameter.removesuffix(".weight")
                waiting.add(layer)
                hook = adding(change, lambda layer=layer: waiting.discard(layer))  # type: ignore[misc]  # binds the loop's value
                stack.callback(module.get_submodule(layer).register_forward_hook(hook).remove)
            yield
        if waiting:
            raise ExportError(
                f"{type(module).__name__} does not call {min(waiting)}, which the adapter {self.name} changes, as a module; "
                "merge the adapter: --adapter without NAME="
            )


def adding(change: LowRank, called: Callable[[], None]) -> Callable[[nn.Module, Any, Tensor], Tensor]:
    """A forward hook that adds the product of low rank."""
    narrow, wide = torch.from_numpy(change.narrow), torch.from_numpy(change.wide)

    def hook(_: nn.Module, given: Any, output: Tensor) -> Tensor:  # noqa: ANN401 - the arguments of a layer
        called()
        changed: Tensor = output + given[0] @ narrow @ wide
        return changed

    return hook


@contextlib.contextmanager
def computing_with(adapter: ProvenAdapter | None, module: nn.Module) -> Iterator[None]:
    """`in_layers` of an adapter, if there is one."""
    with contextlib.nullcontext() if adapter is None else adapter.in_layers(module):
        yield
