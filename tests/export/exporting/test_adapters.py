"""LoRA adapters that a package keeps beside its weights: each computes what PEFT does, and what can only be merged is refused."""

from __future__ import annotations

import copy
import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import peft
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import nn

import onnx_textgen
from onnx_textgen.backends.variants.adapter_file import Changes, read_adapter, write_adapter
from onnx_textgen.backends.variants.linear_layers import KEY
from onnx_textgen.cli import run
from onnx_textgen.package.integrity import file_record
from onnx_textgen.package.manifest import MANIFEST
from onnx_textgen.package.reading import read_manifest
from onnx_textgen_export import ExportError, export
from onnx_textgen_export.adding import add_adapter, replace_manifest
from onnx_textgen_export.against import verify_against
from onnx_textgen_export.cli import adapters_from
from support.costs import by_cost
from support.tiny_models import VOCABULARY, tiny_config, tiny_model

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # PEFT 0.21 with transformers 5.23
ATTENTION = {"target_modules": ["q_proj", "v_proj"], "r": 4, "lora_alpha": 7}
EVERYTHING = {"target_modules": "all-linear", "r": 3, "use_rslora": True}
IDS = torch.randint(0, VOCABULARY, (1, 40), generator=torch.Generator().manual_seed(5))


def adapt(model: nn.Module, folder: Path, *, seed: int = 1, **options: Any) -> peft.PeftModel:
    """PEFT's model with an adapter of random numbers, which is saved."""
    trained = peft.get_peft_model(copy.deepcopy(model), peft.LoraConfig(task_type="CAUSAL_LM", **options)).eval()
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in trained.parameters():
            if parameter.requires_grad:
                parameter.copy_(parameter + 0.1 * torch.randn(parameter.shape, generator=draw))
    trained.save_pretrained(
        folder, save_embedding_layers="modules_to_save" in options or "embed_tokens" in options["target_modules"]
    )
    return trained


def llama(**settings: Any) -> nn.Module:
    """A Llama with other sizes than `tiny_model` has."""
    config = tiny_config("llama")
    config.update(settings)
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def difference(package: Path, adapter: str | None, wanted: nn.Module) -> float:
    """The largest difference of logits from those of PyTorch."""
    found = onnx_textgen.load(package, device="cpu").new_context(adapter=adapter).feed(IDS[0].tolist(), every_position=True)
    with torch.no_grad():
        return float(np.abs(found - wanted(IDS).logits[0].numpy()).max())


KEPT: list[tuple[str, str, dict[str, Any]]] = [
    ("ort", "llama", EVERYTHING),
    ("ort", "llama", {**ATTENTION, "rank_pattern": {"v_proj": 6}, "alpha_pattern": {r"layers\.0\..*q_proj": 31}}),
    ("ort", "llama", {"target_modules": r".*layers\.1\.mlp\.(up|down)_proj", "r": 3}),
    ("standard", "llama", EVERYTHING),
    ("ort", "gpt2", {"target_modules": ["c_attn", "c_proj", "c_fc"], "r": 4, "fan_in_fan_out": True}),
    ("ort", "cohere", EVERYTHING),  # its queries and keys are stored in another order, as their rotary angles alternate
    ("standard", "cohere", EVERYTHING),
    ("standard", "phi3", EVERYTHING),  # one layer for queries, keys and values
    ("standard", "qwen2", ATTENTION),  # with biases
    ("ort", "minicpm3", EVERYTHING),  # one layer runs over latent keys and values, which have four dimensions
]


@pytest.mark.parametrize(("target", "model_type", "options"), by_cost(KEPT[:3], KEPT[3:]))
def test_a_kept_adapter_computes_what_peft_does(target: Any, model_type: str, options: dict[str, Any], tmp_path: Path) -> None:
    model = tiny_model(model_type)
    trained = adapt(model, tmp_path / "adapter", **options)
    made = export(model, tmp_path / "out", target=target, adapters={"own": tmp_path / "adapter"})
    assert difference(made.folder, None, model) < 1e-4
    assert difference(made.folder, "own", trained) < 1e-4
    assert difference(made.folder, None, trained) > 1e-2, "it changes something"
    record = made.manifest.adapters["own"]
    assert record.source == "the adapter adapter"
    assert record.certificate["largest_logits_error"] < 1e-4
    assert len(record.golden) == 3


