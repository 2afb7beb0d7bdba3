"""Opens a GGUF file without reading its weights: a model skeleton, and where each of its tensors is stored.

transformers knows how llama.cpp's settings, names and layouts become those of its modules. It is asked for each tensor, so that
only one is in memory. A tensor that it has no place for is an error: without it the model would compute something else.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import gguf
import numpy as np
import numpy.typing as npt
import torch
import transformers.modeling_gguf_pytorch_utils as translation
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel

from onnx_textgen.package.hf_settings import as_ids
from onnx_textgen.package.manifest import GENERATION_CONFIG
from onnx_textgen.recipes.sources import BLOCKS, SUPER_BLOCKS

from ..errors import ExportError, failing_as
from ..huggingface.checkpoint import Plan, make_skeleton, stream
from ..sources.stored_form import StoredForm
from ..weights.adapter import Adapter
from ..weights.size_checks import check_sizes
from ..weights.streamed import StreamedWeights
from .gguf_file import PLAIN_KINDS, GGUFFile
from .gguf_settings import INSTEAD, make_config
from .gguf_tokenizer import write_tokenizer

OUTPUT_LAYER = "output.weight"
ROTARY_FACTORS = "rope_freqs.weight"
"""[rotary size / 2]: what the wavelengths of the rotation are multiplied by; files of Llama 3.1 and later have it."""
ENDS = ("tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")
"""The ends of a turn, and of a message with tool calls."""
SAMPLING = "general.sampling."
SAMPLING_NAMES = {"temp": "temperature", "penalty_repeat": "repetition_penalty"}
"""llama.cpp's names of the makers' settings, where transformers has others."""


class Translator:
    """Translates llama.cpp's names and layouts of tensors to those of a transformers model."""

    def __init__(self, file: GGUFFile, model: PreTrainedModel, settings: dict[str, Any]) -> None:
        architecture = file.metadata["general.architecture"]
        make_processor: Any = translation.TENSOR_PROCESSORS.get(architecture, translation.TensorProcessor)
        self.processor = make_processor(config=settings)
        self.mapping: dict[str, str] = translation.get_gguf_hf_weights_map(model, self.processor)

    def target(self, name: str) -> str | None:
        """The parameter that a tensor is, or is a part of; None if the model has no place for it."""
        return self.mapping.get(name) or self.mapping.get(name.removesuffix(".weight"))  # stacked experts have no suffix

    def translated(self, name: str, values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """A tensor, in the layout of its parameter."""
        found = self.processor.process(values, name, tensor_key_mapping=self.mapping, parsed_parameters={"tensors": {}})
        return np.asarray(found.weights)


class GGUFTensors:
    """The file's tensors under the names that they have in the module."""

    def __init__(self, file: GGUFFile, model: PreTrainedModel, settings: dict[str, Any]) -> None:
        self.file = file
        self.translator = Translator(file, model, settings)
        self.sources: dict[str, list[str]] = {}
        """By the name in the module: those in the file that it is made from."""
        for name in file.tensors:
            if name == ROTARY_FACTORS:
                continue  # it is in the config
            target = self.translator.target(name)
            if target is None:
                kind = model.config.model_type
                raise ExportError(f"{file.paths[0]} holds {name}, for which transformers' {kind} has no place; {INSTEAD}")
            self.sources.setdefault(target, []).append(name)

    def names(self) -> list[str]:
        """Every tensor's name in the module."""
        return list(self.sources)

    def stored(self) -> dict[str, StoredForm]:
        """How the file stores each parameter that it holds quantised; K-quants and others may be rounded again."""
        kinds = {name: self.file.kind(sources[0]) for name, sources in self.sources.items()}
        return {
            name: StoredForm(kind, may_round=True, rows=self.rows_of(name) if kind in {*BLOCKS, *SUPER_BLOCKS} else None)
            for name, kind in kinds.items()
            if kind not in PLAIN_KINDS
        }

    def rows_of(self, name: str) -> Callable[[], npt.NDArray[np.uint8]] | None:
        """Reads the bytes of each row of a matrix; None if transformers does more to it than to order its rows."""
        source, *others = self.sources[name]
        data = np.asarray(self.file.tensors[source].data)
        if others or data.ndim != 2:
            return None
        numbers = np.arange(len(data), dtype=np.float32)
        size, block_bytes = gguf.GGML_QUANT_SIZES[self.file.tensors[source].tensor_type]
        inputs = data.shape[1] // block_bytes * size
        translated = self.translator.translated(source, np.broadcast_to(numbers[:, None], (len(data), inputs)))
        order = translated[:, 0].astype(np.int64)
        if translated.shape != (len(data), inputs) or not np.array_equal(np.sort(order), numbers):
            return None
        return lambda: data if np.array_equal(order, numbers) else data[order]

    def shape(self, name: str) -> None:
        """Unknown until the tensor is read, because its layout may change."""

    def read(self, name: str) -> Tensor:
        """One tensor in float32."""
        made: dict[str, dict[str, Tensor]] = {"tensors": {}}
        for source in self.sources[name]:
            values = self.file.read(source)
            mapping = self.translator.mapping
            found = self.translator.processor.process(values, source, tensor_key_mapping=mapping, parsed_parameters=made)
            if found.name is not None:  # else it was put into `made`
                made["tensors"][name] = torch.from_numpy(np.ascontiguousarray(found.weights))
        return made["tensors"][name]


def read_gguf_config(file: GGUFFile) -> tuple[PretrainedConfig, dict[str, Any]]:
    """The model's config, and the settings that it was made from."""
    load = cast("Callable[..., dict[str, Any]]", translation.load_gguf_checkpoint)
    architecture = str(file.metadata.get("general.architecture", "no architecture"))
    given = {key: value for key, value in file.metadata.items() if key.startswith(f"{architecture}.")}
    check_sizes(given, tensors=len(file.tensors), where=file.paths[0])
    with failing_as(f"transformers cannot read {file.paths[0]} ({architecture})", f"; {INSTEAD}"):
        settings: dict[str, Any] = load(str(file.paths[0]), return_tensors=False)["config"]
        settings.pop("rope_scaling", None)  # which it misreads
        if OUTPUT_LAYER in file.tensors:  # perhaps in a later part, into which transformers does not look
            settings["tie_word_embeddings"] = False
        if ROTARY_FACTORS in file.tensors:
            settings["rope_parameters"] = rotation(file.read(ROTARY_FACTORS).tolist(), settings)
        return make_config(file, settings), settings


def rotation(factors: list[float], settings: dict[str, Any]) -> dict[str, Any]:
    """Rotary settings with a factor for each frequency, as transformers has them for LongRoPE: the same in texts of any length."""
    return {
        "rope_type": "longrope",
        "rope_theta": settings["rope_theta"],
        "short_factor": factors,
        "long_factor": factors,
        "factor": 1.0,
        "attention_factor": 1.0,
        "original_max_position_embeddings": settings["max_position_embeddings"],
    }


def open_gguf(
    path: Path, folder: Path, *, has_tokenizer: bool, adapter: Adapter | None = None
) -> tuple[PreTrainedModel, StreamedWeights]:
    """The model skeleton of a GGUF file and its weights; its settings are written to `folder` as a checkpoint has them.

    has_tokenizer: the caller has one, so the file's is not read. Raises `ExportError` for what cannot be opened.
    """
    logging.getLogger("gguf.gguf_reader").setLevel(logging.ERROR)
    file = GGUFFile(path)
    with read_once(file):
        config, settings = read_gguf_config(file)
        model = make_skeleton(config, path)
        with failing_as(f"{path} cannot be opened", f"; {INSTEAD}"):
            tensors = GGUFTensors(file, model, settings)
        weights = stream(model, Plan(model, tensors), tensors.stored, adapter)
        write_config(config, file.metadata, folder)
        if not has_tokenizer:
            write_tokenizer(file.paths[0], file.metadata, folder)
    return model, weights


@contextlib.contextmanager
def read_once(file: GGUFFile) -> Iterator[None]:
    """Within the context, transformers gets the file's reader instead of opening it again, and one table of names for all modules.

    It asks `gguf` for both whenever it needs one: with the vocabulary of Qwen 2.5, a minute for each file.
    """
    reader, table = gguf.GGUFReader, gguf.get_tensor_name_map

    def known_reader(path: str) -> gguf.GGUFReader:
        return file.first_reader if Path(path) == file.paths[0] else reader(path)

    vars(gguf).update(GGUFReader=known_reader, get_tensor_name_map=functools.cache(table))
    try:
        yield
    finally:
        vars(gguf).update(GGUFReader=reader, get_tensor_name_map=table)


def write_config(config: PretrainedConfig, metadata: Mapping[str, Any], folder: Path) -> None:
    """Write the config, in which tokens that end a turn or a message end the text too, and the makers' settings of generation."""
    ends = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
    config.eos_token_id = sorted({*as_ids(ends), *(each for key in ENDS for each in as_ids(metadata.get(key)))}) or None
    config.save_pretrained(folder)
    sampling = {key.removeprefix(SAMPLING): value for key, value in metadata.items() if key.startswith(SAMPLING)}
    if sampling:
        settings = {"do_sample": True, "top_k": 0} | {SAMPLING_NAMES.get(name, name): value for name, value in sampling.items()}
        (folder / GENERATION_CONFIG).write_text(json.dumps(settings), encoding="utf-8")
