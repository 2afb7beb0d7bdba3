"""Recognises another exporter's encoder-decoder, as optimum and onnx-community lay it out: its graphs, and what its settings say.

Such a folder has `encoder_model.onnx`, which returns hidden states, and a decoder: `decoder_model_merged.onnx`, or a pair of
`decoder_model.onnx` for the first tokens and `decoder_with_past_model.onnx` for all others.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..errors import PackageError
from .hf_settings import start_ids, suppressed_ids, without_nulls
from .manifest import EncoderRecord, Geometry

ENCODER, MERGED, FIRST, LATER = "encoder_model", "decoder_model_merged", "decoder_model", "decoder_with_past_model"
"""Stems of the graphs' names."""
DECODER_ENTRIES = {
    "num_hidden_layers": ("decoder_layers", "num_decoder_layers"),
    "num_attention_heads": ("decoder_attention_heads", "num_heads"),
    "head_dim": ("d_kv",),
}
"""Names of a decoder's sizes in the settings of an encoder-decoder, by the names that decoders have for them."""


@dataclasses.dataclass(frozen=True, slots=True)
class Halves:
    """The graphs of an encoder-decoder."""

    encoder: Path
    decoder: Path
    """Takes keys and values of earlier tokens."""
    first: Path
    """Computes keys and values of the cross-attention, from hidden states: `decoder` itself if that has a branch for it."""

    @property
    def graphs(self) -> tuple[Path, ...]:
        """All of them, each once."""
        return tuple(dict.fromkeys((self.encoder, self.decoder, self.first)))


def is_encoder(name: str) -> bool:
    """Return whether a graph of this name is an encoder, which has its decoder next to it.

    >>> is_encoder("encoder_model_q4.onnx"), is_encoder("model_q4.onnx")
    (True, False)
    """
    return name.startswith(ENCODER)


def names_of_halves(names: Iterable[str], variants: Iterable[str], wanted: str | None = None) -> tuple[str, str, str] | None:
    """Choose the names of encoder, decoder and first decoder among a folder's graphs, all of one variant; None if there are none.

    `wanted`: the decoder's name, if the caller names it.

    >>> names_of_halves(["encoder_model.onnx", "decoder_model.onnx", "decoder_with_past_model.onnx"], [""])
    ('encoder_model.onnx', 'decoder_with_past_model.onnx', 'decoder_model.onnx')
    """
    found = set(names)
    if wanted is not None:
        variants = [wanted.removesuffix(".onnx").removeprefix(stem) for stem in (MERGED, LATER) if wanted.startswith(stem)]
    for variant in variants:
        encoder, merged, first, later = (f"{stem}{variant}.onnx" for stem in (ENCODER, MERGED, FIRST, LATER))
        for decoder, without_past in ((merged, merged), (later, first)):
            if {encoder, decoder, without_past} <= found and wanted in (None, decoder):
                return encoder, decoder, without_past
    return None


def choose_halves(place: Path, graphs: Iterable[Path], variants: Iterable[str]) -> Halves | None:
    """Choose the graphs of the encoder-decoder at `place`, a folder or a decoder's graph; None if no graph is an encoder.

    Raises `PackageError` if there is an encoder, and no decoder that belongs to it.
    """
    by_name = {path.name: path for path in graphs}
    is_graph = place.suffix == ".onnx"
    if not any(map(is_encoder, by_name)) or (is_graph and not place.name.startswith((ENCODER, FIRST, LATER))):
        return None
    names = names_of_halves(by_name, variants, place.name if is_graph else None)
    if names is None:
        raise PackageError(
            f"{place} is no decoder with its encoder: the folder has {', '.join(sorted(by_name)):.300}; it needs {ENCODER}.onnx "
            f"with {MERGED}.onnx, or with {FIRST}.onnx and {LATER}.onnx. Export it as text2text-generation-with-past"
        )
    return Halves(*(by_name[name] for name in names))


def as_decoder(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of an encoder-decoder with the sizes of its decoder under the names that decoders have for them.

    >>> as_decoder({"num_hidden_layers": 6, "decoder_layers": 2})["num_hidden_layers"]
    2
    """
    part = config.get("decoder")
    found = {**(part if isinstance(part, dict) else {}), **config}
    for name, others in DECODER_ENTRIES.items():
        found |= next(({name: found[other]} for other in others if other in found), {})
    return found


def encoder_record(settings: Mapping[str, Any], geometry: Geometry, where: Path) -> EncoderRecord:
    """Return the encoder-decoder settings: what it reads, and how its texts begin; raises `PackageError` if they are missing.

    Without a `decoder_start_token_id` a text begins with the begin token, as in transformers.
    """
    length = settings.get("max_encoder_position_embeddings")
    begin = start_ids({"decoder_start_token_id": settings.get("bos_token_id")} | without_nulls(settings))
    if not begin or not all(0 <= token_id < geometry.vocab_size for token_id in begin):
        raise PackageError(
            f"the settings in {where} name no decoder_start_token_id, which a text begins with; add it to config.json"
        )
    return EncoderRecord(length if isinstance(length, int) else geometry.context_length, begin, suppressed_ids(settings))