@pytest.mark.parametrize(
    ("precision", "target"), by_cost([("int8", "ort")], [("int4", "ort"), ("int4", "standard"), ("fp16", "ort")])
)
def test_rounded_weights_and_adapters_are_compared_as_exactly_as_those_without(precision: Any, target: Any, tmp_path: Path) -> None:
    model = llama(hidden_size=128, intermediate_size=192)
    trained = [
        adapt(model, tmp_path / name, seed=seed, **options)
        for seed, (name, options) in enumerate({"first": EVERYTHING, "other": ATTENTION}.items())
    ]
    adapters = {name: tmp_path / name for name in ("first", "other")}
    made = export(model, tmp_path / "out", precision=precision, target=target, adapters=adapters)
    rounding = difference(made.folder, None, model)
    for name, wanted in zip(("first", "other"), trained, strict=True):
        certificate = made.manifest.adapters[name].certificate
        if precision != "fp16":
            assert max(each["logits_error"] for each in certificate["same_weights"]) < 1e-5
        assert difference(made.folder, name, wanted) < 3 * rounding + 1e-2
    assert run(["verify", str(made.folder)]) == 0


def test_a_graph_with_other_numbers_than_the_adapter_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("llama")
    adapt(model, tmp_path / "adapter", **ATTENTION)

    def wrong(path: Path, changes: Changes) -> None:
        write_adapter(path, {name: dataclasses.replace(each, wide=1.1 * each.wide) for name, each in changes.items()})

    monkeypatch.setattr("onnx_textgen_export.exporting.adapters.write_adapter", wrong)
    with pytest.raises(ExportError, match=r"the export disagrees with PyTorch .*; leave out the adapter"):
        export(model, tmp_path / "out", adapters={"own": tmp_path / "adapter"})
    assert not (tmp_path / "out").exists()


@pytest.mark.filterwarnings("ignore")  # PEFT's about tied weights
@pytest.mark.parametrize(
    "options",
    [
        {**ATTENTION, "use_dora": True},
        {**ATTENTION, "modules_to_save": ["norm"]},
        {**ATTENTION, "target_modules": ["embed_tokens", "q_proj"]},
        {**ATTENTION, "trainable_token_indices": [3, 7]},
    ],
)
def test_what_is_more_than_products_can_only_be_merged(options: dict[str, Any], tmp_path: Path) -> None:
    model = tiny_model("llama")
    adapt(model, tmp_path / "adapter", **options)
    with pytest.raises(
        ExportError, match=r"more than a product of two matrices .*, which can only be merged; give --adapter without"
    ):
        export(model, tmp_path / "out", adapters={"own": tmp_path / "adapter"})


@pytest.mark.filterwarnings("ignore")
def test_an_output_layer_that_is_tied_can_only_be_merged(tmp_path: Path) -> None:
    model = llama(tie_word_embeddings=True)
    adapt(model, tmp_path / "adapter", target_modules=["lm_head"], r=4)
    with pytest.raises(ExportError, match=r"the adapter own changes lm_head\.weight, which is no linear layer of this graph"):
        export(model, tmp_path / "out", adapters={"own": tmp_path / "adapter"})


def test_an_adapter_of_another_base_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    adapt(tiny_model("gpt2"), tmp_path / "gpt2", target_modules=["c_attn"], r=4, fan_in_fan_out=True)
    adapt(llama(hidden_size=96, head_dim=16), tmp_path / "wider", **ATTENTION)
    wrong = {"gpt2": "which is no linear layer of this graph", "wider": "from 96 to 96 numbers, and this model has 48"}
    for name, message in wrong.items():
        with pytest.raises(ExportError, match=message):
            export(tiny_model("llama"), tmp_path / "out", adapters={"own": tmp_path / name})
    with pytest.raises(ExportError, match="'a/b' cannot name an adapter"):
        export(tiny_model("llama"), tmp_path / "out", adapters={"a/b": tmp_path / "wider"})
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, peft.PeftModel]:
    """A folder with a base, its package and an adapter, and PEFT's model of it."""
    folder, model = tmp_path_factory.mktemp("adapters"), tiny_model("llama")
    model.save_pretrained(folder / "base")
    trained = adapt(model, folder / "adapter", **ATTENTION)
    export(folder / "base", folder / "out")
    return folder, trained


@pytest.fixture
def folders(made_once: tuple[Path, peft.PeftModel], tmp_path: Path) -> tuple[Path, Path, peft.PeftModel]:
    """A package without adapters, an adapter, and PEFT's model of it; the base lies next to them."""
    shutil.copytree(made_once[0], tmp_path, dirs_exist_ok=True)
    return tmp_path / "out", tmp_path / "adapter", made_once[1]


def test_an_adapter_is_added_to_a_package_and_compared_on_request(
    folders: tuple[Path, Path, peft.PeftModel], capsys: pytest.CaptureFixture[str]
) -> None:
    package, adapter, trained = folders
    assert run(["adapter", "add", str(package), str(adapter)]) == 0
    assert "not compared with PyTorch; --against SOURCE does that" in capsys.readouterr().out
    assert difference(package, "adapter", trained) < 1e-4
    assert run(["adapter", "add", str(package), str(adapter), "--name", "twin", "--against", str(package.with_name("base"))]) == 0
    assert "has the adapter twin: rank 4, 4 parameters, compared with PyTorch: " in capsys.readouterr().out
    model = onnx_textgen.load(package)
    assert [*model.manifest.adapters] == ["adapter", "twin"]
    assert run(["verify", str(package)]) == 0
    shown = capsys.readouterr().out
    assert "golden: the manifest has no runs to replay with the adapter adapter" in shown
    assert "golden 3 with the adapter twin: " in shown


