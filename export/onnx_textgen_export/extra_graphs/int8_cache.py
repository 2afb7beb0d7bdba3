"""The graph that keeps keys and values at 8 bits, a quarter of the memory, and its proof.

It is a package's own graph once more, over the same weights. Each channel of each layer's keys and values has a scale, found
beforehand by feeding text of many kinds and tokens from all over the vocabulary. GroupQueryAttention itself reads such a cache,
and for one token at a time it does so faster than it reads float32: less comes from memory. For several tokens at once its kernel
is slower, so a prompt takes another branch: what the cache holds is made float32 again for the time of one layer, and attended to
as usual. The tokens that are new there are rounded first, so that a prompt attends to the same numbers however it is cut into
parts.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer

from onnx_textgen.backends.onnxruntime_session import open_session
from onnx_textgen.inference.decoder import Decoder
from onnx_textgen.inference.prefill import prefill
from onnx_textgen.kv_cache.snapshot import Arrays
from onnx_textgen.package.manifest import GRAPH, INT8_CACHE_GRAPH, Precision, Target

from ..errors import ExportError
from ..passes.quantization.options import Quantization
from ..proof import parity
from ..proof.parity import Scenario, Tolerance, prove, why_it_does_not_run
from ..sources.source import Source
from ..weights.streamed import Weights

LARGEST_CODE = 127
"""Codes lie from -128, which only a number beyond all that were seen gets, to this."""
CALIBRATION_TEXT = (Path(__file__).parents[1] / "texts" / "calibration_text.txt").read_text(encoding="utf-8")
"""Prose, code, tables and tongues, written for this: scales are found by it, and judged on another text."""
TOKENS = 1024
"""The most tokens of a text that scales are found by."""
MARGIN = 1.2
"""Times the largest number seen, so that larger ones fit: cutting one off costs more than a fifth of the resolution."""
SMALLEST = 1e-6
"""What a channel of nothing but zeros is taken to hold, as nothing divides by 0."""
LEAVE_OUT = "leave out --int8-cache"
TOO_COARSE = f"that is with keys and values at 8 bits, so {LEAVE_OUT}"
ROUNDED = Tolerance(logits_error=0.5, top1_agreement=0.9, kl_divergence=0.02)
TOLERANCES: dict[Precision, Tolerance] = {"fp32": ROUNDED, "int8": ROUNDED, "int4": parity.TOLERANCES["int4"]}
"""What the graph must reach, by the precision of the weights; what rounding costs is in the certificate."""
PAST, TOTAL, START, END, AXIS, LOW, HIGH = (
    f"int8_cache.{name}" for name in ("past", "total", "start", "end", "axis", "low", "high")
)
"""Names of what all layers share: tokens held before the run and after it, and constants."""
TURNING = {"do_rotary", "rotary_interleaved"}
"""What tells the operator to turn by position, which is done before it where new keys are rounded."""
MANY = "int8_cache.many"
"""Name of what says whether a run has more than one new token."""

Floats = npt.NDArray[np.float32]


@dataclasses.dataclass(frozen=True, slots=True)
class Layer:
    """The attention of one layer."""

    node: onnx.NodeProto
    attributes: Mapping[str, Any]
    head_size: int
    rotary_size: int
    """Channels of a head that the operator turns by position, in pairs; 0 where keys come turned, or are not turned at all."""

    @property
    def heads(self) -> tuple[int, int]:
        """Of queries, and of keys and values."""
        return int(self.attributes["num_heads"]), int(self.attributes["kv_num_heads"])

    def name(self, what: str) -> str:
        """A name of the layer's own."""
        return f"{self.node.name}.{what}"


def int8_cache_bytes(source: Source, graph: Path) -> int:
    """No less than what the graph takes: each layer's own nodes once more, as prompts have a branch, and the scales."""
    channels = sum(math.prod(size for size in tensor.shape if isinstance(size, int)) for tensor in source.cache)
    return 2 * graph.stat().st_size + 3 * channels * np.dtype(np.float32).itemsize


