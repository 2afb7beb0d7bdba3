"""The local folder or GGUF file of a source: an existing one, or a model of the Hugging Face hub, downloaded or cached.

Only settings, tokenizer, template and safetensors files are fetched: never code, never pickles unless asked for.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable
from pathlib import Path

from onnx_textgen.errors import PackageError
from onnx_textgen.files.user_folders import expanded
from onnx_textgen.hub.hub_cache import download
from onnx_textgen.package.hf_settings import read_json
from onnx_textgen.package.manifest import CHAT_TEMPLATE, TOKENIZER

from ..errors import ExportError
from ..reports import Report
from ..tokenization.conversion import SENTENCEPIECE
from ..tokenization.retrieval_settings import GENERAL_SETTINGS, MODEL_SETTINGS, MODULES
from ..weights.adapter import SETTINGS as ADAPTER_SETTINGS
from ..weights.tensor_files import MOST_INDEX_BYTES

Choice = Callable[[Iterable[str]], list[str]]
"""Selects a source's files from the names of a repository's; raises `ExportError` if they are not among these."""
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
HUB_FILE = re.compile(rf"(?P<name>{HUB_NAME.pattern})/(?P<file>[^@]+\.gguf)(?:@(?P<revision>.+))?", re.DOTALL)
"""`owner/name/file.gguf`, in a folder of the repository too, and with a revision."""
PART = re.compile(r"(.*)-\d{5}-of-\d{5}\.gguf", re.DOTALL)
"""A part of a GGUF file that was split."""
SETTINGS = frozenset(
    {
        *("config.json", "generation_config.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
        *("preprocessor_config.json", "processor_config.json"),  # of models that read pictures
        *(TOKENIZER, "vocab.json", "merges.txt", "vocab.txt", *SENTENCEPIECE, CHAT_TEMPLATE, "chat_template.json"),
    }
)
RETRIEVAL_SETTINGS = re.compile("|".join([*map(re.escape, (MODULES, MODEL_SETTINGS, GENERAL_SETTINGS)), r"\d+_\w+/config\.json"]))
"""Settings of sentence-transformers; those of a module are in a folder such as `1_Pooling`."""
WEIGHTS = (
    re.compile(r"model(-\d+-of-\d+)?\.safetensors|model\.safetensors\.index\.json"),
    re.compile(r"(?!adapter_|consolidated).*\.safetensors(\.index\.json)?"),
)
"""File names of weights; the second pattern applies if the first matches nothing."""
PICKLES = re.compile(r"pytorch_model(-\d+-of-\d+)?\.bin|pytorch_model\.bin\.index\.json")
ADAPTER_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
"""Of an adapter that PEFT saved; the second, a pickle, only if it is allowed."""


def resolve_source(source: str | Path, report: Report = lambda stage: None, *, allow_pickle: bool = False) -> Path:
    """The local folder of a source: an existing folder, else the hub's `owner/name` or `owner/name@revision`.

    For `owner/name/file.gguf` it is the path of that file. Without a network, or with HF_HUB_OFFLINE, a copy in the cache is used.
    `report` is told what is downloaded. Raises `ExportError` for a source that is neither, that cannot be reached, or that has no
    safetensors (`allow_pickle`: nor `pytorch_model.bin`).
    """
    folder = expanded(source)
    if folder.is_dir():
        return folder
    if isinstance(source, str) and not folder.exists() and (found := HUB_FILE.fullmatch(source)):
        choose = functools.partial(with_parts, found["file"], model=found["name"])
        return fetch(found["name"], found["revision"], choose, report) / found["file"]
    name, _, revision = str(source).partition("@")
    if folder.exists() or isinstance(source, Path) or not HUB_NAME.fullmatch(name):
        raise ExportError(
            f"{source} is not a folder; give a checkpoint folder, a GGUF file, owner/name of a model on the hub, or file.py:name"
        )
    return fetch(name, revision or None, functools.partial(wanted, model=name, allow_pickle=allow_pickle), report)


def resolve_adapter(adapter: str | Path, report: Report = lambda stage: None, *, allow_pickle: bool = False) -> Path:
    """The local folder of an adapter: an existing folder, else the hub's `owner/name` or `owner/name@revision`.

    Raises `ExportError` for an adapter on the hub as `resolve_source` does; a path is not checked here.
    """
    folder, (name, _, revision) = expanded(adapter), str(adapter).partition("@")
    if folder.exists() or isinstance(adapter, Path) or not HUB_NAME.fullmatch(name):
        return folder
    return fetch(name, revision or None, functools.partial(of_adapter, model=name, allow_pickle=allow_pickle), report)


def fetch(name: str, revision: str | None, choose: Choice, report: Report) -> Path:
    """Download what the cache lacks of a repository, and return its folder there."""
    try:
        missing = functools.partial(missing_weights, choose=choose)
        return download(name, revision, choose, missing=missing, instead="give a local folder", report=report)
    except PackageError as error:
        raise ExportError(str(error)) from error


def wanted(names: Iterable[str], model: str, *, allow_pickle: bool) -> list[str]:
    """The files of a model that an export needs: of its top folder, and the settings of its modules.

    >>> wanted(["config.json", "model.py", "model.safetensors", "model.fp16.safetensors"], "a/b", allow_pickle=False)
    ['config.json', 'model.safetensors']
    """
    names = sorted(names)
    settings = [name for name in names if name in SETTINGS or RETRIEVAL_SETTINGS.fullmatch(name)]
    names = [name for name in names if "/" not in name]
    for pattern in (*WEIGHTS, *([PICKLES] if allow_pickle else [])):
        if weights := [name for name in names if pattern.fullmatch(name)]:
            return settings + weights
    if any(PICKLES.fullmatch(name) for name in names):
        raise ExportError(f"{model} has pickled weights only, which can run code when read; if you trust them, add --allow-pickle")
    if gguf := next((name for name in names if name.endswith(".gguf")), None):
        raise ExportError(f"{model} has no weights as safetensors; give one of its GGUF files, such as {model}/{gguf}")
    other = next((f", only {name}" for name in names if name.endswith((".onnx", ".h5", ".msgpack", ".bin"))), "")
    raise ExportError(f"{model} has no weights as safetensors{other}; give a model that has")


def of_adapter(names: Iterable[str], model: str, *, allow_pickle: bool) -> list[str]:
    """The files of a repository's adapter, with the tokenizer and the template that it may bring.

    >>> of_adapter(["adapter_config.json", "adapter_model.safetensors", "README.md"], "owner/name", allow_pickle=False)
    ['adapter_config.json', 'adapter_model.safetensors']
    """
    have = sorted(name for name in names if "/" not in name)
    weights = [name for name in ADAPTER_WEIGHTS if name in have]
    if ADAPTER_SETTINGS not in have or not weights:
        raise ExportError(f"{model} holds no LoRA adapter; give one that PEFT saved, or export {model} without --adapter")
    if weights[0] == ADAPTER_WEIGHTS[1] and not allow_pickle:
        raise ExportError(f"{model} has a pickled adapter only, which can run code when read; if you trust it, add --allow-pickle")
    text = SETTINGS - {"config.json", "generation_config.json"}
    return [name for name in have if name in text or name in (ADAPTER_SETTINGS, weights[0])]


def with_parts(file: str, names: Iterable[str], model: str) -> list[str]:
    """A GGUF file of a repository, and the other parts if it was split; raises `ExportError` if the repository has no such file.

    >>> with_parts("q8/a-00001-of-00002.gguf", ["q8/a-00001-of-00002.gguf", "q8/a-00002-of-00002.gguf", "b.gguf"], "owner/name")
    ['q8/a-00001-of-00002.gguf', 'q8/a-00002-of-00002.gguf']
    """
    have = sorted(name for name in names if name.endswith(".gguf"))
    if file not in have:
        raise ExportError(f"{model} has no file {file}; its GGUF files are {', '.join(have[:8]) or 'none'}")
    first = PART.fullmatch(file)
    return [name for name in have if name == file or (first and (part := PART.fullmatch(name)) and part[1] == first[1])]


def missing_weights(folder: Path, choose: Choice) -> str | None:
    """The first weights file that an index in `folder` names and that is missing; None if all exist."""
    try:
        names = choose([path.relative_to(folder).as_posix() for path in folder.rglob("*")])
    except ExportError:
        return "the weights"
    indexes = [read_json(folder / name, most=MOST_INDEX_BYTES) for name in names if name.endswith(".index.json")]
    listed = [file for index in indexes for file in index["weight_map"].values()]
    has_weights = any(name.endswith((".safetensors", ".bin", ".gguf")) for name in names)
    return next((file for file in sorted(set(listed)) if not (folder / file).is_file()), None if has_weights else "the weights")
