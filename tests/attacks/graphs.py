"""Hostile graphs: numbers from files that are none of theirs, computations without end, caches that do not fit, and random damage.

Each is a package whose manifest has its right sha256, or a folder of another exporter's, which has none.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from onnx_textgen.package.integrity import file_record
from onnx_textgen.package.manifest import GRAPH, MANIFEST, WEIGHTS, manifest_to_json
from onnx_textgen.package.reading import read_manifest

from ..support.cache_graphs import GRAPHS, Attention, Recurrent, Tiny
from .flips import open_model
from .law import Case, Law, Verdict, judged, spread
from .manifests import PACKAGE, check_command

TINY = Tiny((Attention(0), Recurrent(1), Attention(2, 2, 6, 4)))
PROMPT, TOKENS, MAX_TIME = (5, 9, 1, 3), 4, 2.0
Model = onnx.ModelProto
Change = Callable[[Model], object]


@functools.cache
def written(tiny: Tiny) -> bytes:
    """A graph with its weights."""
    from ..support.cache_graphs import Builder  # noqa: PLC0415  (beside what is made of it)

    content: bytes = Builder(tiny).model().SerializeToString()
    return content


def parsed(tiny: Tiny = TINY) -> Model:
    """A graph to be changed."""
    return Model.FromString(written(tiny))


def seal(folder: Path, tiny: Tiny = TINY) -> None:
    """Write the manifest that goes with the graph in a folder."""
    tiny_manifest = read_manifest(PACKAGE)
    files = {name: file_record(folder / name) for name in (GRAPH, WEIGHTS) if (folder / name).is_file()}
    manifest = dataclasses.replace(tiny_manifest, geometry=tiny.geometry, eos_ids=(), bos_id=None, files=files, golden=())
    (folder / MANIFEST).write_text(manifest_to_json(manifest), encoding="utf-8")


def write(content: bytes, folder: Path, *, ours: bool = True, tiny: Tiny = TINY) -> None:
    """Write a graph as a package of ours, or as another exporter's folder."""
    (folder / GRAPH).write_bytes(content)
    if ours:
        seal(folder, tiny)
    else:
        (folder / "config.json").write_text('{"vocab_size": 29, "max_position_embeddings": 96}', encoding="utf-8")


def generate(folder: Path) -> tuple[int, ...]:
    """What the model of a folder writes."""
    return open_model(folder).generate(list(PROMPT), max_new_tokens=TOKENS, temperature=0, max_time=MAX_TIME).token_ids


def try_all(folder: Path, *, scores: bool = True) -> Verdict:
    """Open, describe, generate and score with a model: any text is harmless, it is another model."""
    check_command(["info", str(folder)])

    def use() -> object:
        model = open_model(folder)
        model.generate([list(PROMPT), [1]], max_new_tokens=TOKENS, temperature=0, max_time=MAX_TIME)
        return model.score(list(PROMPT)) if scores else None

    return judged(use)


# Numbers from elsewhere.

SECRET = "secret"
KEY_PLACES: dict[str, dict[str, object]] = {
    "beyond the end": {"offset": 2**20},
    "at a negative place": {"offset": -1},
    "at the last place there is": {"offset": 2**63 - 1},
    "beyond all places": {"offset": 2**64},
    "at a place of its own": {"offset": "x"},
    "at an odd place": {"offset": 1},
    "of no length": {"length": 0},
    "of a negative length": {"length": -4},
    "of the greatest length": {"length": 2**63 - 1},
    "of half its length": {"length": 16},
}
"""What else a graph may say of where its numbers lie in its own file."""


def outside(model: Model, location: str, **more: object) -> None:
    """Let the embedding lie in another file; what it is, goes out of the graph."""
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **more}.items():
        tensor.external_data.add(key=key, value=str(value))


def make_link(folder: Path, target: Path) -> str:
    """A link in the folder."""
    (folder / "link.data").symlink_to(target)
    return "link.data"


def make_link_of_weights(folder: Path, target: Path) -> str:
    """A link that has the name of a package's weights."""
    (folder / f"{GRAPH}_data").symlink_to(target)
    return f"{GRAPH}_data"


