"""Chooses the attention path of a transformers model: the first that computes what the model itself does.

Each path is first run in PyTorch with a KV cache and compared with the model's uncached forward; the first path that matches is
traced.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar, cast

import torch
from torch import Tensor, nn

from onnx_textgen.errors import first_line

from ..errors import ExportError
from ..layers.rotary_scaling import switch_of
from .attention_paths import AttentionPath, EagerAttentionPath, FusedAttentionPath
from .probed_model import Model

Path = TypeVar("Path")
TOLERANCE = 1e-4
"""Largest difference of a logit between a path and the model's own forward, relative to the largest logit."""
SMALL_WINDOW = 512
"""The trial of a path crosses windows up to this length; only the proof crosses longer ones."""
Run = Callable[[Tensor, Tensor, list[Tensor]], tuple[Tensor, list[Tensor]]]
"""input_ids, attention_mask and pasts -> logits and presents, in PyTorch."""


def attention_paths(model: Model) -> Iterator[Callable[[], AttentionPath]]:
    """The paths to try, the fastest first: those that run recurrent layers over several tokens, then those that do not."""
    if model.has_states and not model.owns_recurrences:
        with contextlib.suppress(Exception):  # a model whose code fails over other states keeps its own
            yield from attention_paths(model.with_own_recurrences())
    yield lambda: FusedAttentionPath(model)
    if "position_ids" in model.named:
        yield lambda: EagerAttentionPath(model, position_offset=0)
        paddings = {getattr(part, "padding_idx", None) for part in model.module.modules()}
        for padding in sorted(padding for padding in paddings if isinstance(padding, int)):
            yield lambda: EagerAttentionPath(model, position_offset=padding + 1)  # noqa: B023 - called before the next is made
    yield lambda: EagerAttentionPath(model, position_offset=None)
    yield lambda: EagerAttentionPath(
        model, position_offset=None, knows_padding=False
    )  # a graph without a mask runs one row at a time


def difference(got: Tensor, want: Tensor) -> float:
    """Largest difference relative to the largest magnitude of `want`; infinite if there is a NaN."""
    error = float((got - want).abs().max() / want.abs().max())
    return error if error == error else float("inf")  # noqa: PLR0124 - NaN


def feed_in_chunks(run: Run, pasts: list[Tensor], ids: Tensor, sizes: list[int]) -> Tensor:
    """Logits of ids [1, tokens] fed in chunks over a cache."""
    parts, start = [], 0
    for size in sizes:
        logits, pasts = run(ids[:, start : start + size], torch.ones(1, start + size, dtype=torch.int64), pasts)
        parts.append(logits)
        start += size
    return torch.cat(parts, dim=1)


def check_path(path: AttentionPath, reference: Callable[[Tensor], Tensor], context_length: int) -> None:
    """Raise `ExportError` if a path does not compute what the model does."""
    model = path.model
    vocabulary = cast(nn.Embedding, model.module.get_input_embeddings()).num_embeddings
    generator = torch.Generator().manual_seed(0)
    pasts = model.empty_pasts(1)
    with torch.no_grad():
        if isinstance(path, FusedAttentionPath):
            path.run(torch.zeros(1, 2, dtype=torch.int64), torch.ones(1, 2, dtype=torch.int64), pasts)  # finds the windows
        tokens = min(max(24, *(window + 8 for window in path.windows() if window <= SMALL_WINDOW), 0), context_length)
        tokens = max(min(tokens, switch_of(model.module, context_length) or tokens), 6)  # cached keys would differ beyond a switch
        sizes = [1] * 6 if model.one_token else [tokens - 4, 2, 2] if model.owns_recurrences else [tokens - 4, 3, 1]
        ids = torch.randint(0, vocabulary, (1, sum(sizes)), generator=generator)
        if path.padding_id is not None:
            ids[ids == path.padding_id] += 1
        error = difference(feed_in_chunks(path.run, pasts, ids, sizes), reference(ids))
        if error > TOLERANCE:
            raise ExportError(f"over a cache its logits differ from its own by {error:.1e}")
        if isinstance(path, EagerAttentionPath) and path.knows_padding and not (model.one_token or model.owns_recurrences):
            check_padding(path, ids, reference)


def check_padding(path: EagerAttentionPath, ids: Tensor, reference: Callable[[Tensor], Tensor]) -> None:
    """Run two rows, the second shorter and padded on its left; raises `ExportError` if padding changes its logits."""
    short = ids[:, 5:]
    rows = torch.cat([ids, torch.cat([torch.zeros_like(ids[:, :5]), short], dim=1)])
    mask = torch.ones_like(rows)
    mask[1, :5] = 0
    logits, _ = path.run(rows, mask, path.model.empty_pasts(2))
    error = difference(logits[1, -1], reference(short)[0, -1])
    if error > TOLERANCE:
        raise ExportError(f"in a batch with a longer text its logits differ by {error:.1e}: positions or masks ignore the padding")


def choose_path(model: Model, reference: Callable[[Tensor], Tensor], context_length: int) -> AttentionPath:
    """The first path that computes what the model does; raises `ExportError` with the reason against the last one."""
    return first_right(attention_paths(model), lambda path: check_path(path, reference, context_length), model.module)


def first_right(makers: Iterable[Callable[[], Path]], check: Callable[[Path], None], module: nn.Module) -> Path:
    """The first path that passes the check; raises `ExportError` about the module, with the reason against the last one."""
    reason = ""
    for make in makers:
        try:
            path = make()
            check(path)
        except ExportError as error:
            reason = str(error)
        except Exception as error:  # noqa: BLE001 - any error of the model's code rules this path out
            reason = f"its own code fails over a growing cache ({first_line(error)})"
        else:
            return path
    raise ExportError(f"{type(module).__name__} cannot be exported: {reason}")
