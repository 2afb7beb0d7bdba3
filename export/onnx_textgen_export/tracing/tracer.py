"""Trace a `Source` into an ONNX model whose inputs and outputs carry the names other engines read.

Inputs: `input_ids` and `attention_mask`, `logits_positions` (optional, default [-1]: only the last position's logits are
computed), `past_key_values.{i}.key|value`. Outputs: `logits`, `present.{i}.key|value`, and `hidden_states` on request.
The decoder of an encoder-decoder also takes `encoder_attention_mask` and `past_key_values.{i}.encoder.key|value`. Its encoder is
a second half of the same graph, which no node connects with the first, until `passes/graph/encoder_decoder` divides them: so
passes and calibration see all weights at once. Inputs of that half: `source.input_ids` and `source.attention_mask`; outputs:
`last_hidden_state` and `present.{i}.encoder.key|value`. Its attention weights are further outputs on request, `attentions.{i}` over
the text and `cross_attentions.{i}` over the source; a decoder's come from its attention operators, see `extra_graphs`.
A decoder that reads images takes their rows, `image_embeds` (optional, default: none), and where positions have several axes
`position_offsets` (optional, default: 0), see `sources/image_rows`.
The model is float32; `passes` quantises it and changes it otherwise.
"""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import logging
import math
import warnings
from collections.abc import Callable, Iterator, Sequence

import onnx_ir as ir
import torch
from torch import Tensor, nn

from onnx_textgen.errors import first_line
from onnx_textgen.images.positions import AXES as POSITION_AXES
from onnx_textgen.package.manifest import Target

from ..errors import ExportError, innermost
from ..layers.experts import experts_for
from ..passes.graph.provenance import Parameter, Piece, made_of
from ..passes.order import Settings, run_passes
from ..sources.output_layer import only_these_positions
from ..sources.source import CacheTensor, Source
from ..weights.streamed import UNMATERIALIZED_FROM, OwnWeights, Weights
from .decomposition import known_results, run_decompositions
from .interface import finish_interface, input_names, output_names

OPSET = 23


EXAMPLE_LENGTHS = {"batch": 2, "length": 16, "source_length": 11, "new": 7, "read": 4, "guessed": 3}
EXAMPLE_ROWS = 5
"""Of images."""
EXAMPLE_SOURCE = (3, 13)
"""Rows and tokens of the encoder's example, which no other size equals, so that the tracer takes no two for one."""


def example_tensors(tensors: Sequence[CacheTensor]) -> list[Tensor]:
    """Zeros in the shapes of these inputs."""
    return [torch.zeros([EXAMPLE_LENGTHS[size] if isinstance(size, str) else size for size in tensor.shape]) for tensor in tensors]


def dynamic_dimensions(tensors: Sequence[CacheTensor]) -> list[dict[int, object]]:
    """Which dimensions of these inputs vary."""
    return [
        {index: torch.export.Dim.DYNAMIC for index, size in enumerate(tensor.shape) if isinstance(size, str)} for tensor in tensors
    ]


def example_source(source: Source) -> tuple[list[Tensor], list[dict[int, object]]]:
    """Ids and mask of a source, and which dimensions vary; empty without an encoder."""
    if source.encoder is None:
        return [], []
    rows, tokens = EXAMPLE_SOURCE
    if source.encoder.features is not None:
        return [torch.zeros(rows, *source.encoder.features)], [{0: torch.export.Dim.DYNAMIC}]
    ids = torch.arange(rows * tokens).reshape(EXAMPLE_SOURCE) % source.geometry.vocab_size
    both = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    return [ids, torch.ones_like(ids)], [both, both]


def example_of_encoder(source: Source) -> tuple[list[Tensor], list[dict[int, object]]]:
    """Return examples of the encoder's outputs for the decoder, and the dimensions that vary; empty without an encoder."""
    if source.encoder is None:
        return [], []
    mask = torch.ones(EXAMPLE_LENGTHS["batch"], EXAMPLE_LENGTHS["source_length"], dtype=torch.int64)
    both = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    return [mask, *example_tensors(source.encoder.cross)], [both, *dynamic_dimensions(source.encoder.cross)]


