"""LoRA adapters merged at export: the numbers and the logits are those of PEFT, and what does not fit is one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import nn

import onnx_textgen
from onnx_textgen.cli import run
from onnx_textgen_export import ExportError, export
from onnx_textgen_export.sources.tiny_transformer import DecoderConfig, TinyTransformer
from onnx_textgen_export.tracing.adapters import merged
from onnx_textgen_export.tracing.opening import open_source
from onnx_textgen_export.weights import streamed
from onnx_textgen_export.weights.adapter import SETTINGS, Adapter
from support.examples import examples

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # PEFT 0.21 with transformers 5.23
VOCABULARY = 300
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
}  # fmt: skip
CONFIGS: dict[str, Callable[[], transformers.PretrainedConfig]] = {
    "llama": lambda: transformers.LlamaConfig(**SIZES, tie_word_embeddings=False),
    "wide": lambda: transformers.LlamaConfig(**SIZES | {"hidden_size": 256, "intermediate_size": 320}, tie_word_embeddings=False),
    "tied": lambda: transformers.LlamaConfig(**SIZES, tie_word_embeddings=True),
    "biases": lambda: transformers.Qwen2Config(**SIZES),
    "inputs first": lambda: transformers.GPT2Config(
        vocab_size=VOCABULARY, n_embd=64, n_layer=2, n_head=4, n_positions=64, bos_token_id=None, eos_token_id=None
    ),
}
ATTENTION = ["q_proj", "v_proj"]
ADAPTERS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("llama", {"target_modules": ATTENTION, "r": 4, "lora_alpha": 7}),
    "every layer, with scales by the root of the rank": ("llama", {"target_modules": "all-linear", "r": 9, "use_rslora": True}),
    "other ranks and scales by pattern": (
        "llama",
        {
            "target_modules": [*ATTENTION, "down_proj"],
            "r": 4,
            "rank_pattern": {"down_proj": 2, r"model\.layers\.1\..*q_proj": 6},
            "alpha_pattern": {r"layers\.0\.self_attn\.v_proj": 31, "down_proj": 5},
        },
    ),
    "DoRA": ("llama", {"target_modules": [*ATTENTION, "gate_proj"], "r": 4, "use_dora": True}),
    "layers by a pattern": ("llama", {"target_modules": r".*layers\.1\.mlp\.(up|down)_proj", "r": 3}),
    "weights with their inputs first": ("inputs first", {"target_modules": ["c_attn", "c_proj"], "r": 4, "fan_in_fan_out": True}),
    "DoRA with inputs first": ("inputs first", {"target_modules": ["c_attn"], "r": 4, "fan_in_fan_out": True, "use_dora": True}),
    "biases of the products": ("biases", {"target_modules": ATTENTION, "r": 4, "lora_bias": True}),
    "trained biases": ("biases", {"target_modules": ATTENTION, "r": 4, "bias": "all"}),
    "a norm and an output layer trained whole": (
        "llama",
        {"target_modules": ATTENTION, "r": 4, "modules_to_save": ["norm", "lm_head"]},
    ),
    "an embedding": ("llama", {"target_modules": ["embed_tokens", "q_proj"], "r": 4}),
    "an embedding with DoRA": ("llama", {"target_modules": ["embed_tokens"], "r": 4, "use_dora": True}),
    "an embedding that is tied": ("tied", {"target_modules": ["embed_tokens"], "r": 4}),
    "an output layer that is tied": ("tied", {"target_modules": ["lm_head"], "r": 4}),
    "a tied embedding trained whole": ("tied", {"target_modules": ATTENTION, "r": 4, "modules_to_save": ["embed_tokens"]}),
    "tokens trained alone": ("llama", {"target_modules": ATTENTION, "r": 4, "trainable_token_indices": [3, 250, 7]}),
    "tokens trained alone, of tied layers": ("tied", {"target_modules": ATTENTION, "r": 4, "trainable_token_indices": [3, 250]}),
}


@pytest.fixture
def everything_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave matrices unmaterialized although they are small here."""
    monkeypatch.setattr(streamed, "UNMATERIALIZED_FROM", 1000)


def draw(model: nn.Module, seed: int = 1) -> None:
    """Give every weight that an adapter trains numbers of its own: PEFT starts with a change of zero."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                size = 0.3 if "lora_" in name and "magnitude" not in name else 0.05
                parameter.copy_(torch.randn_like(parameter) * size + (parameter if size == 0.05 else 0))


def write(folder: Path, config: str = "llama", **options: Any) -> tuple[Path, Path, peft.PeftModel]:
    """A base, an adapter for it, and PEFT's own model of both."""
    torch.manual_seed(3)
    model = transformers.AutoModelForCausalLM.from_config(CONFIGS[config]()).eval()
    model.save_pretrained(folder / "base")
    model.config._name_or_path = model.name_or_path = str(folder / "base")
    trained = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **options)).eval()
    draw(trained)
    trained.save_pretrained(folder / "adapter")
    return folder / "base", folder / "adapter", trained


