"""Encoder-decoders that optimum exported open unchanged, in both of its forms, and compute what transformers computes."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import onnx_textgen
from onnx_textgen.cli import run
from onnx_textgen.encoders.encoder import StatesEncoder
from onnx_textgen.errors import PackageError, PromptError
from onnx_textgen.package.foreign_encoder_decoder import as_decoder, encoder_record
from onnx_textgen.package.manifest import Geometry

FOLDER = Path(__file__).parents[2] / "packages" / "optimum-seq2seq"
EXPECTED = json.loads((FOLDER / "expected.json").read_text(encoding="utf-8"))
EOS = 1
LEFT_OUT = {"merged": ("decoder_model.onnx", "decoder_with_past_model.onnx"), "pair": ("decoder_model_merged.onnx",)}
"""The graphs that a folder of each form does not have."""


def folder_of(form: str, root: Path) -> Path:
    """The folder with the graphs of one form only."""
    folder = Path(shutil.copytree(FOLDER, root / form))
    for name in LEFT_OUT[form]:
        (folder / name).unlink()
    return folder


@pytest.fixture(scope="module", params=LEFT_OUT)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> onnx_textgen.Model:
    """The package in one of the two forms."""
    return onnx_textgen.load(folder_of(request.param, tmp_path_factory.mktemp("forms")), threads=1, device="cpu", batch_size=3)


def until_the_end(ids: list[int]) -> tuple[int, ...]:
    """The ids before the end token, which transformers returns too."""
    return tuple(ids[: ids.index(EOS)] if EOS in ids else ids)


def test_greedy_texts_of_ragged_sources_are_those_of_transformers_together_and_alone(model: onnx_textgen.Model) -> None:
    wanted = [until_the_end(one["greedy"]) for one in EXPECTED]
    assert len({len(one["source"]) for one in EXPECTED}) == 5
    assert max(map(len, wanted)) == 24
    sources = [one["source"] for one in EXPECTED]
    together = model.generate(sources, max_new_tokens=24, temperature=0)
    alone = [model.generate([source], max_new_tokens=24, temperature=0)[0] for source in sources]
    assert [each.token_ids for each in together] == [each.token_ids for each in alone] == wanted
    assert {each.finish_reason for each in together} == {"eos", "length"}
    assert {each.prompt_ids for each in together} == {(0,)}


def test_four_beams_find_the_texts_of_transformers(model: onnx_textgen.Model) -> None:
    for one in EXPECTED:
        found = model.generate([one["source"]], max_new_tokens=16, num_beams=4)[0]
        assert found.token_ids == until_the_end(one["beams"])


def test_log_probabilities_are_those_of_transformers(model: onnx_textgen.Model) -> None:
    for one in EXPECTED:
        np.testing.assert_allclose(model.score(one["greedy"], source=one["source"]).logprobs, one["logprobs"], atol=1e-4)


def test_settings_and_tokenizer_come_along(model: onnx_textgen.Model) -> None:
    about, sizes = model.manifest, model.manifest.geometry
    assert about.encoder is not None
    assert (about.encoder.source_length, about.encoder.start_ids, about.eos_ids, about.pad_id) == (128, (0,), (EOS,), 0)
    assert (sizes.layers, sizes.heads, sizes.kv_heads, sizes.head_size, sizes.hidden_size) == (1, 2, 2, 8, 16)
    found = model.generate("w1 w2 w3", max_new_tokens=4, temperature=0)
    assert found.source_ids == (4, 5, 6, EOS)
    assert found.text == model.tokenizer.decode(found.token_ids)
    with pytest.raises(PromptError, match="the source has 200 tokens; this model reads 128"):
        model.generate([[5] * 200])
    streamed = list(model.stream("w1 w2 w3", max_new_tokens=4, temperature=0))
    assert "".join(chunk.text for chunk in streamed) == found.text


def test_a_text_is_computed_over_its_cache_a_token_at_a_time(model: onnx_textgen.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    fed, encoder = [], model.generator.opened.encoder
    assert isinstance(encoder, StatesEncoder)
    context, source = model.new_context(), EXPECTED[2]["source"]
    context.read_source(source)
    run_once = context.runner.run

    def noting(cache, ids, *rest, **more):  # type: ignore[no-untyped-def]
        fed.append((cache.lengths[0], ids.shape[1]))
        return run_once(cache, ids, *rest, **more)

    monkeypatch.setattr(context.runner, "run", noting)
    found, text = int(context.feed([0])[-1].argmax()), []
    while len(text) < 12:
        text.append(found)
        found = int(context.feed([found])[-1].argmax())
    assert text == EXPECTED[2]["greedy"][:12]
    assert fed == [(length, 1) for length in range(13)]


def test_the_path_of_a_decoder_chooses_the_form(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(FOLDER, tmp_path / "all"))
    (folder / "onnx").mkdir()
    for path in folder.glob("*.onnx"):
        path.rename(folder / "onnx" / path.name.replace(".onnx", "_q4.onnx"))
    for place, graph in (
        (folder, "decoder_model_merged_q4.onnx"),
        (folder / "onnx" / "decoder_model_merged_q4.onnx", "decoder_model_merged_q4.onnx"),
        (folder / "onnx" / "decoder_with_past_model_q4.onnx", "decoder_with_past_model_q4.onnx"),
    ):
        model = onnx_textgen.load(place, threads=1, device="cpu")
        assert f"onnx/{graph}" in model.manifest.files
        assert "onnx/encoder_model_q4.onnx" in model.manifest.files
        found = model.generate([EXPECTED[2]["source"]], max_new_tokens=24, temperature=0)[0]
        assert found.token_ids == until_the_end(EXPECTED[2]["greedy"])


@pytest.mark.parametrize(
    ("form", "missing", "words"),
    [
        ("pair", "decoder*.onnx", "is no decoder with its encoder: the folder has encoder_model.onnx; it needs"),
        ("pair", "decoder_model.onnx", "is no decoder with its encoder"),
        ("pair", "encoder_model.onnx", "and no encoder; export it again .* or add its encoder_model.onnx"),
        ("merged", "encoder_model.onnx", "takes what an encoder gives, and .* has no encoder_model.onnx"),
    ],
)
def test_half_of_a_model_is_refused_in_one_line(form: str, missing: str, words: str, tmp_path: Path) -> None:
    folder = folder_of(form, tmp_path)
    for path in folder.glob(missing):
        path.unlink()
    with pytest.raises(PackageError, match=words) as refused:
        onnx_textgen.load(folder, device="cpu")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["encoder_model.onnx", "decoder_model.onnx"])
def test_a_graph_that_decodes_nothing_alone_is_refused(name: str) -> None:
    with pytest.raises(PackageError, match="no decoder with its encoder"):
        onnx_textgen.load(FOLDER / name, device="cpu")


def test_another_graph_of_such_a_folder_opens_by_its_path(tmp_path: Path) -> None:
    folder, decoder = folder_of("merged", tmp_path), FOLDER.parent / "optimum"
    shutil.copy(decoder / "model.onnx", folder)
    shutil.copy(decoder / "config.json", folder)
    model, other = (onnx_textgen.load(place, threads=1, device="cpu") for place in (folder / "model.onnx", decoder))
    assert model.manifest.encoder is None
    options = {"max_new_tokens": 5, "temperature": 0}
    assert model.generate([[5, 6]], **options)[0].token_ids == other.generate([[5, 6]], **options)[0].token_ids


def test_an_encoder_of_sounds_or_pictures_is_refused(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    folder = folder_of("merged", tmp_path)
    graph = onnx.load(folder / "encoder_model.onnx")
    graph.graph.input.append(onnx.helper.make_tensor_value_info("input_features", onnx.TensorProto.FLOAT, ["batch", 80, 3000]))
    onnx.save(graph, folder / "encoder_model.onnx")
    with pytest.raises(PackageError, match="the encoder takes input_features; only encoders that read token ids"):
        onnx_textgen.load(folder, device="cpu")


def test_settings_say_how_a_text_begins() -> None:
    sizes, here = Geometry(1, 2, 2, 8, 16, 64, 128), Path("folder")
    assert encoder_record({"decoder_start_token_id": 2, "forced_bos_token_id": 5}, sizes, here).start_ids == (2, 5)
    assert encoder_record({"bos_token_id": 3}, sizes, here).start_ids == (3,)
    assert encoder_record({"bos_token_id": 3, "decoder_start_token_id": None}, sizes, here).start_ids == (3,)
    assert encoder_record({"bos_token_id": 3, "max_encoder_position_embeddings": 99}, sizes, here).source_length == 99
    for wrong in ({}, {"decoder_start_token_id": 64}, {"decoder_start_token_id": "a"}):
        with pytest.raises(PackageError, match="name no decoder_start_token_id"):
            encoder_record(wrong, sizes, here)


def test_sizes_are_those_of_the_decoder() -> None:
    bart = as_decoder({"num_hidden_layers": 12, "decoder_layers": 6, "num_attention_heads": 16, "decoder_attention_heads": 8})
    assert (bart["num_hidden_layers"], bart["num_attention_heads"]) == (6, 8)
    pair = as_decoder({"decoder": {"vocab_size": 7, "num_hidden_layers": 3}, "model_type": "encoder-decoder"})
    assert (pair["num_hidden_layers"], pair["vocab_size"], pair["model_type"]) == (3, 7, "encoder-decoder")


def test_the_command_line_describes_lists_and_writes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["info", str(FOLDER)]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "a source of up to 128 tokens" in told
    assert "settings from config.json" in told
    assert run(["list", str(FOLDER)]) == 0
    assert "encoder-decoder" in capsys.readouterr().out
    assert run(["generate", "w1 w2 w3", "--model", str(FOLDER), "--temperature", "0", "--max-new-tokens", "4"]) == 0
    assert len(capsys.readouterr().out.split()) >= 4
    assert run(["verify", str(FOLDER)]) == 1
    assert "no hashes and no golden runs" in capsys.readouterr().err