def make_pipe(folder: Path, _: Path) -> str:
    """A pipe in the folder, which nobody writes to."""
    os.mkfifo(folder / "pipe.data")
    return "pipe.data"


def make_linked_folder(folder: Path, target: Path) -> str:
    """A folder in the folder that is a link to the one with the secret."""
    (folder / "linked").symlink_to(target.parent)
    return f"linked/{target.name}"


LOCATIONS: dict[str, Callable[[Path, Path], str]] = {
    "in the folder above": lambda _, secret: f"../{secret.name}",
    "above by a detour": lambda _, secret: f"./x/../../{secret.name}",
    "above, with backslashes": lambda _, secret: f"..\\{secret.name}",
    "above, behind many slashes": lambda _, secret: f".//..///{secret.name}",
    "by its whole path": lambda _, secret: str(secret),
    "by its whole path, which begins twice": lambda _, secret: f"/{secret}",
    "as a URL": lambda _, secret: secret.as_uri(),
    "with an end of text in its name": lambda _, secret: f"../{secret.name}\0{WEIGHTS}",
    "behind a link": make_link,
    "behind a link to a folder": make_linked_folder,
    "in /proc": lambda *_: "/proc/self/environ",
    "in a device without end": lambda *_: "/dev/zero",
    "in a device above": lambda *_: "../../../../../../../../dev/zero",
    "in a pipe": make_pipe,
    "in the folder itself": lambda *_: ".",
    "in no file": lambda *_: "",
    "in a file with a long name": lambda *_: "x" * 10_000,
    "in the graph": lambda *_: GRAPH,
    "in the manifest": lambda *_: MANIFEST,
    "at home": lambda *_: "~/.bashrc",
    "in the memory of the engine": lambda *_: "*/_ORT_MEM_ADDR_/*",
    "in the memory of the engine, as constants are": lambda *_: "_ORT_MEM_ADDR_",
}


def from_elsewhere(make: Callable[[Path, Path], str], ours: bool, more: dict[str, object], root: Path) -> Verdict:
    """The embedding, as it should be, lies where it may not be read: only who reads it there writes the right text."""
    folder, secret = root / "folder", root / SECRET
    folder.mkdir()
    model = parsed()
    size = len(model.graph.initializer[0].raw_data)
    secret.write_bytes(model.graph.initializer[0].raw_data)
    right = tuple(TINY.greedy(list(PROMPT), TOKENS))
    outside(model, make(folder, secret), **{"offset": 0, "length": size, **more})
    write(model.SerializeToString(), folder, ours=ours)
    return judged(lambda: generate(folder), lambda found: not ours and found != right)


def oddly_placed(more: dict[str, object], ours: bool, folder: Path) -> Verdict:
    """The embedding lies in its own file, and the graph says odd things of where."""
    model = parsed()
    raw = model.graph.initializer[0].raw_data
    (folder / WEIGHTS).write_bytes(raw)
    outside(model, WEIGHTS, **{"offset": 0, "length": len(raw), **more})
    write(model.SerializeToString(), folder, ours=ours)
    return try_all(folder)


def in_memory(address: int, ours: bool, folder: Path) -> Verdict:
    """The embedding lies at some address, by the mark that ONNX Runtime puts there for itself."""
    model = parsed()
    outside(model, "*/_ORT_MEM_ADDR_/*", offset=address, length=len(parsed().graph.initializer[0].raw_data))
    write(model.SerializeToString(), folder, ours=ours)
    return judged(lambda: generate(folder), lambda _: False)


def places() -> Iterator[Case]:
    """Every location, in a package and in another exporter's folder."""
    for ours, whose in ((True, "a package"), (False, "another's folder")):
        for name, make in LOCATIONS.items():
            yield Case(f"{whose}: {name}", functools.partial(from_elsewhere, make, ours, {}))
        for name, more in KEY_PLACES.items():
            yield Case(f"{whose}: {name}", functools.partial(oddly_placed, more, ours))
        for address in (0, 1, 4096, 0x400000, 2**47 - 4096, 2**63 - 1):
            yield Case(f"{whose}: at the address {address:#x}", functools.partial(in_memory, address, ours))


# Computations without end.


