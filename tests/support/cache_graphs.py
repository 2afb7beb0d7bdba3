"""Tiny graphs with every kind of cache, written with `onnx.helper`, and the same decoders in NumPy, without any cache."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from onnx_textgen.backends.onnxruntime_session import OnnxRuntimeSession, open_session
from onnx_textgen.backends.variants.adapter_file import LowRank, write_adapter
from onnx_textgen.backends.variants.linear_layers import KEY, LinearLayer, LinearLayers
from onnx_textgen.inference.decoder import Decoder
from onnx_textgen.package.integrity import file_record
from onnx_textgen.package.manifest import (
    GRAPH,
    MANIFEST,
    AdapterRecord,
    Geometry,
    GoldenRun,
    Manifest,
    Precision,
    adapter_file,
    manifest_to_json,
)

WIDTH, VOCAB_SIZE, CONTEXT = 8, 29, 96
FUTURE = np.float32(-1e9)


@dataclasses.dataclass(frozen=True)
class Attention:
    """A layer with keys and values; grown by concatenation, or shared where GroupQueryAttention holds them.

    A window makes a token see so many tokens only, itself included; for layers that are shared.
    """

    layer: int
    heads: int = 2
    key_size: int = 8
    value_size: int = 8
    shared: bool = False
    window: int | None = None


@dataclasses.dataclass(frozen=True)
class Recurrent:
    """A layer with two states: the last two inputs of a convolution, and a sum that decays from token to token.

    A decay other than 1 needs a graph that takes one token at a time. The sum may be kept in another type.
    """

    layer: int
    decay: float = 1.0
    kept_as: Any = np.float32


@dataclasses.dataclass(frozen=True)
class Tiny:
    """A decoder: embedding, layers, head."""

    layers: tuple[Attention | Recurrent, ...]
    one_by_one: bool = False
    element: Any = np.float32
    """Of keys, values and logits."""
    changes: dict[str, LowRank] = dataclasses.field(default_factory=dict, compare=False)
    """What an adapter adds to weights, in NumPy; the graph is that without."""
    vocab_size: int = VOCAB_SIZE
    context: int = CONTEXT

    @property
    def geometry(self) -> Geometry:
        """Its sizes; those of the cache are made up, since the graph tells them."""
        return Geometry(
            layers=99,
            heads=99,
            kv_heads=99,
            head_size=99,
            hidden_size=WIDTH,
            vocab_size=self.vocab_size,
            context_length=self.context,
        )

    def weight(self, *shape: int, name: str) -> np.ndarray:
        """Random numbers that depend on the name alone."""
        numbers = np.random.default_rng(list(name.encode())).normal(size=shape) / np.sqrt(shape[0])
        change = self.changes.get(name)
        return numbers.astype(np.float32) + (0 if change is None else change.narrow @ change.wide)

    def adapted(self, adapter: dict[str, LowRank]) -> "Tiny":
        """The same decoder with an adapter."""
        return dataclasses.replace(self, changes=adapter)

    def adapter(self, seed: int, rank: int = 3, *, only: str = "") -> dict[str, LowRank]:
        """An adapter of random numbers for all linear layers, or for those whose names end with one of the letters `only`."""
        draw, found = np.random.default_rng(seed), dict[str, LowRank]()
        for layer in Builder(self).layers():
            ((name, _),) = layer.parameters
            if name.endswith(tuple(only) or ""):
                sizes = (layer.inputs, rank), (rank, layer.outputs)
                found[name] = LowRank(*(draw.normal(size=size).astype(np.float32) / 2 for size in sizes))
        return found

    def logits(self, ids: list[int]) -> np.ndarray:
        """Logits [tokens, vocabulary] of a whole text, in NumPy."""
        x = self.weight(self.vocab_size, WIDTH, name="embedding")[ids] * 3
        for layer in self.layers:
            x = x + (self.attend(layer, x) if isinstance(layer, Attention) else self.recur(layer, x))
        return x @ self.weight(WIDTH, self.vocab_size, name="head")

    def attend(self, layer: Attention, x: np.ndarray) -> np.ndarray:
        """Causal attention, [tokens, width]."""
        sizes = {"q": layer.key_size, "k": layer.key_size, "v": layer.value_size}
        q, k, v = (
            (x @ self.weight(WIDTH, layer.heads * size, name=f"{layer.layer}{part}")).reshape(len(x), layer.heads, size)
            for part, size in sizes.items()
        )
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(layer.key_size)
        seen = np.tri(len(x), dtype=bool)
        seen &= ~np.tri(len(x), k=-layer.window, dtype=bool) if layer.window else True
        scores = np.where(seen, scores, FUTURE)
        share = np.exp(scores - scores.max(-1, keepdims=True))
        out = np.einsum("hqk,khd->qhd", share / share.sum(-1, keepdims=True), v).reshape(len(x), -1)
        return out @ self.weight(layer.heads * layer.value_size, WIDTH, name=f"{layer.layer}o")

    def recur(self, layer: Recurrent, x: np.ndarray) -> np.ndarray:
        """Convolution over three tokens, then the decaying sum, [tokens, width]."""
        taps = self.weight(3, WIDTH, name=f"{layer.layer}taps")
        padded = np.vstack([np.zeros((2, WIDTH), np.float32), x])
        mixed = np.tanh(sum(taps[i] * padded[i : i + len(x)] for i in range(3)))
        total, sums = np.zeros(WIDTH, np.float32), []
        for token in mixed:
            total = layer.decay * total + token
            sums.append(total)
        return np.tanh(np.array(sums))

    def open(self, folder: Path) -> OnnxRuntimeSession:
        """Write the graph and open it on one thread."""
        onnx.save(Builder(self).model(), folder / GRAPH)
        return open_session(folder / GRAPH, device="cpu", threads=1)

    def greedy(self, prompt: list[int], tokens: int) -> list[int]:
        """The likeliest ids after a prompt, in NumPy."""
        new = list[int]()
        for _ in range(tokens):
            new.append(int(self.logits(prompt + new)[-1].argmax()))
        return new

    def package(
        self,
        folder: Path,
        *,
        precision: Precision = "fp32",
        prompt: tuple[int, ...] = (5, 9, 1, 3, 3),
        adapters: dict[str, dict[str, LowRank]] | None = None,
    ) -> Path:
        """Write a model folder that takes and gives ids, with one golden run, and one for each adapter."""
        onnx.save(Builder(self).model(), folder / GRAPH)
        for name, adapter in (adapters or {}).items():
            write_adapter(folder / adapter_file(name), adapter)
        manifest = Manifest(
            name="tiny",
            target="ort",
            precision=precision,
            geometry=self.geometry,
            bos_id=None,
            eos_ids=(),
            pad_id=None,
            files={name: file_record(folder / name) for name in (GRAPH, *map(adapter_file, adapters or {}))},
            golden=(GoldenRun(prompt, tuple(self.greedy(list(prompt), 12))),),
            adapters={
                name: AdapterRecord(3, len(each), golden=(GoldenRun(prompt, tuple(self.adapted(each).greedy(list(prompt), 12))),))
                for name, each in (adapters or {}).items()
            },
        )
        (folder / MANIFEST).write_text(manifest_to_json(manifest), encoding="utf-8")
        return folder

    def decoder(self, session: OnnxRuntimeSession, rows: int = 1, capacity: int | None = 4) -> Decoder:
        """An empty decoder."""
        return Decoder(session, self.geometry, rows=rows, capacity=capacity)


class Builder:
    """The graph of a `Tiny`."""

    def __init__(self, tiny: Tiny) -> None:
        self.tiny, self.nodes, self.constants = tiny, [], {}
        self.inputs, self.outputs = [], []
        self.linear: list[LinearLayer] = []
        self.element = helper.np_dtype_to_tensor_dtype(np.dtype(tiny.element))

    def node(self, operator: str, *inputs: str | np.ndarray | float, outputs: int = 1, **attributes: Any) -> Any:
        """Add a node; arrays become constants. Returns the name of its output, or the names."""
        names = [one if isinstance(one, str) else self.constant(np.asarray(one)) for one in inputs]
        made = [f"{operator}_{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(operator, names, made, **attributes))
        return made[0] if outputs == 1 else made

    def product(self, x: str, rows: int, columns: int, name: str) -> str:
        """Multiply with a weight, and record the linear layer."""
        made = self.node("MatMul", x, dataclasses.replace(self.tiny, changes={}).weight(rows, columns, name=name))
        self.linear.append(LinearLayer(x, made, rows, ((name, np.arange(columns)),)))
        return str(made)

    def layers(self) -> list[LinearLayer]:
        """The linear layers of the graph."""
        self.model()
        return self.linear

    def constant(self, array: np.ndarray) -> str:
        """A constant, float32 where it is real."""
        array = array.astype(np.float32) if array.dtype.kind == "f" else array
        name = f"constant_{len(self.constants)}"
        self.constants[name] = numpy_helper.from_array(array, name)
        return name

    def carry(self, past: str, element: int, shape: list[Any], after: list[Any]) -> None:
        """Declare a past input and its present, which `keep` then names."""
        self.inputs.append(helper.make_tensor_value_info(past, element, shape))
        self.outputs.append(helper.make_tensor_value_info(present(past), element, after))

    def keep(self, past: str, value: str, element: int) -> None:
        """Let a value be the present of `past`."""
        self.nodes.append(helper.make_node("Cast", [value], [present(past)], to=element))

    def model(self) -> onnx.ModelProto:
        """The whole model."""
        tiny = self.tiny
        tokens = 1 if tiny.one_by_one else "tokens"
        self.inputs.append(helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", tokens]))
        if any(isinstance(layer, Attention) for layer in tiny.layers):
            self.inputs.append(helper.make_tensor_value_info("attention_mask", TensorProto.INT64, ["batch", "total_length"]))
        x = self.node("Mul", self.node("Gather", tiny.weight(tiny.vocab_size, WIDTH, name="embedding"), "input_ids"), 3.0)
        for layer in tiny.layers:
            x = self.node("Add", x, self.attend(layer, x) if isinstance(layer, Attention) else self.recur(layer, x))
        logits = self.product(x, WIDTH, tiny.vocab_size, name="head")
        self.nodes.append(helper.make_node("Cast", [logits], ["logits"], to=self.element))
        shape = ["batch", tokens, tiny.vocab_size]
        self.outputs.insert(0, helper.make_tensor_value_info("logits", self.element, shape))
        graph = helper.make_graph(self.nodes, "tiny", self.inputs, self.outputs, list(self.constants.values()))
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        if any(isinstance(layer, Attention) and layer.window for layer in tiny.layers):
            model.producer_name = "onnx-textgen"  # others' graphs are not rewritten for windows
        helper.set_model_props(model, {KEY: LinearLayers(tuple(self.linear), "float32").to_json()})
        return model

    def attend(self, layer: Attention, x: str) -> str:
        """Attention over the past."""
        sizes = {"q": layer.key_size, "k": layer.key_size, "v": layer.value_size}
        flat = {part: self.product(x, WIDTH, layer.heads * size, name=f"{layer.layer}{part}") for part, size in sizes.items()}
        pasts = {part: f"past_key_values.{layer.layer}.{name}" for part, name in (("k", "key"), ("v", "value"))}
        length, after = ("cache_length", "cache_length") if layer.shared else ("past_length", "total_length")
        for part, past in pasts.items():
            shape = ["batch", layer.heads, length, sizes[part]]
            self.carry(past, self.element, shape, [*shape[:2], after, shape[3]])
        out = self.share(layer, flat, pasts) if layer.shared else self.grow(layer, flat, pasts, sizes)
        return self.product(out, layer.heads * layer.value_size, WIDTH, name=f"{layer.layer}o")

    def grow(self, layer: Attention, flat: dict[str, str], pasts: dict[str, str], sizes: dict[str, int]) -> str:
        """Keys and values one piece longer, written out in plain operators."""
        heads = {
            part: self.node("Transpose", self.node("Reshape", value, np.array([0, 0, layer.heads, sizes[part]])), perm=[0, 2, 1, 3])
            for part, value in flat.items()
        }
        for part, past in pasts.items():
            before = self.node("Cast", past, to=TensorProto.FLOAT)
            heads[part] = self.node("Concat", before, heads[part], axis=2)
            self.keep(past, heads[part], self.element)
        scores = self.node("MatMul", heads["q"], self.node("Transpose", heads["k"], perm=[0, 1, 3, 2]))
        scores = self.node("Div", scores, np.sqrt(layer.key_size))
        new, total = (
            self.node("Gather", self.node("Shape", value), np.array(axis)) for value, axis in ((flat["q"], 1), (heads["k"], 2))
        )
        columns = self.node("Range", np.array(0), total, np.array(1))
        rows = self.node("Add", self.node("Range", np.array(0), new, np.array(1)), self.node("Sub", total, new))
        seen = self.node("LessOrEqual", columns, self.node("Unsqueeze", rows, np.array([1])))
        held = self.node("Cast", self.node("Unsqueeze", "attention_mask", np.array([1, 2])), to=TensorProto.BOOL)
        share = self.node("Softmax", self.node("Where", self.node("And", seen, held), scores, FUTURE), axis=-1)
        out = self.node("Transpose", self.node("MatMul", share, heads["v"]), perm=[0, 2, 1, 3])
        return self.node("Reshape", out, np.array([0, 0, layer.heads * layer.value_size]))

    def share(self, layer: Attention, flat: dict[str, str], pasts: dict[str, str]) -> str:
        """Keys and values updated in place."""
        count = self.node("ReduceSum", "attention_mask", np.array([1]), keepdims=0)
        lengths = self.node("Cast", self.node("Sub", count, np.array(1)), to=TensorProto.INT32)
        total = self.node("Cast", self.node("Gather", self.node("Shape", "attention_mask"), np.array(1)), to=TensorProto.INT32)
        names = [flat[part] for part in "qkv"] + [pasts["k"], pasts["v"], lengths, total]
        made = [f"attention_{layer.layer}", *(present(past) for past in pasts.values())]
        heads = {"num_heads": layer.heads, "kv_num_heads": layer.heads}
        if layer.window:
            heads["local_window_size"] = layer.window
        self.nodes.append(helper.make_node("GroupQueryAttention", names, made, domain="com.microsoft", **heads))
        return made[0]

    def recur(self, layer: Recurrent, x: str) -> str:
        """Convolution and sum over their states."""
        kept_as = helper.np_dtype_to_tensor_dtype(np.dtype(layer.kept_as))
        window, total = f"past_conv.{layer.layer}", f"past_recurrent.{layer.layer}"
        for name, element, shape in ((window, TensorProto.FLOAT, ["batch", 2, WIDTH]), (total, kept_as, ["batch", WIDTH])):
            self.carry(name, element, shape, shape)
        taps = self.tiny.weight(3, WIDTH, name=f"{layer.layer}taps")
        padded = self.node("Concat", window, x, axis=1)
        ends = [(0, -2), (1, -1), (2, 2**40)]
        parts = [self.node("Slice", padded, np.array([a]), np.array([b]), np.array([1])) for a, b in ends]
        mixed = self.node("Tanh", self.node("Sum", *(self.node("Mul", part, taps[i]) for i, part in enumerate(parts))))
        self.keep(window, self.node("Slice", padded, np.array([-2]), np.array([2**40]), np.array([1])), TensorProto.FLOAT)
        before = self.node("Unsqueeze", self.node("Cast", total, to=TensorProto.FLOAT), np.array([1]))
        sums = self.node("Add", self.node("Mul", before, layer.decay), self.node("CumSum", mixed, np.array(1)))
        self.keep(total, self.node("Gather", sums, np.array(-1), axis=1), kept_as)
        return self.node("Tanh", sums)


def present(past: str) -> str:
    """The output that goes with a past input, as the exporter names it."""
    if past.startswith("past_key_values."):
        return past.replace("past_key_values.", "present.")
    return past.replace("past_", "present_")


GRAPHS = {
    "keys and values of different sizes": Tiny((Attention(0, 2, 6, 4), Attention(3, 1, 4, 10))),
    "layers of different heads, shared": Tiny((Attention(0, 2, shared=True), Attention(2, 1, 16, 16, shared=True))),
    "states alone, one token at a time": Tiny((Recurrent(0, 0.9), Recurrent(1, 0.5)), one_by_one=True),
    "states alone, several tokens at a time": Tiny((Recurrent(0), Recurrent(1))),
    "states and a growing cache": Tiny((Recurrent(0), Attention(1, 2, 6, 4), Recurrent(2), Attention(5))),
    "states and a growing cache, one token at a time": Tiny((Attention(0), Recurrent(1, 0.8)), one_by_one=True),
    "states and a shared cache": Tiny((Recurrent(0), Attention(1, shared=True), Recurrent(4))),
    "windows, and a layer that sees everything": Tiny(
        (Attention(0, shared=True, window=5), Attention(1, 1, 16, 16, shared=True), Attention(2, shared=True, window=3))
    ),
    "states and a shared cache, one token at a time": Tiny((Recurrent(0, 0.7), Attention(1, shared=True)), one_by_one=True),
}
