"""Folders that other exporters made, as they are: onnxruntime-genai's, optimum's, onnx-community's.

The graph itself says what it takes and gives (`backends.signature`). Beside it lies what it cannot say: `genai_config.json`, or
`config.json` with `generation_config.json`, tell how long a text may be and how it begins and ends, and genai's also what the
graph's tensors are called. No hash guards such a folder, and nobody compared it with PyTorch, so its manifest has neither.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from ..backends.onnxruntime_session import LOG, Session, open_session
from ..backends.signature import HIDDEN_STATES, LOGITS, ROLES, Hints
from ..errors import PackageError
from ..files.graph_file import OUR_PRODUCER, producer_of
from ..files.text_files import read_text, readable
from ..text.tokenizer import MAX_FILE_BYTES, tokenizer_errors
from ..text.tokenizer_json import read_spec
from .end_tokens import every_end, read_template
from .hf_settings import generation_defaults, read_config, read_json, special_id, without_nulls
from .manifest import CHAT_TEMPLATE, GRAPH, INT8_CACHE_GRAPH, MANIFEST, TOKENIZER, UNKNOWN, FileRecord, Geometry, Manifest
from .reading import has_manifest

GENAI_CONFIG = "genai_config.json"
SUBFOLDER = "onnx"
"""Where onnx-community keeps the graphs."""
STEMS = ("model", "decoder_model_merged")
VARIANTS = ("", "_q4", "_quantized", "_int8", "_uint8", "_fp16", "_q4f16", "_bnb4")
"""Graphs of one folder, in the order in which one is taken."""
HALF_A_DECODER = {"decoder_model.onnx", "decoder_with_past_model.onnx"}
LENGTHS = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "seq_length", "n_ctx", "context_length")
"""What settings call the most tokens of a text."""
USUAL_LENGTH = 2048
MOST_LENGTH = 10**7
"""`model_max_length` beyond this stands for none."""
PAIRS = {"past_key_names": "present_key_names", "past_value_names": "present_value_names", "past_names": "present_names"}
MOST_LAYERS = 1000


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """What lies beside a graph, in one form whoever wrote it."""

    origin: str
    sizes: Mapping[str, Any]
    """`config.json` or its like: names of Hugging Face configs."""
    generation: Mapping[str, Any]
    """Ends and sampling defaults that were written for generation."""
    hints: Hints
    context_length: int | None


def graphs_of(folder: Path) -> list[Path]:
    """Every graph of a folder, in order of name."""
    return sorted([*folder.glob("*.onnx"), *folder.glob(f"{SUBFOLDER}/*.onnx")])


def is_foreign(place: Path) -> bool:
    """Whether a path is a folder of another exporter's, or a graph in one; raises what `has_manifest` does."""
    with readable(place):
        is_graph = place.suffix == ".onnx" and place.is_file()
        return not has_manifest(home_of(place)) and (is_graph or bool(graphs_of(place)))


def home_of(place: Path) -> Path:
    """The folder with the settings, of a path that may name one of its graphs, or the folder of its graphs."""
    with readable(place):
        folder = place.parent if place.suffix == ".onnx" and place.is_file() else place
        if place.name == INT8_CACHE_GRAPH and not place.exists() and (place.parent / MANIFEST).is_file():
            raise PackageError(f"{place.parent} has no cache of 8 bits; export it again with --int8-cache")
        whole = folder.absolute()
        if whole.name == SUBFOLDER and not has_settings(whole) and has_settings(whole.parent):
            return whole.parent
    return folder


def has_settings(folder: Path) -> bool:
    """Whether a folder tells what its graphs are."""
    return any((folder / name).is_file() for name in (MANIFEST, GENAI_CONFIG, "config.json", TOKENIZER))


def graph_of(place: Path) -> Path:
    """The graph to open of a package of ours: the one that the path names, or the folder's own.

    Raises `PackageError` for one that is not there, or is of another use.
    """
    folder = home_of(place)
    with readable(place):
        is_graph = place.is_file()
    if is_graph and (place.name not in (GRAPH, INT8_CACHE_GRAPH) or place.parent != folder):
        raise PackageError(f"{place} is not for generating from; give {folder}, or its {INT8_CACHE_GRAPH}")
    return folder / (place.name if is_graph else GRAPH)


def foreign_graph(place: Path, genai: Mapping[str, Any]) -> Path:
    """The graph to open; raises `PackageError` for one of ours: without its manifest no damage to it would be noticed."""
    graph = choose_graph(place, object_in(object_in(genai, "model"), "decoder"))
    if producer_of(graph) == OUR_PRODUCER:
        raise PackageError(
            f"{graph} was exported by onnx-textgen and its {MANIFEST} is missing, so that nothing can be checked; "
            "copy the whole folder again, or export the model again"
        )
    return graph


