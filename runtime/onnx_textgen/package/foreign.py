"""Opens folders of other exporters without conversion: onnxruntime-genai's, optimum's, onnx-community's.

Their encoder-decoders are recognised by `foreign_encoder_decoder`.

`backends.signature` reads a graph's inputs and outputs. The settings next to it (`genai_config.json`, or `config.json` with
`generation_config.json`) give the context length and the special ids; genai's settings also give the names of tensors. Such a
folder has no hashes and was not compared with PyTorch, so the manifest made here has neither hashes nor a certificate.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from ..backends.onnxruntime_session import OnnxRuntimeSession, open_session
from ..backends.signature import HIDDEN_STATES, LOGITS, ROLES, Hints
from ..errors import LOG, PackageError
from ..files.graph_file import OUR_PRODUCER, producer_of
from ..files.text_files import read_text, readable
from ..options.checks import shown
from ..options.maker_settings import CHOOSING, MakerSettings, read_maker_settings
from ..text.tokenizer import MAX_FILE_BYTES, tokenizer_errors
from ..text.tokenizer_json import read_spec
from .end_tokens import all_eos_ids, read_template
from .foreign_encoder_decoder import Halves, as_decoder, choose_halves, encoder_record
from .hf_settings import generation_settings, read_config, read_json, special_id, without_nulls
from .manifest import (
    CHAT_TEMPLATE,
    GRAPH,
    INT8_CACHE_GRAPH,
    MANIFEST,
    TOKENIZER,
    UNKNOWN,
    EncoderRecord,
    FileRecord,
    Geometry,
    Manifest,
)
from .reading import has_manifest

GENAI_CONFIG = "genai_config.json"
SUBFOLDER = "onnx"
"""The folder of onnx-community's graphs."""
STEMS = ("model", "decoder_model_merged")
VARIANTS = ("", "_q4", "_quantized", "_int8", "_uint8", "_fp16", "_q4f16", "_bnb4")
"""Usual names of graphs, as stem and suffix; the first one that a folder has is opened."""
SPLIT_DECODER = {"decoder_model.onnx", "decoder_with_past_model.onnx"}
LENGTHS = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "seq_length", "n_ctx", "context_length")
"""Names of the context length in settings."""
DEFAULT_CONTEXT_LENGTH = 2048
MOST_CONTEXT_LENGTH = 10**7
"""A larger `model_max_length` means that there is no limit."""
PRESENT_NAMES = {"past_key_names": "present_key_names", "past_value_names": "present_value_names", "past_names": "present_names"}
"""genai's entries that name the outputs, by the entries that name the inputs."""
MOST_LAYERS = 1000


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """The settings next to a graph, in the same form for every exporter."""

    origin: str
    """Name of the file that they were read from."""
    config: Mapping[str, Any]
    """`config.json` or an equivalent, with Hugging Face's names."""
    generation: Mapping[str, Any]
    """Ends of text and sampling defaults for generation."""
    hints: Hints
    context_length: int | None


def graphs_of(folder: Path) -> list[Path]:
    """List the graphs of a folder by name."""
    return sorted([*folder.glob("*.onnx"), *folder.glob(f"{SUBFOLDER}/*.onnx")])


def is_foreign(place: Path) -> bool:
    """Return whether a path is another exporter's folder, or a graph in one; raises the errors of `has_manifest`."""
    with readable(place):
        is_graph = place.suffix == ".onnx" and place.is_file()
        return not has_manifest(folder_of(place)) and (is_graph or bool(graphs_of(place)))


def folder_of(place: Path) -> Path:
    """The model folder, which holds the settings, of a path that may be one of its graphs, or the subfolder of its graphs.

    Raises `PackageError` if the path is the 8-bit cache graph of a package without one.
    """
    with readable(place):
        folder = place.parent if place.suffix == ".onnx" and place.is_file() else place
        if place.name == INT8_CACHE_GRAPH and not place.exists() and (place.parent / MANIFEST).is_file():
            raise PackageError(f"{place.parent} has no graph with an 8-bit cache; export it again with --int8-cache")
        absolute = folder.absolute()
        if absolute.name == SUBFOLDER and not has_settings(absolute) and has_settings(absolute.parent):
            return absolute.parent
    return folder


