"""Texts that `runtime/web/textgen` generates: with the same seed Python's, token by token, and golden runs on both runtimes."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onnx_textgen
from onnx_textgen.options.generation_config import OPTION_NAMES
from onnx_textgen.package.integrity import file_record
from onnx_textgen.package.manifest import manifest_digest
from onnx_textgen.tasks.golden_runs import replay
from support.cache_graphs import GRAPHS, Attention, Tiny
from support.node import Node, NodeError

ROOT = Path(__file__).resolve().parents[2]
STORY = ROOT / "artifacts" / "story"
PROMPT = "Once upon a time there was a dog"


@pytest.fixture(scope="session")
def opened(node: Node) -> int:
    """The embedded default in onnxruntime-node."""
    return int(node.call("open", "node", str(STORY)))


def joined(found: dict[str, Any]) -> tuple[str, list[int], str]:
    """Text, ids and finish reason of the chunks."""
    chunks = found["chunks"]
    ids = [chunk["token_id"] for chunk in chunks if chunk["token_id"] is not None]
    return "".join(chunk["text"] for chunk in chunks), ids, chunks[-1]["finish_reason"]


def same(node: Node, handle: int, model: onnx_textgen.Model, prompt: str | list[int], **options: Any) -> None:
    """Compare a text with Python's."""
    ours = model.generate(prompt, **options)
    sent = options | ({"seed": str(options["seed"])} if "seed" in options else {})
    assert joined(node.call("generate", handle, prompt, sent)) == (ours.text, list(ours.token_ids), ours.finish_reason)


