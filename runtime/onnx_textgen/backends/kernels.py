"""Products of 4- and 8-bit weights by kernels of this project, on x86 processors: `runtime/kernels` in C++, where a build has them.

ONNX Runtime's MatMulNBits at accuracy level 4 rounds each block of its input to 8 bits and sums up whole numbers. The operator of
the same name in the domain `onnx_textgen` computes just that, and is several times as fast where there are many rows. It takes the
place of those nodes when a graph is opened on the CPU; packages stay unchanged. A row has the same numbers alone and in company,
whichever instructions compute it.
"""

from __future__ import annotations

import collections
import ctypes
import functools
import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..errors import LOG
from ..files.onnx_graph import (
    FLOAT,
    FLOAT16,
    GRAPH,
    INT8,
    MODEL,
    NODE,
    TENSOR,
    UINT8,
    make_text_attribute,
    sizes_of,
    whole_numbers,
    with_branches,
)
from ..files.onnx_wire import Message

VARIABLE = "ONNX_TEXTGEN_KERNELS"
"""The environment variable that names the instructions to use, or is 0: none."""
LIBRARY = Path(__file__).with_name("libtextgen.so.1")
"""The compiled library, in builds that have it; no name of a Python module."""
OPERATOR, DOMAIN, OWN_DOMAIN = "MatMulNBits", "com.microsoft", "onnx_textgen"
CODES, SCALES, ZERO_POINTS = 1, 2, 3
"""Inputs of the operator."""
WEIGHTS = "weights"
"""The attribute that names a node's constants."""
BRANCHING = frozenset({"If", "Loop", "Scan", "SequenceMap", "BeamSearch", "GreedySearch", "Sampling", "WhisperBeamSearch"})
"""Operators of ONNX and ONNX Runtime that have graphs inside; those of other domains may have."""
ACCURACY_LEVEL, BLOCKS = 4, (16, 32, 64, 128, 256)
"""Of the nodes that the kernels compute: the level at which inputs are rounded to 8 bits, and the sizes of a block."""


@functools.cache
def instructions() -> str | None:
    """The instructions by which products are computed, such as `avx512-vnni`; None: ONNX Runtime's own kernels compute them."""
    if os.environ.get(VARIABLE) == "0" or not LIBRARY.exists():
        return None
    try:
        library = ctypes.CDLL(str(LIBRARY))
    except OSError as error:  # another system's
        LOG.info("the library of kernels does not open: %s", error)
        return None
    library.textgen_kernels.restype = ctypes.c_char_p
    found = library.textgen_kernels()
    return None if found is None else str(found, "ascii")


def with_kernels(content: bytes, folder: Path) -> bytes | None:
    """The content of a graph whose products this project's kernels compute; None if it has none that they can.

    `folder` is where its weights lie: nodes with the same weights in the same file share them in memory, whatever the graph.
    """
    model = Message(content)
    (graph,) = model.messages(MODEL.GRAPH)
    given = {each.text(1) for each in graph.messages(GRAPH.INPUT)}
    constants = {name: each for each in graph.messages(GRAPH.INITIALIZER) if (name := each.text(TENSOR.NAME)) not in given}
    nodes = graph.messages(GRAPH.NODE)
    makers = {node.text(NODE.OUTPUT): node for node in nodes if node.text(NODE.OPERATOR) in ("Cast", "Mul")}
    places, is_changed = Places(folder), False
    for node in nodes:
        if is_computed(node, constants) and (scales := scales_of(node, makers, constants)):
            numbers, codes, _, *points = node.texts(NODE.INPUT)
            inputs = [codes, scales[0], *(points or [""]), *scales[1:]]
            name = " ".join(places.of(constants[each]) if each else "-" for each in inputs)
            node.replace(NODE.INPUT, [numbers, *inputs] if inputs[-1] else [numbers, *inputs[:-1]])
            node.replace(NODE.DOMAIN, [OWN_DOMAIN])
            node.add(NODE.ATTRIBUTE, make_text_attribute(WEIGHTS, name))
            is_changed = True
    if not is_changed:
        return None
    graph.replace(GRAPH.NODE, without_unread(nodes, makers, [each.text(1) for each in graph.messages(GRAPH.OUTPUT)]))
    model.replace(MODEL.GRAPH, [graph])
    return bytes(model.add(MODEL.OPSETS, Message().add(1, OWN_DOMAIN).add(2, 1)))