def write_int8_cache_graph(source: Source, folder: Path, tokenizer: Tokenizer | None) -> None:
    """Write the graph beside the package's own; raises `ExportError` where attention is not by GroupQueryAttention in float32."""
    model = onnx.load(folder / GRAPH, load_external_data=False)
    layers = find_layers(model.graph)
    with why_it_does_not_run():
        seen = keys_and_values(source, folder / GRAPH, calibration_texts(source, tokenizer))
    for value in (*model.graph.input, *model.graph.output):
        if value.name in {name for layer in layers for name in (*layer.node.input[3:5], *layer.node.output[1:3])}:
            value.type.tensor_type.elem_type = TensorProto.INT8
    for layer in layers:
        key, value = (seen[name] for name in layer.node.input[3:5])
        for kind, scales in (("key", key_scales(key, layer)), ("value", channel_scales(value))):
            flat = scales.reshape(1, 1, -1)
            for what, data in (("scale", scales), ("scale_of_new", flat), ("inverse_of_new", 1 / flat)):
                model.graph.initializer.append(numpy_helper.from_array(data, layer.name(f"{kind}_{what}")))
    nodes = [branches(node, layers) for node in model.graph.node]
    del model.graph.node[:], model.graph.value_info[:]
    model.graph.node.extend([*shared_nodes(model.graph), *(each for node in nodes for each in node)])
    onnx.save(model, folder / INT8_CACHE_GRAPH)


def prove_int8_cache(
    source: Source, weights: Weights, graph: Path, ids: list[int], *, precision: Precision, own: Scenario
) -> dict[str, Any]:
    """What the long text of the proof measures of the graph; raises `ExportError` where it differs too much from PyTorch.

    own: the same of the package's own graph, whose rounded weights this one has too.
    """
    known = TOLERANCES[precision]
    tolerance = Tolerance(
        logits_error=known.logits_error + 2 * own.logits_error,
        top1_agreement=known.top1_agreement * own.top1_agreement,
        kl_divergence=known.kl_divergence + 2 * own.kl_divergence,
    )
    measured, _ = prove(source, weights, graph, ids, tolerance=tolerance, remedy=TOO_COARSE)
    text = measured[-1]
    return {name: getattr(text, name) for name in ("tokens", "top1_agreement", "kl_divergence", "perplexity_change")}


def check_int8_cache(precision: Precision, target: Target, options: Quantization | None) -> None:
    """Refuse what can have no such graph, before anything is traced."""
    if target != "ort":
        raise ExportError(f"no 8-bit cache: it is kept by an operator of ONNX Runtime's; {LEAVE_OUT}, or take --target ort")
    if precision not in TOLERANCES or (options is not None and options.activations is not None):
        raise ExportError(f"no 8-bit cache: float16 is meant for GPUs, and this is for the CPU; {LEAVE_OUT}")


def find_layers(graph: onnx.GraphProto) -> list[Layer]:
    """Every layer that keeps keys and values; raises `ExportError` where one does so in another way than the operator knows."""
    sizes = {value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in graph.input}
    widths = {tensor.name: tensor.dims[-1] for tensor in graph.initializer if tensor.dims}
    widths |= {value.name: dims[-1].dim_value for value in graph.value_info if (dims := value.type.tensor_type.shape.dim)}
    presents = {value.name for value in graph.output if value.name.startswith("present.")}
    found = list[Layer]()
    for node in graph.node:
        if node.op_type == "GroupQueryAttention" and presents.issuperset(node.output[1:3]):
            attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
            turned = 2 * widths[node.input[7]] if attributes.get("do_rotary") else 0
            found.append(Layer(node, attributes, sizes[node.input[3]][3], turned))
            presents.difference_update(node.output[1:3])
    if presents or not found:
        what = f"{min(presents)} is not" if presents else "nothing is"
        raise ExportError(f"no 8-bit cache: {what} kept by ONNX Runtime's GroupQueryAttention; {LEAVE_OUT}")
    return found


def calibration_texts(source: Source, tokenizer: Tokenizer | None) -> list[list[int]]:
    """Ids from all over the vocabulary, and those of a real text where there is a tokenizer."""
    length, vocab_size = min(TOKENS, source.geometry.context_length), source.geometry.vocab_size
    drawn = np.random.default_rng(2).integers(0, vocab_size, length).tolist()
    text = [] if tokenizer is None else tokenizer.encode(CALIBRATION_TEXT).ids
    known = [token_id for token_id in text if token_id < vocab_size]  # a tokenizer may have more than the model has logits for
    return [ids for ids in (drawn, known[:length]) if ids]