def has_settings(folder: Path) -> bool:
    """Return whether a folder has a manifest, settings or a tokenizer."""
    return any((folder / name).is_file() for name in (MANIFEST, GENAI_CONFIG, "config.json", TOKENIZER))


def graph_of(place: Path) -> Path:
    """The graph to open in a package of this project: the one that the path names, else the main graph.

    Raises `PackageError` if the path names another file of the package.
    """
    folder = folder_of(place)
    with readable(place):
        is_graph = place.is_file()
    if is_graph and (place.name not in (GRAPH, INT8_CACHE_GRAPH) or place.parent != folder):
        raise PackageError(f"{place} is not a graph that can generate text; give {folder}, or its {INT8_CACHE_GRAPH}")
    return folder / (place.name if is_graph else GRAPH)


def foreign_graph(place: Path, genai: Mapping[str, Any]) -> Path:
    """Choose the graph to open; raises `PackageError` if this project made it, as damage cannot be detected without a manifest."""
    graph = choose_graph(place, object_in(object_in(genai, "model"), "decoder"))
    if producer_of(graph) == OUR_PRODUCER:
        raise PackageError(
            f"{graph} was exported by onnx-textgen but its {MANIFEST} is missing, so nothing can be checked; "
            "copy the whole folder again, or export the model again"
        )
    return graph


def halves_of(place: Path) -> Halves | None:
    """The graphs of an encoder-decoder, at a folder or the path of its decoder; None for a decoder alone, and genai's folders.

    Raises `PackageError` if there is an encoder without its decoder.
    """
    folder, place = folder_of(place).absolute(), place.absolute()
    with readable(place):
        return None if (folder / GENAI_CONFIG).is_file() else choose_halves(place, graphs_of(folder), VARIANTS)


def choose_graph(place: Path, decoder: Mapping[str, Any]) -> Path:
    """Choose the graph that the path or genai's settings of the `decoder` name, else the first usual name in the folder.

    Raises `PackageError` if there is none, or if the decoder is split into two graphs.
    """
    if (halves := halves_of(place)) is not None:
        return halves.decoder
    if place.is_file():
        return place
    if named := decoder.get("filename"):
        if found := [path for path in place.iterdir() if path.name == named and path.is_file()]:
            return found[0]
        raise PackageError(f"{place / GENAI_CONFIG} names {shown(named)} as its graph, which is not in the folder; fetch it again")
    graphs = graphs_of(place)
    by_name = {path.name: path for path in reversed(graphs)}
    for variant, stem in itertools.product(VARIANTS, STEMS):
        if (name := f"{stem}{variant}.onnx") in by_name:
            if len(graphs) > 1:
                LOG.info("opening %s, one of %d graphs in %s", by_name[name].relative_to(place), len(graphs), place)
            return by_name[name]
    if by_name.keys() <= SPLIT_DECODER:
        raise PackageError(
            f"{place} has a decoder in two graphs, or half of one ({' and '.join(sorted(by_name))}), and no encoder; export it "
            "again as one graph with a cache, as optimum does since 1.15, or add its encoder_model.onnx"
        )
    if len(graphs) == 1:
        return graphs[0]
    names = ", ".join(str(path.relative_to(place)) for path in graphs[:8])
    raise PackageError(f"{place} has {len(graphs)} graphs, none with a usual name; give the path of one: {names}")


