"""The records of `manifest.json`, which describes a model folder, and their conversion from and to JSON.

A manifest names no code and no session options. The exporter writes folders, atomically.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import types
from collections.abc import Mapping
from typing import Any, Literal, cast, get_args, get_origin, get_type_hints

from ..errors import PackageError
from ..installation import upgrade
from ..options.checks import shown
from ..options.merging import make_generation_config
from .retrieval import EmbeddingSettings, PairScoring, RerankingSettings

FORMAT_VERSION = 2
"""Version 2 has the weights in the folder `onnx`, and continuations in exact arithmetic."""
MANIFEST = "manifest.json"
GRAPH = "model.onnx"
WEIGHTS = "model.onnx.data"
"""The weights of packages of format version 1."""
ENCODER_GRAPH = "encoder_model.onnx"
"""The encoder of an encoder-decoder, over the same weights."""
TOKENIZER = "tokenizer.json"
CHAT_TEMPLATE = "chat_template.jinja"
RESPONSE_TEMPLATE = "response_template.json"
"""How answers are divided into text, thinking and tool calls, in transformers' format."""
ATTENTION_GRAPH = "attention_model.onnx"
"""The same graph over the same weights, with the attention of every layer as additional outputs."""
INT8_CACHE_GRAPH = "int8_cache_model.onnx"
"""The same graph over the same weights, with keys and values at 8 bits."""
IMAGE_PROCESSOR_GRAPH = "image_processor.onnx"
"""From the pixels of a picture to the numbers that the vision part takes."""
LOG_MEL_GRAPH = "log_mel.onnx"
"""From the samples of a sound to the features that an encoder reads."""
VISION_GRAPH = "vision.onnx"
"""From these numbers to the rows that take the place of token embeddings."""
SHARED_FOLDER = "onnx"
"""Where transformers.js looks for graphs: the one that other runtimes open, and the weights of all graphs."""
WASM_GRAPH = "onnx/model_wasm.onnx"
"""The graph that other runtimes open, with weights that are unpacked to float32 once, when it is opened."""
SHARED_NAMES: dict[str, str] = {"fp32": "", "fp16": "_fp16", "int8": "_quantized", "int4": "_q4"}
"""How transformers.js calls a precision in the names of files; int4 with activations in float16 is `_q4f16`."""
MERGED_DECODER = "decoder_model_merged"
"""How transformers.js calls a decoder that takes embeddings, or follows an encoder."""
EMBED_GRAPH, VISION_ENCODER_GRAPH = "onnx/embed_tokens.onnx", "onnx/vision_encoder.onnx"
"""The graphs by which transformers.js reads pictures, besides the decoder that takes embeddings."""
VISION_WEIGHTS = f"{VISION_ENCODER_GRAPH}_data"
VISION_FILE = re.compile(r"onnx/vision_encoder\.onnx_data(_[1-9][0-9]?)?|vision\.onnx\.data")
"""Weights of the vision part; the last name is that of earlier packages."""
SHARED_FILE = re.compile(r"onnx/model(_fp16|_quantized|_q4|_q4f16)?\.onnx")
SHARED_WEIGHTS = re.compile(r"onnx/(model|decoder_model_merged)(_fp16|_quantized|_q4|_q4f16)?\.onnx_data(_[1-9][0-9]?)?")
SEQ2SEQ_GRAPH = re.compile(r"onnx/(encoder_model|decoder_model_merged)(_fp16|_quantized|_q4|_q4f16)?\.onnx")
"""The graphs by which transformers.js opens an encoder-decoder; the second also of a decoder that reads pictures."""
GENAI_GRAPH = "genai_model.onnx"
"""The graph for onnxruntime-genai of packages of format version 1; later ones share the graph in `onnx`."""
GENAI_CONFIG = "genai_config.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"
PREPROCESSOR_CONFIG, PROCESSOR_CONFIG = "preprocessor_config.json", "processor_config.json"
SETTINGS_OF_OTHERS = frozenset({GENAI_CONFIG, TOKENIZER_CONFIG, CONFIG, GENERATION_CONFIG, PREPROCESSOR_CONFIG, PROCESSOR_CONFIG})
"""With these onnxruntime-genai and transformers.js open the folder; this runtime reads none of them."""
ALLOWED_FILES = SETTINGS_OF_OTHERS | frozenset(
    {GRAPH, ENCODER_GRAPH, WEIGHTS, TOKENIZER, CHAT_TEMPLATE, RESPONSE_TEMPLATE, ATTENTION_GRAPH, INT8_CACHE_GRAPH}
    | {GENAI_GRAPH, WASM_GRAPH, IMAGE_PROCESSOR_GRAPH, VISION_GRAPH, EMBED_GRAPH, VISION_ENCODER_GRAPH, LOG_MEL_GRAPH}
)
ADAPTER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
ADAPTER_ENDING = ".onnx_adapter"
NEWER = frozenset(
    {"adapters", "embedding", "reranking", "exact_ids", "encoder", "source_ids", "left_out", "text_encoder", "pair_scoring"}
    | {"images", "tiles", "speech"}
)
"""Entries that the first versions of this format do not know."""
FLOAT32_LEVELS = (0, 1)
"""The accuracy levels of quantised products at which their inputs are not rounded; at 4 they are rounded to 8 bits."""
MOST_IMAGE_TOKENS, MOST_GOLDEN = 2**14, 2**10
LARGEST_SIZE = 2**24
"""Limit for each number of a geometry. The longest contexts are 10 million tokens; a row of 2**24 logits takes 64 MiB."""


