"""Folders of other exporters open with nothing to edit and compute what they should; others are refused in one line."""

import dataclasses
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")

import onnx
import onnxruntime

import onnx_textgen
from onnx_textgen.cli import run
from onnx_textgen.errors import PackageError
from support.cache_graphs import CONTEXT, VOCAB_SIZE, Attention, Builder, Recurrent, Tiny
from support.dialects import DIALECTS

GROWING = Tiny((Attention(0), Attention(1)))
SHARED = Tiny((Attention(0, shared=True), Attention(1, shared=True)))
PROMPTS = [[5, 9, 1, 0, 28], [3], [7, 11, 2, 4, 8, 19, 19, 6, 21, 13, 2]]


def write(folder: Path, model: Any, name: str = "model.onnx", **files: dict[str, Any]) -> Path:
    """A folder with one graph and JSON files."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    model.producer_name = "another exporter"
    onnx.save(model, path)
    for file, value in files.items():
        (folder / f"{file}.json").write_text(json.dumps(value))
    return folder


CONFIG = {
    "num_attention_heads": 2,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "vocab_size": VOCAB_SIZE,
    "max_position_embeddings": CONTEXT,
}


def optimum(folder: Path, tiny: Tiny, dialect: str, name: str = "model.onnx") -> Path:
    """A folder as optimum writes it."""
    model = Builder(tiny).model()
    DIALECTS[dialect](model)
    return write(folder, model, name, config=CONFIG, generation_config={"eos_token_id": [25, 26], "bos_token_id": 1})


def genai(folder: Path, tiny: Tiny, dialect: str, *, shares: bool = False, **decoder: object) -> Path:
    """A folder as onnxruntime-genai's builder writes it; the lengths of a shared cache have two names."""
    model = Builder(tiny).model()
    for values, length in ((model.graph.input, "past_sequence_length"), (model.graph.output, "total_sequence_length")):
        for value in values:
            for dim in value.type.tensor_type.shape.dim:
                if dim.dim_param == "cache_length":
                    dim.dim_param = length
    DIALECTS[dialect](model)
    renamed = dialect == "other names"
    past, present = ("cache_in", "cache_out") if renamed else ("past_key_values", "present")
    inputs = (
        {"input_ids": "ids", "attention_mask": "mask"}
        if renamed
        else {"input_ids": "input_ids", "attention_mask": "attention_mask"}
    )
    described = {
        "filename": "model.onnx",
        "head_size": 8,
        "hidden_size": 16,
        "inputs": inputs | {f"past_{kind}_names": f"{past}.%d.{kind}" for kind in ("key", "value")},
        "outputs": {"logits": "scores" if renamed else "logits"}
        | {f"present_{k}_names": f"{present}.%d.{k}" for k in ("key", "value")},
        "num_attention_heads": 2,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
    } | decoder
    if dialect == "stacked":
        described |= {"inputs": inputs | {"past_names": "past_%d"}, "outputs": {"logits": "logits", "present_names": "present_%d"}}
    model_settings = {
        "type": "llama",
        "context_length": CONTEXT,
        "vocab_size": VOCAB_SIZE,
        "eos_token_id": 26,
        "decoder": described,
    }
    search = {"do_sample": False, "top_k": 50, "past_present_share_buffer": shares}
    return write(folder, model, genai_config={"model": model_settings, "search": search})


def folders(root: Path) -> Iterator[tuple[Tiny, Path]]:
    """Every dialect as each exporter would leave it, where it would."""
    for dialect in DIALECTS:
        if dialect != "other names":
            yield GROWING, optimum(root / f"optimum {dialect}", GROWING, dialect)
        yield GROWING, genai(root / f"genai {dialect}", GROWING, dialect)
        if dialect not in ("stacked", "merged"):
            yield SHARED, genai(root / f"shared {dialect}", SHARED, dialect, shares=True)


