"""Opens a model folder: a package after checking every hash, or another exporter's folder; and a draft model for it."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..backends.huge_pages import new_memory_in_huge_pages
from ..backends.onnxruntime_session import LOG, Session, open_session
from ..backends.openvino_session import PRECISIONS, open_openvino, read_graph
from ..backends.protocol import Graph
from ..backends.signature import DRAFT_STATES
from ..chat.response_template import read_response_template
from ..errors import DeviceError, OptionError, PackageError, first_line
from ..files.graph_file import refuse_other_files
from ..files.text_files import parse_json, read_text
from ..generation.engine import ROWS
from ..inference.capabilities import check_graph
from ..inference.device_check import check_device
from ..inference.encoder import Encoder, GraphEncoder, StatesEncoder
from ..inference.prefix_cache import PrefixStore
from ..inference.prompt_engine import PromptEngine
from ..kv_cache.memory_plan import available_bytes, plan
from ..options.checks import whole_number
from ..package.end_tokens import read_template
from ..package.foreign import folder_of, graph_of, halves_of, is_foreign, open_foreign
from ..package.hf_settings import read_tokenizer_settings
from ..package.hub import locate
from ..package.integrity import checking_files, package_bytes
from ..package.manifest import (
    CHAT_TEMPLATE,
    DRAFT_HEAD_GRAPH,
    DRAFT_HEAD_WEIGHTS,
    ENCODER_GRAPH,
    GRAPH,
    INT8_CACHE_GRAPH,
    RESPONSE_TEMPLATE,
    Manifest,
)
from ..package.reading import read_manifest
from ..speculation.draft_head import open_head_decoder
from ..speculation.draft_model import Source, step_seconds
from .model import MOST_ROWS, PREFIX_CACHE, Model
from .prefix_folder import SIZE_BYTES, PrefixFolder

PROMPT_DEVICES = {"hybrid": "openvino", "hybrid:bf16": "openvino:bf16"}
"""Devices on which a second engine computes long prompts, with the device of that engine."""
SECOND_ENGINE_SIZE, SECOND_ENGINE_BYTES = 2, 200_000_000
"""Memory of a second engine: a multiple of the package's size, and the libraries and activations of any.

