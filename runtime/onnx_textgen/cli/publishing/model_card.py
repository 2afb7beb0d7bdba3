"""The model card of a folder that is uploaded to the hub: what it is, its proof, its files, and how to run it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ... import sizes
from ...hub.pushing import MARK
from ...package.manifest import GENAI_CONFIG, shared_graph
from ..terminal.certificate import NUMBERS, is_number, precision_in_words, summary_in_words

if TYPE_CHECKING:
    from ...package.manifest import Manifest

LICENCE = re.compile(r", (apache-2\.0|mit|bsd-3-clause|cc-by(?:-sa|-nc|-nc-sa)?-4\.0|llama[\d.]+|gemma|openrail)$", re.IGNORECASE)
"""Licences by the hub's names, in the line that says where the weights came from."""
ESCAPED = re.compile(r"([\\`*_{}\[\]<>#|~])")


def model_card(manifest: Manifest, repository: str, *, has_chat: bool, licence: str | None = None, base: str | None = None) -> str:
    """The text of README.md; `licence` and `base` (the original model on the hub) are fields that the hub shows."""
    return "\n".join(
        [
            "---",
            *metadata(manifest, licence or licence_in(manifest.source), base),
            "---",
            MARK,
            "",
            f"# {in_markdown(repository.partition('/')[2])}",
            "",
            f"For ONNX Runtime, without PyTorch. Weights: {in_markdown(manifest.source or manifest.name)}. Stored as "
            f"{in_markdown(precision_in_words(manifest.precision, manifest.quantization))}.",
            "",
            "## Run it",
            "",
            *commands(manifest, repository, has_chat=has_chat),
            *proof(manifest, repository),
            "## Files",
            "",
            "| file | size | sha256 |",
            "|---|---|---|",
            *(f"| {name} | {sizes.in_words(record.size)} | `{record.sha256[:16]}` |" for name, record in manifest.files.items()),
            "",
            f"Made with {in_markdown(', '.join(f'{name} {version}' for name, version in manifest.versions.items()))}.",
            "",
        ]
    )


def recipe_card(repository: str, source: str, *, licence: str | None = None, base: str | None = None) -> str:
    """The text of README.md of a repository that has a recipe next to its source."""
    name = in_markdown(repository.partition("/")[2])
    run = ["```sh", "pip install onnx-textgen", f"onnx-textgen chat {repository}", "```"]
    about = f"A recipe that rebuilds a proven package from {in_markdown(source)}, without PyTorch:"
    fields = [*origin_fields(licence, base), "tags:", "- onnx", "- onnx-textgen"]
    return "\n".join(["---", *fields, "---", MARK, "", f"# {name}", "", about, "", *run, ""])


def origin_fields(licence: str | None, base: str | None) -> Iterable[str]:
    """Fields of the hub that say what the weights are."""
    if licence:
        yield f"license: {licence}"
    if base:
        yield from ("base_model:", f"- {base}")


def metadata(manifest: Manifest, licence: str | None, base: str | None) -> Iterable[str]:
    """Fields that the hub reads."""
    yield from origin_fields(licence, base)
    if base and manifest.quantization:
        yield "base_model_relation: quantized"
    yield f"pipeline_tag: {task_of(manifest)}"
    yield "library_name: onnx-textgen"
    yield from (
        "tags:",
        "- onnx",
        "- onnxruntime",
        "- onnx-textgen",
        *(["- transformers.js"] if runs_in_javascript(manifest) else []),
    )


def runs_in_javascript(manifest: Manifest) -> bool:
    """Whether transformers.js writes text with this folder by its usual pipeline."""
    return manifest.architecture == "decoder" and manifest.images is None and shared_graph(manifest) is not None


def task_of(manifest: Manifest) -> str:
    """The hub's name of what a model does."""
    if manifest.speech is not None:
        return "automatic-speech-recognition"
    if manifest.images is not None:
        return "image-text-to-text"
    if manifest.pair_scoring is not None or manifest.reranking is not None:
        return "text-ranking"
    if manifest.text_encoder is not None or manifest.embedding is not None:
        return "feature-extraction"
    return "text-generation"