def is_allowed(name: str) -> bool:
    """Return whether a model folder may have a file of this name next to its manifest; `/` joins the parts of a path."""
    is_adapter = name.endswith(ADAPTER_ENDING) and is_adapter_name(name.removesuffix(ADAPTER_ENDING))
    patterns = (SHARED_FILE, SHARED_WEIGHTS, SEQ2SEQ_GRAPH, VISION_FILE)
    return name in ALLOWED_FILES or is_adapter or any(pattern.fullmatch(name) for pattern in patterns)


def is_adapter_name(name: str) -> bool:
    """Return whether an adapter may have this name, which becomes the name of a file and of a served model."""
    return ADAPTER_NAME.fullmatch(name) is not None


Target = Literal["ort", "standard"]
Precision = Literal["fp32", "fp16", "int8", "int4"]
Architecture = Literal["decoder", "encoder-decoder", "encoder"]
UNKNOWN: Literal["unknown"] = "unknown"
"""Target and precision of a folder of another exporter; a manifest of this project does not have it."""
TargetOrUnknown = Literal["ort", "standard", "unknown"]
PrecisionOrUnknown = Literal["fp32", "fp16", "int8", "int4", "unknown"]


@dataclasses.dataclass(frozen=True, slots=True)
class FileRecord:
    """One file of the folder."""

    size: int
    """Bytes."""
    sha256: str
    """Hexadecimal digest; empty if it was not recorded."""


@dataclasses.dataclass(frozen=True, slots=True)
class Geometry:
    """The sizes of a model, which determine its cache and its limits."""

    layers: int
    heads: int
    """Query heads."""
    kv_heads: int
    """Key and value heads."""
    head_size: int
    hidden_size: int
    """Width of an embedding."""
    vocab_size: int
    """Number of logits per token; ids are smaller."""
    context_length: int
    """Limit for the tokens of prompt and generated text together."""

    def __post_init__(self) -> None:
        """Raise `PackageError` for sizes that no model has, because these numbers determine how much memory is allocated."""
        for name, size in dataclasses.asdict(self).items():
            if not 1 <= size <= LARGEST_SIZE:
                raise PackageError(
                    f"geometry.{name} should be at least 1 and at most {LARGEST_SIZE:,}, found {size!s:.60}; export the model again"
                )


@dataclasses.dataclass(frozen=True, slots=True)
class GoldenRun:
    """A greedy continuation that was compared with PyTorch's when the package was made; `verify` replays it."""

    prompt_ids: tuple[int, ...]
    new_ids: tuple[int, ...]
    exact_ids: tuple[int, ...] = ()
    """The continuation where products of quantised weights are computed in float32, as in WebAssembly, if that is another one.

    ONNX Runtime on the CPU rounds activations to 8 bits for them; the weights are the same."""
    source_ids: tuple[int, ...] = ()
    """The source that the encoder of an encoder-decoder reads before."""


