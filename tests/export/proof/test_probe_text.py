"""The ids of the proofs are those of a text or drawn, in any vocabulary, and none of them is padding."""

from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers

from onnx_textgen_export import ExportError
from onnx_textgen_export.proof.probe_text import probe_ids
from onnx_textgen_export.sources.source import Source
from onnx_textgen_export.tracing.opening import as_source, open_source
from support.tiny_encoder_decoders import tiny_encoder_decoder

CHARACTERS = Path(__file__).parents[2] / "packages" / "ort" / "tokenizer.json"
"""Each character is a token, also the one whose id is padding in M2M100."""


@pytest.fixture(scope="module")
def source() -> Source:
    with as_source(open_source(tiny_encoder_decoder("m2m_100")), None) as made:
        return made


@pytest.mark.parametrize("has_text", [True, False])
def test_no_id_is_padding(source: Source, *, has_text: bool) -> None:
    tokenizer = tokenizers.Tokenizer.from_file(str(CHARACTERS)) if has_text else None
    ids = probe_ids(source, tokenizer)
    assert source.padding_id is not None
    assert source.padding_id not in ids
    assert min(ids) >= 0 and max(ids) < source.geometry.vocab_size


def test_a_tokenizer_of_another_model_is_refused(source: Source) -> None:
    words = {f"w{number}": number for number in range(10_000)} | {"[UNK]": 10_000}
    with pytest.raises(ExportError, match="they do not belong together"):
        probe_ids(source, tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]")))
