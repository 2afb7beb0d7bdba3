"""transformers.js opens packages unchanged, in Node and in Chromium, and writes what Python writes."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

import onnx_textgen
from onnx_textgen.diagnostics.runtimes.browser import Browser, find_browser
from onnx_textgen.errors import DeviceError
from onnx_textgen.package.locate import find_package
from onnx_textgen.package.manifest import MANIFEST, WASM_GRAPH
from onnx_textgen.package.reading import read_manifest
from onnx_textgen_export import export
from onnx_textgen_export.passes.quantization.options import Quantization
from onnx_textgen_export.sources.tiny_transformer import DecoderConfig, TinyTransformer
from support.costs import by_cost
from support.make_tiny_packages import make_tokenizer
from support.node import NODE, installed_packages
from support.text_encoder_checkpoints import write_embedder, write_encoder
from support.tiny_encoder_decoders import END, START, tiny_encoder_decoder

HERE = Path(__file__).resolve().parent / "transformers_js"
PROMPTS = ["Once upon a time", "The little dog", "Lily and Tom went to the park. They"]
TOKENS = 24
NUMBERS = Path(__file__).resolve().parents[1] / "packages" / "numbers"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the program and transformers.js."""
    made = tmp_path_factory.mktemp("transformers_js")
    for name in ("generate.mjs", "vectors.mjs"):
        shutil.copy(HERE / name, made)
    (made / "node_modules").symlink_to(installed_packages(HERE), target_is_directory=True)
    return made


def written(
    folder: Path, package: Path, prompts: list[Any], *, pipeline: str = "text-generation", **options: Any
) -> dict[str, Any]:
    """What transformers.js writes, and the precision and device that it chose."""
    assert NODE is not None, "the packages are installed"
    tasks = [{"prompt": prompt, "tokens": TOKENS} for prompt in prompts]
    job = json.dumps({"pipeline": pipeline, "folder": str(package), "options": options, "tasks": tasks})
    done = subprocess.run([NODE, "generate.mjs", job], cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-1000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("name", by_cost(["tiny-transformer"], ["story"]))
def test_without_any_option_the_texts_and_the_precision_are_the_packages(folder: Path, name: str) -> None:
    model = onnx_textgen.load(name, device="cpu", threads=1)
    found = written(folder, find_package(name), PROMPTS)
    assert (found["dtype"], found["device"]) == ("q8", "cpu")
    ours = [prompt + model.generate(prompt, temperature=0, max_new_tokens=TOKENS).text for prompt in PROMPTS]
    assert found["texts"] == ours


def test_a_chat_is_rendered_by_the_packages_own_template(folder: Path, shared: Path, tmp_path: Path) -> None:
    template = (
        "{% for m in messages %}{{ m.role }} said: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}Lily said:{% endif %}"
    )
    checkpoint = Path(shutil.copytree(shared / "checkpoints" / "stories260K", tmp_path / "checkpoint"))
    (checkpoint / "chat_template.jinja").write_text(template, encoding="utf-8")
    package = export(checkpoint, tmp_path / "package").folder
    model = onnx_textgen.load(package, device="cpu", threads=1)
    chats = [[{"role": "Tom", "content": text}] for text in PROMPTS]
    found = written(folder, package, chats)
    assert found["dtype"] == "fp32"
    assert found["texts"] == [model.chat(chat, temperature=0, max_new_tokens=TOKENS).text for chat in chats]


@pytest.mark.slow
def test_a_float16_package_opens_too(folder: Path, shared: Path, tmp_path: Path) -> None:
    package = export(shared / "checkpoints" / "stories260K", tmp_path / "package", precision="fp16").folder
    model = onnx_textgen.load(package, device="cpu", threads=1)
    found = written(folder, package, PROMPTS[:1])
    assert found["dtype"] == "fp16"
    assert found["texts"] == [PROMPTS[0] + model.generate(PROMPTS[0], temperature=0, max_new_tokens=TOKENS).text]


def test_an_encoder_decoder_writes_a_text_for_each_source(folder: Path) -> None:
    model = onnx_textgen.load(NUMBERS, device="cpu", threads=1)
    sources = ["4071", "42", "340071", "7"]
    found = written(folder, NUMBERS, sources, pipeline="text2text-generation")
    assert (found["dtype"], found["device"]) == ("fp32", "cpu")
    assert found["texts"] == [model.generate(source, temperature=0, max_new_tokens=TOKENS).text for source in sources]
    assert found["texts"][0] == "four thousand and seventy one"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model_type", "precision"),
    [("bart", "fp32"), ("bart", "fp16"), ("t5", "int8"), ("t5", "int4"), ("t5gemma2", "fp32")],
)
def test_encoder_decoders_of_every_precision_open(model_type: str, precision: Any, folder: Path, tmp_path: Path) -> None:
    reference = tiny_encoder_decoder(model_type)
    reference.generation_config.bad_words_ids = [[40]]
    given = {"eos_ids": (END,), "tokenizer": make_tokenizer(), "context_length": 128, "precision": precision}
    package = export(reference, tmp_path / "package", **given).folder  # type: ignore[arg-type]
    model = onnx_textgen.load(package, device="cpu", threads=1)
    found = written(folder, package, PROMPTS, pipeline="text2text-generation")
    assert found["dtype"] == {"int8": "q8", "int4": "q4"}.get(precision, precision)
    texts = (model.generate(prompt, temperature=0, max_new_tokens=TOKENS) for prompt in PROMPTS)
    assert found["texts"] == [model.tokenizer.decode([START, *text.token_ids]) for text in texts], "its start is no special token"