def choose_graph(place: Path, decoder: Mapping[str, Any]) -> Path:
    """The graph that is named, by the caller or by genai's settings of its `decoder`, or else the best known name."""
    if place.is_file():
        return place
    if named := decoder.get("filename"):
        path = place / str(named)
        if Path(str(named)).name != named or not path.is_file():
            raise PackageError(f"{place / GENAI_CONFIG} names the graph {named!r}, which is not in the folder; fetch it again")
        return path
    graphs = graphs_of(place)
    by_name = {path.name: path for path in reversed(graphs)}
    for variant, stem in itertools.product(VARIANTS, STEMS):
        if (name := f"{stem}{variant}.onnx") in by_name:
            if len(graphs) > 1:
                LOG.info("taking %s of %d graphs in %s", by_name[name].relative_to(place), len(graphs), place)
            return by_name[name]
    if by_name.keys() <= HALF_A_DECODER:
        raise PackageError(
            f"{place} has a decoder in two graphs or half of one ({' and '.join(sorted(by_name))}); export it again as one graph "
            "with a cache, as optimum does since 1.15"
        )
    if len(graphs) == 1:
        return graphs[0]
    names = ", ".join(str(path.relative_to(place)) for path in graphs[:8])
    raise PackageError(f"{place} has {len(graphs)} graphs and none has a usual name; give the path of one: {names}")


def open_foreign(place: Path, *, device: str = "auto", threads: int | None = None) -> tuple[Manifest, Session]:
    """What a manifest would say of the folder (or of the folder of the graph) at `place`, and its graph, opened.

    Raises `PackageError` for what cannot be served, in a line that says what is missing.
    """
    folder = home_of(place)
    genai = read_json(folder / GENAI_CONFIG)
    with readable(place):
        graph = foreign_graph(place.absolute(), genai)
    settings = settings_of_genai(genai) if genai else settings_of_config(folder)
    session = open_session(graph, device=device, threads=threads, hints=settings.hints)
    return make_manifest(folder, graph, settings, session), session


def describe_foreign(folder: Path) -> tuple[int, int | None]:
    """Bytes of the graph that would be opened, with its weights, and how long a text may be, if anything but the graph says so."""
    genai = read_json(folder / GENAI_CONFIG)
    with readable(folder):
        graph = foreign_graph(folder, genai)
        size = sum(path.stat().st_size for path in graph.parent.glob(f"{graph.name}*"))
    return size, (settings_of_genai(genai) if genai else settings_of_config(folder)).context_length