class FlatDecoder(nn.Module):
    """A source over flat tensors: (input_ids [batch, new], attention_mask [batch, past + new], logits_positions [k], pasts).

    An encoder-decoder has what the encoder gives after the pasts; its encoder takes the ids and the mask of `source`.
    """

    def __init__(self, source: Source, target: Target, *, hidden_states: bool = False, attention_maps: bool = False) -> None:
        super().__init__()
        self.module = source.module  # registers the weights
        self.source, self.target, self.hidden_states = source, target, hidden_states
        self.call = source.encoder.call_with_attentions if attention_maps and source.encoder is not None else source.call

    def forward(  # noqa: PLR0917 - PyTorch's exporter names the inputs by their places
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        logits_positions: Tensor,
        pasts: list[Tensor],
        source: list[Tensor],
        rows: list[Tensor],
    ) -> tuple[Tensor, list[Tensor], list[Tensor], list[Tensor]]:
        """Logits [batch, k, vocabulary] at the given positions, presents in the order of the pasts, hidden states on request.

        Then what the encoder gives for the source. An encoder-decoder's attention weights, on request, follow the presents.
        `rows`: those of images [rows, width], of a decoder that reads them, and the offsets of positions [3, batch, new], if any.
        """
        images = self.source.images
        reading: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        if images is not None:
            reading = images.reading(input_ids, *rows)
            input_ids = images.plain_ids(input_ids)
        with only_these_positions(self.source.head, logits_positions) as taken, experts_for(self.target), reading:
            logits, presents = self.call(self.target, input_ids, attention_mask, pasts)
        if self.source.head is None:
            logits = logits[:, logits_positions]
        encoder = self.source.encoder
        with experts_for(self.target):
            encoded = [] if encoder is None else encoder.call(*source)
        return logits, presents, taken if self.hidden_states else [], encoded


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress what the tracer prints and logs; its errors are still raised."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        before = logging.root.manager.disable
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(before)


def explain(error: BaseException) -> str:
    """Why the tracer failed, in one line."""
    line = first_line(innermost(error))
    if "data-dependent" in line:
        return f"its code branches on computed values (a loop over experts?), which a graph cannot reproduce ({line:.120})"
    if "Cannot swap" in line:
        return "a layer converts its own weights while it runs, as routers of experts do, which a graph cannot do"
    return line


def example_of_images(source: Source, new: int) -> tuple[list[Tensor], list[dict[int, object]]]:
    """Return examples of what a decoder takes of images, and the dimensions that vary; empty for text alone."""
    if source.images is None:
        return [], []
    dynamic = torch.export.Dim.DYNAMIC
    rows = torch.zeros(EXAMPLE_ROWS, source.images.row_width)
    if source.images.decoder is None:
        return [rows], [{0: dynamic}]
    offsets = torch.zeros(POSITION_AXES, EXAMPLE_LENGTHS["batch"], new, dtype=torch.int64)
    return [rows, offsets], [{0: dynamic}, {1: dynamic} if source.one_token else {1: dynamic, 2: dynamic}]


def trace(
    source: Source,
    target: Target,
    weights: Weights | None = None,
    *,
    hidden_states: bool = False,
    attention_maps: bool = False,
) -> ir.Model:
    """The source as an ONNX model whose large weights are read from `weights` (default: the module's own) on demand.

    With `hidden_states` it has a further output of that name: the input of the output layer. With `attention_maps`, that of an
    encoder-decoder has its attention weights as outputs. Raises `ExportError` naming what could not be traced.
    """
    if hidden_states and source.head is None:
        name = type(source.module).__name__
        raise ExportError(
            f"{name} has no layer whose output is the logits, so it has no hidden states to return; leave out --hidden-states"
        )
    outputs = output_names(source, hidden_states=hidden_states, attention_maps=attention_maps)
    model = trace_by_pytorch(source, target, outputs, hidden_states=hidden_states, attention_maps=attention_maps)
    attach_weights(model, source.module, weights or OwnWeights(source.module))
    run_passes("trace", model, Settings(target))
    finish_interface(model, source, target, outputs)
    return model


def trace_by_pytorch(
    source: Source, target: Target, outputs: Sequence[str], *, hidden_states: bool, attention_maps: bool
) -> ir.Model:
    """What PyTorch's exporter makes of the source; of the module's tensors in it, only names, types and shapes count."""
    geometry = source.geometry
    new = 1 if source.one_token else 7
    dynamic = torch.export.Dim.DYNAMIC
    from_encoder, its_shapes = example_of_encoder(source)
    read, read_shapes = example_source(source)
    of_images, their_shapes = example_of_images(source, new)
    example = (
        torch.arange(2 * new).reshape(2, new) % geometry.vocab_size,
        torch.ones(2, EXAMPLE_LENGTHS["length"] + new, dtype=torch.int64),
        torch.tensor([new - 1] if source.one_token else [5, 6]),
        [*example_tensors(source.cache), *from_encoder],
        read,
        of_images,
    )
    ids = {0: dynamic} if source.one_token else {0: dynamic, 1: dynamic}
    positions = {} if source.one_token else {0: dynamic}
    shapes = (
        ids,
        {0: dynamic, 1: dynamic},
        positions,
        [*dynamic_dimensions(source.cache), *its_shapes],
        read_shapes,
        their_shapes,
    )
    flat = FlatDecoder(source, target, hidden_states=hidden_states, attention_maps=attention_maps)
    check = functools.partial(check_ranges, source=source)
    name = type(source.module).__name__
    return trace_module(flat, example, shapes, name=name, inputs=input_names(source), outputs=outputs, check=check)


