"""The settings by which transformers.js opens a package that reads sound, by its class for Whisper."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onnx_textgen.package.manifest import CONFIG, GENERATION_CONFIG, PREPROCESSOR_CONFIG, SHARED_FOLDER, TOKENIZER_CONFIG

from ..package.other_runtimes import write_json

SIZES = (
    *("decoder_layers", "decoder_attention_heads", "encoder_layers", "encoder_attention_heads"),
    *("d_model", "num_mel_bins", "max_source_positions", "max_target_positions"),
)
"""Of the config of transformers."""
OF_T5 = ("num_layers", "num_decoder_layers", "num_heads", "d_kv")
COMPUTED = frozenset({"mel_filters"})


def write_speech_settings(folder: Path, config: Any, generation: Mapping[str, Any], extractor: Mapping[str, Any]) -> None:  # noqa: ANN401 - a config of transformers
    """Change the settings of a folder with graphs for other runtimes: those of any encoder-decoder become those of a Whisper.

    `generation`, `extractor`: the makers' settings of texts and of the features. A folder without such graphs stays unchanged.
    """
    if not any((folder / SHARED_FOLDER).glob("encoder_model*.onnx")):
        return
    own = read(folder / CONFIG)
    kind = {"model_type": "whisper", "architectures": ["WhisperForConditionalGeneration"]}
    sizes = {name: getattr(config, name) for name in SIZES}
    write_json(folder / CONFIG, {name: value for name, value in own.items() if name not in OF_T5} | kind | sizes)
    write_json(folder / GENERATION_CONFIG, read(folder / GENERATION_CONFIG) | dict(generation))
    taken = {name: value for name, value in extractor.items() if name not in COMPUTED}
    classes = {"feature_extractor_type": "WhisperFeatureExtractor", "processor_class": "WhisperProcessor"}
    write_json(folder / PREPROCESSOR_CONFIG, taken | classes)
    classes = {"tokenizer_class": "WhisperTokenizer", "processor_class": "WhisperProcessor"}
    write_json(folder / TOKENIZER_CONFIG, read(folder / TOKENIZER_CONFIG) | classes)


def read(path: Path) -> dict[str, Any]:
    """The settings of a file."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found