@dataclasses.dataclass(frozen=True, slots=True)
class EncoderRecord:
    """Settings of an encoder-decoder: its source, and the beginning of its texts."""

    source_length: int
    """Limit for the tokens of a source."""
    start_ids: tuple[int, ...]
    """Ids that every text begins with, and that are no part of it."""
    suppressed_ids: tuple[int, ...] = ()
    """Ids that no text may have."""

    def __post_init__(self) -> None:
        """Raise `PackageError` for a length that no encoder has, or no id to begin with."""
        if not 1 <= self.source_length <= LARGEST_SIZE or not self.start_ids:
            raise PackageError(
                f"encoder should have start_ids and a source_length from 1 to {LARGEST_SIZE:,}, found {self!s:.100}; "
                "export the model again"
            )


@dataclasses.dataclass(frozen=True, slots=True)
class GoldenNumbers:
    """What a text encoder gave for a text or a pair when the package was made, as PyTorch did; `verify` compares."""

    token_ids: tuple[int, ...]
    numbers: tuple[float, ...]
    """The vector, of length 1, or the score before its activation."""
    type_ids: tuple[int, ...] = ()
    """0 for the tokens of the first text of a pair and 1 for those of the second; empty: all 0."""


@dataclasses.dataclass(frozen=True, slots=True)
class TextEncoderRecord:
    """Settings of a text encoder: a model that reads a whole text at once, and makes a vector of it, or a score of a pair."""

    most_tokens: int
    """Longer texts are cut to this many tokens, as their makers cut them."""
    golden: tuple[GoldenNumbers, ...] = ()
    tolerance: float = 1e-4
    """How far numbers may be from the golden ones, relative to the largest of them: other processors sum in another order, and
    where inputs are rounded, a sum may fall to the next code."""


@dataclasses.dataclass(frozen=True, slots=True)
class GoldenPicture:
    """What a model that reads pictures gave for one when the package was made, as PyTorch did; `verify` compares."""

    height: int
    width: int
    """Of the picture, which `golden_picture` draws."""
    numbers: tuple[float, ...]
    """One of each of its rows."""


@dataclasses.dataclass(frozen=True, slots=True)
class TileText:
    """What a picture becomes in a text that is cut into this many rows and columns of tiles."""

    rows: int
    columns: int
    tiles: int
    """Together, with one more where the picture as a whole is among them."""
    text: str
    """What takes the place of the placeholder, with the token once for each tile."""


@dataclasses.dataclass(frozen=True, slots=True)
class ImageRecord:
    """How a decoder reads pictures."""

    placeholder: str
    """The text by which a chat template marks the place of a picture."""
    expansion: str
    """What takes its place before the text is encoded."""
    token_id: int
    """The id in the expansion that stands for one row of a picture."""
    tokens: int
    """How many rows each picture has, or has at most."""
    has_grid: bool = False
    """Whether a picture has rows by its size: a grid of them, down and across, which takes the place of the token."""
    row_break_ids: tuple[int, ...] = ()
    """Ids between two lines of a grid."""
    tiles: tuple[TileText, ...] = ()
    """Of a model whose pictures are cut into tiles: each way to cut one. `expansion` is that of a single tile."""
    bidirectional: bool = False
    """Whether the tokens of a picture see each other in both directions, so that one run has to have all of them."""
    golden: tuple[GoldenPicture, ...] = ()
    tolerance: float = 1e-3
    """How far numbers may be from the golden ones, relative to the largest of them."""

    @property
    def varies(self) -> bool:
        """Whether pictures of other shapes become other numbers of tokens."""
        return self.has_grid or bool(self.tiles)

    @property
    def tile_tokens(self) -> int:
        """How many rows a tile has; of a model without tiles, a picture."""
        return self.tokens // max((each.tiles for each in self.tiles), default=1)


@dataclasses.dataclass(frozen=True, slots=True)
class SpeechRecord:
    """How an encoder-decoder reads sound: in windows of one length, with control tokens before the text of each."""

    sampling_rate: int
    """Samples a second."""
    samples: int
    """Of a window."""
    places: int
    """Of what the encoder makes of a window."""
    no_timestamps_id: int
    """Before a text without times; the ids after it are times from 0, `timestamp_seconds` apart."""
    timestamp_seconds: float
    latest_first: int
    """How many steps after the beginning of a window its first time may be."""
    no_speech_id: int
    """Likely as the first token where nobody speaks."""
    previous_id: int
    """Before the end of the text of earlier windows."""
    languages: dict[str, int] = dataclasses.field(default_factory=dict)
    """Ids by the code of a language; empty: the model knows one alone."""
    tasks: dict[str, int] = dataclasses.field(default_factory=dict)
    """Ids of "transcribe" and "translate" (to English); empty: the model transcribes."""
    never_first_ids: tuple[int, ...] = ()
    """Ids that no text begins with."""


