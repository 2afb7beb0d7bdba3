"""Opens a model, with what drafts for it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import LOG, DeviceError, OptionError
from ..hub.lookup import locate
from ..options.checks import whole_number
from ..options.defaults import MOST_ROWS, PREFIX_FOLDER, ROWS
from ..package.manifest import Manifest
from ..text.tokenizer import TextTokenizer
from .opening import open_package

if TYPE_CHECKING:
    from .model import Model

PROMPT_DEVICES = {"hybrid": "openvino", "hybrid:bf16": "openvino:bf16"}
"""Devices on which a second engine computes long prompts, with the device of that engine."""


def load(
    package: str | Path | None = None,
    *,
    device: str = "auto",
    threads: int | None = None,
    capacity: int | None = None,
    prefix_cache: int | None = None,
    prefix_folder: str | Path | None = None,
    prefix_folder_bytes: int = PREFIX_FOLDER,
    batch_size: int = ROWS,
    assistant_model: str | Path | Model | None = None,
    response_template: str | Path | Mapping[str, Any] | None = None,
    whole_past: bool = False,
    exact_history: bool = False,
    fetch_images: bool = False,
) -> Model:
    """Open a model folder, or an embedded model by name (default: `story`), after checking every file's sha256.

    If no folder is called `owner/name`, that (or `hf:owner/name`) is a model of the Hugging Face hub; it is fetched once. A folder
    that onnxruntime-genai or optimum made, or the path of a graph in one, opens too; it has no hashes to check. If a package was
    exported with an 8-bit cache, the path of its `int8_cache_model.onnx` opens it with keys and values of 8 bits.

    - `device`: `auto`, `cpu`, `cuda` or `cuda:N` for ONNX Runtime; `openvino` or `openvino:bf16` for OpenVINO on the CPU; `hybrid`
      or `hybrid:bf16` for long prompts by OpenVINO and text by ONNX Runtime; `webgpu`, `tensorrt-rtx`, `mlx` or `qnn` for a plug-in
      of ONNX Runtime, whose package is installed separately.
    - `threads`: number of CPU threads (default: one per physical core, within the quotas and cores that a container gives).
    - `capacity`: tokens that a new text's cache has memory for at first; it grows.
    - `prefix_cache`: most bytes of keys and values kept from earlier calls, for later prompts with the same beginning (0: none;
      default: an eighth of the free memory, at least 256 MiB; texts that need the memory get it).
    - `prefix_folder`: a folder where they are saved too, so that a later process need not compute them again; models may share it.
    - `prefix_folder_bytes`: most bytes of the files in that folder.
    - `batch_size`: most texts, of all callers, that are decoded together.
    - `assistant_model`: a smaller model with the same tokenizer, as a folder or open, that drafts tokens; the large model verifies
      a draft in one run (see `num_assistant_tokens`).
    - `response_template`: how answers are divided into text, thinking and tool calls, as JSON or a file (default: its own).
    - `whole_past`: hold keys and values of whole texts in layers with a sliding window too. That takes more memory, and lets any
      prompt reuse what it has in common with an earlier one.
    - `exact_history`: compute generated tokens again when they become part of a prompt, so that a text depends on its prompt, seed
      and options alone; else the next turn of a conversation reads only what is new, and its text may differ in places.
    - `fetch_images`: read pictures at addresses of the web too, which a prompt names; only public ones are asked.

    Raises `PackageError`, `DeviceError`, `OptionError`.

    >>> model = load()
    >>> model.generate("Once upon a time", max_new_tokens=3, temperature=0).finish_reason
    'length'
    """
    if capacity is not None:
        capacity = whole_number("capacity", capacity, 1)
    if prefix_cache is not None:
        prefix_cache = whole_number("prefix_cache", prefix_cache, 0)
    prefix_folder_bytes = whole_number("prefix_folder_bytes", prefix_folder_bytes, 1)
    if prefix_folder is not None and prefix_cache == 0:
        raise OptionError("prefix_folder saves what prefix_cache keeps in memory, and prefix_cache is 0; raise it")
    batch_size = whole_number("batch_size", batch_size, 1, MOST_ROWS)
    place = locate(package)
    second, device = PROMPT_DEVICES.get(device), "cpu" if device in PROMPT_DEVICES else device

    def opened(device: str) -> Model:
        found = open_package(place, device=device, threads=threads, whole_past=whole_past, meanwhile=read_meanwhile)
        from .assembly import make_model  # noqa: PLC0415 - see `read_meanwhile`

        return make_model(
            found,
            place,
            second_device=second,
            response_template=response_template,
            capacity=capacity,
            prefix_cache=prefix_cache,
            prefix_folder=prefix_folder,
            prefix_folder_bytes=prefix_folder_bytes,
            batch_size=batch_size,
            exact_history=exact_history,
            fetch_images=fetch_images,
        )

    try:
        model = opened(device)
    except DeviceError as error:
        if device != "auto":
            raise
        LOG.info("using the CPU: %s", error)
        model = opened("cpu")
    from .assembly import set_assistant  # noqa: PLC0415
    from .model import Model  # noqa: PLC0415

    if assistant_model is not None:
        if not isinstance(assistant_model, Model):
            assistant_model = load(
                assistant_model,
                device=device,
                threads=threads,
                prefix_cache=prefix_cache,
                whole_past=whole_past,
                exact_history=exact_history,
            )
        set_assistant(model, assistant_model)
    return model


def read_meanwhile(folder: Path, manifest: Manifest) -> TextTokenizer | None:
    """Import the rest of this library and read the tokenizer: an engine leaves time for both while it opens a graph."""
    from ..tasks.open_model import read_tokenizer  # noqa: PLC0415
    from . import assembly  # noqa: F401, PLC0415

    return read_tokenizer(folder, manifest)