@pytest.fixture(scope="module")
def four_bits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random decoder whose embedding has 4 bits, and whose products are exact, so that every runtime writes the same."""
    torch.manual_seed(3)
    sizes = {"width": 96, "layers": 2, "heads": 4, "context_length": 128}
    config = DecoderConfig(vocab_size=4096, tie_embeddings=True, positions="rotary", norm="rms", bias=False, **sizes)
    module = TinyTransformer(config)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.3)
    exact = Quantization(4, method="k_quant", head_bits=4, accuracy_level=0)
    tokenizer = find_package("story") / "tokenizer.json"
    place = tmp_path_factory.mktemp("four_bits") / "package"
    package = export(module, place, precision="int4", quantization=exact, tokenizer=tokenizer, eos_ids=(0,)).folder
    nodes = onnx.load(package / "model.onnx", load_external_data=False).graph.node
    (table,) = (each for each in nodes if each.op_type == "GatherBlockQuantized")
    assert {each.name: each.i for each in table.attribute}["bits"] == 4
    return package


@pytest.fixture(scope="module")
def chromium() -> Browser:
    """The browser, or a skip."""
    try:
        return find_browser()
    except DeviceError as error:
        pytest.skip(str(error))


def written_in(
    chromium: Browser, package: Path, prompts: list[Any], *, pipeline: str = "text-generation", **options: Any
) -> dict[str, Any]:
    """What transformers.js writes in a browser, and the precision, the device and the graphs that it fetched."""
    tasks = [{"prompt": prompt, "tokens": TOKENS} for prompt in prompts]
    job = {"pipeline": pipeline, "folder": "package", "options": options, "tasks": tasks}
    folders = {"here": HERE, "modules": installed_packages(HERE), "package": package}
    found = json.loads(chromium.answer("here/browser.html", job, folders, {MANIFEST, *read_manifest(package).files}))
    assert "error" not in found, found["error"]
    return dict(found)


def ours(package: Path | str, prompts: list[str]) -> list[str]:
    """The same texts by Python."""
    model = onnx_textgen.load(package, device="cpu", threads=1)
    return [prompt + model.generate(prompt, temperature=0, max_new_tokens=TOKENS).text for prompt in prompts]


def test_chromium_without_any_option_writes_the_texts_of_python(chromium: Browser, four_bits: Path) -> None:
    found = written_in(chromium, four_bits, PROMPTS)
    assert (found["dtype"], found["device"]) == ("q4", "wasm")
    assert found["texts"] == ours(four_bits, PROMPTS)


def test_chromium_opens_an_encoder_decoder_whose_weights_are_named(chromium: Browser) -> None:
    session = {"externalData": [{"path": "model.onnx_data", "data": "onnx/model.onnx_data"}]}
    found = written_in(chromium, NUMBERS, ["4071", "42"], pipeline="text2text-generation", session_options=session)
    assert (found["dtype"], found["device"]) == ("fp32", "wasm")
    assert found["texts"] == ["four thousand and seventy one", "forty two"]


def test_chromium_takes_the_graph_for_webassembly_if_it_is_named(chromium: Browser, four_bits: Path) -> None:
    session = {
        "extra": {"session": {"disable_quant_qdq": "1"}},
        "externalData": [{"path": "model_q4.onnx_data", "data": "onnx/model_q4.onnx_data"}],
    }
    found = written_in(chromium, four_bits, PROMPTS, dtype="fp32", model_file_name="model_wasm", session_options=session)
    assert [name for name in found["fetched"] if name.endswith(".onnx")] == [WASM_GRAPH]
    assert found["texts"] == ours(four_bits, PROMPTS)


def read(place: Path, **job: Any) -> dict[str, Any]:
    """What transformers.js makes of texts with a text encoder."""
    assert NODE is not None, "the packages are installed"
    done = subprocess.run(
        [NODE, "vectors.mjs", json.dumps(job)], cwd=place, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-1000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))


TEXTS = ["a dog.", "where is the sun?", "z"]
"""None is so long that it is cut: transformers.js cuts the mark at the end too."""


@pytest.mark.parametrize(("precision", "dtype", "difference"), [("fp32", "fp32", 1e-5), ("int8", "q8", 0.02)])
def test_vectors_of_a_text_encoder_are_the_packages(
    folder: Path, tmp_path: Path, precision: Any, dtype: str, difference: float
) -> None:
    package = export(write_embedder(tmp_path / "model"), tmp_path / "package", precision=precision).folder
    found = read(folder, folder=str(package), texts=TEXTS)
    assert found["dtype"] == dtype
    wanted = onnx_textgen.load(package, device="cpu", threads=1).embed(TEXTS)
    np.testing.assert_allclose(found["vectors"], wanted, atol=difference)


def test_scores_of_a_cross_encoder_are_the_packages(folder: Path, tmp_path: Path) -> None:
    checkpoint = write_encoder(tmp_path / "model", kind="BertForSequenceClassification")
    package = export(checkpoint, tmp_path / "package").folder
    found = read(folder, folder=str(package), query=TEXTS[1], documents=TEXTS)
    ranked = onnx_textgen.load(package, device="cpu", threads=1).rerank(TEXTS[1], TEXTS)
    wanted = [each.relevance_score for each in sorted(ranked, key=lambda each: each.index)]
    np.testing.assert_allclose(found["scores"], wanted, atol=1e-5)