def licence_in(source: str) -> str | None:
    """The licence that a line about the weights names.

    >>> licence_in("HuggingFaceTB/SmolLM2-135M-Instruct, Apache-2.0"), licence_in("mine")
    ('apache-2.0', None)
    """
    found = LICENCE.search(source)
    return None if found is None else found[1].lower()


def commands(manifest: Manifest, repository: str, *, has_chat: bool) -> Iterable[str]:
    """How to run it by onnx-textgen, transformers.js and onnxruntime-genai, as far as they open it."""
    yield from ("```sh", 'pip install "onnx-textgen[serve]"', *own_commands(manifest, repository, has_chat=has_chat), "```", "")
    if runs_in_javascript(manifest):
        yield from (
            "In browsers and Node, with [transformers.js](https://huggingface.co/docs/transformers.js):",
            "",
            "```js",
            'import { pipeline } from "@huggingface/transformers";',
            f'const generator = await pipeline("text-generation", "{repository}");',
            'console.log(await generator("Once upon a time", { max_new_tokens: 40 }));',
            "```",
            "",
        )
    if GENAI_CONFIG in manifest.files:
        yield from (
            "With [onnxruntime-genai](https://onnxruntime.ai/docs/genai/):",
            "",
            "```sh",
            f"hf download {repository} --local-dir model",
            "python -c \"import onnxruntime_genai as og; print(og.Model('model'))\"",
            "```",
            "",
        )


def own_commands(manifest: Manifest, repository: str, *, has_chat: bool) -> Iterable[str]:
    """Commands of this project that fit the model."""
    if manifest.speech is not None:
        yield f"onnx-textgen transcribe talk.wav --model {repository}"
    elif manifest.text_encoder is None and manifest.encoder is None:
        write = f'onnx-textgen generate "Once upon a time" --model {repository}'
        yield f"onnx-textgen chat {repository}" if has_chat else write
    yield f"onnx-textgen serve {repository}"


def proof(manifest: Manifest, repository: str) -> Iterable[str]:
    """The certificate: its summary, and a line for each scenario."""
    certificate = manifest.certificate
    if not certificate:
        return
    reference, summary = str(certificate.get("reference", "PyTorch")), certificate.get("summary")
    words = summary_in_words(summary if isinstance(summary, Mapping) else {})
    yield from ("## Proof", "", f"Compared with {in_markdown(reference)} when it was exported: {words}.")
    yield from (f"`onnx-textgen verify {repository}` compares the files with their hashes and repeats the golden runs.", "")
    listed = certificate.get("scenarios")
    scenarios = [each for each in listed if isinstance(each, Mapping)] if isinstance(listed, list) else []
    shown = {key: each for key, each in NUMBERS.items() if any(is_number(scenario.get(key)) for scenario in scenarios)}
    if not shown:
        return
    yield "| scenario | " + " | ".join(name for name, _ in shown.values()) + " |"
    yield "|---" * (1 + len(shown)) + "|"
    for scenario in scenarios:
        yield f"| {in_markdown(str(scenario.get('name', '')))} | " + " | ".join(cells(scenario, shown)) + " |"
    yield ""


def cells(scenario: Mapping[str, Any], shown: Mapping[str, tuple[str, str]]) -> Iterable[str]:
    """The numbers of a scenario, in their forms."""
    return (form.format(scenario[key]) if is_number(scenario.get(key)) else "" for key, (_, form) in shown.items())


def in_markdown(text: str) -> str:
    r"""A text in which no character is Markdown or HTML.

    >>> print(in_markdown("<b>a_b</b>"))
    \<b\>a\_b\</b\>
    """
    return ESCAPED.sub(r"\\\1", " ".join(text.split()))