def test_every_dialect_computes_what_numpy_computes(tmp_path: Path) -> None:
    seen = 0
    for tiny, folder in folders(tmp_path):
        model = onnx_textgen.load(folder, threads=1, device="cpu")
        kinds = {tensor.kind for tensor in model.graph.cache_tensors}
        assert kinds == {"shared" if tiny is SHARED else "growing"}, folder
        one = model.new_context()
        want = tiny.logits(PROMPTS[2])
        got = np.concatenate([one.feed(PROMPTS[2][a:b], every_position=True) for a, b in ((0, 4), (4, 5), (5, 11))])
        np.testing.assert_allclose(got, want, atol=2e-5 * np.abs(want).max(), err_msg=str(folder))
        found = model.generate(PROMPTS, max_new_tokens=9, temperature=0)
        assert [list(each.token_ids) for each in found] == [tiny.greedy(prompt, 9) for prompt in PROMPTS], folder
        assert model.manifest.eos_ids == ((25, 26) if "optimum" in folder.name else (26,))
        assert (model.manifest.geometry.context_length, model.manifest.geometry.vocab_size) == (CONTEXT, VOCAB_SIZE)
        seen += 1
    assert seen == 21


def test_a_folder_that_optimum_made_gives_the_tokens_and_scores_of_transformers() -> None:
    folder = Path(__file__).parents[2] / "packages" / "optimum"
    model = onnx_textgen.load(folder, threads=1, device="cpu")
    expected = json.loads((folder / "expected.json").read_text())
    prompts = [one["prompt"] for one in expected]
    together = model.generate(prompts, max_new_tokens=40, temperature=0)
    for one, found in zip(expected, together, strict=True):
        want = tuple(one["greedy"])
        assert found.token_ids == (want[: want.index(2)] if 2 in want else want)
        if len(one["prompt"]) > 1:
            np.testing.assert_allclose(model.score(one["prompt"]).logprobs, one["logprobs"], atol=1e-4)
    assert (model.manifest.bos_id, model.manifest.eos_ids, model.manifest.geometry.context_length) == (1, (2,), 256)


def test_a_folder_without_settings_is_read_by_its_graph_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = onnx_textgen.load(write(tmp_path / "bare", Builder(GROWING).model()), threads=1, device="cpu")
    assert model.generate(PROMPTS[0], max_new_tokens=5, temperature=0).token_ids == tuple(GROWING.greedy(PROMPTS[0], 5))
    assert "no settings give the context length; using 2048 tokens" in caplog.text
    sizes = model.manifest.geometry
    assert (sizes.layers, sizes.kv_heads, sizes.head_size, sizes.vocab_size) == (2, 2, 8, VOCAB_SIZE)


def test_states_and_defaults_come_along(tmp_path: Path) -> None:
    tiny = Tiny((Recurrent(0, 0.7), Attention(1)), one_by_one=True)
    settings = {"eos_token_id": 500, "do_sample": True, "temperature": 0.3, "top_k": 7, "repetition_penalty": 1.2}
    folder = write(tmp_path / "mixed", Builder(tiny).model(), config=CONFIG, generation_config=settings)
    model = onnx_textgen.load(folder, threads=1, device="cpu")
    assert model.generate(PROMPTS[0], max_new_tokens=9, temperature=0, repetition_penalty=1).token_ids == tuple(
        tiny.greedy(PROMPTS[0], 9)
    )
    assert model.manifest.eos_ids == (), "an id outside the vocabulary ends nothing"
    assert model.manifest.generation == {"temperature": 0.3, "top_k": 7, "repetition_penalty": 1.2}


def test_the_makers_search_is_that_of_whole_texts_and_gives_way_to_what_excludes_it(tmp_path: Path) -> None:
    settings = {"num_beams": 3, "length_penalty": 2.0, "min_new_tokens": 4, "no_repeat_ngram_size": 2}
    folder = write(tmp_path / "beams", Builder(GROWING).model(), config=CONFIG, generation_config=settings)
    model = onnx_textgen.load(folder, threads=1, device="cpu")
    asked = {"num_beams": 3, "length_penalty": 2.0, "max_new_tokens": 9}
    assert model.manifest.generation == {"temperature": 0, **settings}
    found, want = model.generate(PROMPTS[0], max_new_tokens=9), model.generate(PROMPTS[0], **asked)
    assert (found.token_ids, found.score, found.config.num_beams) == (want.token_ids, want.score, 3)
    streamed = tuple(token_id for chunk in model.stream(PROMPTS[0], max_new_tokens=9) for token_id in chunk.token_ids)
    greedy = model.generate(PROMPTS[0], max_new_tokens=9, temperature=0)
    assert (greedy.config.num_beams, greedy.token_ids) == (1, streamed)
    assert model.generate(PROMPTS[0], max_new_tokens=2, top_p=0.5, temperature=1).config.min_new_tokens == 2


