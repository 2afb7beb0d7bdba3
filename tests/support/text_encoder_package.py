"""A package of a text encoder that NumPy can follow: each token has a row of a table, and a text's vector is their mean."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from onnx_textgen.encoders.text_encoder import IDS, MASK, SENTENCE_EMBEDDING, TYPES
from onnx_textgen.package.integrity import file_record
from onnx_textgen.package.manifest import (
    GRAPH,
    MANIFEST,
    TOKENIZER,
    Geometry,
    GoldenNumbers,
    Manifest,
    TextEncoderRecord,
    manifest_to_json,
)
from onnx_textgen.package.retrieval import EmbeddingSettings, PairScoring

WORDS = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", *"abcdefghijklmnopqrstuvwxyz"]
WIDTH, MOST = 6, 12
TABLE: npt.NDArray[np.float32] = np.random.default_rng(0).normal(size=(len(WORDS), WIDTH)).astype(np.float32)
SECOND: npt.NDArray[np.float32] = np.random.default_rng(1).normal(size=WIDTH).astype(np.float32)
"""What is added to the tokens of the second text of a pair."""


def tokenizer(*, has_marks: bool = True) -> Tokenizer:
    """Letters as tokens, and the marks around a text and between two."""
    made = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    marks = [("[CLS]", 1), ("[SEP]", 2)]
    if not has_marks:
        return made
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=marks
    )
    return made


def states(ids: list[int], types: list[int] | None = None) -> npt.NDArray[np.float32]:
    """The states [tokens, width] of a text, in NumPy."""
    found = TABLE[ids]
    return found if types is None else found + np.array(types, np.float32)[:, None] * SECOND


def score(ids: list[int], types: list[int]) -> float:
    """The score of a pair before its activation: the mean of all numbers of its vector."""
    return float(states(ids, types).mean())


def graph(*, scores: bool) -> onnx.ModelProto:
    """The graph."""
    constants = {"table": TABLE, "second": SECOND, "tokens": np.array([1]), "last": np.array([2]), "width": np.array([1])}
    nodes = [
        helper.make_node("Gather", ["table", IDS], ["rows"]),
        helper.make_node("Unsqueeze", [MASK, "last"], ["mask3"]),
        helper.make_node("Cast", ["mask3"], ["weights"], to=TensorProto.FLOAT),
    ]
    inputs, outputs = [IDS, MASK], [("last_hidden_state", ["batch", "tokens", WIDTH]), (SENTENCE_EMBEDDING, ["batch", WIDTH])]
    if scores:
        inputs, outputs = [IDS, MASK, TYPES], [("logits", ["batch", 1])]
        nodes += [
            helper.make_node("Unsqueeze", [TYPES, "last"], ["types3"]),
            helper.make_node("Cast", ["types3"], ["typed"], to=TensorProto.FLOAT),
            helper.make_node("Mul", ["typed", "second"], ["added"]),
            helper.make_node("Add", ["rows", "added"], ["last_hidden_state"]),
        ]
    else:
        nodes.append(helper.make_node("Identity", ["rows"], ["last_hidden_state"]))
    nodes += [
        helper.make_node("Mul", ["last_hidden_state", "weights"], ["counted"]),
        helper.make_node("ReduceSum", ["counted", "tokens"], ["sum"], keepdims=0),
        helper.make_node("ReduceSum", ["weights", "tokens"], ["count"], keepdims=0),
        helper.make_node("Div", ["sum", "count"], [SENTENCE_EMBEDDING]),
        *([helper.make_node("ReduceMean", [SENTENCE_EMBEDDING, "width"], ["logits"], keepdims=1)] if scores else []),
    ]
    made = helper.make_graph(
        nodes,
        "text_encoder",
        [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "tokens"]) for name in inputs],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def write_package(
    folder: Path,
    *,
    scores: bool = False,
    settings: EmbeddingSettings | None = None,
    has_marks: bool = True,
    vocab_size: int = len(WORDS),
) -> Path:
    """Write the package; returns its folder."""
    folder.mkdir(parents=True)
    onnx.save(graph(scores=scores), folder / GRAPH)
    (folder / TOKENIZER).write_text(tokenizer(has_marks=has_marks).to_str(), encoding="utf-8")
    ids, types = [1, 4, 5, 2, 6, 2], [0, 0, 0, 0, 1, 1]
    numbers = [score(ids, types)] if scores else states(ids).mean(axis=0).tolist()
    golden = GoldenNumbers(tuple(ids), tuple(map(float, numbers)), tuple(types) if scores else ())
    manifest = Manifest(
        name="letters",
        target="ort",
        precision="fp32",
        geometry=Geometry(1, 1, 1, WIDTH, WIDTH, vocab_size, 512),
        bos_id=None,
        eos_ids=(),
        pad_id=0,
        files={name: file_record(folder / name) for name in (GRAPH, TOKENIZER)},
        embedding=None if scores else settings or EmbeddingSettings(pooling="graph"),
        text_encoder=TextEncoderRecord(MOST, (golden,)),
        pair_scoring=PairScoring() if scores else None,
    )
    (folder / MANIFEST).write_text(manifest_to_json(manifest), encoding="utf-8")
    return folder
