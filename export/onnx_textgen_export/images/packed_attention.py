"""Vision parts whose attention sees groups of patches (windows): one operator over a batch, where their code loops over the groups.

transformers gives fused attention functions the ends of the groups instead (`cu_seq_lens_q`), and finds the windows by code whose
results have as many entries as there are windows, which a graph cannot follow; `window_index` computes the same from sizes.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from ..layers.encoder_attention import LARGEST_GROUP


def window_index(
    grid_thw: Tensor, spatial_merge_size: int, window_size: int, patch_size: int, kwargs: dict[str, Any] | None = None
) -> tuple[Tensor, Tensor]:
    """`transformers.vision_utils.get_vision_window_index` of one picture, by operators that a graph has.

    Returns the order of tokens by window, and where windows end, in patches; both as there.
    """
    side = window_size // spatial_merge_size // patch_size
    LARGEST_GROUP.set((side * spatial_merge_size) ** 2)
    _, patches_down, patches_across = grid_thw.tolist()[0]
    down, across = patches_down // spatial_merge_size, patches_across // spatial_merge_size
    windows_down, windows_across = (down + side - 1) // side, (across + side - 1) // side
    rows, columns = torch.arange(down)[:, None], torch.arange(across)[None]
    window = (rows // side) * windows_across + columns // side
    order = torch.argsort((window * side**2 + (rows % side) * side + columns % side).flatten())
    heights = (down - side * torch.arange(windows_down)).clamp(max=side)
    widths = (across - side * torch.arange(windows_across)).clamp(max=side)
    ends = (heights[:, None] * widths[None]).flatten().cumsum(0) * spatial_merge_size**2
    return order, torch.cat([torch.zeros(1, dtype=ends.dtype), ends]).to(torch.int32)


SUBSTITUTES: dict[str, Callable[..., Any]] = {
    "get_vision_window_index": window_index,
    "is_flash_attention_requested": lambda *_, **__: True,
}
"""By the name under which the code of a model calls them."""


@contextlib.contextmanager
def by_groups(model: nn.Module) -> Iterator[None]:
    """Within the context, the code of a model hands groups of patches to the attention function as a whole."""
    modules = {sys.modules[type(part).__module__] for part in model.modules()}
    with contextlib.ExitStack() as stack:
        for module in modules:
            if module.__name__.startswith("transformers.models."):
                for name in SUBSTITUTES.keys() & vars(module).keys():
                    stack.enter_context(mock.patch.object(module, name, SUBSTITUTES[name]))
        yield
