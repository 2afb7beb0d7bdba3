"""Makes a model of an open package: with its encoder, its second engine, and its draft model."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..backends.cache_codes import NO_SCALES, read_scales
from ..backends.huge_pages import new_memory_in_huge_pages
from ..backends.onnxruntime_session import OnnxRuntimeSession, open_session
from ..backends.openvino.session import PRECISIONS, check_readable, open_openvino
from ..backends.protocol import Graph
from ..backends.signature import IMAGE_EMBEDS
from ..encoders.encoder import Encoder, GraphEncoder, StatesEncoder
from ..encoders.text_encoder import TextEncoder, output_of
from ..errors import LOG, DeviceError, OptionError, PackageError
from ..files.graph_file import refuse_other_files
from ..images.image_reader import ImageReader
from ..inference.capabilities import check_graph
from ..inference.prompt_engine import PromptEngine
from ..kv_cache.memory_plan import plan
from ..machine_limits import available_bytes
from ..package.foreign import folder_of, halves_of, is_foreign
from ..package.integrity import checking_files, package_bytes
from ..package.manifest import ENCODER_GRAPH, GRAPH, IMAGE_PROCESSOR_GRAPH, INT8_CACHE_GRAPH, LOG_MEL_GRAPH, VISION_GRAPH, Manifest
from ..speculation.draft_model import Source, step_seconds
from ..speech.speech_encoder import SpeechEncoder
from .device_check import check_device, check_golden
from .model import Model
from .opening import OpenPackage
from .prefix_folder import PrefixFolder
from .response_templates import given_template, response_template_at

SECOND_ENGINE_SIZE, SECOND_ENGINE_BYTES = 2, 200_000_000
"""Memory of a second engine: a multiple of the package's size, and the libraries and activations of any.

It was 380 MiB for a package of 77 MB at 4 bits, with keys and values of 512 tokens.
"""


def make_model(
    package: OpenPackage,
    place: Path,
    *,
    second_device: str | None,
    response_template: str | Path | Mapping[str, Any] | None,
    capacity: int | None,
    prefix_cache: int | None,
    prefix_folder: str | Path | None,
    prefix_folder_bytes: int,
    batch_size: int,
    exact_history: bool,
    fetch_images: bool,
) -> Model:
    """The model of an open package; `second_device`: where long prompts are computed, if not on the graph. See `load`."""
    manifest, graph = package.manifest, checked(package, place)
    engine = None if second_device is None else make_prompt_engine(place, manifest, package.path, graph, second_device)
    encoder, images = open_encoder(place, manifest, graph), open_images(place, manifest, graph, fetches=fetch_images)
    responses = response_template_at(place, manifest) if response_template is None else given_template(response_template)
    model = Model(
        folder_of(place),
        manifest,
        graph,
        tokenizer=package.tokenizer,
        chat_template=package.template,
        response_template=responses,
        graph_name=package.path.name,
        encoder=encoder,
        prompt_engine=engine,
        capacity=capacity,
        prefix_cache=prefix_cache,
        batch_size=batch_size,
        exact_history=exact_history,
        images=images,
    )
    if isinstance(graph, OnnxRuntimeSession) and graph.is_accelerated and manifest.text_encoder is None:
        check_golden(model.new_context(), manifest, graph.device)
    if prefix_folder is not None:
        generator = model.generator
        generator.prefixes.saved = PrefixFolder(Path(prefix_folder), prefix_folder_bytes, generator.opened)
    return model


def checked(package: OpenPackage, place: Path) -> Graph:
    """The graph of a package, which fits its manifest; on some devices another one over the same weights."""
    graph, geometry = package.graph, package.manifest.geometry
    if package.manifest.text_encoder is not None:
        if not isinstance(graph, OnnxRuntimeSession):
            raise DeviceError(f"{package.manifest.name} is an encoder, which runs on ONNX Runtime; take the device cpu")
        TextEncoder(graph).width(output_of(package.manifest))
        return graph
    check_graph(graph, geometry)
    if isinstance(graph, OnnxRuntimeSession) and graph.is_accelerated and not graph.encoder_inputs:
        graph = check_device(graph, geometry)
    full, folder = plan(graph.cache_tensors, geometry.context_length), folder_of(place)
    LOG.info("%s: %d bytes of cache a token, %d for %d tokens", folder, full.bytes_per_token, full.total_bytes, full.tokens)
    if graph.device.kind == "cpu" and package.manifest.is_float16:
        LOG.warning("%s is float16, which is meant for GPUs and slow on the CPU; export it with float32 activations there", folder)
    return graph


def make_prompt_engine(place: Path, manifest: Manifest, graph: Path, session: Graph, device: str) -> PromptEngine:
    """The engine that computes long prompts on `device`, for a graph that is open on the CPU; its weights take memory once more.

    Raises `DeviceError` and `PackageError` if it could not take over, now rather than at the first long prompt.
    """
    has_codes = graph.name == INT8_CACHE_GRAPH
    kept_as = np.int8 if has_codes else np.float32
    in_place = all(tensor.kind == "shared" and tensor.dtype == kept_as for tensor in session.cache_tensors)
    if is_foreign(place) or manifest.encoder is not None or manifest.images is not None or not in_place:
        what = "decoders that onnx-textgen exported for target ort, with keys and values in float32 or at 8 bits"
        raise DeviceError(f"a second engine computes prompts of {what}, which {place} is not; take the device cpu")
    if has_codes and PRECISIONS[device] != "f32":
        raise DeviceError(f"{graph.name} holds keys and values at 8 bits, which bfloat16 would round again; take the device hybrid")
    needed = SECOND_ENGINE_SIZE * package_bytes(folder_of(place), manifest) + SECOND_ENGINE_BYTES
    if (free := available_bytes()) is not None and free < needed:
        raise DeviceError(
            f"a second engine for {manifest.name} takes about {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB of memory are free; "
            "take the device cpu"
        )
    own = graph.with_name(GRAPH)
    refuse_other_files(own, manifest.files)  # the hashes of the files were compared when the first engine opened
    scales = read_scales(graph) if has_codes else NO_SCALES
    check_readable(own, device=device, scales=scales)
    if has_codes and scales.keys() != {tensor.past for tensor in session.cache_tensors}:
        raise PackageError(f"{graph.name} has no scales for some of its cache of 8 bits; export the model again")

    def open_second() -> Graph:
        with checking_files(folder_of(place), manifest, own):  # again, as time has passed
            return open_openvino(own, device=device, threads=session.threads, is_exact=manifest.is_exact, scales=scales)

    return PromptEngine(device, open_second, manifest.geometry, scales=scales)


def open_encoder(place: Path, manifest: Manifest, decoder: Graph) -> Encoder | None:
    """The encoder of an encoder-decoder, on the decoder's device; None for a decoder."""
    if manifest.encoder is None:
        return None
    if not isinstance(decoder, OnnxRuntimeSession):
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
    with new_memory_in_huge_pages(), checking_files(folder, manifest, folder / ENCODER_GRAPH):
        graph = opened(folder / ENCODER_GRAPH)
    if manifest.speech is None:
        return GraphEncoder(graph, names)
    with checking_files(folder, manifest, folder / LOG_MEL_GRAPH):
        return SpeechEncoder(graph, names, open_session(folder / LOG_MEL_GRAPH, device="cpu", threads=decoder.threads))