@dataclasses.dataclass(frozen=True, slots=True)
class AdapterRecord:
    """A LoRA adapter of the folder, whose file is called after it."""

    rank: int
    """The largest rank of its products."""
    parameters: int
    """Number of the parameters that it changes."""
    source: str = ""
    """Where it came from."""
    certificate: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Measurements of the comparison with PyTorch, as in `Manifest.certificate`; empty if it was not compared."""
    golden: tuple[GoldenRun, ...] = ()
    """Greedy continuations with the adapter."""


@dataclasses.dataclass(frozen=True, slots=True)
class Manifest:
    """The description of a model folder."""

    name: str
    target: TargetOrUnknown
    precision: PrecisionOrUnknown
    geometry: Geometry
    bos_id: int | None
    eos_ids: tuple[int, ...]
    """A text ends with any of these."""
    pad_id: int | None
    files: dict[str, FileRecord]
    generation: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Defaults of options by the model's makers: temperature, top_p, num_beams, no_repeat_ngram_size ..."""
    left_out: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Settings of generation by the makers that texts do not follow, as they were written."""
    quantization: dict[str, Any] = dataclasses.field(default_factory=dict)
    """How the weights were quantised, with the exporter's names: bits, block_size, symmetric, method, head_bits ..."""
    source: str = ""
    """Where the weights came from, and their licence if known."""
    versions: dict[str, str] = dataclasses.field(default_factory=dict)
    """Versions of the exporter and of the libraries that made the folder."""
    certificate: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Measurements of the comparison with PyTorch, by scenario; `summary` has size_bytes and the measures on real text."""
    golden: tuple[GoldenRun, ...] = ()
    adapters: dict[str, AdapterRecord] = dataclasses.field(default_factory=dict)
    """LoRA adapters by name, of which a text may take one."""
    encoder: EncoderRecord | None = None
    """Of an encoder-decoder; None for a decoder."""
    embedding: EmbeddingSettings | None = None
    """How the model makes vectors of texts; None if its makers say nothing of it."""
    reranking: RerankingSettings | None = None
    """How the model scores documents; None if it is no reranker."""
    text_encoder: TextEncoderRecord | None = None
    """Of a text encoder, which generates nothing; None for any other model."""
    pair_scoring: PairScoring | None = None
    """How a text encoder scores pairs of texts; None if it makes vectors."""
    images: ImageRecord | None = None
    """How it reads pictures; None if it reads text alone."""
    speech: SpeechRecord | None = None
    """How it reads sound; None: it reads text."""
    format_version: int = FORMAT_VERSION
    sha256: str = dataclasses.field(default="", compare=False)
    """Digest of the rest of the manifest, see `manifest_digest`; empty in packages that are older than this field."""

    @property
    def is_exact(self) -> bool:
        """Whether products are computed in float32: the weights have 32 bits, or the export had `--exact`."""
        level = self.quantization.get("accuracy_level")
        return self.precision == "fp32" if level is None else level in FLOAT32_LEVELS

    @property
    def architecture(self) -> Architecture:
        """What kind of model it is."""
        return "encoder" if self.text_encoder is not None else "decoder" if self.encoder is None else "encoder-decoder"

    @property
    def size_bytes(self) -> int:
        """Bytes of all files of the package."""
        return sum(record.size for record in self.files.values())

    @property
    def precision_name(self) -> str:
        """How the weights are stored, for people: `int8`, or `4 and 8 bits, as stored` where all have the numbers of the source."""
        return precision_name(self.precision, self.quantization)

    @property
    def has_attention_maps(self) -> bool:
        """Whether the package was exported with `--attention-maps`."""
        return ATTENTION_GRAPH in self.files

    @property
    def is_float16(self) -> bool:
        """Whether the graph computes in float16."""
        return "fp16" in (self.precision, self.quantization.get("activations"))

    @property
    def summary(self) -> dict[str, Any]:
        """The certificate's `summary`; empty if there is none."""
        found = self.certificate.get("summary")
        return found if isinstance(found, dict) else {}


