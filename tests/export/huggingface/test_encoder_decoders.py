"""Encoder-decoders of transformers: traced with their own code, proven, and equal to transformers' own generation."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tests.support.costs import by_cost
from tests.support.encoder_decoder_types import first_difference, generated, sources
from tests.support.make_tiny_packages import make_tokenizer
from tests.support.tiny_encoder_decoders import CONTEXT, END, START, tiny_encoder_decoder

import onnx_textgen
from onnx_textgen.options.maker_settings import read_maker_settings
from onnx_textgen_export import ExportError, export
from onnx_textgen_export.huggingface.encoder_decoder_source import source_from_encoder_decoder

QUICK = ("t5",)
SLOW = ("bart", "m2m_100", "encoder-decoder", "marian", "t5gemma2")
RARE = ("fsmt", "longt5", "pegasus_x", "t5gemma")
"""One of each kind of positions, attention and cache; `tests/support/encoder_decoder_types.py` tries every type."""
MAKERS: tuple[dict[str, Any], ...] = (
    {"num_beams": 4, "no_repeat_ngram_size": 3, "length_penalty": 2.0, "min_length": 5, "max_length": 20},
    {"min_length": 12, "max_length": 16, "repetition_penalty": 1.3, "temperature": 0.6},
    {"suppress_tokens": [5, 6, 7], "bad_words_ids": [[9, 10]], "max_length": 12},
)
"""What makers write into generation_config.json."""
REFUSED = {
    "led": "computed values",
    "nllb-moe": "cannot be traced",
    "prophetnet": "over a cache its logits differ",
    "switch_transformers": "cannot be traced",
}
"""Types that cannot be exported, and why."""


@pytest.mark.parametrize("model_type", by_cost(QUICK, SLOW, RARE))
def test_texts_are_those_of_transformers_greedy_and_by_beams(model_type: str, tmp_path: Path) -> None:
    model = tiny_encoder_decoder(model_type)
    # With maps, as the tests of these export most types too: one trace for both.
    made = export(model, tmp_path / "package", eos_ids=(END,), context_length=CONTEXT // 2, attention_maps=True)
    assert made.manifest.certificate["largest_logits_error"] < 1e-4
    assert made.manifest.certificate["encoder_states_error"] < 1e-5
    assert made.manifest.encoder is not None
    assert made.manifest.encoder.start_ids == (START,)
    package = onnx_textgen.load(made.folder)
    assert first_difference(model, package) == ""
    for settings in MAKERS:
        written = read_maker_settings({"eos_token_id": END, **settings}, start_count=1)
        object.__setattr__(package.manifest, "generation", written.options)
        config = transformers.GenerationConfig(eos_token_id=END, pad_token_id=0, decoder_start_token_id=START, **settings)
        with torch.no_grad():
            ids = model.generate(torch.tensor([sources(9)[0]]), generation_config=config)[0].tolist()
        assert (written.left_out, [START, *package.generate(sources(9)[0]).token_ids]) == ({}, [i for i in ids if i != END])
    text = package.generate(sources(9)[0], max_new_tokens=2)
    assert (text.source_ids, text.prompt_ids) == (tuple(sources(9)[0]), (START,))


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


@pytest.mark.parametrize("precision", by_cost([], ["int8", "int4", "fp16"]))
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
    return sum(path.stat().st_size for path in (folder / "onnx").glob("*_data*"))


@pytest.mark.slow
def test_a_checkpoint_folder_is_read_one_tensor_at_a_time_and_its_settings_begin_the_texts(tmp_path: Path) -> None:
    model = tiny_encoder_decoder("bart", max_position_embeddings=1500)  # a table that is left on disk until it is read
    model.generation_config.forced_bos_token_id = 7
    model.save_pretrained(tmp_path / "checkpoint")
    made = export(tmp_path / "checkpoint", tmp_path / "package", eos_ids=(END,))
    assert made.manifest.encoder is not None
    assert made.manifest.encoder.start_ids == (START, 7)
    text = onnx_textgen.load(made.folder).generate(sources(9)[0], max_new_tokens=8, temperature=0)
    assert [7, *text.token_ids] == generated(model, sources(9)[0])[:9]
    assert weights_bytes(made.folder) < 1.02 * 4 * sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.slow
def test_ids_that_the_settings_exclude_are_in_no_text(tmp_path: Path) -> None:
    model, read = tiny_encoder_decoder("marian"), sources(9)[0]
    often = max(set(found := generated(model, read)), key=found.count)
    model.generation_config.bad_words_ids = [[often], [5, 6]]
    made = export(model, tmp_path / "package", eos_ids=(END,), context_length=CONTEXT // 2)
    assert made.manifest.encoder is not None
    assert made.manifest.encoder.suppressed_ids == (often,)
    package = onnx_textgen.load(made.folder)
    for beams in (1, 4):
        text = package.generate(read, max_new_tokens=24, **({"num_beams": beams} if beams > 1 else {"temperature": 0}))
        assert list(text.token_ids) == generated(model, read, num_beams=beams)
        assert often not in text.token_ids


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


@pytest.mark.parametrize("option", [{"int8_cache": True}, {"hidden_states": True}])
def test_options_of_decoders_are_refused(option: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="is for decoders"):
        export(tiny_encoder_decoder("t5"), tmp_path / "package", eos_ids=(END,), precision="int8", **option)
