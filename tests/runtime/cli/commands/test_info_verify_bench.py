"""`onnx-textgen info`, `verify` and `bench`: what they say about a model folder."""

import dataclasses
import json

import numpy as np
import pytest

import onnx_textgen
from onnx_textgen.cli import run
from onnx_textgen.diagnostics import benchmark as bench
from onnx_textgen.errors import OptionError, PromptError
from onnx_textgen.package.integrity import file_record
from onnx_textgen.package.manifest import GRAPH, MANIFEST, RESPONSE_TEMPLATE, TOKENIZER, GoldenRun, manifest_to_json
from onnx_textgen.package.reading import read_manifest
from onnx_textgen.package.retrieval import EmbeddingSettings, RerankingSettings
from onnx_textgen.tasks.golden_runs import replay
from support.cli_model import CharacterModel


@pytest.fixture
def folder(tmp_path):
    """A package whose files are as its manifest says, though none of them is a model."""
    folder = tmp_path / "package"
    folder.mkdir()
    for name in (GRAPH, TOKENIZER):
        (folder / name).write_text(name, encoding="utf-8")
    write_manifest(folder, golden=(GoldenRun((97,), (98, 99)), GoldenRun((100, 101), (102,))))
    return folder


def write_manifest(folder, **changes):
    files = {path.name: file_record(path) for path in sorted(folder.iterdir()) if path.name != MANIFEST}
    scenario = {"name": "whole prompt", "tokens": 48, "logits_error": 1.4648e-06}
    certificate = {"reference": "PyTorch", "tolerance": {"logits_error": 0.1}, "untested": [], "scenarios": [scenario]}
    certificate["rounding"] = {"prose": {"tokens": 1024, "kl_mean": 0.00192, "kl_p99": 0.0074, "top1_agreement": 0.964}}
    manifest = dataclasses.replace(CharacterModel().manifest, files=files, certificate=certificate, **changes)
    (folder / MANIFEST).write_text(manifest_to_json(manifest), encoding="utf-8")


@pytest.fixture
def model(monkeypatch):
    model = CharacterModel()
    for module in (onnx_textgen, bench):
        monkeypatch.setattr(module, "load", lambda package, **options: model)
    return model


