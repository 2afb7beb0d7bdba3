"""Packages exported with a cache of 8 bits keep what the float32 cache keeps, rounded, and refuse what they cannot."""

import itertools
import re
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from onnx import numpy_helper

import onnx_textgen
from onnx_textgen.backends import onnxruntime_session as runtime_session
from onnx_textgen.backends.cache_codes import LARGEST_CODE
from onnx_textgen.backends.onnxruntime_session import OnnxRuntimeSession, open_session
from onnx_textgen.cli import run
from onnx_textgen.errors import DeviceError, PackageError
from onnx_textgen.inference.decoder import Decoder
from onnx_textgen.inference.prefill import prefill
from onnx_textgen.package.integrity import package_digest
from onnx_textgen.package.locate import find_package
from onnx_textgen.package.manifest import GRAPH, INT8_CACHE_GRAPH
from onnx_textgen_export import Exported, ExportError, export
from onnx_textgen_export.extra_graphs import int8_scales
from onnx_textgen_export.extra_graphs.attention_layers import Layer
from onnx_textgen_export.extra_graphs.int8_scales import channel_scales, key_scales
from onnx_textgen_export.proof import int8_cache
from onnx_textgen_export.proof.measures import Tolerance
from support.examples import examples
from support.tiny_models import tiny_model

VERSION = tuple(int(part) for part in onnxruntime.__version__.split(".")[:2])
pytestmark = pytest.mark.skipif(
    VERSION < runtime_session.INT8_CACHE_MIN_VERSION, reason=f"onnxruntime {onnxruntime.__version__} has no attention over 8 bits"
)

IDS = [(37 * place + 11) % 300 for place in range(96)]


def model_of_some_size() -> transformers.PreTrainedModel:
    """Heads of 32 numbers, as the operator's kernels take several at a time."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 3, "num_attention_heads": 4}
    config = transformers.LlamaConfig(**sizes, num_key_value_heads=2, vocab_size=300, max_position_embeddings=512)
    return transformers.LlamaForCausalLM(config).eval()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    return export(model_of_some_size(), tmp_path_factory.mktemp("int8-cache") / "out", precision="int8", int8_cache=True)


@pytest.fixture(scope="module")
def session(made: Exported) -> OnnxRuntimeSession:
    return open_session(made.folder / INT8_CACHE_GRAPH, device="cpu", threads=1)


def scales_of(graph: Path, kind: str) -> list[np.ndarray]:
    tensors = onnx.load(graph, load_external_data=False).graph.initializer
    return [numpy_helper.to_array(each) for each in tensors if each.name.endswith(f".{kind}_scale")]


@pytest.mark.slow
@pytest.mark.parametrize("model_type", ["llama", "gpt2", "mistral", "gemma2", "gpt_oss", "gpt_neox", "lfm2", "qwen3"])
def test_what_is_kept_is_what_the_float32_cache_keeps_rounded(
    model_type: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heads, windows, caps, sinks, no or partial rotation, convolutions between; codes of a prompt and of single tokens."""
    if model_type == "gpt_oss":  # experts chosen by random weights are others after the least change
        monkeypatch.setitem(int8_cache.TOLERANCES, "fp32", Tolerance(2.0, 0.5, 0.05))
    made = export(tiny_model(model_type), tmp_path / "out", int8_cache=True)
    assert made.manifest.certificate["int8_cache"]["kl_divergence"] < 0.01
    exact, rounded, single = (
        Decoder(open_session(made.folder / name, device="cpu", threads=1), made.manifest.geometry)
        for name in (GRAPH, INT8_CACHE_GRAPH, INT8_CACHE_GRAPH)
    )
    exact.feed(IDS)
    logits = rounded.feed(IDS, every_position=True)
    alone = np.concatenate([single.feed([token_id]) for token_id in IDS])
    np.testing.assert_allclose(alone, logits, atol=0.01 * np.abs(logits).max())
    kept, codes = (decoder.cache.take(0, len(IDS)) for decoder in (exact, rounded))
    for kind in ("key", "value"):
        name = next(name for name in kept if name.endswith(kind))
        scale = scales_of(made.folder / INT8_CACHE_GRAPH, kind)[0]
        wanted = np.clip(kept[name] / scale, -LARGEST_CODE - 1, LARGEST_CODE)  # the first layer's, which nothing else changed
        assert codes[name].dtype == np.int8
        assert np.abs(wanted - codes[name]).max() < 0.5001