def node(model: Model, operator: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
    """Add a node whose output nobody wants yet."""
    name = f"bomb_{len(model.graph.node)}"
    model.graph.node.append(helper.make_node(operator, list(inputs), [name], domain=domain, **attributes))
    return name


def number(model: Model, *values: float, dtype: type = np.int64, scalar: bool = False) -> str:
    """A constant."""
    name = f"number_{len(model.graph.initializer)}"
    array = np.asarray(values[0] if scalar else values, dtype)
    model.graph.initializer.append(numpy_helper.from_array(array, name))
    return name


def wanted(model: Model, value: str) -> None:
    """Let the logits depend on a value that is as large as they are, or a number."""
    last = model.graph.node[-1]
    assert value == last.output[0], "the node before"
    zero = node(
        model,
        "Mul",
        node(model, "ReduceMax", node(model, "Cast", value, to=TensorProto.FLOAT), keepdims=0),
        number(model, 0.0, dtype=np.float32, scalar=True),
    )
    for each in model.graph.node:
        for place, name in enumerate(each.output):
            if name == "logits":
                each.output[place] = "plain_logits"
    model.graph.node.append(helper.make_node("Add", ["plain_logits", zero], ["logits"]))


def endless_loop(model: Model, rounds: int, *, body_operator: str = "Identity") -> str:
    """A loop of so many rounds."""
    inputs = [("round", TensorProto.INT64), ("go", TensorProto.BOOL), ("carried", TensorProto.FLOAT)]
    outputs = [("go_on", TensorProto.BOOL), ("next", TensorProto.FLOAT)]
    carried = ["carried", "carried"] if body_operator == "Concat" else ["carried"]
    shape = [None] if body_operator == "Concat" else [1]
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["go_on"]),
            helper.make_node(body_operator, carried, ["next"], **({"axis": 0} if body_operator == "Concat" else {})),
        ],
        "body",
        [helper.make_tensor_value_info(name, kind, shape if name == "carried" else []) for name, kind in inputs],
        [helper.make_tensor_value_info(name, kind, shape if name == "next" else []) for name, kind in outputs],
    )
    count, go = number(model, rounds, scalar=True), number(model, True, dtype=bool, scalar=True)
    return node(model, "Loop", count, go, number(model, 1.0, dtype=np.float32), body=body)


def doubled(model: Model, times: int) -> str:
    """A value that is doubled again and again."""
    value = number(model, 1.0, dtype=np.float32)
    for _ in range(times):
        value = node(model, "Concat", value, value, axis=0)
    return value


def nested_ifs(model: Model, depth: int) -> str:
    """Branches in branches."""
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), "yes"))

    def branch(level: int) -> onnx.GraphProto:
        if level == 0:
            made = helper.make_node("Constant", [], ["out0"], value_floats=[1.0])
        else:
            made = helper.make_node("If", ["yes"], [f"out{level}"], then_branch=branch(level - 1), else_branch=branch(0))
        return helper.make_graph([made], "b", [], [helper.make_tensor_value_info(f"out{level}", TensorProto.FLOAT, [1])])

    return node(model, "If", "yes", then_branch=branch(depth), else_branch=branch(0))


def chain(model: Model, length: int, operator: str = "Neg") -> str:
    """Many nodes in a row."""
    value = number(model, 1.0, dtype=np.float32)
    for _ in range(length):
        value = node(model, operator, value)
    return value


def many_functions(model: Model, levels: int) -> str:
    """Functions that call the one before four times each."""
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    for level in range(levels):
        called, domain = (f"F{level - 1}", "own") if level else ("Identity", "")
        nodes = [helper.make_node(called, [f"v{i}"], [f"v{i + 1}"], domain=domain) for i in range(4)]
        model.functions.append(helper.make_function("own", f"F{level}", ["v0"], ["v4"], nodes, opsets))
    model.opset_import.append(opsets[1])
    return node(model, f"F{levels - 1}", number(model, 1.0, dtype=np.float32), domain="own")


def of_shape(model: Model, *sizes: int) -> str:
    """A constant of a size."""
    return node(model, "ConstantOfShape", number(model, *sizes))