HERE = ("max_new_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed", "stop", "logprobs")
OPTIONS: list[dict[str, Any]] = [
    {"temperature": 0},
    {},
    {"temperature": 1.0, "top_p": 1.0},
    {"temperature": 1.2, "top_k": 20},
    {"min_p": 0.1, "top_p": 1.0},
    {"temperature": 0, "top_k": 3, "repetition_penalty": 1.2},
    {"repetition_penalty": 1.2},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_seed_gives_the_text_that_it_gives_in_python(
    node: Node, opened: int, story: onnx_textgen.Model, options: dict[str, Any]
) -> None:
    seeds = [0, 7, 2**63 - 1] if options.get("temperature") != 0 else [1]
    for seed in seeds:
        same(node, opened, story, PROMPT, **options, seed=seed, max_new_tokens=40)


def test_the_packages_defaults_and_the_limits_hold(node: Node, opened: int, story: onnx_textgen.Model) -> None:
    same(node, opened, story, [0], seed=3, max_new_tokens=5)
    same(node, opened, story, "The dog", seed=3, max_new_tokens=200, stop=["\n", "cat", ". "])
    long = story.encode("The dog and the cat went to the park. ") * 50
    assert story.generate(long[:500], seed=5, max_new_tokens=60).finish_reason == "context"
    same(node, opened, story, long[:500], seed=5, max_new_tokens=60)
    ended = [seed for seed in range(40) if story.generate("The end.", seed=seed, max_new_tokens=40).finish_reason == "eos"]
    same(node, opened, story, "The end.", seed=ended[0], max_new_tokens=40)


def test_several_texts_of_a_prompt_are_pythons_sequences(node: Node, opened: int, story: onnx_textgen.Model) -> None:
    texts = story.generate(PROMPT, seed=4, max_new_tokens=20, num_return_sequences=3).sequences
    for sample, text in enumerate(texts):
        found = node.call("generate", opened, PROMPT, {"seed": "4", "max_new_tokens": 20}, {"sample": sample})
        assert joined(found)[1] == list(text.token_ids)


def test_logprobs_and_alternatives_are_pythons(node: Node, opened: int, story: onnx_textgen.Model) -> None:
    ours = story.generate(PROMPT, seed=4, max_new_tokens=20, logprobs=3)
    chunks = node.call("generate", opened, PROMPT, {"seed": "4", "max_new_tokens": 20, "logprobs": 3})["chunks"]
    assert [chunk["logprob"] for chunk in chunks] == pytest.approx(ours.logprobs, abs=1e-5)
    for chunk, wanted in zip(chunks, ours.alternatives, strict=True):
        assert [(each["token_id"], each["text"]) for each in chunk["alternatives"]] == [
            (each.token_id, each.text) for each in wanted
        ]
        assert [each["logprob"] for each in chunk["alternatives"]] == pytest.approx([each.logprob for each in wanted], abs=1e-5)


def test_a_seed_that_was_drawn_gives_the_text_again(node: Node, opened: int) -> None:
    first = node.call("generate", opened, PROMPT, {"max_new_tokens": 20})
    again = node.call("generate", opened, PROMPT, {"max_new_tokens": 20, "seed": first["seed"]})
    other = node.call("generate", opened, PROMPT, {"max_new_tokens": 20})
    assert first["chunks"] == again["chunks"] != other["chunks"]


def test_a_long_prompt_is_fed_in_parts_and_its_beginning_is_kept_for_the_next(
    node: Node, opened: int, story: onnx_textgen.Model
) -> None:
    text = "The dog and the cat went to the park. " * 30
    ids = story.encode(text)
    assert len(ids) > 260
    found = node.call("generate", opened, ids, {"seed": "1", "max_new_tokens": 10})
    done = [each for each, _ in found["progress"]]
    assert len(done) > 2 and done[-1] == len(ids) and {total for _, total in found["progress"]} == {len(ids)}
    kept = node.call("kept_length", opened)
    assert kept % 2 == 0 and 0 < len(ids) - kept <= 3
    longer = [*ids, *joined(found)[1], 13, 268]
    again = node.call("generate", opened, longer, {"seed": "2", "max_new_tokens": 10})
    assert again["progress"][0][0] > kept and len(again["progress"]) == 2
    assert joined(again)[1] == list(story.generate(longer, seed=2, max_new_tokens=10).token_ids)
    same(node, opened, story, text, seed=1, max_new_tokens=10)  # from the beginning, as the kept prompt is longer


def test_a_text_ends_when_its_caller_stops_it(node: Node, opened: int) -> None:
    text, ids, reason = joined(node.call("generate", opened, PROMPT, {"seed": "1", "max_new_tokens": 400}, {"stopAfter": 5}))
    assert (len(ids), reason) == (5, "cancelled") and text


def test_a_model_generates_one_text_at_a_time(node: Node, opened: int) -> None:
    second, third = node.call("together", opened, PROMPT, {"max_new_tokens": 20})
    assert second.startswith("this model is generating another text; wait for its end") and isinstance(third, int)


@pytest.mark.parametrize(
    ("prompt", "options", "line"),
    [
        ("", {}, "the prompt is empty; give some text, or only the begin token: [0]"),
        ([], {}, "the prompt has no token ids; give at least one"),
        ([4096], {}, "token id 4096 is outside the vocabulary; ids go from 0 to 4095"),
        ([1.5], {}, "token id 1.5 is outside the vocabulary; ids go from 0 to 4095"),
        ([5] * 512, {}, "the prompt has 512 tokens; this model takes 511 at most. Shorten it"),
        ("a", {"temperature": -1}, "temperature should be a number from 0 (always the most likely) to 100, found -1"),
        ("a", {"tempreature": 1}, f'there is no option "tempreature"; the options are {", ".join(HERE)}'),
        ("a", {"top_k": 2.5}, "top_k should be a whole number of at least 0, found 2.5"),
        ("a", {"stop": [""]}, 'each stop string should have 1 to 256 characters, found ""'),
        *[("a", {name: 1}, f"{name} exists only in Python; leave it out") for name in sorted({*OPTION_NAMES} - {*HERE})],
    ],
)
def test_wrong_prompts_and_options_get_one_line(node: Node, opened: int, prompt: Any, options: dict[str, Any], line: str) -> None:
    with pytest.raises(NodeError) as caught:
        node.call("generate", opened, prompt, options)
    assert str(caught.value).startswith(line) and "\n" not in str(caught.value)
    assert caught.value.kind in ("OptionError", "PromptError")


def test_a_package_without_a_chat_template_says_so(node: Node, opened: int) -> None:
    with pytest.raises(NodeError, match="story has no chat template; give it a plain text"):
        node.call("encode_chat", opened, [{"role": "user", "content": "Hello"}])


@pytest.mark.parametrize(
    "folder", ["artifacts/story", "artifacts/tiny-transformer", "tests/packages/ort", "tests/packages/standard"]
)
@pytest.mark.parametrize("runtime", ["node", "web"])
def test_golden_runs_are_right_in_node_and_in_webassembly(node: Node, runtime: str, folder: str) -> None:
    handle = node.call("open", runtime, str(ROOT / folder))
    found = node.call("golden", handle)
    recorded = json.loads((ROOT / folder / "manifest.json").read_text())["golden"]
    assert (found["right"], found["total"]) == (len(recorded), len(recorded))
    if runtime == "node":  # the same products as Python's, which round in another way than the maker's on some processors
        model = onnx_textgen.load(ROOT / folder, device="cpu")
        here = [replay(model.new_context(), model.manifest, run).same for run in model.manifest.golden]
        assert [run["same"] for run in found["runs"]] == here
    node.call("close", handle)


@pytest.mark.parametrize("name", ["story", "tiny-transformer"])
def test_the_graph_for_webassembly_and_that_for_others_give_the_golden_tokens(node: Node, name: str) -> None:
    folder = STORY.parent / name
    for graph in ("onnx/model_wasm.onnx", "onnx/model_quantized.onnx"):
        handle = node.call("open", "web", str(folder), {"graph": graph})
        found = node.call("golden", handle, True)
        assert [run["same"] for run in found["runs"]] == [32, 32, 32], graph
        node.call("close", handle)


def test_in_exact_arithmetic_the_continuation_of_that_arithmetic_is_replayed(node: Node, tmp_path: Path) -> None:
    package = Path(shutil.copytree(STORY, tmp_path / "package"))
    value = json.loads((package / "manifest.json").read_text())
    value["golden"][1]["exact_ids"] = [*value["golden"][1]["new_ids"][:4], 7]
    value["sha256"] = manifest_digest(value)
    (package / "manifest.json").write_text(json.dumps(value))
    handle = node.call("open", "node", str(package))
    assert node.call("golden", handle)["right"] == 3
    assert [run["first_difference"] for run in node.call("golden", handle, True)["runs"]] == [None, 4, None]


def test_a_golden_run_that_is_a_little_wrong_is_counted_as_wrong_as_in_python(
    node: Node, tmp_path: Path, story: onnx_textgen.Model
) -> None:
    package = Path(shutil.copytree(STORY, tmp_path / "package"))
    value = json.loads((package / "manifest.json").read_text())
    run = value["golden"][1]
    before = [*run["prompt_ids"], *run["new_ids"][:4]]
    likely = story.generate(before, temperature=0, max_new_tokens=1, logprobs=20).alternatives[0]
    run["new_ids"][4] = likely[-1].token_id
    value["sha256"] = manifest_digest(value)
    (package / "manifest.json").write_text(json.dumps(value))
    found = node.call("golden", node.call("open", "node", str(package)))
    model = onnx_textgen.load(package, threads=1, device="cpu")
    wanted = [replay(model.new_context(), model.manifest, each) for each in model.manifest.golden]
    assert (found["right"], found["total"]) == (2, 3)
    assert [run["first_difference"] for run in found["runs"]] == [run.first_difference for run in wanted] == [None, 4, None]
    assert [run["same"] for run in found["runs"]] == [run.same for run in wanted]
    assert [run["largest_gap"] for run in found["runs"]] == pytest.approx([run.largest_gap for run in wanted], abs=1e-4)
    assert found["runs"][1]["largest_gap"] < 0.7


def test_texts_of_bytes_that_are_not_utf8_end_as_in_python(node: Node) -> None:
    folder = ROOT / "tests" / "packages" / "ort"
    handle, model = node.call("open", "node", str(folder)), onnx_textgen.load(folder, threads=1, device="cpu")
    for seed in range(40):
        same(node, handle, model, "Once", seed=seed, max_new_tokens=5)


def test_what_is_kept_of_a_prompt_ends_at_an_even_token_and_serves_only_prompts_that_begin_with_it(
    node: Node, opened: int, story: onnx_textgen.Model
) -> None:
    ids = story.encode("The dog and the cat went to the park. ")
    for prompt in (ids, [*ids, 13], [5, 6, *ids], [*ids, 13, 268, 5]):
        same(node, opened, story, prompt, seed=1, max_new_tokens=5)
        kept = node.call("kept_length", opened)
        assert kept % 2 == 0 and 2 <= len(prompt) - kept <= 3


HALF = Tiny((Attention(0), Attention(1)), element=np.float16)


@pytest.mark.parametrize("runtime", ["node", "web"])
@pytest.mark.parametrize("tiny", [*GRAPHS.values(), HALF], ids=[*GRAPHS, "float16"])
def test_every_kind_of_cache_gives_the_tokens_of_the_decoder_in_numpy(node: Node, tmp_path: Path, tiny: Tiny, runtime: str) -> None:
    handle = node.call("open", runtime, str(tiny.package(tmp_path)))
    assert node.call("golden", handle)["right"] == 1
    for prompt in ([5, 9, 1, 3, 3], [5, 9, 1, 3, 3, 8, 8, 2], [5, 9], [7]):  # the second begins with the first
        found = node.call("generate", handle, prompt, {"temperature": 0, "max_new_tokens": 10})
        assert joined(found)[1] == tiny.greedy(prompt, 10)


def test_a_graph_with_inputs_that_are_not_known_is_refused(node: Node, tmp_path: Path) -> None:
    Tiny((Attention(0),)).package(tmp_path)
    model = onnx.load(tmp_path / "model.onnx")
    model.graph.input.append(onnx.helper.make_tensor_value_info("adapter_mask", onnx.TensorProto.FLOAT, ["batch", 1, 2]))
    onnx.save(model, tmp_path / "model.onnx")
    value = json.loads((tmp_path / "manifest.json").read_text())
    record = file_record(tmp_path / "model.onnx")
    value["files"]["model.onnx"] = {"size": record.size, "sha256": record.sha256}
    value["sha256"] = manifest_digest(value)
    (tmp_path / "manifest.json").write_text(json.dumps(value))
    with pytest.raises(NodeError, match="the graph needs the input adapter_mask, which this library cannot give"):
        node.call("open", "node", str(tmp_path))