It was 380 MiB for a package of 77 MB at 4 bits, with keys and values of 512 tokens.
"""


def load(
    package: str | Path | None = None,
    *,
    device: str = "auto",
    threads: int | None = None,
    capacity: int | None = None,
    prefix_cache: int = PREFIX_CACHE,
    prefix_folder: str | Path | None = None,
    prefix_folder_bytes: int = SIZE_BYTES,
    batch_size: int = ROWS,
    assistant_model: str | Path | Model | None = None,
    response_template: str | Path | Mapping[str, Any] | None = None,
    whole_past: bool = False,
) -> Model:
    """Open a model folder, or an embedded model by name (default: `story`), after checking every file's sha256.

    If no folder is called `owner/name`, that (or `hf:owner/name`) is a model of the Hugging Face hub; it is fetched once. A folder
    that onnxruntime-genai or optimum made, or the path of a graph in one, opens too; it has no hashes to check. If a package was
    exported with an 8-bit cache, the path of its `int8_cache_model.onnx` opens it with keys and values of 8 bits.

    - `device`: `auto`, `cpu`, `cuda` or `cuda:N` for ONNX Runtime; `openvino` or `openvino:bf16` for OpenVINO on the CPU; `hybrid`
      or `hybrid:bf16` for long prompts by OpenVINO and text by ONNX Runtime; `webgpu`, `tensorrt-rtx`, `mlx` or `qnn` for a plug-in
      of ONNX Runtime, whose package is installed separately.
    - `threads`: number of CPU threads (default: one per core).
    - `capacity`: tokens that a new text's cache has memory for at first; it grows.
    - `prefix_cache`: most bytes of keys and values kept from earlier calls, for later prompts with the same beginning (0: none).
    - `prefix_folder`: a folder where they are saved too, so that a later process need not compute them again; models may share it.
    - `prefix_folder_bytes`: most bytes of the files in that folder.
    - `batch_size`: most texts, of all callers, that are decoded together.
    - `assistant_model`: a smaller model with the same tokenizer, as a folder or open, that drafts tokens; the large model verifies
      a draft in one run (see `num_assistant_tokens`). It replaces the draft head of a package that has one.
    - `response_template`: how answers are divided into text, thinking and tool calls, as JSON or a file (default: its own).
    - `whole_past`: hold keys and values of whole texts in layers with a sliding window too. That takes more memory, and lets any
      prompt reuse what it has in common with an earlier one.

    Raises `PackageError`, `DeviceError`, `OptionError`.

    >>> model = load()
    >>> model.generate("Once upon a time", max_new_tokens=3, temperature=0).finish_reason
    'length'
    """
    if capacity is not None:
        capacity = whole_number("capacity", capacity, 1)
    prefix_cache = whole_number("prefix_cache", prefix_cache, 0)
    prefix_folder_bytes = whole_number("prefix_folder_bytes", prefix_folder_bytes, 1)
    if prefix_folder is not None and not prefix_cache:
        raise OptionError("prefix_folder saves what prefix_cache keeps in memory, and prefix_cache is 0; raise it")
    batch_size = whole_number("batch_size", batch_size, 1, MOST_ROWS)
    place = locate(package)
    second, device = PROMPT_DEVICES.get(device), "cpu" if device in PROMPT_DEVICES else device
    manifest, graph, session, template = open_package(place, device=device, threads=threads, whole_past=whole_past)
    prompt_engine = None if second is None else make_prompt_engine(place, manifest, graph, session, second)
    encoder = open_encoder(place, manifest, session)
    responses = response_template_at(place, manifest) if response_template is None else given_template(response_template)
    model = Model(
        folder_of(place),
        manifest,
        session,
        chat_template=template,
        response_template=responses,
        graph_name=graph.name,
        encoder=encoder,
        prompt_engine=prompt_engine,
        capacity=capacity,
        prefix_cache=prefix_cache,
        batch_size=batch_size,
    )
    if prefix_folder is not None:
        model.prefixes.saved = PrefixFolder(Path(prefix_folder), prefix_folder_bytes, model.opened)
    if assistant_model is not None:
        if not isinstance(assistant_model, Model):
            assistant_model = load(
                assistant_model, device=device, threads=threads, prefix_cache=prefix_cache, whole_past=whole_past
            )
        set_assistant(model, assistant_model)
    elif manifest.draft_head is not None:
        set_draft_head(model)
    return model


def open_package(place: Path, *, device: str, threads: int | None, whole_past: bool) -> tuple[Manifest, Path, Graph, str | None]:
    """Open a package or another exporter's folder: returns its manifest, its graph's path, the open graph and the chat template."""
    folder, graph = folder_of(place), Path(GRAPH)
    session: Graph
    if is_foreign(place):
        if device in PRECISIONS:
            raise DeviceError(f"OpenVINO runs packages that onnx-textgen exported; take another device than {device} for {place}")
        with new_memory_in_huge_pages():
            manifest, session = open_foreign(place, device=device, threads=threads)
        template = read_template(folder)
    else:
        manifest = read_manifest(folder)
        with new_memory_in_huge_pages(), checking_files(folder, manifest):
            graph = graph_of(place)
            refuse_other_files(graph, manifest.files)
            session = open_graph(graph, device=device, threads=threads, is_exact=manifest.is_exact, whole_past=whole_past)
        template = listed_template(folder, manifest)
    check_graph(session, manifest.geometry)
    if isinstance(session, Session) and session.memory is not None:
        session = check_device(session, manifest.geometry)
    full = plan(session.cache_tensors, manifest.geometry.context_length)
    LOG.info("%s: %d bytes of cache a token, %d for %d tokens", folder, full.bytes_per_token, full.total_bytes, full.tokens)
    if session.device.kind == "cpu" and manifest.is_float16:
        LOG.warning("%s is float16, which is meant for GPUs and slow on the CPU; export it with float32 activations there", folder)
    return manifest, graph, session, template


def make_prompt_engine(place: Path, manifest: Manifest, graph: Path, session: Graph, device: str) -> PromptEngine:
    """The engine that computes long prompts on `device`, for a graph that is open on the CPU; its weights take memory once more.

    Raises `DeviceError` and `PackageError` if it could not take over, now rather than at the first long prompt.
    """
    in_place = all(tensor.kind == "shared" and tensor.dtype == np.float32 for tensor in session.cache_tensors)
    if is_foreign(place) or manifest.encoder is not None or not in_place:
        what = "decoders that onnx-textgen exported for target ort, with keys and values in float32"
        raise DeviceError(f"a second engine computes prompts of {what}, which {place} is not; take the device cpu")
    needed = SECOND_ENGINE_SIZE * package_bytes(folder_of(place), manifest) + SECOND_ENGINE_BYTES
    if (free := available_bytes()) is not None and free < needed:
        raise DeviceError(
            f"a second engine for {manifest.name} takes about {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB of memory are free; "
            "take the device cpu"
        )
    with checking_files(folder_of(place), manifest):
        read_graph(graph, device=device)

    def open_second() -> Graph:
        with checking_files(folder_of(place), manifest):  # again, as time has passed
            return open_openvino(graph, device=device, threads=session.threads, is_exact=manifest.is_exact)

    return PromptEngine(device, open_second, manifest.geometry)


def open_encoder(place: Path, manifest: Manifest, decoder: Graph) -> Encoder | None:
    """The encoder of an encoder-decoder, on the decoder's device; None for a decoder."""
    if manifest.encoder is None:
        return None
    if not isinstance(decoder, Session):
        raise DeviceError(f"{manifest.name} is an encoder-decoder, which runs on ONNX Runtime; take the device cpu")
    names = list(decoder.encoder_inputs)
    opened = functools.partial(open_session, device=str(decoder.device), threads=decoder.threads)
    if is_foreign(place):
        halves = halves_of(place)
        assert halves is not None, "it has an encoder"
        with new_memory_in_huge_pages():
            graph = opened(halves.encoder)
            first = decoder if halves.first == halves.decoder else opened(halves.first, hints=decoder.hints)
        return StatesEncoder(graph, first, names, manifest.encoder.start_ids[0])
    folder = folder_of(place)
    with new_memory_in_huge_pages(), checking_files(folder, manifest):
        refuse_other_files(folder / ENCODER_GRAPH, manifest.files)
        graph = opened(folder / ENCODER_GRAPH)
    return GraphEncoder(graph, names)