def precision_name(precision: str, quantization: Mapping[str, Any]) -> str:
    """See `Manifest.precision_name`."""
    forms = quantization.get("as_stored")
    if not isinstance(forms, Mapping) or "block_size" in quantization:  # something was rounded
        return precision
    # The names of the forms begin with their bits: Q8_0, int4 in blocks of 32, 4 bits with offsets.
    bits = sorted({found[1] for form in forms if (found := re.match(r"\D*(\d+)", form))}, key=int)
    return f"{' and '.join(bits)} bits, as stored" if bits else precision


TYPE_NAMES: dict[object, str] = {
    int: "a whole number",
    float: "a number",
    str: "a string",
    type(None): "null",
    dict: "a JSON object",
    tuple: "a list",
}


def name_of_type(kind: object) -> str:
    """Describe an annotated type for a message: `int | None` is "a whole number or null"."""
    if get_origin(kind) is Literal:
        return " or ".join(repr(choice) for choice in get_args(kind) if choice != UNKNOWN)
    if isinstance(kind, types.UnionType):
        return " or ".join(name_of_type(choice) for choice in get_args(kind))
    return TYPE_NAMES.get(get_origin(kind) or kind, "a JSON object")


def convert(kind: object, value: object, where: str) -> object:
    """Convert parsed JSON to an annotated type: a dataclass, tuple, dict, union or plain type; `where` names it in errors.

    Raises `PackageError` for a value of another type, and for an unknown or missing key.
    """
    origin, inner = get_origin(kind) or kind, get_args(kind)
    if dataclasses.is_dataclass(origin) and isinstance(value, dict):
        return convert_record(cast(type[Any], origin), value, where)
    if origin is tuple and isinstance(value, list):
        return tuple(convert(inner[0], item, f"{where}[{index}]") for index, item in enumerate(value))
    if origin is dict and isinstance(value, dict):
        return {key: convert(inner[1], item, f"{where}[{shown(key)}]") for key, item in value.items()}
    if origin is Any or (origin is Literal and isinstance(value, str) and value in inner) or type(value) is origin:
        return value
    if isinstance(kind, types.UnionType) and type(value) in inner:
        return value
    if isinstance(kind, types.UnionType) and dataclasses.is_dataclass(inner[0]) and isinstance(value, dict):
        return convert_record(cast(type[Any], inner[0]), value, where)
    found = type(value).__name__ if isinstance(value, dict | list) else f"{value!r:.60}"
    raise PackageError(f"{where} should be {name_of_type(kind)}, found {found}; export the model again")


def convert_record(cls: type[Any], value: dict[str, object], where: str) -> object:
    """Convert a JSON object to a dataclass, field by field."""
    fields, kinds = {field.name: field for field in dataclasses.fields(cls)}, get_type_hints(cls)
    if unknown := sorted(value.keys() - fields.keys()):
        raise PackageError(f"{where} has the unknown key {shown(unknown[0])}; upgrade with: {upgrade()}")
    required = [n for n, f in fields.items() if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING]
    if missing := [name for name in required if name not in value]:
        raise PackageError(f"{where} lacks the key {missing[0]!r}; export the model again")
    prefix = "" if cls is Manifest else f"{where}."
    return cls(**{name: convert(kinds[name], item, f"{prefix}{name}") for name, item in value.items()})


def check_ids(ids: tuple[int, ...], vocab_size: int, where: str) -> None:
    """Raise `PackageError` for ids outside the vocabulary."""
    if wrong := [i for i in ids if not 0 <= i < vocab_size]:
        raise PackageError(
            f"{where} has the token id {wrong[0]!s:.60}, outside the vocabulary (0 to {vocab_size - 1}); export the model again"
        )


def check_golden(golden: tuple[GoldenRun, ...], vocab_size: int, where: str) -> None:
    """Raise `PackageError` for a run without ids, or with ids outside the vocabulary."""
    for index, run in enumerate(golden):
        if not run.prompt_ids or not run.new_ids:
            raise PackageError(f"{where}[{index}] should have token ids in prompt_ids and in new_ids; export the model again")
        check_ids(run.prompt_ids + run.new_ids + run.exact_ids + run.source_ids, vocab_size, f"{where}[{index}]")