def keys_and_values(source: Source, graph: Path, texts: list[list[int]]) -> Arrays:
    """What the cache holds of some texts, one behind the other, by the name of the graph's past input."""
    decoder = Decoder(open_session(graph, device="cpu"), source.geometry)
    parts = list[Arrays]()
    for ids in texts:
        prefill(decoder, ids)
        parts.append(decoder.cache.take(0, len(ids)))
    return {name: np.concatenate([part[name] for part in parts], axis=2) for name in parts[0]}


def channel_scales(seen: Floats) -> Floats:
    """What a step of each channel's codes is worth: [1, kv_heads, 1, head_size] of numbers [1, kv_heads, tokens, head_size]."""
    largest = np.maximum(np.abs(seen).max(axis=2, keepdims=True), SMALLEST)
    return np.asarray(largest * (MARGIN / LARGEST_CODE), np.float32)


def key_scales(seen: Floats, layer: Layer) -> Floats:
    """The same for keys: large enough wherever in a text they stand.

    Position turns pairs of channels, some of them slowly, so that a channel which is small in every text seen may be large in a
    longer one. The length of a pair stays. Where pairs are not known, as the operator does not turn them, any two channels of a
    head may be one: all have the scale of the longest pair there can be.
    """
    scales = channel_scales(seen)
    if not layer.rotary_size:
        return np.broadcast_to(math.sqrt(2) * scales.max(axis=3, keepdims=True), scales.shape).astype(np.float32)
    half = layer.rotary_size // 2
    if layer.attributes.get("rotary_interleaved"):
        first, second = slice(0, layer.rotary_size, 2), slice(1, layer.rotary_size, 2)
    else:
        first, second = slice(0, half), slice(half, layer.rotary_size)
    lengths = channel_scales(np.hypot(seen[..., first], seen[..., second]))
    scales[..., first] = scales[..., second] = lengths
    return scales