BOMBS: dict[str, Callable[[Model], str]] = {
    "functions that call one another": lambda m: many_functions(m, 18),
    "a function that calls itself": lambda m: (
        many_functions(m, 1) and node(m, "F0", number(m, 1.0, dtype=np.float32), domain="own")
    ),
    "a loop of 2^60 rounds": lambda m: endless_loop(m, 2**60),
    "a loop of -1 rounds": lambda m: endless_loop(m, -1),
    "a loop that doubles": lambda m: endless_loop(m, 60, body_operator="Concat"),
    "60 doublings": lambda m: doubled(m, 60),
    "26 doublings": lambda m: doubled(m, 26),
    "a constant of 2^40 numbers": lambda m: of_shape(m, 2**40),
    "a constant of 2^63 numbers": lambda m: of_shape(m, 2**32, 2**31),
    "a constant of more numbers than can be counted": lambda m: of_shape(m, 2**32, 2**32, 2**32),
    "a constant of a negative size": lambda m: of_shape(m, -5),
    "a constant of no size": lambda m: of_shape(m, 0, 2**40),
    "2^38 tiles": lambda m: node(m, "Tile", number(m, 1.0, dtype=np.float32), number(m, 2**38)),
    "an expansion": lambda m: node(m, "Expand", number(m, 1.0, dtype=np.float32), number(m, 2**20, 2**20)),
    "a range": lambda m: node(m, "Range", *(number(m, each, scalar=True) for each in (0, 2**50, 1))),
    "a range by nothing": lambda m: node(m, "Range", *(number(m, each, scalar=True) for each in (0, 5, 0))),
    "a wide one-hot": lambda m: node(m, "OneHot", number(m, 1), number(m, 2**40, scalar=True), number(m, 0, 1)),
    "a wide pad": lambda m: node(m, "Pad", number(m, 1.0, dtype=np.float32), number(m, 2**40, 2**40)),
    "a negative pad": lambda m: node(m, "Pad", number(m, 1.0, dtype=np.float32), number(m, -(2**40), 0)),
    "noise": lambda m: node(m, "RandomNormal", shape=[2**20, 2**20]),
    "a resize": lambda m: node(m, "Resize", number(m, 1.0, dtype=np.float32), "", "", number(m, 2**40)),
    "a wide Trilu": lambda m: node(m, "Trilu", of_shape(m, 2**20, 2**20)),
    "a gather beyond the end": lambda m: node(m, "Gather", number(m, 1, 2), number(m, 2**40)),
    "a gather before the beginning": lambda m: node(m, "Gather", number(m, 1, 2), number(m, -(2**40))),
    "a slice of no step": lambda m: node(m, "Slice", number(m, 1, 2), number(m, 0), number(m, 2), number(m, 0), number(m, 0)),
    "a slice by the least number": lambda m: node(
        m, "Slice", number(m, 1, 2), *(number(m, -(2**63)) for _ in range(2)), number(m, 0), number(m, -1)
    ),
    "a reshape to more": lambda m: node(m, "Reshape", number(m, 1, 2), number(m, 2**40, 2**40)),
    "a reshape to several unknowns": lambda m: node(m, "Reshape", number(m, 1, 2), number(m, -1, -1)),
    "a division of whole numbers by zero": lambda m: node(m, "Div", number(m, 1), number(m, 0)),
    "a remainder by zero": lambda m: node(m, "Mod", number(m, 1), number(m, 0)),
    "the least number modulo -1": lambda m: node(m, "Mod", number(m, -(2**63)), number(m, -1)),
    "a shift by 200 bits": lambda m: node(m, "BitShift", *(number(m, n, dtype=np.uint64) for n in (1, 200)), direction="LEFT"),
    "branches 30 deep": lambda m: nested_ifs(m, 30),
    "10,000 nodes in a row": lambda m: chain(m, 10_000),
    "10,000 copies in a row": lambda m: chain(m, 10_000, "Identity"),
    "an operator of a strange domain": lambda m: node(m, "Run", number(m, 1), domain="evil"),
    "an operator that calls Python": lambda m: node(m, "PythonOp", number(m, 1), domain="com.microsoft"),
    "an operator that does not exist": lambda m: node(m, "Nothing", number(m, 1)),
    "an einsum that asks for much": lambda m: node(
        m,
        "Einsum",
        *(number(m, *range(1, 9), dtype=np.float32) for _ in range(12)),
        equation="a,b,c,d,e,f,g,h,i,j,k,l->abcdefghijkl",
    ),
    "an einsum that is none": lambda m: node(m, "Einsum", number(m, 1.0, dtype=np.float32), equation="->" * 1_000),
    "a split in a million": lambda m: node(m, "Split", number(m, 1, 2), axis=0, num_outputs=10**6),
    "a top of more than there is": lambda m: node(m, "TopK", number(m, 1.0, dtype=np.float32), number(m, 2**40)),
    "a sum with an axis that does not exist": lambda m: node(m, "CumSum", number(m, 1, 2), number(m, 2**31, scalar=True)),
}