def trace_module(
    flat: nn.Module,
    example: tuple[object, ...],
    shapes: tuple[object, ...],
    *,
    name: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    check: Callable[[torch.export.ExportedProgram], None],
) -> ir.Model:
    """What PyTorch's exporter makes of a module over flat tensors.

    shapes: the sizes of the examples that vary; name: of the model, for errors; check: refuses a trace that is valid for few sizes.
    Raises `ExportError`.
    """
    try:
        with quiet(), torch.no_grad(), known_results():
            exported = torch.export.export(flat, example, dynamic_shapes=shapes, strict=False)
            check(exported)
            exported.run_decompositions = functools.partial(run_decompositions, exported)
            program = torch.onnx.export(
                exported,
                (),
                dynamo=True,
                opset_version=OPSET,
                input_names=list(inputs),
                output_names=list(outputs),
                optimize=False,  # it would compute with unmaterialized parameters
                verbose=False,
            )
    except ExportError:
        raise
    except Exception as error:
        raise ExportError(f"{name} cannot be traced: {explain(error)}") from error
    if program is None:
        raise ExportError(f"{name} cannot be traced: the tracer returned nothing")
    return program.model


def attach_weights(model: ir.Model, module: nn.Module, weights: Weights) -> None:
    """Give the graph the module's tensors; each large parameter is read from `weights` on demand."""
    parameters = {f"module.{name}": name for name, _ in module.named_parameters(remove_duplicate=False)}
    tensors = itertools.chain(module.named_parameters(remove_duplicate=False), module.named_buffers(remove_duplicate=False))
    own = {f"module.{name}": tensor.detach() for name, tensor in tensors}
    for value in model.graph.initializers.values():
        traced = value.const_value
        if traced is None or value.name not in own:
            continue
        name = parameters.get(value.name)
        tensor: ir.TensorProtocol
        if name is not None and traced.size >= UNMATERIALIZED_FROM:
            read = functools.partial(read_weight, weights, name)
            tensor = ir.LazyTensor(read, dtype=traced.dtype, shape=ir.Shape(traced.shape.numpy()), name=value.name)
        else:
            tensor = ir.tensor(own[value.name], name=value.name)
        value.const_value = tensor
        if name is not None and len(tensor.shape) > 1:
            made_of(tensor, [Parameter(name)], pieces=[Piece(name, None)] if len(tensor.shape) == 2 else ())


def read_weight(weights: Weights, name: str) -> ir.TensorProtocol:
    """A parameter as a tensor of the graph."""
    return ir.tensor(weights.load(name).contiguous().numpy(), name=name)


def check_ranges(exported: torch.export.ExportedProgram, source: Source) -> None:
    """Raise `ExportError` for a trace that is valid only for short texts or few rows, because the model branched on a size."""
    rows, new, total, past, read = (smallest_bound(exported, sizes) for sizes in named_sizes(exported, source))
    name, context = type(source.module).__name__, source.geometry.context_length
    longest = min(total, past + 2 if past == new else min(past, new))  # a bound on their sum limits both: each is at least 2
    if source.encoder is not None and read < source.encoder.source_length:
        longest = min(longest, read)
    if longest < context:
        raise ExportError(
            f"{name} computes differently above {longest} tokens, which one graph cannot do; "
            f"add --context-length {longest} (in Python: context_length={longest}), or write the two cases as one"
        )
    if rows < context:
        raise ExportError(
            f"{name} computes differently for more than {rows} texts at once, which one graph cannot do; write the two cases as one"
        )


def named_sizes(exported: torch.export.ExportedProgram, source: Source) -> tuple[list[object], ...]:
    """The sizes of the traced inputs: rows, new tokens, all tokens, the cached length of each layer, and tokens of the source."""
    values = {node.name: node.meta["val"] for node in exported.graph.nodes if node.op == "placeholder"}
    ids, mask, _, *more = (values[name].shape for name in exported.graph_signature.user_inputs)
    pasts, others = more[: len(source.cache)], more[len(source.cache) :]
    others = others if source.images is None else others[: -1 if source.images.decoder is None else -2]
    rows = [shape[0] for shape in (ids, mask, *more)]
    lengths = [
        size for tensor, shape in zip(source.cache, pasts, strict=True) for what, size in zip(tensor.shape, shape, strict=True)
        if what == "length"
    ]  # fmt: skip
    cross = () if source.encoder is None else source.encoder.cross
    of_source = 0 if source.encoder is None else 2 if source.encoder.features is None else 1
    read = [shape[1] for shape in (*others[:1], *others[len(others) - of_source :])]
    read += [
        size for tensor, shape in zip(cross, others[1:], strict=False) for what, size in zip(tensor.shape, shape, strict=True)
        if what == "source_length"
    ]  # fmt: skip
    return rows, [ids[1]], [mask[1]], lengths, read


def smallest_bound(exported: torch.export.ExportedProgram, sizes: list[object]) -> float:
    """The smallest upper bound on any of the sizes; infinite if none has a bound."""
    allowed = {str(symbol): str(bounds.upper) for symbol, bounds in exported.range_constraints.items()}
    bounds = [allowed.get(str(size), "") for size in sizes]
    return min((int(bound) for bound in bounds if bound.isdigit()), default=math.inf)  # the others are called int_oo
