"""The inputs of each linear layer on some texts, and how strongly the model's predictions depend on its outputs.

PyTorch runs one forward and one backward pass over all texts together. The backward pass starts from the model's own prediction: a
token is drawn from each distribution, and the gradient of its log-probability reaches every layer's output, where its square is the
Fisher information (Kim et al. 2025, GuidedQuant, weight calibration tokens by it). The backward pass recomputes blocks (gradient
checkpointing) with weights that are present only meanwhile, so memory holds one block and its activations.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..errors import ExportError
from ..sources.source import Source
from ..weights.heap import return_freed_memory
from ..weights.streamed import Forward, Weights, blocks_of, forward_within

See = Callable[[str, Tensor, Tensor], None]
"""Called once per layer with its name, its inputs [tokens, in], and the gradients of its outputs [tokens, out]."""
MOST_LOGITS = 1 << 24
"""Logits computed at a time."""


class LayerObserver:
    """Pairs the inputs of layers with the gradients of their outputs, whichever is computed first."""

    def __init__(self, see: See) -> None:
        self.see = see
        self.inputs: dict[str, Tensor] = {}
        self.gradients: dict[str, Tensor] = {}
        self.is_first = False
        """Whether the running block will be recomputed."""

    @contextlib.contextmanager
    def layer(self, name: str, module: nn.Module) -> Iterator[None]:
        """Within the context, a layer is observed."""

        def before(_: nn.Module, given: tuple[Tensor, ...]) -> None:
            if not self.is_first:
                self.inputs[name] = given[0].detach().flatten(0, -2)
                self.meet(name)

        def after(_: nn.Module, __: tuple[Tensor, ...], output: Tensor) -> None:
            if output.requires_grad:
                output.register_hook(functools.partial(keep_gradient, name))  # type: ignore[no-untyped-call]

        def keep_gradient(name: str, gradient: Tensor) -> None:
            self.gradients[name] = gradient.detach().flatten(0, -2)
            self.meet(name)

        hooks = (module.register_forward_pre_hook(before), module.register_forward_hook(after))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def meet(self, name: str) -> None:
        """Pass on a layer's inputs and gradients once both are known."""
        if name in self.inputs and name in self.gradients:
            with torch.no_grad():
                self.see(name, self.inputs.pop(name), self.gradients.pop(name))

    def recomputed(self, forward: Forward) -> Forward:
        """A block's forward that keeps no activations, and recomputes them in the backward pass."""
        runs = 0

        def run(*given: object, **named: object) -> object:
            nonlocal runs
            runs += 1
            self.is_first = runs == 1
            try:
                return forward(*given, **named)
            finally:
                self.is_first = False
                return_freed_memory()

        @functools.wraps(forward)
        def forgetful(*given: object, **named: object) -> object:
            again = functools.partial(run, **named)
            return checkpoint(again, *given, use_reentrant=False, preserve_rng_state=False)

        return forgetful


def read_gradients(source: Source, weights: Weights, ids: Tensor, layers: Mapping[str, nn.Module], see: See) -> None:
    """Call `see` for every layer on texts [texts, tokens], and for the output layer in slices of tokens.

    Raises `ExportError` if the source has no known output layer, and the errors of the module's code if that is not differentiable.
    """
    if source.head is None:
        raise ExportError("the module has no layer whose output is the logits")
    observer = LayerObserver(see)
    head = next((name for name, module in layers.items() if module is source.head), None)
    inside = {name: module for name, module in layers.items() if name != head}
    starts = list[Tensor]()

    def start_here(_: nn.Module, __: tuple[Tensor, ...], output: Tensor) -> Tensor:
        starts.append(output.detach().requires_grad_())
        return starts[-1]

    def turn_back(output_layer: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        hook.remove()
        see_head = functools.partial(see, head) if head is not None else None
        slope = slope_of_predictions(output_layer, given[0].detach(), source.geometry.vocab_size, see_head)
        if inside:
            torch.autograd.grad(given[0], starts, slope, allow_unused=True)
        return (given[0][:, -1:].detach(), *given[1:])

    with weights.present(), contextlib.ExitStack() as stack:
        for name, module in inside.items():
            stack.enter_context(observer.layer(name, module))
        if inside:  # the output layer's gradients need no backward pass through the others
            for block in blocks_of(source.module).values():
                stack.enter_context(forward_within(block, observer.recomputed))
            for module in source.module.modules():
                if isinstance(module, nn.Embedding):
                    stack.callback(module.register_forward_hook(start_here).remove)
        hook = source.head.register_forward_pre_hook(
            turn_back
        )  # inside the forward, so that its settings apply to the backward pass too
        stack.callback(hook.remove)
        with torch.set_grad_enabled(bool(inside)):
            source.reference(ids)


def slope_of_predictions(
    output_layer: nn.Module, hidden: Tensor, vocab_size: int, see: Callable[[Tensor, Tensor], None] | None
) -> Tensor:
    """The gradient of the log-probabilities of drawn tokens by hidden states [texts, tokens, width]; the draw is seeded."""
    flat = hidden.flatten(0, -2)
    slope, generator = torch.empty_like(flat), torch.Generator().manual_seed(0)
    rows = max(MOST_LOGITS // vocab_size, 1)
    for start in range(0, len(flat), rows):
        part = flat[start : start + rows].clone().requires_grad_()
        with torch.enable_grad():
            logits = output_layer(part[None])[0]
        with torch.no_grad():
            probabilities = torch.softmax(logits, -1)
            drawn = draw(probabilities, generator)
            of_logits = probabilities.scatter_add_(1, drawn, torch.full_like(drawn, -1, dtype=probabilities.dtype))
        if see is not None:
            see(part.detach(), of_logits)
        slope[start : start + rows] = torch.autograd.grad(logits, part, of_logits)[0]
    return slope.reshape(hidden.shape)


def draw(probabilities: Tensor, generator: torch.Generator) -> Tensor:
    """One choice [rows, 1] for each row of probabilities; `torch.multinomial` takes twenty times as long."""
    sums = probabilities.cumsum(-1)
    at = torch.rand(len(sums), 1, generator=generator) * sums[:, -1:]
    return torch.searchsorted(sums, at).clamp_(max=sums.shape[1] - 1)


def read_inputs(
    source: Source, weights: Weights, ids: Tensor, layers: Mapping[str, nn.Module], see: Callable[[str, Tensor], None]
) -> None:
    """Call `see` with every layer's inputs [tokens, in] on texts [texts, tokens], once each, without a backward pass."""

    def before(name: str, layer: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        see(name, given[0].flatten(0, -2))
        return (given[0][:, -1:], *given[1:]) if layer is source.head else None  # the logits are not needed

    with weights.present(), torch.no_grad(), contextlib.ExitStack() as stack:
        for name, module in layers.items():
            stack.callback(module.register_forward_pre_hook(functools.partial(before, name)).remove)
        source.reference(ids)