def test_verify_compares_a_kept_adapter_with_that_of_a_folder(
    folders: tuple[Path, Path, peft.PeftModel], capsys: pytest.CaptureFixture[str]
) -> None:
    package, adapter, _ = folders
    base, other = str(package.with_name("base")), package.with_name("other")
    add_adapter(package, adapter, name="own")
    assert run(["verify", str(package), "--against", base, "--adapter", f"own={adapter}"]) == 0
    adapt(tiny_model("llama"), other, seed=2, **ATTENTION)
    assert run(["verify", str(package), "--against", base, "--adapter", f"own={other}"]) == 1
    assert "DIFFERENT" in capsys.readouterr().out


def test_a_name_is_taken_once_and_replaced_on_request(folders: tuple[Path, Path, peft.PeftModel]) -> None:
    package, adapter, _ = folders
    add_adapter(package, adapter, name="own")
    other = adapt(tiny_model("llama"), package.with_name("other"), seed=2, **ATTENTION)
    before = (package / MANIFEST).read_bytes()
    with pytest.raises(ExportError, match="has an adapter own already; give another --name, or add --force"):
        add_adapter(package, package.with_name("other"), name="own")
    assert (package / MANIFEST).read_bytes() == before
    add_adapter(package, package.with_name("other"), name="own", force=True)
    assert difference(package, "own", other) < 1e-4