def logits_of(model: nn.Module) -> torch.Tensor:
    ids = torch.arange(0, VOCABULARY, 7)[None]
    with torch.no_grad():
        return model(ids).logits


@pytest.mark.filterwarnings("ignore")  # PEFT's about tied weights, which it would merge wrongly
@pytest.mark.usefixtures("everything_is_large")
@pytest.mark.parametrize("name", ADAPTERS)
def test_a_merged_adapter_computes_what_peft_does(name: str, tmp_path: Path) -> None:
    config, options = ADAPTERS[name]
    base, adapter, trained = write(tmp_path, config, **options)
    opened = open_source(base, adapter=adapter)
    with opened.weights.present():
        found = logits_of(opened.module)
    assert (found - logits_of(trained)).abs().max() < 2e-5
    assert (found - logits_of(open_plain(base))).abs().max() > 1e-3, "it changes something"
    assert opened.name == "base-adapter"


def test_verify_compares_with_the_base_and_its_adapter(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base, adapter, _ = write(tmp_path, target_modules=ATTENTION, r=4)
    package = export(base, tmp_path / "package", adapter=adapter, tokenizer=None).folder
    command = ["verify", str(package), "--against", str(base)]
    assert run([*command, "--adapter", str(adapter)]) == 0
    assert "DIFFERENT" not in capsys.readouterr().out
    assert run(command) == 1
    assert "DIFFERENT" in capsys.readouterr().out


def open_plain(base: Path) -> nn.Module:
    return transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32).eval()