def open_images(place: Path, manifest: Manifest, decoder: Graph, *, fetches: bool) -> ImageReader | None:
    """What reads the pictures of a model, on the decoder's device; None for a model that reads text alone."""
    if manifest.images is None:
        return None
    if not isinstance(decoder, OnnxRuntimeSession) or IMAGE_EMBEDS not in decoder.roles:
        raise DeviceError(f"{manifest.name} reads pictures, which runs on ONNX Runtime; take the device cpu")
    width = decoder.roles[IMAGE_EMBEDS].shape[-1]
    folder = folder_of(place)

    def opened(name: str, device: str) -> OnnxRuntimeSession:
        with new_memory_in_huge_pages(), checking_files(folder, manifest, folder / name):
            return open_session(folder / name, device=device, threads=decoder.threads)

    processor, vision = opened(IMAGE_PROCESSOR_GRAPH, "cpu"), opened(VISION_GRAPH, str(decoder.device))
    return ImageReader(processor, vision, manifest.images, int(width), fetches=fetches)


def set_assistant(model: Model, other: Model) -> None:
    """Make `other` the draft model of `model`; raises `OptionError` if their ids differ, or if `other` cannot be rolled back."""
    for each in (model, other):
        if each.manifest.text_encoder is not None:
            raise OptionError(f"{each.folder} is an encoder, which writes no text; a draft model and its model both do")
    if difference := difference_of_ids(model, other):
        raise OptionError(f"{other.folder} cannot draft for {model.folder}: {difference}; take a model with the same tokenizer")
    if any(tensor.kind == "state" for tensor in other.graph.cache_tensors):
        raise OptionError(f"{other.folder} cannot draft: its recurrent states cannot be rolled back; take a transformer")
    seconds, seconds_of_model = (
        step_seconds(each.manifest.geometry.layers, package_bytes(each.folder, each.manifest)) for each in (other, model)
    )
    guesser = other.generator
    model.generator.assistant = Source(guesser.opened.new_graph_context, guesser.prefixes, seconds / seconds_of_model)


def difference_of_ids(model: Model, other: Model) -> str:
    """How the token ids of two models differ; empty if they are the same. Padding of the logits does not count as a difference."""
    if model.generator.opened.has_tokenizer and other.generator.opened.has_tokenizer:
        return model.tokenizer.difference_to(other.tokenizer)
    if model.generator.opened.has_tokenizer or other.generator.opened.has_tokenizer:
        return "one of them has no tokenizer"
    sizes = [each.manifest.geometry.vocab_size for each in (model, other)]
    return "" if sizes[0] == sizes[1] else f"one has {sizes[0]:,} ids and the other {sizes[1]:,}"
