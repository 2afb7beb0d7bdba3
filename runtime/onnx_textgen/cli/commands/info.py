"""`onnx-textgen info`: shows the manifest of a model folder and the memory of its cache."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...errors import OptionError, PackageError
from .. import options
from ..terminal import certificate, screen, tables

if TYPE_CHECKING:
    from pathlib import Path

    from ...backends.onnxruntime_session import OnnxRuntimeSession
    from ...package.manifest import AdapterRecord, EncoderRecord, Manifest, SpeechRecord, TextEncoderRecord
    from ...package.retrieval import EmbeddingSettings, RerankingSettings


NEARLY_ONE = 0.005
"""Cosines are, and three digits would say that they are 1."""


def show_info(
    folder: options.FolderArgument = None,
    *,
    model: options.ModelOption = None,
    context: Annotated[int | None, typer.Option(metavar="N", min=1, help="Plan the cache for N tokens; default: all.")] = None,
    batch: Annotated[int | None, typer.Option(metavar="N", min=1, help="Plan the cache for N texts at once; default: 1.")] = None,
    as_json: options.JsonOption = False,
) -> None:
    """Describe a model folder.

    The graph is opened to compute the memory of its cache; files are not checked, see verify.

    Try:
        onnx-textgen info
        onnx-textgen info DIR --json
        onnx-textgen info DIR --context 4096 --batch 8
    """
    from ...hub.lookup import locate  # noqa: PLC0415
    from ...package.foreign import folder_of, is_foreign, open_foreign  # noqa: PLC0415  (imports ONNX Runtime, which takes half a second)
    from ...package.manifest import manifest_as_data  # noqa: PLC0415
    from ...package.reading import read_manifest  # noqa: PLC0415

    if as_json and not (context is None and batch is None):
        raise OptionError("--context and --batch plan the cache, which --json does not print; leave one out")
    path = locate(options.one_folder(folder, model))
    session = None
    if is_foreign(path):
        manifest, session = open_foreign(path, device="cpu")
    else:
        manifest = read_manifest(folder_of(path))
    if as_json:
        typer.echo(json.dumps(manifest_as_data(manifest), indent=1, ensure_ascii=False))
        return
    if (context or 1) > (most := manifest.geometry.context_length):
        raise OptionError(f"--context {context:,} is more than the {most:,} tokens of this model's context; lower it")
    cache = cache_in_words(path, session, context or most, batch or 1)
    tables.print_lines([*facts(folder_of(path), manifest, cache), *parts_of_answers(path, manifest)])
    for title, scenarios in comparisons(manifest.certificate):
        typer.echo()
        tables.show_table(certificate.scenario_table(scenarios, title))


def facts(path: Path, manifest: Manifest, cache: str) -> list[tuple[str, str]]:
    """The names and values that describe a package."""
    geometry = manifest.geometry
    lines = [
        ("name", manifest.name),
        ("folder", str(path)),
        ("source", manifest.source or "not stated"),
        ("target", manifest.target),
        ("precision", certificate.precision_in_words(manifest.precision, manifest.quantization)),
        *((f"from {form}", words) for form, words in certificate.sources_in_words(manifest.quantization.get("sources"))),
        ("layers", str(geometry.layers)),
        ("heads", f"{geometry.heads} of size {geometry.head_size}, {geometry.kv_heads} for keys and values"),
        ("vocabulary", f"{geometry.vocab_size:,}"),
        ("context", f"{geometry.context_length:,} tokens"),
        *(texts_written(manifest, cache) if manifest.text_encoder is None else texts_read(manifest, manifest.text_encoder)),
    ]
    lines += [(f"adapter {name}", adapter_in_words(record)) for name, record in manifest.adapters.items()]
    if manifest.embedding is not None:
        lines.append(("vectors", embedding_in_words(manifest.embedding)))
    if manifest.reranking is not None:
        lines.append(("reranking", reranking_in_words(manifest.reranking)))
    lines += [(name, screen.size(record.size)) for name, record in manifest.files.items()]
    lines += [(f"made with {name}", version) for name, version in manifest.versions.items()]
    if not manifest.certificate:
        lines.append(("proof", "none; a model that onnx-textgen exports is compared with PyTorch"))
    if summary := certificate.summary_in_words(manifest.summary):
        lines.append(("proof", summary))
    return lines + [(f"proof: {name.replace('_', ' ')}", words) for name, words in proof(manifest.certificate)]


def texts_written(manifest: Manifest, cache: str) -> Iterator[tuple[str, str]]:
    """Return what a model that generates texts reads and keeps, and how its texts begin and end."""
    if manifest.encoder is not None:
        yield from reads_source(manifest.encoder) if manifest.speech is None else reads_sound(manifest.speech)
    if (images := manifest.images) is not None:
        yield "pictures", f"{'at most ' * images.varies}{images.tokens:,} tokens a picture, for {images.placeholder}"
    yield "cache", cache
    yield "begins with id", "none" if manifest.bos_id is None else str(manifest.bos_id)
    yield "ends with id", ", ".join(map(str, manifest.eos_ids)) or "none"
    yield "defaults", ", ".join(f"{name} {value}" for name, value in manifest.generation.items()) or "none"
    if manifest.left_out:
        yield "not followed", ", ".join(f"{name} {value!s:.40}" for name, value in manifest.left_out.items())
    yield "golden runs", str(len(manifest.golden))


def reads_sound(about: SpeechRecord) -> Iterator[tuple[str, str]]:
    """Return what a model that reads sound takes."""
    seconds = about.samples / about.sampling_rate
    yield "reads", f"sound at {about.sampling_rate:,} samples a second, in windows of {seconds:g} seconds"
    yield "languages", f"{len(about.languages)}" if about.languages else "one"
    yield "tasks", ", ".join(about.tasks) or "transcribe"


def texts_read(manifest: Manifest, about: TextEncoderRecord) -> Iterator[tuple[str, str]]:
    """Return what a text encoder reads and gives."""
    texts = "texts" if manifest.pair_scoring is None else "pairs of texts"
    yield "reads", f"{texts} of up to {about.most_tokens:,} tokens; longer ones are cut"
    if manifest.pair_scoring is not None:
        yield "gives", f"a score of a query and a document, through {manifest.pair_scoring.activation}"
    yield "golden runs", str(len(about.golden))


def reads_source(encoder: EncoderRecord) -> Iterator[tuple[str, str]]:
    """Return what an encoder-decoder reads, and how its texts begin."""
    yield "reads", f"a source of up to {encoder.source_length:,} tokens, for which it writes a text"
    yield "texts begin with", ", ".join(map(str, encoder.start_ids))


def parts_of_answers(path: Path, manifest: Manifest) -> Iterator[tuple[str, str]]:
    """How answers are divided, as the response template says, if the package has a chat template."""
    from ...answers.response_template import read_response_template  # noqa: PLC0415
    from ...api.response_templates import response_template_at  # noqa: PLC0415

    data = response_template_at(path, manifest)
    if data is None:
        return
    template = read_response_template(data)
    for name, field in (("thinking", template.reasoning), ("tool calls", template.tool_calls)):
        if field is not None:
            yield name, " ... ".join(each.text for each in (field.open, field.close) if each is not None)
    if template.tool_calls is None:
        yield "tool calls", "not read: form not known; give --response-template FILE"


def adapter_in_words(record: AdapterRecord) -> str:
    """An adapter: its size, where it came from, and how it was compared with PyTorch."""
    summary = record.certificate.get("summary")
    compared = certificate.summary_in_words(summary) if isinstance(summary, Mapping) else ""
    words = [f"rank {record.rank}, {record.parameters} parameters", record.source, compared or "not compared with PyTorch"]
    return "; ".join(each for each in words if each)


def embedding_in_words(settings: EmbeddingSettings) -> str:
    """How an embedding model makes a vector."""
    if settings.refused:
        return f"not supported: {settings.refused}"
    words = [
        "pooled by the graph" if settings.pooling == "graph" else f"pooling {settings.pooling}",
        "length 1" if settings.normalize else "any length",
    ]
    words += [f"{settings.dimensions} dimensions"] if settings.dimensions is not None else []
    words += [f"compared by {settings.similarity}"] if settings.similarity else []
    return "; ".join([*words, *prompts_in_words(settings)])


def reranking_in_words(settings: RerankingSettings) -> str:
    """How a reranker scores a document."""
    if settings.refused:
        return f"not supported: {settings.refused}"
    answers = f"id {settings.true_id}" + (f" against id {settings.false_id}" if settings.false_id is not None else "")
    return "; ".join([f"logit of {answers}", settings.activation, *prompts_in_words(settings)])


def prompts_in_words(settings: EmbeddingSettings | RerankingSettings) -> list[str]:
    """The names of the prompts, and the default one."""
    default = settings.default_prompt_name
    names = [f"{name} (default)" if name == default else name for name in settings.prompts]
    return [f"prompts {', '.join(names)}"] if names else []


def cache_in_words(path: Path, session: OnnxRuntimeSession | None, tokens: int, batch: int) -> str:
    """The memory of texts' keys, values and states, as the graph declares them; `session`: the graph, if it is open."""
    from ...backends.onnxruntime_session import open_session  # noqa: PLC0415
    from ...kv_cache.memory_plan import plan, source_bytes  # noqa: PLC0415
    from ...package.foreign import graph_of  # noqa: PLC0415

    try:
        graph = session or open_session(graph_of(path), device="cpu")
        wanted = plan(graph.cache_tensors, tokens, batch)
    except PackageError as error:
        return f"not known: {error}"
    texts = f"{batch} texts of {tokens:,} tokens" if batch > 1 else f"{tokens:,} tokens"
    words = []
    if wanted.bytes_per_token:
        words.append(f"{screen.size(wanted.bytes_per_token)} a token, {screen.size(wanted.total_bytes)} for {texts}")
    if wanted.window_bytes:
        of_all = "" if wanted.bytes_per_token else f", {screen.size(wanted.total_bytes)} for {texts}"
        words.append(f"at most {screen.size(wanted.window_bytes)} in layers with a window{of_all}")
    if wanted.state_bytes:
        words.append(f"{screen.size(wanted.state_bytes)} of state, however long the text")
    if graph.encoder_inputs:
        words.append(f"up to {screen.size(source_bytes(graph.encoder_inputs, batch))} for each token of a source")
    return "; ".join(words)