def listed_template(folder: Path, manifest: Manifest) -> str | None:
    """The chat template that a manifest lists, checked by its hash; None if it lists none, even if the folder has such a file."""
    listed = manifest.files.get(CHAT_TEMPLATE)
    return None if listed is None else read_text(folder / CHAT_TEMPLATE, sha256=listed.sha256)


def response_template_at(place: Path, manifest: Manifest) -> Mapping[str, Any] | None:
    """The response template of a package, checked by its hash, or of another exporter's folder; None if it has none."""
    folder, listed = folder_of(place), manifest.files.get(RESPONSE_TEMPLATE)
    if is_foreign(place):
        found = read_tokenizer_settings(folder).get("response_template")
        return found if isinstance(found, Mapping) else None
    return None if listed is None else parsed_template(folder / RESPONSE_TEMPLATE, listed.sha256)


def given_template(given: str | Path | Mapping[str, Any]) -> Mapping[str, Any]:
    """A response template that a caller gives, checked now; raises `PackageError`."""
    data = parsed_template(Path(given)) if isinstance(given, str | Path) else given
    return read_response_template(data, "the response template" if isinstance(given, Mapping) else str(given)).data


def parsed_template(path: Path, sha256: str = "") -> Mapping[str, Any]:
    """A file with a response template; raises `PackageError`."""
    try:
        found = parse_json(read_text(path, sha256=sha256))
    except (ValueError, RecursionError) as error:
        raise PackageError(f"{path} is not valid JSON ({first_line(error)}); give another response template") from error
    if not isinstance(found, Mapping):
        raise PackageError(f"{path} should hold a JSON object; give another response template")
    return found


def open_graph(path: Path, *, device: str, threads: int | None, is_exact: bool, whole_past: bool) -> Graph:
    """Open the graph at `path` on the engine that `device` names; `is_exact`: see `Manifest.is_exact`; `whole_past`: see `load`."""
    if device in PRECISIONS and path.name == INT8_CACHE_GRAPH:
        raise DeviceError(f"OpenVINO stores keys and values in its own format; give it the folder {path.parent}")
    if device in PRECISIONS:
        return open_openvino(path, device=device, threads=threads, is_exact=is_exact)
    return open_session(path, device=device, threads=threads, whole_past=whole_past)


def set_assistant(model: Model, other: Model) -> None:
    """Make `other` the draft model of `model`; raises `OptionError` if their ids differ, or if `other` cannot be rolled back."""
    if difference := difference_of_ids(model, other):
        raise OptionError(f"{other.folder} cannot draft for {model.folder}: {difference}; take a model with the same tokenizer")
    if any(tensor.kind == "state" for tensor in other.opened.cache_tensors):
        raise OptionError(f"{other.folder} cannot draft: its recurrent states cannot be rolled back; take a transformer")
    seconds, seconds_of_model = (
        step_seconds(each.manifest.geometry.layers, package_bytes(each.folder, each.manifest)) for each in (other, model)
    )
    model.generator.assistant = Source(other.opened.new_graph_context, other.prefixes, seconds / seconds_of_model)


def set_draft_head(model: Model) -> None:
    """Open the draft head of a package, so that it drafts; not on engines that give no hidden states, which the log says."""
    opened, manifest = model.opened, model.manifest
    graph, folder = opened.graph, model.folder
    if not isinstance(graph, Session) or DRAFT_STATES not in graph.outputs:
        LOG.info("%s: its draft head is not used on %s", folder, graph.device)
        return
    refuse_other_files(folder / DRAFT_HEAD_GRAPH, manifest.files)
    with new_memory_in_huge_pages(), checking_files(folder, manifest):
        head = open_session(folder / DRAFT_HEAD_GRAPH, device=str(graph.device), threads=graph.threads)
    new_decoder = functools.partial(open_head_decoder, head, manifest.geometry)
    new_decoder()  # raises for a graph that is no head
    own_bytes = manifest.files[DRAFT_HEAD_WEIGHTS].size
    seconds = step_seconds(manifest.geometry.layers, package_bytes(folder, manifest))
    opened.gives_states = True
    model.generator.assistant = Source(new_decoder, PrefixStore(0), step_seconds(1, own_bytes) / seconds, is_head=True)


def difference_of_ids(model: Model, other: Model) -> str:
    """How the token ids of two models differ; empty if they are the same. Padding of the logits does not count as a difference."""
    if model.has_tokenizer and other.has_tokenizer:
        return model.tokenizer.difference_to(other.tokenizer)
    if model.has_tokenizer or other.has_tokenizer:
        return "one of them has no tokenizer"
    sizes = [each.encoder.vocab_size for each in (model, other)]
    return "" if sizes[0] == sizes[1] else f"one has {sizes[0]:,} ids and the other {sizes[1]:,}"