def open_foreign(place: Path, *, device: str = "auto", threads: int | None = None) -> tuple[Manifest, OnnxRuntimeSession]:
    """Make a manifest for another exporter's folder, or graph, at `place`, and open the graph.

    `device` and `threads` are those of `open_session`. Raises `PackageError` for a folder that cannot be opened, and names what it
    lacks; also raises the errors of `open_session`.
    """
    folder = folder_of(place)
    genai = read_json(folder / GENAI_CONFIG)
    with readable(place):
        graph = foreign_graph(place.absolute(), genai)
    settings = settings_of_genai(genai) if genai else settings_of_config(folder)
    halves = halves_of(place)
    hints = dataclasses.replace(settings.hints, takes_single_tokens=halves is not None and halves.first != halves.decoder)
    session = open_session(graph, device=device, threads=threads, hints=hints)
    if halves is None and session.encoder_inputs:
        raise PackageError(
            f"{graph} takes what an encoder gives, and {folder} has no encoder_model.onnx; add it, or export it again"
        )
    return make_manifest(folder, graph, settings, session), session


def describe_foreign(folder: Path) -> tuple[int, int | None]:
    """The bytes of the graph that `open_foreign` opens, with its weights, and the context length if the settings give it."""
    genai = read_json(folder / GENAI_CONFIG)
    with readable(folder):
        graph, halves = foreign_graph(folder, genai), halves_of(folder)
        graphs = (graph,) if halves is None else halves.graphs
        size = sum(path.stat().st_size for graph in graphs for path in graph.parent.glob(f"{graph.name}*"))
    return size, (settings_of_genai(genai) if genai else settings_of_config(folder)).context_length