def object_in(value: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The object that another one holds; empty where there is none."""
    found = value.get(name)
    return found if isinstance(found, dict) else {}


def count_in(value: Mapping[str, Any], *names: str) -> int | None:
    """The first of some settings that is a number of things."""
    return next((value[name] for name in names if type(value.get(name)) is int and value[name] > 0), None)


def settings_of_genai(genai: Mapping[str, Any]) -> Settings:
    """What `genai_config.json` says; its session options and custom operators are left alone."""
    model, search = object_in(genai, "model"), object_in(genai, "search")
    decoder = object_in(model, "decoder")
    if not decoder or "pipeline" in decoder:
        parts = ", ".join(object_in(genai, "model")) or "nothing"
        what = "a pipeline of several graphs" if decoder else f"no decoder, but {parts:.200}"
        raise PackageError(f"{GENAI_CONFIG} describes {what}; only a decoder in one graph can be opened")
    inputs, outputs = object_in(decoder, "inputs"), object_in(decoder, "outputs")
    names = {role: str(own) for role, own in {**inputs, **outputs}.items() if role in {*ROLES, LOGITS, HIDDEN_STATES}}
    layers = min(count_in(decoder, "num_hidden_layers") or 0, MOST_LAYERS)
    presents = {
        str(inputs[past]).replace("%d", str(layer)): str(outputs[present]).replace("%d", str(layer))
        for past, present in PAIRS.items()
        if past in inputs and present in outputs
        for layer in range(layers)
    }
    hints = Hints(
        names=names,
        presents=presents,
        kv_heads=count_in(decoder, "num_key_value_heads"),
        head_size=count_in(decoder, "head_size"),
        window=count_in(object_in(decoder, "sliding_window"), "window_size") or 1,
        shares_cache=search.get("past_present_share_buffer") is True,
        pads_rows=False,
    )
    ends = {name: value for name, value in without_nulls(model).items() if name.endswith("_token_id")}
    sizes = {**decoder, "vocab_size": model.get("vocab_size")}
    return Settings(GENAI_CONFIG, sizes, search | ends, hints, count_in(model, "context_length"))


def settings_of_config(folder: Path) -> Settings:
    """What `config.json` and `generation_config.json` say."""
    config = read_config(folder)
    generation = without_nulls(read_json(folder / "generation_config.json"))
    heads, hidden = count_in(config, "num_attention_heads", "n_head"), count_in(config, "hidden_size", "n_embd", "d_model")
    hints = Hints(
        kv_heads=count_in(config, "num_key_value_heads") or heads,
        head_size=count_in(config, "head_dim") or (hidden // heads if hidden and heads else None),
        pads_rows=False,
    )
    length = count_in(config, *LENGTHS)
    if length is None:
        length = count_in(read_json(folder / "tokenizer_config.json"), "model_max_length")
    return Settings("config.json", config, generation, hints, length if length and length <= MOST_LENGTH else None)


def make_manifest(folder: Path, graph: Path, settings: Settings, session: Session) -> Manifest:
    """What a manifest would say; raises `PackageError` where it cannot be known how long a row of logits is."""
    tokenizer = read_tokenizer(folder / TOKENIZER) if (folder / TOKENIZER).is_file() else None
    template, origin = read_template(folder), settings.origin
    sizes: Mapping[str, Any] = settings.sizes | settings.generation  # type: ignore[operator]
    files = {graph.relative_to(folder.absolute()).as_posix(): graph}
    if tokenizer is not None:
        files[TOKENIZER] = folder / TOKENIZER
    if template is not None:
        files |= {name: folder / name for name in (CHAT_TEMPLATE, "tokenizer_config.json") if (folder / name).is_file()}
    geometry = make_geometry(settings, session)
    ends = every_end(folder, tokenizer, template, generation=settings.generation, config=settings.sizes)
    return Manifest(
        name=folder.resolve().name,
        target=UNKNOWN,
        precision=UNKNOWN,
        geometry=geometry,
        bos_id=inside(special_id("bos", sizes, tokenizer, folder), geometry),
        eos_ids=tuple(i for i in ends if inside(i, geometry) is not None),
        pad_id=inside(special_id("pad", sizes, tokenizer, folder), geometry),
        files={name: FileRecord(size=path.stat().st_size, sha256="") for name, path in files.items()},
        generation=generation_defaults(settings.generation),
        source=f"another exporter; read by its {origin}" if settings.sizes else "another exporter; nothing beside its graph",
    )


def inside(token_id: int | None, geometry: Geometry) -> int | None:
    """An id, unless it is outside the vocabulary, as the default of a class may be."""
    return token_id if token_id is not None and 0 <= token_id < geometry.vocab_size else None


def make_geometry(settings: Settings, session: Session) -> Geometry:
    """Sizes by the graph, and by the settings where it leaves them open."""
    sizes, tensors = settings.sizes, [tensor for tensor in session.cache_tensors if tensor.length_axis is not None]
    shape, _ = session.outputs.get(session.name_of(LOGITS), ([], ""))
    vocab_size = shape[-1] if shape and isinstance(shape[-1], int) else count_in(sizes, "vocab_size")
    if vocab_size is None:
        raise PackageError("neither the graph nor a config.json says how large the vocabulary is; put one beside the graph")
    if settings.context_length is None:
        LOG.warning("nothing says how long a text may be; taking %d tokens", USUAL_LENGTH)
    kept = tensors[0].shape if tensors else (1,)
    kv_heads = settings.hints.kv_heads or (kept[-3] if len(kept) >= 4 else None) or 1
    head_size = settings.hints.head_size or kept[-1] or 1
    heads = count_in(sizes, "num_attention_heads", "n_head") or kv_heads
    return Geometry(
        layers=count_in(sizes, "num_hidden_layers", "n_layer", "num_layers") or max(1, len(tensors) // 2),
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        hidden_size=count_in(sizes, "hidden_size", "n_embd", "d_model") or heads * head_size,
        vocab_size=vocab_size,
        context_length=settings.context_length or USUAL_LENGTH,
    )


def read_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer as the library has it, to look for the ends of texts; raises what `TextTokenizer` does."""
    text = read_text(path, most=MAX_FILE_BYTES)
    read_spec(text)
    with tokenizer_errors("its file"):
        return Tokenizer.from_str(text)