def explode(bomb: Callable[[Model], str], ours: bool, folder: Path) -> Verdict:
    """The logits hang on something endless, impossible or unknown."""
    model = parsed()
    wanted(model, bomb(model))
    write(model.SerializeToString(), folder, ours=ours)
    return try_all(folder, scores=False)  # which has no time limit


def bombs() -> Iterator[Case]:
    """Each in a package, and in another exporter's folder."""
    for (name, bomb), ours in itertools.product(BOMBS.items(), (True, False)):
        yield Case(f"{name}, {'a package' if ours else 'another'}", functools.partial(explode, bomb, ours))


# Inputs and outputs that do not fit.


def dims(value: onnx.ValueInfoProto) -> Any:  # a list of protobuf
    """The sizes of an input or output."""
    return value.type.tensor_type.shape.dim


def set_all(value: onnx.ValueInfoProto, size: int | str) -> None:
    """Give all axes one size."""
    for dim in dims(value):
        dim.Clear()
        setattr(dim, "dim_param" if isinstance(size, str) else "dim_value", size)


def set_one(value: onnx.ValueInfoProto, axis: int, size: int | str) -> None:
    """Give one axis a size."""
    if dims(value):
        dim = dims(value)[axis % len(dims(value))]
        dim.Clear()
        setattr(dim, "dim_param" if isinstance(size, str) else "dim_value", size)


def of_type(value: onnx.ValueInfoProto, kind: int) -> None:
    """Give it another type of numbers."""
    value.type.tensor_type.elem_type = kind


VALUE_CHANGES: dict[str, Callable[[onnx.ValueInfoProto], object]] = {
    "has no name": lambda v: setattr(v, "name", ""),
    "has another name": lambda v: setattr(v, "name", f"{v.name}x"),
    "is called like the ids": lambda v: setattr(v, "name", "input_ids"),
    "is called like the logits": lambda v: setattr(v, "name", "logits"),
    "is called like a key": lambda v: setattr(v, "name", "past_key_values.0.key"),
    "has odd characters in its name": lambda v: setattr(v, "name", "past_\n\x1b]0;x\x07\u202e.0.key"),
    "is text": lambda v: of_type(v, TensorProto.STRING),
    "is of 16 bits": lambda v: of_type(v, TensorProto.FLOAT16),
    "is of bfloat16": lambda v: of_type(v, TensorProto.BFLOAT16),
    "is of 4 bits": lambda v: of_type(v, TensorProto.INT4),
    "is of 8 bits": lambda v: of_type(v, TensorProto.INT8),
    "is complex": lambda v: of_type(v, TensorProto.COMPLEX128),
    "is of no type": lambda v: v.ClearField("type"),
    "is of an unknown type": lambda v: of_type(v, 99),
    "is a sequence": lambda v: v.type.CopyFrom(helper.make_sequence_type_proto(v.type)),
    "is an optional": lambda v: v.type.CopyFrom(helper.make_optional_type_proto(v.type)),
    "has no shape": lambda v: v.type.tensor_type.ClearField("shape"),
    "is a number": lambda v: v.type.tensor_type.shape.Clear(),
    "has 70 axes": lambda v: [dims(v).add(dim_value=1) for _ in range(70)],
    "has an axis more": lambda v: dims(v).add(dim_value=3),
    "is of open sizes": lambda v: set_all(v, "any"),
    "is of no size": lambda v: set_all(v, 0),
    "is of size 1": lambda v: set_all(v, 1),
    "is of negative sizes": lambda v: set_all(v, -7),
    "is of 2^40 to each side": lambda v: set_all(v, 2**40),
    "is of the greatest size": lambda v: set_all(v, 2**63 - 1),
    "has a last axis of 2^40": lambda v: set_one(v, -1, 2**40),
    "has a last axis that is open": lambda v: set_one(v, -1, "open"),
    "has another last axis": lambda v: set_one(v, -1, 5),
    "has 2^40 heads": lambda v: set_one(v, 1, 2**40),
    "has no heads": lambda v: set_one(v, 1, 0),
    "has 3 rows": lambda v: set_one(v, 0, 3),
    "has 2^31 rows": lambda v: set_one(v, 0, 2**31),
}