def proof(entries: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The other entries of a certificate, without its scenarios and their summary: names and values."""
    for name, value in entries.items():
        if name == "summary":
            continue
        if isinstance(value, Mapping) and value and all(isinstance(one, Mapping) for one in value.values()):
            yield from ((f"{name}, {key}", certificate.rounding_in_words(one)) for key, one in value.items())
        elif isinstance(value, Mapping):
            yield name, ", ".join(f"{key.replace('_', ' ')} {number_in_words(one)}" for key, one in value.items())
        elif isinstance(value, str | int | float):
            yield name, number_in_words(value)
        elif isinstance(value, list) and value and all(isinstance(one, str) for one in value):
            yield name, ", ".join(value)


def number_in_words(value: object) -> str:
    """Three digits of a float, six of one that is nearly 1, any other value unchanged, as text."""
    if not isinstance(value, float):
        return str(value)
    return f"{value:.6g}" if 0 < abs(1 - value) < NEARLY_ONE else f"{value:.3g}"


def comparisons(entries: Mapping[str, Any]) -> Iterator[tuple[str, list[Mapping[str, Any]]]]:
    """The lists of scenarios of a certificate, each with its title."""
    for name, value in entries.items():
        scenarios = [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []
        if scenarios:
            kind = "" if name == "scenarios" else f", {name.replace('_', ' ')}"
            yield f"compared with PyTorch{kind}", scenarios
