"""What a model folder says of itself in `manifest.json`: its records, and their JSON.

The folder names no code and no session options. Writing a folder whole or not at all is the exporter's business.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import types
from collections.abc import Mapping
from typing import Any, Literal, cast, get_args, get_origin, get_type_hints

from ..errors import PackageError

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
GRAPH = "model.onnx"
WEIGHTS = "model.onnx.data"
TOKENIZER = "tokenizer.json"
CHAT_TEMPLATE = "chat_template.jinja"
ATTENTION_GRAPH = "attention_model.onnx"
"""The same graph over the same weights, with the attention of every layer as outputs more."""
INT8_CACHE_GRAPH = "int8_cache_model.onnx"
"""The same graph over the same weights, with keys and values kept at 8 bits."""
GENAI_GRAPH = "genai_model.onnx"
GENAI_CONFIG = "genai_config.json"
GENAI_TOKENIZER = "tokenizer_config.json"
"""What onnxruntime-genai opens the folder by; nothing here reads these three."""
ALLOWED_FILES = frozenset(
    {GRAPH, WEIGHTS, TOKENIZER, CHAT_TEMPLATE, ATTENTION_GRAPH, INT8_CACHE_GRAPH, GENAI_GRAPH, GENAI_CONFIG, GENAI_TOKENIZER}
)
LARGEST_SIZE = 2**24
"""Of anything in a geometry. The longest contexts are 10 million tokens; a row of so many logits takes 64 MiB."""

Target = Literal["ort", "standard"]
Precision = Literal["fp32", "fp16", "int8", "int4"]
UNKNOWN: Literal["unknown"] = "unknown"
"""Said of a folder that others made; no manifest of ours needs it."""
TargetOrUnknown = Literal["ort", "standard", "unknown"]
PrecisionOrUnknown = Literal["fp32", "fp16", "int8", "int4", "unknown"]


@dataclasses.dataclass(frozen=True, slots=True)
class FileRecord:
    """One file of the folder."""

    size: int
    """Bytes."""
    sha256: str
    """Hexadecimal digest; empty where nobody recorded it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Geometry:
    """The sizes that decide the cache and the limits."""

    layers: int
    heads: int
    """Query heads."""
    kv_heads: int
    """Key and value heads."""
    head_size: int
    hidden_size: int
    """Width of an embedding."""
    vocab_size: int
    """Width of a row of logits; ids are below it."""
    context_length: int
    """Most tokens of prompt and generated text together."""

    def __post_init__(self) -> None:
        """Refuse what no model is: memory is made by these numbers."""
        for name, size in dataclasses.asdict(self).items():
            if not 1 <= size <= LARGEST_SIZE:
                raise PackageError(
                    f"geometry.{name} should be at least 1 and at most {LARGEST_SIZE:,}, found {size!s:.60}; export the model again"
                )


@dataclasses.dataclass(frozen=True, slots=True)
class GoldenRun:
    """A greedy continuation from when the package was made and judged by PyTorch; `verify` replays it."""

    prompt_ids: tuple[int, ...]
    new_ids: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Manifest:
    """What a model folder is."""

    name: str
    target: TargetOrUnknown
    precision: PrecisionOrUnknown
    geometry: Geometry
    bos_id: int | None
    eos_ids: tuple[int, ...]
    """Any of these ends a text."""
    pad_id: int | None
    files: dict[str, FileRecord]
    generation: dict[str, int | float] = dataclasses.field(default_factory=dict)
    """Sampling defaults the model's makers suggest: temperature, top_k, top_p, min_p."""
    quantization: dict[str, Any] = dataclasses.field(default_factory=dict)
    """How the weights were made smaller, by the exporter's own names: bits, block_size, symmetric, method, head_bits ..."""
    source: str = ""
    """Where the weights came from, and their licence if known."""
    versions: dict[str, str] = dataclasses.field(default_factory=dict)
    """Exporter and libraries that made the folder."""
    certificate: dict[str, Any] = dataclasses.field(default_factory=dict)
    """What the comparison with PyTorch measured, per scenario; `summary` has size_bytes and the measures on real text."""
    golden: tuple[GoldenRun, ...] = ()
    format_version: int = FORMAT_VERSION
    sha256: str = dataclasses.field(default="", compare=False)
    """Of all else that was written here, see `manifest_digest`; empty in packages that were made before there was one."""

    @property
    def summary(self) -> dict[str, Any]:
        """What the certificate sums up of the package against PyTorch; empty where it does not."""
        found = self.certificate.get("summary")
        return found if isinstance(found, dict) else {}


KINDS: dict[object, str] = {
    int: "a whole number",
    float: "a number",
    str: "a string",
    type(None): "null",
    dict: "a JSON object",
    tuple: "a list",
}