def test_info_says_what_the_manifest_says(folder, capsys):
    assert run(["info", str(folder)]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "name characters" in lines
    assert "heads 4 of size 4, 2 for keys and values" in lines
    assert any(line.startswith("cache not known") for line in lines), "the graph of this folder is none"
    assert "proof: reference PyTorch" in lines
    assert "proof: tolerance logits error 0.1" in lines
    assert "proof: rounding, prose KL 1.9e-03, its 99th percentile 7.4e-03, same top-1" in lines
    assert "compared with PyTorch" in lines
    assert "whole prompt 48 1.5e-06" in lines


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"embedding": EmbeddingSettings()}, "vectors pooling mean; length 1"),
        (
            {"embedding": EmbeddingSettings("last", False, {"query": "Q: ", "document": ""}, "query", 256, "cosine")},
            "vectors pooling last; any length; 256 dimensions; compared by cosine; prompts query (default), document",
        ),
        ({"embedding": EmbeddingSettings(refused="its pooling is max")}, "vectors not supported: its pooling is max"),
        (
            {"reranking": RerankingSettings(3, 2, prompts={"web": "A"})},
            "reranking logit of id 3 against id 2; sigmoid; prompts web",
        ),
        ({"reranking": RerankingSettings(3, activation="identity")}, "reranking logit of id 3; identity"),
        (
            {"reranking": RerankingSettings(3, refused="it has no chat template")},
            "reranking not supported: it has no chat template",
        ),
    ],
)
def test_info_says_how_a_model_embeds_and_reranks(folder, capsys, settings, line, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    (folder / MANIFEST).write_text(manifest_to_json(dataclasses.replace(read_manifest(folder), **settings)), encoding="utf-8")
    assert run(["info", str(folder)]) == 0
    assert line in [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]


SUMMARY = {"size_bytes": 5_230_000, "top1_agreement": 0.991, "kl_divergence": 0.0012, "perplexity_change": 0.008}
QUANTIZATION = {"bits": 4, "block_size": 32, "symmetric": True, "method": "rtn", "head_bits": 8}


@pytest.mark.parametrize(
    ("calls", "line"),
    [
        ({"tool_calls": {"open": "<call>", "close": "</call>", "content": "json"}}, "<call> ... </call>"),
        ({}, "not read: form not known; give --response-template FILE"),
    ],
)
def test_info_says_how_a_model_writes_calls_or_that_it_is_not_known(folder, capsys, calls, line):
    template = {"start_anchor": "<assistant>", "fields": {**calls, "content": {}}}
    (folder / RESPONSE_TEMPLATE).write_text(json.dumps(template), encoding="utf-8")
    write_manifest(folder)
    assert run(["info", str(folder)]) == 0
    lines = [" ".join(each.split()) for each in capsys.readouterr().out.splitlines()]
    assert lines.count(f"tool calls {line}") == 1


def test_what_the_weights_became_and_what_it_cost_is_shown_where_the_manifest_says_so(folder, model, capsys, monkeypatch):
    manifest = dataclasses.replace(
        read_manifest(folder), precision="int4", quantization=QUANTIZATION, certificate={"summary": SUMMARY, "scenarios": []}
    )
    (folder / MANIFEST).write_text(manifest_to_json(manifest), encoding="utf-8")
    cost = "5.2 MB; same top-1 99.1%, KL 1.2e-03, perplexity +0.80%"
    weights = "int4 (block size 32, symmetric, rtn, head bits 8)"
    assert run(["info", str(folder)]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert f"precision {weights}" in lines
    assert f"proof {cost}" in lines
    assert run(["verify", str(folder)]) == 0
    assert f"certificate: {cost}" in capsys.readouterr().out.splitlines()
    model.manifest = manifest
    monkeypatch.setenv("COLUMNS", "120")
    assert run(["inspect", "ab", "--model", str(folder), "--temperature", "0"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert f"weights {weights}" in lines
    assert f"proof {cost}" in lines


@pytest.mark.parametrize("summary", [None, [], {}, "good", {"size_bytes": "5", "top1_agreement": None}, 5])
def test_a_summary_that_is_none_is_not_shown_and_does_no_harm(folder, model, capsys, summary):
    manifest = dataclasses.replace(read_manifest(folder), certificate={"summary": summary})
    (folder / MANIFEST).write_text(manifest_to_json(manifest), encoding="utf-8")
    model.manifest = manifest
    for command in ("info", "verify"):
        assert run([command, str(folder)]) == 0
    assert "certificate" not in capsys.readouterr().out
    assert run(["inspect", "ab", "--model", str(folder), "--temperature", "0"]) == 0


ESCAPE = "\x1b]0;owned\x07\x1b]52;c;AAAA\x9c"


def test_what_a_manifest_says_commands_no_terminal(folder, capsys, monkeypatch):
    manifest = dataclasses.replace(
        read_manifest(folder), name=ESCAPE, source=ESCAPE, versions={ESCAPE: ESCAPE}, certificate={ESCAPE: ESCAPE}
    )
    (folder / MANIFEST).write_text(manifest_to_json(manifest), encoding="utf-8")
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    assert run(["info", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert shown.count("]0;owned") == 6
    assert not {"\x1b]", "\x07", "\x9c"} & {shown[i : i + n] for i in range(len(shown)) for n in (1, 2)}


def test_info_as_json_is_the_manifest(folder, capsys):
    assert run(["info", "--model", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads((folder / MANIFEST).read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--json", "--batch", "2"], "--context and --batch plan the cache, which --json does not print"),
        (["--json", "--context", "5"], "--context and --batch plan the cache, which --json does not print"),
        (["--context", "101"], "--context 101 is more than the 100 tokens of this model's context"),
    ],
)
def test_info_refuses_what_cannot_take_effect(folder, capsys, arguments, said):
    assert run(["info", str(folder), *arguments]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n"), said in err) == ("", 1, True)
    assert run(["info", str(folder), "--context", "100"]) == 0


def test_verify_replays_the_golden_runs_and_prints_a_line_for_each(folder, model, capsys):
    assert run(["verify", str(folder)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "files: 2 as the manifest says",
        "golden 1: 1 prompt tokens, 2 new tokens, all the same",
        "golden 2: 2 prompt tokens, 1 new tokens, all the same",
    ]


def test_verify_as_json_has_the_replays_and_the_verdict(folder, model, capsys):
    assert run(["verify", str(folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["is_right"], found["files"], found["scenarios"]) == (True, 2, [])
    assert [one["new_tokens"] for one in found["golden"]] == [2, 1]
    write_manifest(folder, golden=(GoldenRun((97,), (98, 50)),))
    assert run(["verify", str(folder), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["is_right"], found["golden"][0]["first_difference"]) == (False, 1)


def test_verify_names_the_first_token_that_differs_and_exits_with_1(folder, model, capsys):
    write_manifest(folder, golden=(GoldenRun((97,), (98, 50)), GoldenRun((100,), (101,))))
    assert run(["verify", str(folder)]) == 1
    out = capsys.readouterr().out
    assert "golden 1: 1 prompt tokens, DIFFERENT at new token 2 of 2: logits below the largest by up to " in out
    assert "golden 2: 1 prompt tokens, 1 new tokens, all the same" in out


def test_verify_opens_no_model_whose_files_differ(folder, capsys):
    (folder / GRAPH).write_text("MODEL.ONNX", encoding="utf-8")
    assert run(["verify", str(folder)]) == 1
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "model.onnx is damaged: its sha256" in err


def test_verify_says_when_there_is_nothing_to_replay(folder, capsys):
    write_manifest(folder)
    assert run(["verify", str(folder)]) == 0
    assert "no runs to replay" in capsys.readouterr().out


def test_bench_prints_every_number_it_measures(model, capsys):
    assert run(["bench", "--new-tokens", "8", "--rounds", "2", "--threads", "2"]) == 0
    out = capsys.readouterr().out
    names = ["prompt", "text", "8 together", "first token", "load", "peak memory"]
    assert [name for name in names if f"\n{name}" not in out] == []
    assert "92 prompt and 8 new tokens, median of 2" in out  # a context of 100 leaves no room for 512
    assert "cpu, 2 threads" in out


def test_bench_as_json_has_the_same_numbers(model, capsys):
    assert run(["bench", "--prompt-tokens", "9", "--new-tokens", "8", "--json"]) == 0
    measured = json.loads(capsys.readouterr().out)
    assert (measured["prompt_tokens"], measured["new_tokens"], measured["rounds"]) == (9, 8, 3)
    assert all(
        measured[name] > 0 for name in ("prefill_tokens_per_second", "decode_tokens_per_second", "first_token_ms", "load_seconds")
    )
    assert measured["batch_tokens_per_second"] > 0
    assert "forms" not in measured


@pytest.mark.parametrize(("context", "prompt", "new"), [(1000, 32, 64), (100, 32, 50), (20, 10, 10)])
def test_bench_measures_eight_texts_together_that_fit_in_the_context(model, context, prompt, new):
    geometry = dataclasses.replace(model.manifest.geometry, context_length=context)
    model.manifest = dataclasses.replace(model.manifest, geometry=geometry)
    assert bench.measure(prompt_tokens=3, new_tokens=4, rounds=2).batch_tokens_per_second > 0
    batches = [(np.shape(prompts), options["max_new_tokens"]) for prompts, options in model.calls]
    assert batches == [((8, prompt), new)] * 2
    assert all(options["ignore_eos"] and options["loop_guard"] == "off" for _, options in model.calls)
    assert model.calls[0][0] != model.calls[1][0], "keys and values of the same prompts would be reused"


def test_bench_leaves_out_eight_texts_that_do_not_fit_in_memory(model, monkeypatch, capsys):
    def generate(prompts, **options):
        raise PromptError("the keys and values do not fit")

    monkeypatch.setattr(model, "generate", generate)
    assert run(["bench", "--rounds", "1"]) == 0
    assert "8 together" not in capsys.readouterr().out


def test_bench_does_the_same_work_whatever_the_model_says(model):
    assert bench.measure(prompt_tokens=3, new_tokens=90, rounds=1).new_tokens == 90  # past the end-of-text id


@pytest.mark.parametrize(("prompt_tokens", "new_tokens"), [(95, 6), (None, 100)])
def test_bench_refuses_what_the_context_cannot_hold(model, prompt_tokens, new_tokens):
    with pytest.raises(OptionError, match="do not fit in the context of 100"):
        bench.measure(prompt_tokens=prompt_tokens, new_tokens=new_tokens)


def test_verify_lets_a_token_be_behind_by_what_the_certificate_allows(folder, model, capsys):
    certificate = {"largest_logits_error": 0.04, "scenarios": []}
    manifest = dataclasses.replace(CharacterModel().manifest, files={}, certificate=certificate)
    close, far = (replay(model.new_context(), manifest, GoldenRun((97,), (98, new_id))) for new_id in (98, 50))
    assert (close.same, close.is_right, far.is_right) == (1, True, False)
    assert 0 < close.largest_gap < 0.1
    assert far.first_difference == 1