def check_images(manifest: Manifest) -> None:
    """Raise `PackageError` for settings of pictures that no decoder has, or whose graphs are missing."""
    about = manifest.images
    if about is None:
        return
    for name in (IMAGE_PROCESSOR_GRAPH, VISION_GRAPH):
        if name not in manifest.files:
            raise PackageError(f"{MANIFEST} says how pictures are read, and lists no {name}; export the model again")
    check_ids(about.row_break_ids, manifest.geometry.vocab_size, "images.row_break_ids")
    if any(not 1 <= side <= MOST_GOLDEN for each in about.golden for side in (each.height, each.width)):
        raise PackageError(f"images.golden should have pictures of 1 to {MOST_GOLDEN:,} pixels an edge; export the model again")
    if not 1 <= about.tokens <= MOST_IMAGE_TOKENS or not about.placeholder or about.token_id < 0:
        most = f"{MOST_IMAGE_TOKENS:,}"
        raise PackageError(f"images should have a placeholder and 1 to {most} tokens, found {about!s:.100}; export the model again")
    if about.tiles and (
        about.has_grid
        or any(min(each.rows, each.columns, each.tiles) < 1 or not each.text for each in about.tiles)
        or about.tokens % max(each.tiles for each in about.tiles)
    ):
        raise PackageError("images.tiles should have rows, columns and tiles from 1, and a text; export the model again")


def check_speech(manifest: Manifest) -> None:
    """Raise `PackageError` for settings of sound that no encoder has, or whose graph is missing."""
    about = manifest.speech
    if about is None:
        return
    if manifest.encoder is None or LOG_MEL_GRAPH not in manifest.files:
        raise PackageError(f"{MANIFEST} says how sound is read, and lists no encoder with {LOG_MEL_GRAPH}; export the model again")
    ids = (about.no_timestamps_id, about.no_speech_id, about.previous_id, *about.languages.values(), *about.tasks.values())
    check_ids((*ids, *about.never_first_ids), manifest.geometry.vocab_size, "speech")
    sizes = (about.sampling_rate, about.places, about.latest_first + 1)
    has_times = 1 <= about.timestamp_seconds * about.sampling_rate <= about.sampling_rate
    has_times = has_times and about.no_timestamps_id + 1 + about.latest_first < manifest.geometry.vocab_size
    has_windows = about.sampling_rate <= about.samples <= LARGEST_SIZE and bool(manifest.eos_ids)
    has_tasks = not about.tasks or "transcribe" in about.tasks
    if any(not 1 <= each <= LARGEST_SIZE for each in sizes) or not (has_times and has_windows and has_tasks):
        raise PackageError(f"speech should have a rate, samples and times, found {about!s:.100}; export the model again")


def check_text_encoder(manifest: Manifest) -> None:
    """Raise `PackageError` for settings that no text encoder has, and for some of them in the manifest of another model."""
    about, geometry = manifest.text_encoder, manifest.geometry
    if about is None:
        if manifest.pair_scoring is not None or (manifest.embedding is not None and manifest.embedding.pooling == "graph"):
            raise PackageError(f"{MANIFEST} has settings of a text encoder, and is of none; export the model again")
        return
    if not 1 <= about.most_tokens <= geometry.context_length:
        raise PackageError(f"text_encoder.most_tokens should fit in the context, found {about.most_tokens}; export the model again")
    if not 0 <= about.tolerance <= 1:
        raise PackageError(f"text_encoder.tolerance should be from 0 to 1, found {about.tolerance}; export the model again")
    for index, each in enumerate(about.golden):
        check_golden_numbers(each, geometry, f"text_encoder.golden[{index}]")


def check_golden_numbers(golden: GoldenNumbers, geometry: Geometry, where: str) -> None:
    """Raise `PackageError` for ids that no text of the model has, or types that are not those of a pair."""
    check_ids(golden.token_ids, geometry.vocab_size, where)
    count, types = len(golden.token_ids), golden.type_ids
    if not 1 <= count <= geometry.context_length or len(types) not in (0, count) or not set(types) <= {0, 1}:
        raise PackageError(
            f"{where} should have token_ids that fit in the context, each with a type of 0 or 1; export the model again"
        )


def weights_files(manifest: Manifest) -> list[str]:
    """The names of the files that hold a package's weights, in the order in which they were written."""
    found = [name for name in manifest.files if name == WEIGHTS or is_shared_weights(name)]
    return sorted(found, key=lambda name: (len(name), name))


def vision_files(manifest: Manifest) -> list[str]:
    """The names of the files by which a package reads pictures."""
    graphs = (IMAGE_PROCESSOR_GRAPH, VISION_GRAPH)
    return [name for name in manifest.files if name in graphs or VISION_FILE.fullmatch(name)]