def kind_in_words(kind: object) -> str:
    """An annotated type for a message: `int | None` is "a whole number or null"."""
    if get_origin(kind) is Literal:
        return " or ".join(repr(choice) for choice in get_args(kind) if choice != UNKNOWN)
    if isinstance(kind, types.UnionType):
        return " or ".join(kind_in_words(choice) for choice in get_args(kind))
    return KINDS.get(get_origin(kind) or kind, "a JSON object")


def read_as(kind: object, value: object, where: str) -> object:
    """Parsed JSON as a value of an annotated type: a record above, a tuple, a dict, a choice of types or a plain one.

    Raises `PackageError` naming the place for a value of another type, and for an unknown or missing key.
    """
    origin, inner = get_origin(kind) or kind, get_args(kind)
    if dataclasses.is_dataclass(origin) and isinstance(value, dict):
        return read_record(cast(type[Any], origin), value, where)
    if origin is tuple and isinstance(value, list):
        return tuple(read_as(inner[0], item, f"{where}[{index}]") for index, item in enumerate(value))
    if origin is dict and isinstance(value, dict):
        return {key: read_as(inner[1], item, f"{where}[{key!r}]") for key, item in value.items()}
    if origin is Any or (origin is Literal and isinstance(value, str) and value in inner) or type(value) is origin:
        return value
    if isinstance(kind, types.UnionType) and type(value) in inner:  # of plain types only
        return value
    found = type(value).__name__ if isinstance(value, dict | list) else f"{value!r:.60}"
    raise PackageError(f"{where} should be {kind_in_words(kind)}, found {found}; export the model again")


def read_record(cls: type[Any], value: dict[str, object], where: str) -> object:
    """A record from a JSON object, field by field."""
    fields, kinds = {field.name: field for field in dataclasses.fields(cls)}, get_type_hints(cls)
    if unknown := sorted(value.keys() - fields.keys()):
        raise PackageError(f"{where} has the unknown key {unknown[0]!r}; upgrade with: pip install -U onnx-textgen")
    required = [n for n, f in fields.items() if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING]
    if missing := [name for name in required if name not in value]:
        raise PackageError(f"{where} lacks the key {missing[0]!r}; export the model again")
    prefix = "" if cls is Manifest else f"{where}."
    return cls(**{name: read_as(kinds[name], item, f"{prefix}{name}") for name, item in value.items()})


def check_ids(ids: tuple[int, ...], vocab_size: int, where: str) -> None:
    """Refuse ids outside the vocabulary."""
    if wrong := [i for i in ids if not 0 <= i < vocab_size]:
        raise PackageError(
            f"{where} has the token id {wrong[0]!s:.60}, and the vocabulary goes from 0 to {vocab_size - 1}; export the model again"
        )


def manifest_from_json(value: object) -> Manifest:
    """Build a `Manifest` from parsed JSON; raises `PackageError` on anything unexpected."""
    if not isinstance(value, dict):
        raise PackageError(f"{MANIFEST} should be a JSON object, found {type(value).__name__}; export the model again")
    version = value.get("format_version")
    if type(version) is not int or not 1 <= version <= FORMAT_VERSION:
        raise PackageError(
            f"{MANIFEST} has format version {version!r:.60} and this onnx-textgen reads 1 to {FORMAT_VERSION}; "
            "upgrade with: pip install -U onnx-textgen, or export the model again"
        )
    manifest = cast(Manifest, read_as(Manifest, value, MANIFEST))
    vocab_size = manifest.geometry.vocab_size
    check_ids(manifest.eos_ids, vocab_size, "eos_ids")
    for index, run in enumerate(manifest.golden):
        if not run.prompt_ids or not run.new_ids:
            raise PackageError(f"golden[{index}] should have token ids in prompt_ids and in new_ids; export the model again")
        check_ids(run.prompt_ids + run.new_ids, vocab_size, f"golden[{index}]")
    if manifest.sha256 and manifest.sha256 != manifest_digest(value):
        raise PackageError(f"{MANIFEST} is damaged: it is not what its own sha256 says; export or copy the model again")
    return manifest


def manifest_digest(value: Mapping[str, Any]) -> str:
    """The sha256 of a manifest without its key `sha256`: as JSON in ASCII, keys sorted, no space.

    It tells damage. Who changes a manifest on purpose can change this too.
    """
    said = {key: item for key, item in value.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(said, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def manifest_to_json(manifest: Manifest) -> str:
    """The text of `manifest.json`, with its digest."""
    value = dataclasses.asdict(manifest)
    return json.dumps(value | {"sha256": manifest_digest(value)}, indent=1, ensure_ascii=False) + "\n"