@pytest.mark.slow
@examples(20)
@given(cuts=st.sets(st.integers(1, len(IDS) // 2 - 1)))
def test_a_prompt_is_the_same_to_the_last_bit_however_it_is_cut(
    cuts: set[int], made: Exported, session: OnnxRuntimeSession
) -> None:
    whole, parted = Decoder(session, made.manifest.geometry), Decoder(session, made.manifest.geometry)
    places = [0, *sorted(2 * cut for cut in cuts), len(IDS)]
    parts = [parted.feed(IDS[start:end], every_position=True) for start, end in itertools.pairwise(places)]
    np.testing.assert_array_equal(np.concatenate(parts), whole.feed(IDS, every_position=True))
    for name, codes in whole.cache.take(0, len(IDS)).items():
        np.testing.assert_array_equal(parted.cache.take(0, len(IDS))[name], codes)


def test_single_tokens_are_kept_and_read_as_those_of_a_prompt(made: Exported, session: OnnxRuntimeSession) -> None:
    whole, single = Decoder(session, made.manifest.geometry), Decoder(session, made.manifest.geometry)
    logits = whole.feed(IDS, every_position=True)
    alone = np.concatenate([single.feed([token_id]) for token_id in IDS])
    assert np.abs(logits - alone).max() < 0.02 * np.abs(logits).max()
    for name, codes in whole.cache.take(0, len(IDS)).items():
        steps = np.abs(codes.astype(int) - single.cache.take(0, len(IDS))[name])
        assert steps.max() <= 2
        assert (steps > 0).mean() < 0.05, "other last bits, which rounding makes a step of now and then"


@pytest.mark.slow
def test_rows_of_unequal_length_are_as_alone_with_more_threads_than_heads(tmp_path: Path) -> None:
    """Where threads share a head, each with a part of its tokens."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.LlamaConfig(**sizes, num_key_value_heads=1, vocab_size=300, max_position_embeddings=2048)
    made = export(transformers.LlamaForCausalLM(config).eval(), tmp_path / "out", int8_cache=True)
    session = open_session(made.folder / INT8_CACHE_GRAPH, device="cpu", threads=16)
    texts = [np.random.default_rng(seed).integers(0, 300, length).tolist() for seed, length in ((0, 1400), (1, 1900))]
    together = Decoder(session, made.manifest.geometry, rows=2)
    for row, ids in enumerate(texts):
        prefill(together, ids, row=row)
    logits = together.step([5, 7], [True, True])
    for row, (ids, following) in enumerate(zip(texts, (5, 7), strict=True)):
        alone = Decoder(session, made.manifest.geometry)
        prefill(alone, ids)
        np.testing.assert_allclose(logits[row], alone.feed([following])[0], atol=1e-5 * np.abs(logits[row]).max())


def test_a_model_goes_on_with_it_alone_and_in_company(made: Exported, tmp_path: Path) -> None:
    model = onnx_textgen.load(made.folder / INT8_CACHE_GRAPH, device="cpu", threads=1)
    plain = onnx_textgen.load(made.folder, device="cpu", threads=1)
    assert 4 * model.memory(100).total_bytes == plain.memory(100).total_bytes
    prompts = [IDS[:5], IDS[3:40], IDS[:61]]
    alone = [model.generate(prompt, max_new_tokens=20, temperature=0).token_ids for prompt in prompts]
    assert [each.token_ids for each in model.generate(prompts, max_new_tokens=20, temperature=0)] == alone
    drafted = model.generate(prompts[2], max_new_tokens=20, temperature=0, prompt_lookup_num_tokens=4)
    assert len(drafted.token_ids) == 20
    session = model.session()
    session.append(prompts[2])
    session.save(tmp_path / "saved.npz")
    assert model.load_session(tmp_path / "saved.npz").generate(max_new_tokens=20, temperature=0).token_ids == alone[2]
    with pytest.raises(PackageError, match="was saved with another model"):
        plain.load_session(tmp_path / "saved.npz")


def test_commands_take_the_path_of_the_graph(made: Exported, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(made.folder / INT8_CACHE_GRAPH)
    assert run(["info", path]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"cache +384 \S+ a token", shown)
    assert re.search(r"proof: int8 cache +tokens \d+, top1", shown)
    assert run(["verify", path]) == 0
    assert run(["generate", "--model", path, "--token-ids", "5,17,30", "--max-new-tokens", "3", "--json"]) == 0


@pytest.mark.slow
def test_the_packages_own_graph_and_weights_are_those_without_it(made: Exported, tmp_path: Path) -> None:
    plain = export(model_of_some_size(), tmp_path / "plain", precision="int8")
    assert package_digest(made.folder, made.manifest) == package_digest(plain.folder, plain.manifest)
    assert made.manifest.files.keys() - plain.manifest.files.keys() == {INT8_CACHE_GRAPH}


def test_other_graphs_and_engines_are_refused_in_one_line(made: Exported, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DeviceError, match="OpenVINO stores keys and values in its own format; give it the folder"):
        onnx_textgen.load(made.folder / INT8_CACHE_GRAPH, device="openvino")
    with pytest.raises(PackageError, match="has no graph with an 8-bit cache; export it again with --int8-cache"):
        onnx_textgen.load(find_package() / INT8_CACHE_GRAPH, device="cpu")
    monkeypatch.setattr(runtime_session, "VERSION", (1, 30))
    with pytest.raises(PackageError, match=r"is too old; use 1\.31 or newer .* or open the folder's main graph"):
        onnx_textgen.load(made.folder / INT8_CACHE_GRAPH, device="cpu")
    onnx_textgen.load(made.folder, device="cpu")
    wrong = made.folder / "tokenizer.onnx"
    wrong.touch()
    try:
        with pytest.raises(PackageError, match="is not a graph that can generate text; give "):
            onnx_textgen.load(wrong, device="cpu")
    finally:
        wrong.unlink()


@pytest.mark.slow
def test_what_has_no_such_cache_is_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ExportError, match="no 8-bit cache: float16 is meant for GPUs"):
        export(tiny_model("llama"), tmp_path / "out", precision="fp16", int8_cache=True)
    with pytest.raises(ExportError, match="no 8-bit cache: it is kept by an operator of ONNX Runtime's"):
        export(tiny_model("llama"), tmp_path / "out", target="standard", int8_cache=True)
    with pytest.raises(ExportError, match="no 8-bit cache: nothing is kept"):
        export(tiny_model("mamba"), tmp_path / "out", context_length=64, int8_cache=True)
    monkeypatch.setattr(int8_scales, "MARGIN", 0.02)
    with pytest.raises(ExportError, match=r"disagrees with PyTorch .* with keys and values at 8 bits, so leave out --int8-cache"):
        export(model_of_some_size(), tmp_path / "out", int8_cache=True)
    assert list(tmp_path.iterdir()) == []


@given(seed=st.integers(0, 2**32 - 1), turned=st.sampled_from([8, 6]), interleaved=st.booleans(), angle=st.floats(-4, 4))
def test_keys_fit_wherever_position_turns_them(seed: int, turned: int, interleaved: bool, angle: float) -> None:
    seen = np.random.default_rng(seed).normal(size=(1, 2, 5, 8)).astype(np.float32)
    attributes = {"num_heads": 2, "kv_num_heads": 2, "do_rotary": 1, "rotary_interleaved": int(interleaved)}
    scales = key_scales(seen, Layer(ir.node("GroupQueryAttention", []), attributes, head_size=8, rotary_size=turned))
    half = turned // 2
    pairs = [(2 * i, 2 * i + 1) if interleaved else (i, i + half) for i in range(half)]
    for first, second in pairs:
        a, b = seen[..., first].copy(), seen[..., second].copy()
        seen[..., first], seen[..., second] = a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle)
    assert (np.abs(seen / scales) <= LARGEST_CODE).all()
    assert (scales >= channel_scales(seen)).all() or turned < 8