def ill_fitting(tiny: Tiny, name: str, change: Callable[[onnx.ValueInfoProto], object], ours: bool, folder: Path) -> Verdict:
    """One input or output is something else than the graph computes with."""
    model = parsed(tiny)
    for value in (*model.graph.input, *model.graph.output):
        if value.name == name:
            change(value)
            break
    write(model.SerializeToString(), folder, ours=ours, tiny=tiny)
    return try_all(folder)


def lacking(tiny: Tiny, name: str, ours: bool, folder: Path) -> Verdict:
    """One input or output is not there."""
    model = parsed(tiny)
    for values in (model.graph.input, model.graph.output):
        for value in [value for value in values if value.name == name]:
            values.remove(value)
    write(model.SerializeToString(), folder, ours=ours, tiny=tiny)
    return try_all(folder)


def interfaces(count: int, choose: random.Random) -> Iterator[Case]:
    """Every change of every input and output, of a grown, a shared and a mixed cache."""
    tinies = [TINY, GRAPHS["layers of different heads, shared"]]
    every: list[Case] = []
    for tiny, ours in itertools.product(tinies, (True, False)):
        graph, which = parsed(tiny).graph, f"{'mixed' if tiny is TINY else 'shared'}, {'a package' if ours else 'another'}"
        for name in [value.name for value in (*graph.input, *graph.output)]:
            every.append(Case(f"{which}: {name} is missing", functools.partial(lacking, tiny, name, ours)))
            for what, change in VALUE_CHANGES.items():
                every.append(Case(f"{which}: {name} {what}", functools.partial(ill_fitting, tiny, name, change, ours)))
    yield from choose.sample(every, min(count, len(every)))


# Random damage.


def damaged(content: bytes, choose: random.Random) -> bytes:
    """Bytes that are others, more or fewer."""
    data, way = bytearray(content), choose.randrange(6)
    place = choose.randrange(len(data))
    if way == 0:
        return bytes(data[:place])
    if way == 1:
        return choose.randbytes(choose.randrange(1, 5_000))
    if way == 2:
        data[place:place] = choose.randbytes(choose.randrange(1, 20))
    elif way == 3:
        del data[place : place + choose.randrange(1, 40)]
    else:
        for _ in range(choose.choice((1, 1, 3, 30))):
            data[choose.randrange(len(data))] = choose.randrange(256)
    return bytes(data)


ODD = (0, 1, -1, 2, 3, 7, 64, 2**31 - 1, 2**31, 2**40, 2**63 - 1, -(2**63))


ENDED_BY_BLANKS = ("Sum", "Concat")
"""Operators that end ONNX Runtime's process (1.31.1) where one of their inputs is left out; see docs/security.md."""


def change_node(model: Model, choose: random.Random) -> None:
    """A node is another: its operator, its inputs, its attributes, its place."""
    nodes = model.graph.node
    one, other = choose.choice(nodes), choose.choice(nodes)
    way = choose.randrange(8)
    if way == 0:
        one.op_type, one.domain = other.op_type, other.domain
    elif way == 1 and one.input:
        blank = [] if one.op_type in ENDED_BY_BLANKS else [""]
        one.input[choose.randrange(len(one.input))] = choose.choice([*other.output, *other.input, *blank])
    elif way == 2 and one.input:
        del one.input[-1]
    elif way == 3:
        one.input.append(choose.choice([*other.output, "input_ids", "nothing"]))
    elif way == 4:
        nodes.remove(one)
    elif way == 5:
        nodes.append(one)
    elif way == 6:
        one.output.append("more")
    else:
        for attribute in one.attribute:
            attribute.i, attribute.f = choose.choice(ODD), choose.choice((0.0, -1.0, 1e38, float("nan"), float("inf")))
            attribute.ints[:] = [choose.choice((*each, *ODD)) for each in ([old] for old in attribute.ints)]
            attribute.type = choose.choice((attribute.type, attribute.type, choose.randrange(15)))


