"""Operators without an ONNX form are rewritten node by node, and compute the same; others are left to PyTorch."""

import functools
from collections.abc import Callable

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import Phase, given
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.onnx._internal.exporter import _fx_passes, _registration

from onnx_textgen_export.tracing.decomposition import run_decompositions
from support.examples import examples

pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # torch's own, when its program is called

STEPS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "in place": lambda x, y: x.mul_(y.sum()),
    "in place by a size": lambda x, y: x.mul_(y.shape[1]).add(y),
    "twice in place": lambda x, y: x.mul_(0.5).add_(y.sum()),
    "a slice in place": lambda x, y: x + x[:, 1:].sub_(1).sum(),
    "scatter": lambda x, y: torch.zeros_like(x).scatter_(1, torch.zeros_like(x, dtype=torch.int64), 2.0) + y,
    "new": lambda x, y: x + y,
    "view": lambda x, y: x.view_as(y),
    "flatten": lambda x, y: x.flatten(1, 2).unflatten(1, y.shape[1:]),
    "transpose": lambda x, y: x.transpose(1, 2).contiguous().reshape(y.shape),
    "half": lambda x, y: x.half().to(y),
    "same dtype": lambda x, y: x.to(torch.float32),
    "square": lambda x, y: torch.square(x),
    "chunk": lambda x, y: torch.cat(x.chunk(2, dim=-1)[::-1], dim=-1),
    "top": lambda x, y: x.topk(4, dim=-1).values.div_(2) * y,
    "larger": torch.max,
}


class Program(nn.Module):
    """Named steps, each of two earlier results."""

    def __init__(self, steps: list[tuple[str, int, int]]) -> None:
        super().__init__()
        self.steps = steps

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        values = [x + 1, x * 2]
        for name, first, second in self.steps:
            values.append(STEPS[name](values[first % len(values)], values[second % len(values)]))
        return tuple(value.clone() for value in values)


def traced(module: nn.Module) -> ExportedProgram:
    example = torch.arange(24, dtype=torch.float32).reshape(2, 3, 4)
    return torch.export.export(module, (example,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC},))


@functools.cache
def registry() -> _registration.ONNXRegistry:
    return _registration.ONNXRegistry.from_torchlib(23)


def decomposed(program: ExportedProgram) -> ExportedProgram:
    program.run_decompositions = functools.partial(run_decompositions, program)
    return _fx_passes.decompose_with_registry(program, registry())


@given(st.lists(st.tuples(st.sampled_from(sorted(STEPS)), st.integers(0, 9), st.integers(0, 9)), max_size=7))
@examples(12, phases=(Phase.generate,))  # each is traced
def test_a_rewritten_program_computes_what_the_module_computes(steps):
    module = Program(steps)
    program = decomposed(traced(module))
    x = torch.randn(3, 5, 4)
    for value, expected in zip(program.module()(x), module(x), strict=True):
        torch.testing.assert_close(value, expected, rtol=0, atol=0)


@pytest.mark.parametrize("step", sorted(STEPS))
def test_only_what_changes_a_view_or_a_changed_tensor_is_left_to_pytorch(step):
    program = traced(Program([(step, 0, 1)]))
    assert (decomposed(program) is program) == (step not in ("a slice in place", "twice in place"))