def test_one_of_several_graphs_is_chosen_by_its_name_or_by_the_caller(tmp_path: Path) -> None:
    folder = optimum(tmp_path / "community", GROWING, "as it is", "onnx/model_q4.onnx")
    other = Tiny((Attention(4), Attention(5)))
    for name in ("model_zzz", "model_fp16"):
        optimum(folder, other, "as it is", f"onnx/{name}.onnx")
    want = {tiny: tuple(tiny.greedy(PROMPTS[0], 5)) for tiny in (GROWING, other)}
    assert want[GROWING] != want[other]
    for place, tiny in (
        (folder, GROWING),
        (folder / "onnx" / "model_zzz.onnx", other),
        (folder / "onnx" / "model_q4.onnx", GROWING),
    ):
        model = onnx_textgen.load(place, threads=1, device="cpu")
        assert model.generate(PROMPTS[0], max_new_tokens=5, temperature=0).token_ids == want[tiny]
        assert model.folder == folder
    (folder / "onnx" / "model_q4.onnx").unlink()
    (folder / "onnx" / "model_fp16.onnx").rename(folder / "onnx" / "mine.onnx")
    with pytest.raises(
        PackageError, match=r"2 graphs, none with a usual name; give the path of one: onnx/mine.onnx, onnx/model_zzz.onnx"
    ):
        onnx_textgen.load(folder)


def test_text_and_chat_template_are_taken_from_the_folder(exact: onnx_textgen.Model, tmp_path: Path) -> None:
    """The package's own graph, as a folder without a manifest: tokenizer.json and the template of tokenizer_config.json."""
    folder = tmp_path / "foreign"
    folder.mkdir()
    for name in ("model.onnx.data", "tokenizer.json"):
        shutil.copy(exact.folder / name, folder)
    graph = onnx.load(exact.folder / "model.onnx", load_external_data=False)
    graph.producer_name = "another"
    onnx.save(graph, folder / "model.onnx")
    sizes = exact.manifest.geometry
    config = {
        "vocab_size": sizes.vocab_size,
        "max_position_embeddings": sizes.context_length,
        "eos_token_id": exact.manifest.eos_ids,
    }
    (folder / "config.json").write_text(json.dumps(config | {"bos_token_id": exact.manifest.bos_id}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages[0].content }}"}))
    model = onnx_textgen.load(folder, threads=1, device="cpu")
    assert model.chat_template == "{{ messages[0].content }}"
    assert (model.manifest.bos_id, model.manifest.eos_ids) == (exact.manifest.bos_id, exact.manifest.eos_ids)
    options = {"max_new_tokens": 12, "seed": 3}
    assert [each.text for each in model.generate(PROMPTS, **options)] == [each.text for each in exact.generate(PROMPTS, **options)]


def lacking(folder: Path, **changes: object) -> Path:
    """genai's folder with other settings of the decoder."""
    path = genai(folder, GROWING, "as it is") / "genai_config.json"
    settings = json.loads(path.read_text())
    settings["model"]["decoder"] |= changes
    path.write_text(json.dumps(settings))
    return folder


def with_input(folder: Path, name: str) -> Path:
    model = Builder(GROWING).model()
    model.graph.input.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["batch", "tokens", 8]))
    return write(folder, model, config=CONFIG)


def without_cache(folder: Path) -> Path:
    model = Builder(GROWING).model()
    for value in [value for value in model.graph.input if value.name.startswith("past_")]:
        sizes = [1 if dim.dim_param == "batch" else dim.dim_value for dim in value.type.tensor_type.shape.dim]
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(sizes, np.float32), value.name))
        model.graph.input.remove(value)
    return write(folder, model, config=CONFIG)


def with_functions(folder: Path, levels: int = 18) -> Path:
    """Functions that call the one before four times each, so that written out they are 4 ** levels nodes."""
    model = Builder(GROWING).model()
    opsets = [onnx.helper.make_opsetid("", 18), onnx.helper.make_opsetid("own", 1)]
    for level in range(levels):
        called, domain = (f"F{level - 1}", "own") if level else ("Identity", "")
        nodes = [onnx.helper.make_node(called, [f"v{i}"], [f"v{i + 1}"], domain=domain) for i in range(4)]
        model.functions.append(onnx.helper.make_function("own", f"F{level}", ["v0"], ["v4"], nodes, opsets))
    model.graph.node.append(onnx.helper.make_node(f"F{levels - 1}", ["logits"], ["unused"], domain="own"))
    model.opset_import.append(opsets[1])
    return write(folder, model, config=CONFIG)