class Places:
    """Names of constants by where they lie: another one after each change of the file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: dict[str, str] = {}

    def of(self, tensor: Message) -> str:
        """The name of a constant: its file and its place there, or what it contains."""
        entries = {entry.text(1): entry.text(2) for entry in tensor.messages(TENSOR.EXTERNAL)}
        if (location := entries.get("location")) is None:
            return hashlib.sha256(bytes(tensor)).hexdigest()
        if location not in self.files:
            found = (self.folder / location).stat()
            self.files[location] = f"{found.st_dev}:{found.st_ino}:{found.st_size}:{found.st_mtime_ns}:{found.st_ctime_ns}"
        return f"{self.files[location]}:{entries.get('offset', '0')}"


def is_computed(node: Message, constants: Mapping[str, Message]) -> bool:
    """Return whether the kernels compute a node, if they can read its scales."""
    if (node.text(NODE.OPERATOR), node.text(NODE.DOMAIN)) != (OPERATOR, DOMAIN):
        return False
    inputs, has = node.texts(NODE.INPUT), whole_numbers(node)
    block, inner = has.get("block_size", 0), has.get("K", 0)
    if has.get("accuracy_level") != ACCURACY_LEVEL or has.get("bits") not in (4, 8) or block not in BLOCKS or inner % block:
        return False
    if len(inputs) <= SCALES or any(inputs[ZERO_POINTS + 1 :]) or not inputs[CODES]:
        return False
    stored = [name for name in (inputs[CODES], *inputs[ZERO_POINTS : ZERO_POINTS + 1]) if name]
    return all(element_type(constants, name) == UINT8 for name in stored)


def scales_of(node: Message, makers: Mapping[str, Message], constants: Mapping[str, Message]) -> list[str]:
    """The constants that a node's scales are made of; none if the kernels cannot read them.

    One tensor in float32, or in another type from which they are cast; or codes that are cast, and a factor for each column. The
    kernels multiply these when a graph is opened, so that ONNX Runtime does not hold them in float32 too.
    """
    name, has = node.texts(NODE.INPUT)[SCALES], whole_numbers(node)
    if element_type(constants, name) == FLOAT:
        return [name]
    maker, factors = makers.get(name), list[str]()
    if maker is not None and maker.text(NODE.OPERATOR) == "Mul":
        name, *factors = maker.texts(NODE.INPUT)
        if [element_type(constants, each) for each in factors] != [FLOAT] or sizes_of(constants[factors[0]]) != [has.get("N"), 1]:
            return []
        maker = makers.get(name)
    if maker is None or maker.text(NODE.OPERATOR) != "Cast" or whole_numbers(maker).get("to") != FLOAT:
        return []
    source = maker.text(NODE.INPUT)
    is_whole = sizes_of(constants[source]) == [has["N"], has["K"] // has["block_size"]] if source in constants else False
    return [source, *factors] if is_whole and element_type(constants, source) in (FLOAT16, INT8, UINT8) else []


def element_type(constants: Mapping[str, Message], name: str) -> int:
    """The element type of a constant; 0 if there is none of this name."""
    return constants[name].number(TENSOR.ELEMENT_TYPE) if name in constants else 0


def without_unread(nodes: Sequence[Message], makers: Mapping[str, Message], outputs: Sequence[str]) -> list[Message]:
    """Nodes without those of `makers` whose output none of the others reads."""
    uses = collections.Counter(outputs)
    for node in nodes:
        may_branch = node.text(NODE.OPERATOR) in BRANCHING or node.text(NODE.DOMAIN) not in ("", DOMAIN, OWN_DOMAIN)
        for inner in with_branches([node]) if may_branch else [node]:
            uses.update(inner.texts(NODE.INPUT))
    pending = [name for name in makers if not uses[name]]
    unread = set[str]()
    while pending:
        unread.add(name := pending.pop())
        for source in makers[name].texts(NODE.INPUT):
            uses[source] -= 1
            if source in makers and not uses[source]:
                pending.append(source)
    return [node for node in nodes if node.text(NODE.OUTPUT) not in unread]
