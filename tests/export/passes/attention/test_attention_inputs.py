"""What lies between projections and attention: moved into weights and operator, or left alone where it is something else."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir
import pytest

from onnx_textgen_export.passes.attention.attention_inputs import fuse_attention_inputs
from support.small_graphs import READS, Small, kinds, run

CONTEXT, HEADS, KV_HEADS = 64, 4, 2
INT64 = ir.DataType.INT64


@dataclasses.dataclass(frozen=True)
class Form:
    """How a decoder writes its attention's inputs."""

    head_size: int = 16
    turned: int = 16
    """Numbers of a head that turn; 0: no rotary positions."""
    interleaved: bool = False
    scale: float = 1.0
    """Of cosines and sines, as YaRN has it."""
    bias: bool = False
    norm: bool = False
    joined: bool = False
    """One projection whose output holds queries, keys and values head by head (GPT-NeoX)."""
    turned_values: bool = False
    switch_at: int = 0
    """Length above which the angles are others (LongRoPE)."""
    shifted_keys: bool = False
    key_factor: float = 1.0
    """Turned keys are multiplied by it; queries are not."""
    by_length: bool = False
    """The stretch multiplies by the position, which no rotation does."""
    by_column: bool = False
    """Positions count columns, padding too, and not the tokens of a row."""
    warped: bool = False
    """Queries are bent a little before they turn."""


def positions(small: Small, mask: ir.Value, ids: ir.Value, *, by_column: bool) -> ir.Value:
    """How many tokens lie before each new one, [batch, new, 1]."""
    counts = small.op("CumSum", mask, small.constant("axis.1", 1, np.int64))
    new = small.op("Shape", ids, start=1, end=2)
    start = small.op("Sub", small.op("Shape", mask, start=1, end=2), new)
    cut = small.op("Slice", counts, start, small.constant("end", [2**62], np.int64), small.constant("axes.1", [1], np.int64))
    places = small.op("Sub", cut, small.constant("one", 1, np.int64))
    if by_column:
        every = small.op(
            "Range",
            small.constant("0", 0, int),
            small.op("Squeeze", small.op("Shape", mask, start=1)),
            small.constant("by", 1, int),
        )
        places = small.op(
            "Unsqueeze",
            small.op("Slice", every, start, small.constant("end of all", [2**62], int)),
            small.constant("rows", [0], int),
        )
    return small.op("Unsqueeze", small.op("Cast", places, to=1), small.constant("axes.2", [2], np.int64))