@examples(20)
@given(rank=st.integers(1, 20), alpha=st.floats(0.1, 64), kinds=st.tuples(st.booleans(), st.booleans()), seed=st.integers(0, 99))
def test_any_rank_and_scale(
    rank: int, alpha: float, kinds: tuple[bool, bool], seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    layer = nn.Sequential(nn.Linear(24, 16, bias=False))
    options = {"r": rank, "lora_alpha": alpha, "use_dora": kinds[0], "use_rslora": kinds[1], "target_modules": ["0"]}
    trained = peft.get_peft_model(layer, peft.LoraConfig(**options)).eval()
    draw(trained, seed)
    folder = tmp_path_factory.mktemp("adapter")
    trained.save_pretrained(folder)
    plain = trained.get_base_model()[0].base_layer.weight.detach()
    found = Adapter(folder).merged("0.weight", lambda: plain)
    wanted = trained.merge_and_unload()[0].weight
    assert torch.allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_the_package_of_a_base_and_an_adapter_is_proved_and_writes_what_peft_does(tmp_path: Path) -> None:
    base, adapter, trained = write(tmp_path, "wide", target_modules="all-linear", r=8)
    made = export(base, tmp_path / "out", adapter=adapter)
    assert made.manifest.name == "base-adapter"
    assert made.manifest.source == "the checkpoint base with the adapter adapter"
    prompt = [5, 9, 20, 31]
    with torch.no_grad():
        wanted = trained.generate(torch.tensor([prompt]), max_new_tokens=12, do_sample=False)[0, 4:].tolist()
    assert list(onnx_textgen.load(made.folder).generate(prompt, max_new_tokens=12, temperature=0).token_ids) == wanted


def test_a_live_model_of_peft_is_exported_with_its_adapter(tmp_path: Path) -> None:
    _, _, trained = write(tmp_path, target_modules=ATTENTION, r=4)
    before = logits_of(trained)
    opened = open_source(trained)
    assert (logits_of(opened.module) - before).abs().max() < 2e-5
    assert torch.equal(logits_of(trained), before), "the caller's model is unchanged"


@pytest.mark.filterwarnings("ignore")
def test_a_live_model_that_peft_would_merge_wrongly_is_refused(tmp_path: Path) -> None:
    _, _, trained = write(tmp_path, "tied", target_modules=["embed_tokens"], r=4)
    with pytest.raises(ExportError, match="--adapter DIR"):
        open_source(trained)


@pytest.mark.filterwarnings("ignore")  # PEFT's about the embedding that it saves
@pytest.mark.usefixtures("everything_is_large")
def test_an_adapter_that_was_trained_with_further_tokens_brings_them(tmp_path: Path, shared: Path) -> None:
    tokenizer = next((shared / "tokenizers").rglob("tokenizer.json"))
    torch.manual_seed(3)
    model = transformers.AutoModelForCausalLM.from_config(CONFIGS["tied"]()).eval()
    model.save_pretrained(tmp_path / "base")
    model.resize_token_embeddings(VOCABULARY + 4, mean_resizing=False)
    trained = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", target_modules=ATTENTION, r=4)).eval()
    draw(trained)
    trained.save_pretrained(tmp_path / "adapter", save_embedding_layers=True)
    (tmp_path / "adapter" / "tokenizer.json").write_bytes(tokenizer.read_bytes())
    (tmp_path / "adapter" / "chat_template.jinja").write_text("{{ messages[0].content }}")
    opened = open_source(tmp_path / "base", adapter=tmp_path / "adapter")
    with opened.weights.present():
        found = logits_of(opened.module)
    assert found.shape[-1] == VOCABULARY + 4
    assert (found - logits_of(trained)).abs().max() < 2e-5
    assert opened.assets.tokenizer is not None
    assert opened.assets.chat_template == "{{ messages[0].content }}"


def test_an_own_module_takes_an_adapter_too(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = TinyTransformer(DecoderConfig(vocab_size=120, width=32, layers=1, context_length=64)).eval()
    name, weight = next((name, weight) for name, weight in module.named_parameters() if weight.ndim == 2 and "layers" in name)
    layer = name.removesuffix(".weight")
    save_file(
        {f"base_model.model.{layer}.lora_A.weight": torch.ones(2, weight.shape[1]),
         f"base_model.model.{layer}.lora_B.weight": torch.ones(weight.shape[0], 2)},
        tmp_path / "adapter_model.safetensors",
    )  # fmt: skip
    (tmp_path / SETTINGS).write_text(json.dumps({"peft_type": "LORA", "lora_alpha": 1}))
    made = merged(module, Adapter(tmp_path))
    assert torch.allclose(made.get_parameter(name), weight + 1)
    assert made is not module


WRONG: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "another method": (lambda s: s.update(peft_type="IA3"), "of the type IA3"),
    "weights of another base": (lambda s: s.update(init_lora_weights="pissa_niter_4"), "init_lora_weights pissa_niter_4"),
    "experts": (lambda s: s.update(target_parameters=["experts.down_proj"]), "target_parameters"),
    "another computation": (lambda s: s.update(use_qalora=True), "use_qalora"),
    "no pattern": (lambda s: s.update(alpha_pattern={"(": 3}), "no pattern of names"),
    "a pattern without end": (
        lambda s: s.update(alpha_pattern={r"(?:(\w|.)*)*[^\w.]": 3}),
        r"no pattern of names \(takes more than",
    ),
    "no patterns": (lambda s: s.update(alpha_pattern=["a"]), "no scale that is a number"),
    "a text as scale": (lambda s: s.update(lora_alpha="8"), "no scale that is a number"),
    "no settings": (lambda s: s.clear(), "has no adapter_config.json"),
}


@pytest.mark.parametrize("name", WRONG)
def test_settings_that_ask_for_more_are_refused(name: str, tmp_path: Path) -> None:
    base, adapter, _ = write(tmp_path, target_modules=ATTENTION, r=4)
    change, message = WRONG[name]
    found = json.loads((adapter / SETTINGS).read_text())
    change(found)
    (adapter / SETTINGS).write_text(json.dumps(found))
    with pytest.raises(ExportError, match=message) as raised:
        opened = open_source(base, adapter=adapter)
        opened.weights.load("model.layers.0.self_attn.q_proj.weight")
    assert "\n" not in str(raised.value)


def test_an_adapter_of_another_base_is_refused_by_names_and_shapes(tmp_path: Path) -> None:
    base, adapter, _ = write(tmp_path, target_modules=ATTENTION, r=4)
    other, _, _ = write(tmp_path / "other", "inputs first", target_modules=["c_attn"], r=4, fan_in_fan_out=True)
    with pytest.raises(ExportError, match=r"changes model\.layers\.\d\..*, which the base does not have; give the base .*base"):
        open_source(other, adapter=adapter)
    wider = transformers.LlamaConfig(**SIZES | {"hidden_size": 128})
    transformers.AutoModelForCausalLM.from_config(wider).save_pretrained(tmp_path / "wider")
    with pytest.raises(ExportError, match=r"by a matrix \[64, 64\], and the base has \[128, 128\]"):
        export(tmp_path / "wider", tmp_path / "out", adapter=adapter)
    assert not (tmp_path / "out").exists()
    tensors = load_file(adapter / "adapter_model.safetensors")
    save_file({name: value for name, value in tensors.items() if "lora_B" not in name}, adapter / "adapter_model.safetensors")
    with pytest.raises(ExportError, match="do not belong together"):
        open_source(base, adapter=adapter).weights.load("model.layers.0.self_attn.q_proj.weight")


def test_the_folder_of_an_adapter_is_no_source(tmp_path: Path) -> None:
    _, adapter, _ = write(tmp_path, target_modules=ATTENTION, r=4)
    with pytest.raises(ExportError, match=r"is an adapter; export its base with it: .* export .*base --adapter .*adapter"):
        export(adapter, tmp_path / "out")
