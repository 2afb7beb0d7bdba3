"""The model folder: what `manifest.json` says, and that the files beside it are the ones it describes.

Reading never opens the graph: every file's size and sha256 are compared before ONNX Runtime sees a byte, because ONNX Runtime
itself accepts flipped bits in the weights. The folder names no code and no session options. Writing a folder whole or not at
all is the exporter's business.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from pathlib import Path
from typing import Any, Literal, TypeVar

from .errors import PackageError

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
GRAPH = "model.onnx"
WEIGHTS = "model.onnx.data"
TOKENIZER = "tokenizer.json"
CHAT_TEMPLATE = "chat_template.jinja"
ALLOWED_FILES = frozenset({GRAPH, WEIGHTS, TOKENIZER, CHAT_TEMPLATE})
DEFAULT_PACKAGE = "story"

Target = Literal["ort", "standard"]
Precision = Literal["fp32", "fp16", "int8", "int4"]


@dataclasses.dataclass(frozen=True, slots=True)
class FileRecord:
    """One file of the folder."""

    size: int
    """Bytes."""
    sha256: str
    """Hexadecimal digest."""


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


@dataclasses.dataclass(frozen=True, slots=True)
class GoldenRun:
    """A greedy continuation that PyTorch produced when the package was made; `verify` replays it."""

    prompt_ids: tuple[int, ...]
    new_ids: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Manifest:
    """What a model folder is."""

    name: str
    target: Target
    precision: Precision
    geometry: Geometry
    bos_id: int | None
    eos_ids: tuple[int, ...]
    """Any of these ends a text."""
    pad_id: int | None
    files: dict[str, FileRecord]
    generation: dict[str, int | float] = dataclasses.field(default_factory=dict)
    """Sampling defaults the model's makers suggest: temperature, top_k, top_p, min_p."""
    source: str = ""
    """Where the weights came from, and their licence if known."""
    versions: dict[str, str] = dataclasses.field(default_factory=dict)
    """Exporter and libraries that made the folder."""
    certificate: dict[str, Any] = dataclasses.field(default_factory=dict)
    """What the comparison with PyTorch measured, per scenario."""
    golden: tuple[GoldenRun, ...] = ()
    format_version: int = FORMAT_VERSION


Record = TypeVar("Record", FileRecord, Geometry, GoldenRun, Manifest)


def record_from_json(cls: type[Record], value: object, where: str) -> Record:
    """Build one of the records above from parsed JSON; unknown and missing keys are errors."""
    if not isinstance(value, dict):
        raise PackageError(f"{where} should be a JSON object, found {type(value).__name__}; export the model again")
    fields = {field.name: field for field in dataclasses.fields(cls)}
    if unknown := sorted(set(value) - set(fields)):
        raise PackageError(f"{where} has the unknown key {unknown[0]!r}; upgrade with: pip install -U onnx-textgen")
    required = [n for n, f in fields.items() if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING]
    if missing := [name for name in required if name not in value]:
        raise PackageError(f"{where} lacks the key {missing[0]!r}; export the model again")
    return cls(**value)


def ints(value: object, where: str) -> tuple[int, ...]:
    """A JSON list of integers as a tuple."""
    if not isinstance(value, list) or not all(type(item) is int for item in value):
        raise PackageError(f"{where} should be a list of integers; export the model again")
    return tuple(value)