def change_tensor(model: Model, choose: random.Random) -> None:
    """A constant is another: its numbers, its shape, its type."""
    tensor = choose.choice(model.graph.initializer)
    way = choose.randrange(6)
    if way == 0:
        tensor.dims[:] = [choose.choice(ODD) for _ in range(choose.randrange(6))]
    elif way == 1:
        tensor.dims[:] = list(tensor.dims)[::-1]
    elif way == 2:
        tensor.data_type = choose.randrange(25)
    elif way == 3:
        tensor.raw_data = tensor.raw_data[: choose.randrange(len(tensor.raw_data) + 1)]
    elif tensor.data_type == TensorProto.INT64 and len(tensor.raw_data) >= 8:
        values = np.frombuffer(tensor.raw_data[: len(tensor.raw_data) // 8 * 8], np.int64).copy()
        values[choose.randrange(len(values))] = choose.choice(ODD)
        tensor.raw_data = values.tobytes()
    else:
        tensor.raw_data = choose.randbytes(len(tensor.raw_data))


def change_model(model: Model, choose: random.Random) -> None:
    """What the model says of itself is something else."""
    way = choose.randrange(5)
    if way == 0:
        model.ir_version = choose.choice(ODD)
    elif way == 1:
        choose.choice(model.opset_import).version = choose.choice(ODD)
    elif way == 2:
        model.opset_import.add(domain=choose.choice(("", "evil", "com.microsoft", "ai.onnx.ml")), version=choose.choice(ODD))
    elif way == 3:
        model.metadata_props.add(key="rotary_switch", value=choose.choice(("-1", "9" * 50, "x", "\0")))
    else:
        helper.set_model_props(model, {f"k{i}": "x" * 100 for i in range(300)})


def mutated(tiny: Tiny, choose: random.Random) -> bytes:
    """A graph in which some parts are others."""
    model = parsed(tiny)
    for _ in range(choose.choice((1, 1, 2, 4))):
        choose.choice((change_node, change_node, change_tensor, change_tensor, change_model))(model, choose)
    content: bytes = model.SerializeToString()
    return content


def use_bytes(content: bytes, tiny: Tiny, ours: bool, folder: Path) -> Verdict:
    """A file holds some bytes for a graph."""
    write(content, folder, ours=ours, tiny=tiny)
    return try_all(folder)


def random_damage(count: int, choose: random.Random) -> Iterator[Case]:
    """Bytes and parts in turn, over all kinds of caches."""
    for turn, tiny in zip(range(count), itertools.cycle(GRAPHS.values()), strict=False):
        is_bytes = turn // len(GRAPHS) % 3 == 0
        content = damaged(written(tiny), choose) if is_bytes else mutated(tiny, choose)
        name = f"{turn}: {'bytes' if is_bytes else 'parts'} of {list(GRAPHS)[turn % len(GRAPHS)]}"
        yield Case(name, functools.partial(use_bytes, content, tiny, turn % 2 == 0))


def chosen_places(count: int, _: random.Random) -> Sequence[Case]:
    """Some of the locations."""
    return spread(PLACES, count)


def chosen_bombs(count: int, _: random.Random) -> Sequence[Case]:
    """Some of the computations."""
    return spread(EXPLOSIONS, count)


PLACES, EXPLOSIONS = list(places()), list(bombs())
LAWS = (
    Law(
        "A graph reads only files in its folder, and a package's graph only those that its manifest lists",
        chosen_places,
        whole=len(PLACES),
        quick=38,
    ),
    Law("A graph that computes without end or sense ends in one line", chosen_bombs, whole=len(EXPLOSIONS), quick=30),
    Law("Inputs and outputs of any type, name and size give an error in one line, or a text", interfaces, whole=1_000, quick=40),
    Law("A graph with damaged bytes or exchanged parts gives an error in one line, or a text", random_damage, whole=800, quick=48),
)
