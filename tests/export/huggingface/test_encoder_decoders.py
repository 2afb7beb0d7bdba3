"""Encoder-decoders of transformers: traced with their own code, proven, and equal to transformers' own generation."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.make_tiny_packages import make_tokenizer
from tests.support.tiny_encoder_decoders import CONTEXT, END, START, TYPES, VOCABULARY, tiny_encoder_decoder

import onnx_textgen
from onnx_textgen_export import ExportError, export
from onnx_textgen_export.huggingface.encoder_decoder_source import source_from_encoder_decoder

QUICK = ("t5", "bart", "m2m_100")
REFUSED = {
    "led": "computed values",
    "nllb-moe": "computed values",
    "prophetnet": "over a cache its logits differ",
    "switch_transformers": "computed values",
}
"""Types that cannot be exported, and why."""
EVERY = [pytest.param(each, marks=() if each in QUICK else pytest.mark.slow) for each in TYPES if each not in REFUSED]


def sources(*lengths: int) -> list[list[int]]:
    """Sources of these lengths, without special ids."""
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(START + 1, VOCABULARY - 1, (length,), generator=generator).tolist() for length in lengths]


def generated(model: Any, source: list[int], **options: object) -> list[int]:
    """The ids that transformers generates for a source, without start and end."""
    with torch.no_grad():
        ids = model.generate(torch.tensor([source]), max_new_tokens=24, max_length=None, do_sample=False, **options)[0].tolist()
    return [token_id for token_id in ids[1:] if token_id != END]


@pytest.mark.parametrize("model_type", EVERY)
def test_texts_are_those_of_transformers_greedy_and_by_beams(model_type: str, tmp_path: Path) -> None:
    model = tiny_encoder_decoder(model_type)
    made = export(model, tmp_path / "package", eos_ids=(END,), context_length=CONTEXT // 2)
    assert made.manifest.certificate["largest_logits_error"] < 1e-4
    assert made.manifest.encoder is not None
    assert made.manifest.encoder.start_ids == (START,)
    package, read = onnx_textgen.load(made.folder), sources(3, 37, 20)
    together = package.generate(read, max_new_tokens=24, temperature=0)
    for source, text in zip(read, together, strict=True):
        assert list(text.token_ids) == generated(model, source)
        assert text.source_ids == tuple(source)
        assert text.prompt_ids == (START,)
    for source in read[:2]:
        for options in ({}, {"length_penalty": 2.0, "early_stopping": True}, {"no_repeat_ngram_size": 2}):
            found = package.generate(source, max_new_tokens=24, num_beams=4, **options)
            assert list(found.token_ids) == generated(model, source, num_beams=4, **options)


@pytest.mark.slow
@pytest.mark.parametrize("model_type", REFUSED)
def test_what_cannot_be_exported_is_refused_in_a_line(model_type: str, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=REFUSED[model_type]) as refused:
        export(tiny_encoder_decoder(model_type), tmp_path / "package", eos_ids=(END,), context_length=CONTEXT // 2)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "package").exists()


@pytest.mark.parametrize(("model_type", "tables"), [("bart", 1), ("marian", 1), ("t5", 0)])
def test_tables_of_positions_are_found_by_trying(model_type: str, tables: int) -> None:
    path = source_from_encoder_decoder(tiny_encoder_decoder(model_type)).call.__self__  # type: ignore[attr-defined]
    assert (len(path.tables), path.knows_padding, path.one_token) == (tables, True, False)


@pytest.mark.parametrize("precision", ["int8", "int4", "fp16"])
def test_both_halves_are_quantised_and_proven(precision: Any, tmp_path: Path) -> None:
    model = tiny_encoder_decoder("bart" if precision == "fp16" else "t5")  # T5's attention is not scaled: too large in float16
    made = export(model, tmp_path / "package", eos_ids=(END,), precision=precision)
    plain = export(model, tmp_path / "plain", eos_ids=(END,))
    assert weights_bytes(made.folder) < 0.55 * weights_bytes(plain.folder)
    if precision != "fp16":
        assert max(each["logits_error"] for each in made.manifest.certificate["same_weights"]) < 1e-4
    assert onnx_textgen.load(made.folder).generate(sources(9)[0], max_new_tokens=4).token_ids


def weights_bytes(folder: Path) -> int:
    """Bytes of a package's weights."""
    return sum(path.stat().st_size for path in (folder / "onnx").iterdir())


def test_a_tied_table_is_stored_once(tmp_path: Path) -> None:
    model = tiny_encoder_decoder("t5")
    made = export(model, tmp_path / "package", eos_ids=(END,))
    assert weights_bytes(made.folder) < 1.02 * 4 * sum(parameter.numel() for parameter in model.parameters())


def test_a_model_whose_texts_begin_with_nothing_known_is_refused(tmp_path: Path) -> None:
    model = tiny_encoder_decoder("t5")
    for each in (model.config, model.generation_config):
        each.decoder_start_token_id = each.bos_token_id = None
    with pytest.raises(ExportError, match="decoder_start_token_id"):
        export(model, tmp_path / "package", eos_ids=(END,))


def test_a_grammar_holds_for_the_text(tmp_path: Path) -> None:
    pytest.importorskip("llguidance")
    made = export(tiny_encoder_decoder("t5"), tmp_path / "package", eos_ids=(END,), tokenizer=make_tokenizer())
    text = onnx_textgen.load(made.folder).generate("anything", regex="(yes|no), [a-c]{3}", seed=1)
    assert re.fullmatch("(yes|no), [a-c]{3}", text.text)


@pytest.mark.parametrize("option", [{"attention_maps": True}, {"int8_cache": True}, {"hidden_states": True}])
def test_options_of_decoders_are_refused(option: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="is for decoders"):
        export(tiny_encoder_decoder("t5"), tmp_path / "package", eos_ids=(END,), precision="int8", **option)