def object_in(value: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The JSON object with this name in another one; empty if there is none."""
    found = value.get(name)
    return found if isinstance(found, dict) else {}


def count_in(value: Mapping[str, Any], *names: str) -> int | None:
    """The first of the named settings that is a positive integer; None if there is none."""
    return next((value[name] for name in names if type(value.get(name)) is int and value[name] > 0), None)


def settings_of_genai(genai: Mapping[str, Any]) -> Settings:
    """Convert `genai_config.json`, except for session options and custom operators, which are ignored.

    Raises `PackageError` if it does not describe a decoder in one graph.
    """
    model, search = object_in(genai, "model"), object_in(genai, "search")
    decoder = object_in(model, "decoder")
    if not decoder or "pipeline" in decoder:
        parts = ", ".join(object_in(genai, "model")) or "nothing"
        what = "a pipeline of several graphs" if decoder else f"no decoder, but {parts:.200}"
        raise PackageError(f"{GENAI_CONFIG} describes {what}; only a decoder in one graph can be opened")
    inputs, outputs = object_in(decoder, "inputs"), object_in(decoder, "outputs")
    names = {role: str(name) for role, name in {**inputs, **outputs}.items() if role in {*ROLES, LOGITS, HIDDEN_STATES}}
    layers = min(count_in(decoder, "num_hidden_layers") or 0, MOST_LAYERS)
    presents = {
        str(inputs[past]).replace("%d", str(layer)): str(outputs[present]).replace("%d", str(layer))
        for past, present in PRESENT_NAMES.items()
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
    config = {**decoder, "vocab_size": model.get("vocab_size")}
    generation = ({"do_sample": False} | without_nulls(search) if search else {}) | ends
    return Settings(GENAI_CONFIG, config, generation, hints, count_in(model, "context_length"))


def settings_of_config(folder: Path) -> Settings:
    """Read `config.json` and `generation_config.json`, and the context length also from `tokenizer_config.json`."""
    config = as_decoder(read_config(folder))
    generation = generation_settings(folder, config)
    heads, hidden = count_in(config, "num_attention_heads", "n_head"), count_in(config, "hidden_size", "n_embd", "d_model")
    hints = Hints(
        kv_heads=count_in(config, "num_key_value_heads") or heads,
        head_size=count_in(config, "head_dim") or (hidden // heads if hidden and heads else None),
        pads_rows=False,
    )
    length = count_in(config, *LENGTHS)
    if length is None:
        length = count_in(read_json(folder / "tokenizer_config.json"), "model_max_length")
    return Settings("config.json", config, generation, hints, length if length and length <= MOST_CONTEXT_LENGTH else None)


def make_manifest(folder: Path, graph: Path, settings: Settings, session: OnnxRuntimeSession) -> Manifest:
    """Make a manifest without hashes; raises `PackageError` if the size of the vocabulary is not known."""
    tokenizer = read_tokenizer(folder / TOKENIZER) if (folder / TOKENIZER).is_file() else None
    template, origin = read_template(folder), settings.origin
    ids: Mapping[str, Any] = settings.config | settings.generation  # type: ignore[operator]
    halves = halves_of(graph)
    graphs = (graph,) if halves is None else (graph, *halves.graphs)
    files = {each.relative_to(folder.absolute()).as_posix(): each for each in graphs}
    if tokenizer is not None:
        files[TOKENIZER] = folder / TOKENIZER
    if template is not None:
        files |= {name: folder / name for name in (CHAT_TEMPLATE, "tokenizer_config.json") if (folder / name).is_file()}
    geometry = make_geometry(settings, session)
    ends = all_eos_ids(folder, tokenizer, template, generation=settings.generation, config=settings.config)
    encoder = None if halves is None else encoder_record(ids, geometry, folder)
    maker = makers_of(settings, encoder)
    return Manifest(
        name=folder.resolve().name,
        target=UNKNOWN,
        precision=UNKNOWN,
        geometry=geometry,
        bos_id=in_vocabulary(special_id("bos", ids, tokenizer, folder), geometry),
        eos_ids=tuple(i for i in ends if in_vocabulary(i, geometry) is not None),
        pad_id=in_vocabulary(special_id("pad", ids, tokenizer, folder), geometry),
        files={name: FileRecord(size=path.stat().st_size, sha256="") for name, path in files.items()},
        generation=maker.options,
        left_out=maker.left_out,
        encoder=encoder,
        source=f"another exporter; settings from {origin}" if settings.config else "another exporter; no settings",
    )


def makers_of(settings: Settings, encoder: EncoderRecord | None) -> MakerSettings:
    """What the makers say about generation; genai's settings also name the ends of a text, which say nothing of it."""
    if not settings.generation.keys() & {*CHOOSING}:
        return MakerSettings()
    if encoder is None:
        return read_maker_settings(settings.generation)
    return read_maker_settings(settings.generation, start_count=len(encoder.start_ids), suppressed=encoder.suppressed_ids)


def in_vocabulary(token_id: int | None, geometry: Geometry) -> int | None:
    """Return the id, or None if it is outside the vocabulary, as the default of a config class may be."""
    return token_id if token_id is not None and 0 <= token_id < geometry.vocab_size else None


def make_geometry(settings: Settings, session: OnnxRuntimeSession) -> Geometry:
    """Take the sizes from the graph, and those that it leaves dynamic from the settings."""
    config, tensors = settings.config, [tensor for tensor in session.cache_tensors if tensor.length_axis is not None]
    shape, _ = session.outputs.get(session.name_of(LOGITS), ([], ""))
    vocab_size = shape[-1] if shape and isinstance(shape[-1], int) else count_in(config, "vocab_size")
    if vocab_size is None:
        raise PackageError("neither the graph nor a config.json gives the vocabulary's size; add a config.json next to the graph")
    if settings.context_length is None:
        LOG.warning("no settings give the context length; using %d tokens", DEFAULT_CONTEXT_LENGTH)
    past = tensors[0].shape if tensors else (1,)
    kv_heads = settings.hints.kv_heads or (past[-3] if len(past) >= 4 else None) or 1
    head_size = settings.hints.head_size or past[-1] or 1
    heads = count_in(config, "num_attention_heads", "n_head") or kv_heads
    return Geometry(
        layers=count_in(config, "num_hidden_layers", "n_layer", "num_layers") or max(1, len(tensors) // 2),
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        hidden_size=count_in(config, "hidden_size", "n_embd", "d_model") or heads * head_size,
        vocab_size=vocab_size,
        context_length=settings.context_length or DEFAULT_CONTEXT_LENGTH,
    )


def read_tokenizer(path: Path) -> Tokenizer:
    """Read the library's tokenizer, to find the ids that end a text; raises the errors of `TextTokenizer`."""
    text = read_text(path, most=MAX_FILE_BYTES)
    read_spec(text)
    with tokenizer_errors("its file"):
        return Tokenizer.from_str(text)