def angles(small: Small, places: ir.Value, form: Form) -> tuple[ir.Value, ir.Value]:
    """Cosines and sines [batch, 1, new, turned]."""
    frequencies = 100.0 ** -(np.arange(form.turned // 2) / form.turned * 2)
    rates = small.constant("rates", frequencies)
    if form.switch_at:
        length = small.op("ReduceMax", places, keepdims=0)
        later = small.op("GreaterOrEqual", length, small.constant("switch", form.switch_at))
        rates = small.op("Where", later, small.constant("later rates", frequencies / 3), rates)
    half = small.op("Unsqueeze", small.op("Mul", places, rates), small.constant("axis.1.list", [1], np.int64))
    if form.interleaved:
        twice = small.op(
            "Concat", *[small.op("Unsqueeze", half, small.constant(f"last.{i}", [-1], np.int64)) for i in "ab"], axis=-1
        )
        sizes = small.op("Concat", small.op("Shape", half, start=0, end=3), small.constant("rest", [-1], np.int64), axis=0)
        whole = small.op("Reshape", twice, sizes)
    else:
        whole = small.op("Concat", half, half, axis=-1)
    factor = small.constant("factor", form.scale)
    return small.op("Mul", small.op("Cos", whole), factor), small.op("Mul", small.op("Sin", whole), factor)


def part(small: Small, x: ir.Value, start: int, end: int, step: int = 1) -> ir.Value:
    """x[..., start:end:step]."""
    number = len(small.graph.initializers)
    bounds = [small.constant(f"bound.{number}.{i}", [value], np.int64) for i, value in enumerate((start, end, -1, step))]
    return small.op("Slice", x, *bounds)


def rotate(small: Small, x: ir.Value, cos: ir.Value, sin: ir.Value, form: Form) -> ir.Value:
    """The textbook forms, x [batch, heads, new, head_size]."""
    size = form.turned
    turning, still = part(small, x, 0, size), part(small, x, size, form.head_size)
    if form.interleaved:
        pairs = [small.op("Neg", part(small, turning, 1, size, 2)), part(small, turning, 0, size, 2)]
        number = len(small.graph.initializers)
        columns = [small.op("Unsqueeze", p, small.constant(f"pair.{number}.{i}", [-1], np.int64)) for i, p in enumerate(pairs)]
        shape = small.op("Shape", turning)
        swapped = small.op("Reshape", small.op("Concat", *columns, axis=-1), shape)
    else:
        swapped = small.op(
            "Concat", small.op("Neg", part(small, turning, size // 2, size)), part(small, turning, 0, size // 2), axis=-1
        )
    turned = small.op("Add", small.op("Mul", turning, cos), small.op("Mul", swapped, sin))
    return turned if size == form.head_size else small.op("Concat", turned, still, axis=-1)


def projections(small: Small, x: ir.Value, form: Form) -> list[ir.Value]:
    """Queries, keys and values [batch, heads, new, head_size]."""
    size, made = form.head_size, []
    if form.joined:
        one = small.reshape(small.op("MatMul", x, small.weight("joined", 32, 3 * HEADS * size)), 0, 0, HEADS, 3 * size)
        return [small.op("Transpose", part(small, one, i * size, (i + 1) * size), perm=[0, 2, 1, 3]) for i in range(3)]
    for name, heads in (("query", HEADS), ("key", KV_HEADS), ("value", KV_HEADS)):
        out = small.op("MatMul", x, small.weight(f"{name}.weight", 32, heads * size))
        out = small.op("Add", small.weight(f"{name}.bias", heads * size), out) if form.bias else out
        out = small.reshape(out, 0, 0, heads, size)
        if form.norm and name != "value":
            out = small.op("RMSNormalization", out, small.constant(f"{name}.norm", np.linspace(1, 2, size)), axis=-1)
        made.append(small.op("Transpose", out, perm=[0, 2, 1, 3]))
    return made


def decoder(form: Form) -> ir.Model:
    """One layer of attention over a cache."""
    small = Small()
    ids, mask = small.input("input_ids", ["batch", "new"], INT64), small.input("attention_mask", ["batch", "total"], INT64)
    kv_heads = HEADS if form.joined else KV_HEADS
    pasts = [small.input(f"past_key_values.0.{p}", ["batch", kv_heads, "cache_length", form.head_size]) for p in ("key", "value")]
    x = small.op("Gather", small.weight("embedding", 50, 32), ids)
    inputs = projections(small, x, form)
    if form.turned:
        places = positions(small, mask, ids, by_column=form.by_column)
        cos, sin = angles(small, places, form)
        if form.by_length:
            cos = small.op("Mul", cos, small.op("Unsqueeze", places, small.constant("again", [1], np.int64)))
        if form.warped:
            square = small.op("Mul", small.op("Mul", inputs[0], inputs[0]), small.constant("little", 1e-5))
            inputs[0] = small.op("Add", inputs[0], square)
        inputs[0] = rotate(small, inputs[0], cos, sin, form)
        inputs[1] = rotate(small, inputs[1], *((sin, cos) if form.shifted_keys else (cos, sin)), form)
        if form.key_factor != 1:
            inputs[1] = small.op("Mul", inputs[1], small.constant("key factor", form.key_factor))
        inputs[2] = rotate(small, inputs[2], cos, sin, form) if form.turned_values else inputs[2]
    flat = [small.op("Transpose", one, perm=[0, 2, 1, 3]) for one in inputs]
    flat = [small.reshape(one, 0, 0, -1) for one in flat]
    count = small.op("ReduceSum", mask, small.constant("along", [1], int), keepdims=0)
    last = small.op("Cast", small.op("Sub", count, small.constant("1", 1, int)), to=6)
    total = small.op("Cast", small.op("Shape", mask, start=1, end=2), to=6)
    attention = {"num_heads": HEADS, "kv_num_heads": kv_heads, "domain": "com.microsoft", "outputs": 3}
    out, key, value = small.op("GroupQueryAttention", *flat, *pasts, last, total, **attention)
    key.name, value.name = "present.0.key", "present.0.value"
    for tensor in (key, value):
        tensor.shape = ir.Shape(["batch", kv_heads, "cache_length", form.head_size])
        tensor.type = ir.TensorType(ir.DataType.FLOAT)
    return small.finish(small.op("Neg", out), key, value)


def outputs(model: ir.Model, form: Form) -> list[np.ndarray]:
    """A prompt, one token over it, several over a past, and a step of two rows of unequal length."""
    kv_heads = HEADS if form.joined else KV_HEADS
    ids = np.random.default_rng(2).integers(0, 50, (1, 40))
    past = {f"past_key_values.0.{p}": np.zeros((1, kv_heads, CONTEXT, form.head_size), np.float32) for p in ("key", "value")}
    found, start = [], 0
    for new in (11, 1, 20):
        feeds = {"input_ids": ids[:, start : start + new], "attention_mask": np.ones((1, start + new), np.int64)}
        out, *present = run(model, feeds | past)
        past, start = dict(zip(past, present, strict=True)), start + new
        found.append(out)
    rows = {name: np.concatenate([array, array]) for name, array in past.items()}
    mask = (np.arange(start + 1) < [[start + 1], [9]]).astype(np.int64)
    found.append(run(model, {"input_ids": ids[:, :2].T, "attention_mask": mask} | rows)[0])
    return found


def check(form: Form) -> ir.Node:
    """The logits stay, no weight is read; returns the attention."""
    model = decoder(form)
    want, before = outputs(model, form), READS.copy()
    fuse_attention_inputs(model, context_length=CONTEXT)
    kinds(model)
    assert before == READS, "the pass read a weight"
    for found, wanted in zip(outputs(model, form), want, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    return next(node for node in model.graph if node.op_type == "GroupQueryAttention")


FOLDED = {
    "llama": Form(),
    "biases": Form(bias=True),
    "interleaved": Form(interleaved=True),
    "partial": Form(head_size=32, turned=16),
    "partial and interleaved": Form(head_size=32, turned=16, interleaved=True),
    "not a multiple of 16": Form(head_size=32, turned=12),
    "not a multiple of 16, interleaved": Form(head_size=16, turned=6, interleaved=True),
    "yarn": Form(scale=1.3),
    "joined head by head": Form(joined=True, head_size=32, turned=8),
    "switch beyond the context": Form(switch_at=CONTEXT + 1),
}


@pytest.mark.parametrize("name", FOLDED)
def test_rotary_positions_and_three_projections_go_into_the_operator(name: str) -> None:
    node = check(FOLDED[name])
    assert node.inputs[1] is None and node.inputs[2] is None
    assert node.attributes.get_int("do_rotary") == 1
    assert node.attributes.get_int("rotary_interleaved") == int(FOLDED[name].interleaved)
    assert sum(before.op_type == "MatMul" for before in node.graph) == 1
    assert not {"Transpose", "Concat"} & {before.op_type for before in node.graph}
    angles = [before for before in node.graph if before.op_type in ("Cos", "Sin")]
    assert len(angles) == 2 * all("rotary" in str(value.name) for value in node.inputs[7:9])  # of tables, made from constants


def test_without_rotary_positions_the_projections_are_packed_all_the_same() -> None:
    node = check(Form(turned=0, bias=True))
    assert node.inputs[1] is None
    assert "do_rotary" not in node.attributes


def test_with_norms_in_between_the_rotary_goes_into_the_operator_and_the_projections_stay() -> None:
    node = check(Form(norm=True))
    assert node.inputs[1] is not None
    assert node.attributes.get_int("do_rotary") == 1
    assert sum(before.op_type == "MatMul" for before in node.graph) == 3


@pytest.mark.parametrize(
    "form", [Form(switch_at=20), Form(switch_at=20, interleaved=True, head_size=32)], ids=["half", "interleaved"]
)
def test_angles_that_depend_on_the_length_are_computed_and_turned_by_an_operator(form: Form) -> None:
    node = check(form)
    assert "do_rotary" not in node.attributes
    left = [before.op_type for before in node.graph]
    assert left.count("RotaryEmbedding") == 2
    assert left.count("Cos") == 1


@pytest.mark.parametrize("switch_at", [2, 32, CONTEXT - 1])
def test_a_switch_anywhere_in_the_context_is_found_out(switch_at: int) -> None:
    assert "do_rotary" not in check(Form(switch_at=switch_at)).attributes


LEFT = {
    "values turn too": Form(turned_values=True),
    "keys turn otherwise": Form(shifted_keys=True),
    "keys are scaled": Form(key_factor=0.3),
    "no rotation": Form(by_length=True),
    "positions that count padding": Form(by_column=True),
    "nearly a rotation": Form(warped=True),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_the_operator_does_not_do_stays(name: str) -> None:
    node = check(LEFT[name])
    assert "do_rotary" not in node.attributes
    assert node.inputs[1] is not None


def test_tables_are_stored_once_for_layers_of_equal_angles_and_hold_the_whole_context() -> None:
    model = decoder(Form())
    fuse_attention_inputs(model, context_length=CONTEXT)
    tables = {value.name: value.shape.numpy() for node in model.graph for value in node.outputs if "rotary" in str(value.name)}
    assert tables == {"rotary.cos": (CONTEXT, 8), "rotary.sin": (CONTEXT, 8)}
    attention = [node for node in model.graph if node.op_type == "GroupQueryAttention"]
    assert all([value.name for value in node.inputs[7:9]] == list(tables) for node in attention)


def test_tables_that_would_be_larger_than_the_limit_are_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnx_textgen_export.passes.attention.rotary_tables.LARGEST_TABLES", 1000)
    assert "do_rotary" not in check(Form()).attributes
