"""Rewrite the operators of a traced program that have no ONNX form, node by node.

`torch.onnx.export` calls the program's `run_decompositions`, which traces all of it two more times: longer than the rest of an
export. Few operators of a decoder need it, and each of those is another operator, or none at all. A program with any other such
operator is left to PyTorch. To write out where numbers change their type, it runs all of the program once more; what each node
gives is known from the trace.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch._ops import HigherOrderOperator, OpOverload
from torch.export import ExportedProgram
from torch.fx import Graph, Interpreter, Node

TypePass: type[Interpreter] | None = None
with contextlib.suppress(ImportError):  # another version of PyTorch: then it computes all of them
    from torch.onnx._internal.fx.passes.type_promotion import _TypePromotionInterpreter as TypePass

aten = torch.ops.aten
COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd


def run_decompositions(program: ExportedProgram, table: Mapping[Any, Callable[..., Any]]) -> ExportedProgram:
    """Rewrite `program` in place where that suffices, else have PyTorch decompose it.

    `table` holds the decompositions of operators that have no ONNX form.
    """
    graph = program.graph
    nodes = [node for node in graph.nodes if node.op == "call_function" and is_decomposed(node.target, table)]
    if not all(node.target in REWRITES or (node.target in FUNCTIONAL and changes_its_own_tensor(node)) for node in nodes):
        by_pytorch: ExportedProgram = ExportedProgram.run_decompositions(program, table)
        return by_pytorch
    for node in nodes:
        with graph.inserting_before(node):
            new = REWRITES.get(node.target, rewrite_in_place)(graph, node)
        if new is not node.args[0]:
            new.meta = dict(node.meta)
        node.replace_all_uses_with(new)
        program.graph_signature.replace_all_uses(node.name, new.name)
        graph.erase_node(node)
    graph.eliminate_dead_code()
    program.graph_module.recompile()
    return program


@contextlib.contextmanager
def known_results() -> Iterator[None]:
    """Have PyTorch's pass over number types take from the trace what nodes of float32 alone give."""
    if TypePass is None:
        yield
        return
    compute = TypePass.run_node

    def run_node(self: Interpreter, node: Node) -> object:
        return node.meta["val"] if is_all_float32(node) else compute(self, node)

    with mock.patch.object(TypePass, "run_node", run_node):
        yield


def is_all_float32(node: Node) -> bool:
    """Return whether an operator reads and gives tensors of float32 only, which no type promotion changes."""
    tensors = [each.meta.get("val") for each in (node, *node.all_input_nodes)]
    return node.op == "call_function" and all(isinstance(each, Tensor) and each.dtype == torch.float32 for each in tensors)


def is_decomposed(target: object, table: Mapping[Any, object]) -> bool:
    """Return whether PyTorch would decompose this operator.

    In addition to those of `table`, it decomposes operators that change an input, and composite ones that may return a view of it.
    """
    if not isinstance(target, OpOverload):
        return isinstance(target, HigherOrderOperator)
    if target in KEPT:
        return False
    in_place, is_composite = target._schema.is_mutable, target.has_kernel_for_dispatch_key(COMPOSITE)
    return target in REWRITES or target in table or in_place or (is_composite and may_be_view(target))


def may_be_view(target: object) -> bool:
    """Return whether an operator's result may share memory with an input."""
    return not isinstance(target, OpOverload) or any(argument.alias_info is not None for argument in target._schema.arguments)


def changes_its_own_tensor(node: Node) -> bool:
    """Return whether no other node has a view of the tensor that this one changes, so that a new tensor can stand for it."""
    changed = node.args[0]
    assert isinstance(changed, Node)
    made_by = changed.args[0] if changed.target is operator.getitem else changed
    assert isinstance(made_by, Node)
    target = made_by.target
    is_new = isinstance(target, OpOverload) and not may_be_view(target) and not target.has_kernel_for_dispatch_key(COMPOSITE)
    values = [source.meta["val"] for source in node.all_input_nodes]  # sizes among them
    dtypes = {value.dtype for value in values if isinstance(value, torch.Tensor) and value.is_floating_point()}
    return is_new and len(dtypes) < 2 and not any(may_be_view(user.target) and user < node for user in changed.users)


def rewrite_in_place(graph: Graph, node: Node) -> Node:
    """A new tensor, which every later node reads instead of the changed one."""
    changed = node.args[0]
    assert isinstance(changed, Node)
    new = graph.call_function(FUNCTIONAL[node.target], node.args, node.kwargs)
    changed.replace_all_uses_with(new, delete_user_cb=lambda user: user > node)
    return new


def rewrite_to(graph: Graph, node: Node) -> Node:
    """A conversion, or the input where it has that dtype already."""
    source = node.args[0]
    assert isinstance(source, Node)
    dtype = node.meta["val"].dtype
    return source if source.meta["val"].dtype == dtype else graph.call_function(aten._to_copy.default, (source,), {"dtype": dtype})


def rewrite_flatten(graph: Graph, node: Node) -> Node:
    """A reshape in which one size is found from the others."""
    source, first, last = list(node.args) + [None, 0, -1][len(node.args) :]
    assert isinstance(source, Node)
    assert isinstance(first, int)
    assert isinstance(last, int)
    shape = source.meta["val"].shape
    first, last = first % len(shape), last % len(shape)
    sizes = [size_of(graph, source, index) for index in range(len(shape)) if not first <= index <= last]
    return graph.call_function(aten.reshape.default, (source, [*sizes[:first], -1, *sizes[first:]]))


def size_of(graph: Graph, source: Node, index: int) -> int | Node:
    """Return one size of a tensor: a number, or the node that reads it."""
    size = source.meta["val"].shape[index]
    if isinstance(size, int):
        return size
    node = graph.call_function(aten.sym_size.int, (source, index))
    node.meta["val"] = size
    return node


def rewrite_square(graph: Graph, node: Node) -> Node:
    """A power."""
    return graph.call_function(aten.pow.Tensor_Scalar, (node.args[0], 2))


def renamed(target: OpOverload) -> Callable[[Graph, Node], Node]:
    """The same arguments, given to another operator."""
    return lambda graph, node: graph.call_function(target, node.args, node.kwargs)


KEPT = {aten.chunk.default, aten.contiguous.default, aten.reshape.default, aten.unflatten.int, aten.view_as.default}
"""Composite operators that have an ONNX form."""
FUNCTIONAL: Mapping[Any, OpOverload] = {
    aten.add_.Tensor: aten.add.Tensor,
    aten.sub_.Tensor: aten.sub.Tensor,
    aten.mul_.Tensor: aten.mul.Tensor,
    aten.div_.Tensor: aten.div.Tensor,
    aten.masked_fill_.Scalar: aten.masked_fill.Scalar,
    aten.scatter_.value: aten.scatter.value,
    aten.scatter_.src: aten.scatter.src,
}
"""The operator that makes a new tensor, by the one that changes its input."""
REWRITES: Mapping[Any, Callable[[Graph, Node], Node]] = {
    aten.to.device: rewrite_to,
    aten.to.dtype: rewrite_to,
    aten.to.dtype_layout: rewrite_to,
    aten.to.other: rewrite_to,
    aten.type_as.default: rewrite_to,
    aten.flatten.using_ints: rewrite_flatten,
    aten.square.default: rewrite_square,
    aten.min.other: renamed(aten.minimum.default),
    aten.max.other: renamed(aten.maximum.default),
    aten.__and__.Tensor: renamed(aten.bitwise_and.Tensor),
    aten.__or__.Tensor: renamed(aten.bitwise_or.Tensor),
}
"""What replaces a node; it is inserted before it."""