def test_functions_that_would_keep_the_engine_busy_without_end_are_refused_before_it_sees_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert onnx_textgen.load(optimum(tmp_path / "plain", GROWING, "as it is"), device="cpu")

    def fail(*args: object, **options: object) -> None:
        raise AssertionError("ONNX Runtime was given the graph")

    monkeypatch.setattr(onnxruntime, "InferenceSession", fail)
    folder = with_functions(tmp_path / "bomb")
    with pytest.raises(PackageError, match=r"model\.onnx defines functions"):
        onnx_textgen.load(folder, device="cpu")
    GROWING.package(tmp_path)
    (tmp_path / "model.onnx").write_bytes((folder / "model.onnx").read_bytes())
    assert run(["info", str(tmp_path)]) == 0
    assert "not known: model.onnx defines functions" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("content", [b"", b"\x80", b"\xff" * 10**6, b"\x08\x01" * 20_000, b"\x3a\x7f", b"\x0b\x0c"])
def test_files_that_are_no_graph_are_refused_at_once(content: bytes, tmp_path: Path) -> None:
    folder = optimum(tmp_path / "folder", GROWING, "as it is")
    (folder / "model.onnx").write_bytes(content)
    with pytest.raises(PackageError, match=r"model\.onnx is not a graph, or is incomplete"):
        onnx_textgen.load(folder, device="cpu")


REFUSED = {
    "geometry.head_size should be at least 1 and at most 16,777,216": lambda folder: lacking(folder, head_size=2**40),
    "names '../model.onnx' as its graph, which is not in the folder": lambda folder: lacking(folder, filename="../model.onnx"),
    "names a list as its graph, which is not in the folder": lambda folder: lacking(folder, filename=[None] * 1000),
    f"names '{'x' * 37}...' as its graph": lambda folder: lacking(folder, filename="x" * 1000),
    "it lacks the output 'xxx": lambda folder: lacking(folder, outputs={"logits": "scores", "present_key_names": "x" * 10_000}),
    "describes a pipeline of several graphs": lambda folder: lacking(folder, pipeline=[{}]),
    "needs the input 'inputs_embeds'": lambda folder: with_input(folder, "inputs_embeds"),
    "the graph has no cache": without_cache,
    "has a decoder in two graphs, or half of one": lambda folder: optimum(folder, GROWING, "as it is", "decoder_model.onnx"),
    "config.json is not valid JSON": lambda folder: (optimum(folder, GROWING, "as it is") / "config.json").write_text("{"),
    "has no manifest.json and no graph": lambda folder: folder.mkdir(),
    "needs the input 'ids'": lambda folder: without(genai(folder, GROWING, "other names") / "genai_config.json", "inputs"),
    "lacks input_ids or logits": lambda folder: without(genai(folder, GROWING, "other names") / "genai_config.json", "outputs"),
}


def without(path: Path, name: str) -> None:
    """Take the names of ids and logits out of genai's settings."""
    settings = json.loads(path.read_text())
    for role in ("input_ids", "logits"):
        settings["model"]["decoder"][name].pop(role, None)
    path.write_text(json.dumps(settings))


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_served_is_refused_in_one_line(message: str, tmp_path: Path) -> None:
    REFUSED[message](tmp_path / "folder")
    with pytest.raises(PackageError) as caught:
        onnx_textgen.load(tmp_path / "folder", device="cpu")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 1_000


BROKEN = {
    "chat_template.jinja is not UTF-8 text": lambda folder: (folder / "chat_template.jinja").write_bytes(b"\xff\xfe"),
    "is not UTF-8 text": lambda folder: (folder / "config.json").write_bytes(b"\xff"),
    "nowhere.onnx is not a folder": lambda folder: folder / "nowhere.onnx",
    "the key 'vocab_size' occurs twice": lambda folder: (folder / "config.json").write_text('{"vocab_size": 1, "vocab_size": 2}'),
    "tokenizer.json is larger than 64 MiB": lambda folder: (folder / "tokenizer.json").write_bytes(b" " * (2**26 + 1)),
    "config.json is larger than 16 MiB": lambda folder: (folder / "config.json").write_bytes(b" " * (2**24 + 1)),
    "config.json should hold a JSON object, found list": lambda folder: (folder / "config.json").write_text("[]"),
}