@pytest.mark.parametrize("writes", [0, 1])
def test_a_package_stays_whole_if_adding_is_killed(writes: int, folders: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    package, adapter, trained = folders
    add_adapter(package, adapter, name="own")
    calls = [0]

    def dying(*given: Any) -> None:
        if calls[0] == writes:
            raise KeyboardInterrupt
        calls[0] += 1
        replace_manifest(*given)

    monkeypatch.setattr("onnx_textgen_export.adding.replace_manifest", dying)
    adapt(tiny_model("llama"), package.with_name("other"), seed=2, **ATTENTION)
    with pytest.raises(KeyboardInterrupt):
        add_adapter(package, package.with_name("other"), name="own", force=True)
    assert [*onnx_textgen.load(package).manifest.adapters] == (["own"] if writes == 0 else [])
    if writes == 0:
        assert difference(package, "own", trained) < 1e-4
    assert not list(package.glob(".*"))
    monkeypatch.undo()
    add_adapter(package, adapter, name="own", force=True)
    assert difference(package, "own", trained) < 1e-4


def test_an_adapter_that_cannot_be_written_leaves_the_old_one(folders: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    package, adapter, trained = folders
    add_adapter(package, adapter, name="own")

    def full(path: Path, changes: Changes) -> None:
        write_adapter(Path("/dev/full"), changes)

    monkeypatch.setattr("onnx_textgen_export.adding.write_adapter", full)
    with pytest.raises(onnx_textgen.PackageError, match="cannot be written"):
        add_adapter(package, adapter, name="own", force=True)
    assert difference(package, "own", trained) < 1e-4


def test_an_adapter_that_would_spoil_the_others_is_refused(folders: Any) -> None:
    package, adapter, _ = folders
    add_adapter(package, adapter, name="own")
    with pytest.raises(ExportError, match="has an adapter own, which some systems do not tell from OWN; give another --name"):
        add_adapter(package, adapter, name="OWN")
    tensors = load_file(adapter / "adapter_model.safetensors")
    name = next(iter(tensors))
    save_file(tensors | {name: tensors[name] * float("nan")}, adapter / "adapter_model.safetensors")
    with pytest.raises(ExportError, match="has numbers that are not finite"):
        add_adapter(package, adapter, name="other")
    assert [*onnx_textgen.load(package).manifest.adapters] == ["own"]


def test_verify_refuses_an_adapter_that_does_not_belong_to_the_package(folders: Any) -> None:
    package, adapter, _ = folders
    base = str(package.with_name("base"))
    add_adapter(package, adapter, name="own")
    adapt(llama(hidden_size=96, head_dim=16), package.with_name("wider"), **ATTENTION)
    with pytest.raises(ExportError, match="has no adapter onw; it has: own"):
        verify_against(package, base, print, adapter=f"onw={adapter}")
    with pytest.raises(ExportError, match="from 96 to 96 numbers, and this model has 48"):
        verify_against(package, base, print, adapter=f"own={package.with_name('wider')}")


@pytest.mark.parametrize(
    "entry",
    [
        None,
        "",
        "[]",
        "{}",
        '{"version": 2, "element_type": "float32", "layers": []}',
        '{"version": 1, "element_type": "float32", "layers": [{}]}',
    ],
)
def test_a_graph_without_a_record_of_its_layers_or_with_a_damaged_one_takes_no_adapter(entry: str | None, folders: Any) -> None:
    package, adapter, _ = folders
    graph = onnx.load(package / "model.onnx", load_external_data=False)
    assert [each.key for each in graph.metadata_props] == [KEY]
    del graph.metadata_props[:]
    if entry is not None:
        onnx.helper.set_model_props(graph, {KEY: entry})
    onnx.save(graph, package / "model.onnx")
    manifest = read_manifest(package)
    files = {**manifest.files, "model.onnx": file_record(package / "model.onnx")}
    replace_manifest(package, dataclasses.replace(manifest, files=files))
    with pytest.raises(onnx_textgen.PackageError, match="linear layers") as raised:
        add_adapter(package, adapter)
    assert "\n" not in str(raised.value)


def test_the_file_is_onnx_runtimes_own_and_holds_the_scaled_matrices(folders: Any) -> None:
    package, adapter, trained = folders
    add_adapter(package, adapter, name="own")
    changes = read_adapter(package / "own.onnx_adapter")
    layer = trained.get_submodule("base_model.model.model.layers.0.self_attn.q_proj")
    found = changes["model.layers.0.self_attn.q_proj.weight"]
    assert np.allclose((found.narrow @ found.wide).T, layer.get_delta_weight("default").detach().numpy(), atol=1e-6)
    assert read_manifest(package).adapters["own"].rank == 4


def test_what_the_command_line_calls_an_adapter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a=b").mkdir()
    assert adapters_from(["one=DIR", "a=b", "two=owner/name"]) == ("a=b", {"one": "DIR", "two": "owner/name"})
    with pytest.raises(onnx_textgen.OptionError, match="only one adapter can be merged, found a and b"):
        adapters_from(["a", "b"])
    with pytest.raises(onnx_textgen.OptionError, match="--adapter one= names no adapter"):
        adapters_from(["one="])
    with pytest.raises(onnx_textgen.OptionError, match="--adapter names one twice"):
        adapters_from(["one=a", "one=b"])


def test_the_command_exports_with_adapters_and_says_so(folders: Any, capsys: pytest.CaptureFixture[str]) -> None:
    package, adapter, _ = folders
    base, out = str(package.with_name("base")), str(package.with_name("both"))
    assert run(["export", base, "--out", out, "--adapter", f"own={adapter}"]) == 0
    assert "With the adapter own: " in " ".join(capsys.readouterr().out.split())
    assert run(["info", out, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["adapters"]["own"]["parameters"] == 4


def test_a_cache_of_8_bits_takes_no_adapter(tmp_path: Path) -> None:
    model = llama(hidden_size=128, num_attention_heads=4, num_key_value_heads=2, head_dim=32)
    adapt(model, tmp_path / "adapter", **ATTENTION)
    made = export(model, tmp_path / "out", int8_cache=True, adapters={"own": tmp_path / "adapter"})
    opened = onnx_textgen.load(made.folder / "int8_cache_model.onnx")
    with pytest.raises(onnx_textgen.OptionError, match="has scales of keys and values without adapters; load the folder"):
        opened.generate([5, 9], adapter="own")


def test_an_adapter_is_removed_and_the_package_opens_as_before(folders: Any, capsys: pytest.CaptureFixture[str]) -> None:
    package, adapter, _ = folders
    before = {path.name: path.read_bytes() for path in package.rglob("*") if path.is_file()}
    add_adapter(package, adapter, name="own")
    assert run(["adapter", "remove", str(package), "other"]) == 1
    assert "has no adapter other; it has: own" in capsys.readouterr().err
    assert run(["adapter", "remove", str(package), "own"]) == 0
    assert {path.name: path.read_bytes() for path in package.rglob("*") if path.is_file()} == before


@pytest.mark.slow
def test_vectors_with_an_adapter_are_those_of_peft(tmp_path: Path) -> None:
    model = llama()
    trained = adapt(model, tmp_path / "adapter", **EVERYTHING)
    made = export(model, tmp_path / "package", adapters={"one": tmp_path / "adapter"}, hidden_states=True)
    ours = onnx_textgen.load(made.folder, device="cpu", threads=1)
    ids = IDS[0].tolist()
    with torch.no_grad():
        states = trained.base_model.model.model(IDS).last_hidden_state[0].numpy()
    np.testing.assert_allclose(ours.embed(ids, adapter="one", normalize=False), states.mean(axis=0), atol=1e-4)
    assert np.abs(ours.embed(ids, normalize=False) - states.mean(axis=0)).max() > 1e-2