def shared_nodes(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """What all layers ask for; its constants are added to the graph."""
    constants = {
        START: np.array([0]),
        END: np.array([np.iinfo(np.int64).max]),
        AXIS: np.array([2]),
        LOW: np.float32(-LARGEST_CODE - 1),
        HIGH: np.float32(LARGEST_CODE),
        f"{MANY}.least": np.array(1),
    }
    graph.initializer.extend(numpy_helper.from_array(np.asarray(data), name) for name, data in constants.items())
    new, count = f"{MANY}.new", f"{MANY}.count"
    return [
        helper.make_node("Shape", ["input_ids"], [new], start=1, end=2),
        helper.make_node("Shape", ["attention_mask"], [TOTAL], start=1, end=2),
        helper.make_node("Sub", [TOTAL, new], [PAST]),
        helper.make_node("Squeeze", [new], [count]),
        helper.make_node("Greater", [count, f"{MANY}.least"], [MANY]),
    ]


def branches(node: onnx.NodeProto, layers: list[Layer]) -> list[onnx.NodeProto]:
    """What stands in the place of a node: the two ways of a layer's attention, or the node itself."""
    layer = next((each for each in layers if each.node.name == node.name), None)
    if layer is None:
        return [node]
    ways = {"then_branch": Way(layer, "many").of_many(), "else_branch": Way(layer, "one").of_one()}
    return [helper.make_node("If", [MANY], list(node.output), name=node.name, **ways)]


class Way:
    """One branch of a layer's attention, while its nodes are added."""

    def __init__(self, layer: Layer, prefix: str) -> None:
        self.layer, self.prefix = layer, prefix
        self.nodes = list[onnx.NodeProto]()

    def add(self, op_type: str, inputs: list[str], outputs: int = 1, domain: str = "", **attributes: Any) -> list[str]:  # noqa: ANN401 - ONNX's
        """Add a node; the names of its outputs."""
        names = [self.layer.name(f"{self.prefix}.{len(self.nodes)}.{index}") for index in range(outputs)]
        name = self.layer.name(f"{self.prefix}.{len(self.nodes)}")
        self.nodes.append(helper.make_node(op_type, inputs, names, name=name, domain=domain, **attributes))
        return names

    def graph(self, outputs: list[str]) -> onnx.GraphProto:
        """The branch that gives the layer's output, keys and values."""
        types = (TensorProto.FLOAT, TensorProto.INT8, TensorProto.INT8)
        values = [helper.make_tensor_value_info(name, kind, None) for name, kind in zip(outputs, types, strict=True)]
        return helper.make_graph(self.nodes, self.layer.name(self.prefix), [], values)

    def of_one(self) -> onnx.GraphProto:
        """A single token: the operator reads the codes and adds the token's own, in place."""
        node, attributes = self.layer.node, dict(self.layer.attributes)
        attributes |= {"k_quant_type": "PER_CHANNEL", "v_quant_type": "PER_CHANNEL", "kv_cache_bit_width": 8}
        inputs = [*node.input, *[""] * (12 - len(node.input)), self.layer.name("key_scale"), self.layer.name("value_scale")]
        return self.graph(self.add("GroupQueryAttention", inputs, 3, "com.microsoft", **attributes))

    def of_many(self) -> onnx.GraphProto:
        """Several: attention in float32 over what the cache holds, with the new tokens rounded as they will be there."""
        node, (heads, kv_heads) = self.layer.node, self.layer.heads
        query, key, value = self.apart()
        if self.layer.rotary_size:
            query, key = self.turned(query, heads), self.turned(key, kv_heads)
        key, key_codes = self.rounded(key, "key")
        value, value_codes = self.rounded(value, "value")
        pasts = [self.past(node.input[3], "key"), self.past(node.input[4], "value")]
        others = ["" if index in (7, 8) else name for index, name in enumerate(node.input)][5:]
        attributes = {name: given for name, given in self.layer.attributes.items() if name not in TURNING}
        inputs = [query, key, value, *(plain for plain, _ in pasts), *others]
        while not inputs[-1]:
            inputs.pop()
        output, _, _ = self.add("GroupQueryAttention", inputs, 3, "com.microsoft", **attributes)
        stored = zip(node.input[3:5], pasts, (key_codes, value_codes), strict=True)
        return self.graph([output, *(self.joined(name, codes, new) for name, (_, codes), new in stored)])

    def apart(self) -> list[str]:
        """Queries, keys and values [batch, new, heads * head_size]."""
        if self.layer.node.input[1]:
            return list(self.layer.node.input[:3])
        heads, kv_heads = (count * self.layer.head_size for count in self.layer.heads)
        sizes = self.add("Constant", [], value_ints=[heads, kv_heads, kv_heads])
        return self.add("Split", [self.layer.node.input[0], *sizes], 3, axis=-1)

    def turned(self, value: str, heads: int) -> str:
        """Queries or keys, turned by their positions."""
        part = {"rotary_embedding_dim": self.layer.rotary_size} if self.layer.rotary_size < self.layer.head_size else {}
        interleaved = self.layer.attributes.get("rotary_interleaved", 0)
        inputs = [value, PAST, *self.layer.node.input[7:9]]
        return self.add("RotaryEmbedding", inputs, domain="com.microsoft", interleaved=interleaved, num_heads=heads, **part)[0]

    def rounded(self, value: str, kind: str) -> tuple[str, str]:
        """New keys or values as the cache will give them back, and their codes [batch, kv_heads, new, head_size]."""
        scale, inverse = (self.layer.name(f"{kind}_{what}_of_new") for what in ("scale", "inverse"))
        steps = self.add("Round", self.add("Mul", [value, inverse]))  # as the operator's kernel does it, to the last bit
        steps = self.add("Clip", [*steps, LOW, HIGH])
        shape = self.add("Constant", [], value_ints=[0, 0, self.layer.heads[1], self.layer.head_size])
        split = self.add("Reshape", [*self.add("Cast", steps, to=TensorProto.INT8), *shape])
        return self.add("Mul", [*steps, scale])[0], self.add("Transpose", split, perm=[0, 2, 1, 3])[0]

    def past(self, name: str, kind: str) -> tuple[str, str]:
        """Keys or values of the tokens that are held, as numbers and as codes."""
        codes = self.add("Slice", [name, START, PAST, AXIS])
        numbers = self.add("Cast", codes, to=TensorProto.FLOAT)
        return self.add("Mul", [*numbers, self.layer.name(f"{kind}_scale")])[0], codes[0]

    def joined(self, name: str, held: str, new: str) -> str:
        """The whole buffer after the run."""
        rest = self.add("Slice", [name, TOTAL, END, AXIS])
        return self.add("Concat", [held, new, *rest], axis=2)[0]