def is_shared_weights(name: str) -> bool:
    """Return whether a file of this name holds weights in the folder `onnx`."""
    return SHARED_WEIGHTS.fullmatch(name) is not None


def shared_graph(manifest: Manifest) -> str | None:
    """The name of the graph that other runtimes open; None if the package has none."""
    graphs = (name for name in manifest.files if SHARED_FILE.fullmatch(name))
    return next(graphs, GENAI_GRAPH if GENAI_GRAPH in manifest.files else None)


def picture_decoder(manifest: Manifest) -> str | None:
    """The name of the decoder that takes rows of pictures from other graphs of the package; None if it has none."""
    names = (name for name in manifest.files if SEQ2SEQ_GRAPH.fullmatch(name) and "decoder" in name)
    return next(names, None) if VISION_ENCODER_GRAPH in manifest.files else None


def adapter_file(name: str) -> str:
    """The file of the adapter of this name."""
    return name + ADAPTER_ENDING


def manifest_from_json(value: object) -> Manifest:
    """Make a `Manifest` from parsed JSON; raises `PackageError` for an unexpected value, and for a wrong digest."""
    if not isinstance(value, dict):
        raise PackageError(f"{MANIFEST} should be a JSON object, found {type(value).__name__}; export the model again")
    version = value.get("format_version")
    if type(version) is not int or not 1 <= version <= FORMAT_VERSION:
        raise PackageError(
            f"{MANIFEST} has format version {version!r:.60} and this onnx-textgen reads 1 to {FORMAT_VERSION}; "
            f"upgrade with: {upgrade()}, or export the model again"
        )
    manifest = cast(Manifest, convert(Manifest, value, MANIFEST))
    make_generation_config(manifest.generation, {})
    vocab_size = manifest.geometry.vocab_size
    check_ids(manifest.eos_ids, vocab_size, "eos_ids")
    check_golden(manifest.golden, vocab_size, "golden")
    for name, record in manifest.adapters.items():
        if not is_adapter_name(name) or adapter_file(name) not in manifest.files:
            raise PackageError(f"{MANIFEST} has the adapter {name!r:.80}, and lists no file of it; export the model again")
        check_golden(record.golden, vocab_size, f"adapters[{name}].golden")
    if manifest.encoder is not None:
        check_ids(manifest.encoder.start_ids + manifest.encoder.suppressed_ids, vocab_size, "encoder")
        if ENCODER_GRAPH not in manifest.files:
            raise PackageError(f"{MANIFEST} describes an encoder, and lists no {ENCODER_GRAPH}; export the model again")
    if (reranking := manifest.reranking) is not None:
        answers = (reranking.true_id, *([] if reranking.false_id is None else [reranking.false_id]))
        check_ids(answers, vocab_size, "reranking")
    check_text_encoder(manifest)
    check_images(manifest)
    check_speech(manifest)
    if manifest.sha256 and manifest.sha256 != manifest_digest(value):
        raise PackageError(f"{MANIFEST} is damaged: its content does not match its sha256; export or copy the model again")
    return manifest


def manifest_digest(value: Mapping[str, Any]) -> str:
    """Compute the sha256 of a manifest without its key `sha256`: as ASCII JSON with sorted keys and no spaces.

    It detects damage, not changes on purpose: whoever changes a manifest can update the digest.
    """
    content = {key: item for key, item in value.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def manifest_as_data(manifest: Manifest) -> dict[str, Any]:
    """A manifest as plain data, without the entries of `NEWER` that are empty, so that versions which do not know them read it."""
    data: dict[str, Any] = without_empty(dataclasses.asdict(manifest))
    return data


def without_empty(value: Any) -> Any:  # noqa: ANN401 - plain data
    """Plain data without the entries of `NEWER` that are empty, at any depth."""
    if isinstance(value, dict):
        return {key: without_empty(each) for key, each in value.items() if each or key not in NEWER}
    return [without_empty(each) for each in value] if isinstance(value, list | tuple) else value


def manifest_to_json(manifest: Manifest) -> str:
    """Convert a manifest to the text of `manifest.json`, with its digest."""
    value = manifest_as_data(manifest)
    return json.dumps(value | {"sha256": manifest_digest(value)}, indent=1, ensure_ascii=False) + "\n"