def manifest_from_json(value: object) -> Manifest:
    """Build a `Manifest` from parsed JSON; raises `PackageError` on anything unexpected."""
    if not isinstance(value, dict):
        raise PackageError(f"{MANIFEST} should be a JSON object, found {type(value).__name__}; export the model again")
    version = value.get("format_version")
    if type(version) is not int or version > FORMAT_VERSION:
        raise PackageError(
            f"{MANIFEST} has format version {version!r} and this onnx-textgen reads up to {FORMAT_VERSION}; "
            "upgrade with: pip install -U onnx-textgen"
        )
    value = dict(value)
    value["geometry"] = geometry = record_from_json(Geometry, value.get("geometry"), "geometry")
    for name, size in dataclasses.asdict(geometry).items():
        if type(size) is not int or size < 1:
            raise PackageError(f"geometry.{name} should be a positive integer, found {size!r}; export the model again")
    if not isinstance(value.get("files"), dict):
        raise PackageError(f"{MANIFEST} lists no files; export the model again")
    value["files"] = {name: record_from_json(FileRecord, record, f"files.{name}") for name, record in value["files"].items()}
    value["eos_ids"] = ints(value.get("eos_ids"), "eos_ids")
    runs = [record_from_json(GoldenRun, run, "golden") for run in value.get("golden", [])]
    value["golden"] = tuple(GoldenRun(ints(r.prompt_ids, "golden"), ints(r.new_ids, "golden")) for r in runs)
    manifest = record_from_json(Manifest, value, MANIFEST)
    if manifest.target not in ("ort", "standard"):
        raise PackageError(f"target should be 'ort' or 'standard', found {manifest.target!r}; export the model again")
    return manifest


def read_manifest(folder: Path) -> Manifest:
    """Read `folder`'s manifest without opening any other file."""
    path = folder / MANIFEST
    if not folder.is_dir():
        raise PackageError(f"{folder} is not a folder; give a model folder made by: onnx-textgen export SOURCE --out DIR")
    if not path.is_file():
        raise PackageError(f"{folder} has no {MANIFEST}; export it again with: onnx-textgen export SOURCE --out {folder}")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise PackageError(f"{path} is not valid JSON ({str(error).splitlines()[0]}); export the model again") from error
    return manifest_from_json(value)


def manifest_to_json(manifest: Manifest) -> str:
    """The text of `manifest.json`."""
    return json.dumps(dataclasses.asdict(manifest), indent=1, ensure_ascii=False) + "\n"


def file_record(path: Path) -> FileRecord:
    """Size and sha256 of a file."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return FileRecord(size=path.stat().st_size, sha256=digest)


def check_files(folder: Path, manifest: Manifest) -> None:
    """Compare every listed file with its size and sha256; raises `PackageError` naming the first that differs."""
    if GRAPH not in manifest.files:
        raise PackageError(f"{folder / MANIFEST} lists no {GRAPH}; export the model again")
    for name, expected in manifest.files.items():
        if name not in ALLOWED_FILES or not re.fullmatch(r"[0-9a-f]{64}", str(expected.sha256)):
            raise PackageError(f"{folder / MANIFEST} lists {name!r}, which is no file of a model folder; export the model again")
        path = folder / name
        if not path.is_file():
            raise PackageError(f"{folder} is incomplete: {name} is missing; export or copy it again")
        size = path.stat().st_size
        if size != expected.size:
            raise PackageError(f"{path} is damaged: {size:,} bytes, the manifest says {expected.size:,}; export or copy it again")
        if (found := file_record(path).sha256) != expected.sha256:
            raise PackageError(
                f"{path} is damaged: its sha256 is {found[:12]}..., the manifest says {expected.sha256[:12]}...; "
                "export or copy it again"
            )


def embedded_packages() -> dict[str, Path]:
    """The models that ship with the project, by name; empty entries never appear."""
    inside_wheel = Path(__file__).parent / "artifacts"
    in_checkout = Path(__file__).parents[2] / "artifacts"
    root = inside_wheel if inside_wheel.is_dir() else in_checkout
    return {path.parent.name: path.parent for path in sorted(root.glob(f"*/{MANIFEST}"))}


def find_package(name: str | Path | None = None) -> Path:
    """The folder of an embedded model (`story`, `tiny-transformer`; None: the default), or the folder at that path."""
    embedded = embedded_packages()
    if name is None:
        if DEFAULT_PACKAGE not in embedded:
            raise PackageError("this installation has no embedded model; reinstall it, or give a model folder")
        return embedded[DEFAULT_PACKAGE]
    if str(name) in embedded and not Path(name).exists():
        return embedded[str(name)]
    return Path(name)