@pytest.mark.parametrize("message", BROKEN)
def test_files_that_cannot_be_read_are_named(message: str, tmp_path: Path) -> None:
    place = BROKEN[message](optimum(tmp_path / "folder", GROWING, "as it is"))
    with pytest.raises(PackageError) as caught:
        onnx_textgen.load(place if isinstance(place, Path) else tmp_path / "folder", device="cpu")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_settings_with_odd_entries_are_read_as_far_as_they_make_sense(exact: onnx_textgen.Model, tmp_path: Path) -> None:
    folder = optimum(tmp_path / "odd", GROWING, "as it is")
    shutil.copy(exact.folder / "tokenizer.json", folder)
    templates = [{"name": [1], "template": "odd"}, {"name": "default", "template": "mine"}, 5]
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": templates, "eos_token": "\ud800", "bos_token": 7}))
    (folder / "generation_config.json").write_text(
        json.dumps({"eos_token_id": ["</s>", 25, True], "temperature": "hot", "top_k": -1})
    )
    model = onnx_textgen.load(folder, threads=1, device="cpu")
    assert (model.chat_template, model.manifest.eos_ids, model.manifest.generation) == ("mine", (25,), {"temperature": 0})


def test_a_graph_is_the_same_model_whichever_way_its_path_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = optimum(tmp_path / "community", GROWING, "as it is", "onnx/model.onnx")
    alone = optimum(tmp_path / "onnx", GROWING, "as it is")  # everything in one folder that is called so
    monkeypatch.chdir(folder / "onnx")
    for place in ("model.onnx", "../onnx/model.onnx", ".", folder, folder / "onnx", alone, alone / "model.onnx"):
        assert onnx_textgen.load(place, threads=1, device="cpu").manifest.eos_ids == (25, 26), place


def test_weights_that_are_inputs_with_a_default_need_not_be_given(tmp_path: Path) -> None:
    graph = Builder(GROWING).model()
    for weight in graph.graph.initializer:
        graph.graph.input.append(onnx.helper.make_tensor_value_info(weight.name, weight.data_type, weight.dims))
    model = onnx_textgen.load(write(tmp_path / "folder", graph, config=CONFIG), threads=1, device="cpu")
    assert model.generate(PROMPTS[0], max_new_tokens=5, temperature=0).token_ids == tuple(GROWING.greedy(PROMPTS[0], 5))


def test_outputs_that_are_no_rows_of_numbers_are_refused(tmp_path: Path) -> None:
    graph = Builder(GROWING).model()
    graph.graph.output.append(onnx.helper.make_tensor_value_info("hidden_states", onnx.TensorProto.FLOAT, [1]))
    graph.graph.node.append(onnx.helper.make_node("Constant", [], ["hidden_states"], value_floats=[1.0]))
    model = onnx_textgen.load(write(tmp_path / "folder", graph, config=CONFIG), threads=1, device="cpu")
    with pytest.raises(PackageError, match=r"hidden states are tensor\(float\) \[1\], not float"):
        model.embed(PROMPTS[0])


def test_the_command_line_generates_describes_and_says_that_nothing_can_be_verified(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = genai(tmp_path / "theirs", SHARED, "as it is", shares=True)
    ids = ",".join(map(str, PROMPTS[0]))
    assert run(["generate", "--token-ids", ids, "--model", str(folder), "--temperature", "0", "--max-new-tokens", "4"]) == 0
    assert capsys.readouterr().out.strip() == ",".join(map(str, SHARED.greedy(PROMPTS[0], 4)))
    assert run(["info", str(folder)]) == 0
    told = capsys.readouterr().out
    assert "settings from genai_config.json" in told
    assert "256 bytes a token" in told
    assert "none; a model that onnx-textgen exports" in told
    assert run(["verify", str(folder)]) == 1
    assert "no hashes and no golden runs to check" in capsys.readouterr().err


def test_a_graph_of_our_own_folder_stands_for_the_folder(exact: onnx_textgen.Model) -> None:
    model = onnx_textgen.load(exact.folder / "model.onnx", threads=1, device="cpu")
    assert dataclasses.asdict(model.manifest) == dataclasses.asdict(exact.manifest)
