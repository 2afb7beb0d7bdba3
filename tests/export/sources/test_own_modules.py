"""Decoders that are no transformers model: the two of the documentation, and our own reference decoder with its options."""

import functools
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import nn

import onnx_textgen
from onnx_textgen.errors import OptionError
from onnx_textgen.installation import add_extra
from onnx_textgen_export import DecoderConfig, ExportError, KeyValueCache, TinyTransformer, cached_attention, export
from onnx_textgen_export.package import folder
from onnx_textgen_export.tracing.opening import open_source

ROOT = Path(__file__).resolve().parents[3]


def documented_blocks() -> list[str]:
    text = (ROOT / "docs" / "your_own_decoder.md").read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)


@pytest.fixture
def documented(monkeypatch: pytest.MonkeyPatch) -> dict:
    """The names that the documentation's first two code blocks define."""
    module = ModuleType("documented_decoders")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for block in documented_blocks()[:2]:
        exec(compile(block, "docs/your_own_decoder.md", "exec"), module.__dict__)  # noqa: S102 - our own documentation
    torch.manual_seed(0)
    return module.__dict__


@pytest.mark.slow
@pytest.mark.parametrize("target", ["ort", "standard"])
@pytest.mark.parametrize("kind", ["MyDecoder", "PlainDecoder"])
def test_the_documented_decoders_export_and_give_pytorchs_logits(documented, kind: str, target: str, tmp_path: Path) -> None:
    module = documented[kind]().eval()
    export(module, tmp_path / "package", context_length=128, target=target)
    package = onnx_textgen.load(tmp_path / "package", threads=1)
    ids = np.random.default_rng(0).integers(0, 256, 40).tolist()
    positions, inputs = torch.arange(40)[None], torch.tensor([ids])
    with torch.no_grad():
        if kind == "MyDecoder":
            want = module(inputs, positions)[0].numpy()
        else:
            want = module(inputs, attention_mask=torch.ones_like(inputs), position_ids=positions)[0][0].numpy()
    decoder = package.new_context()
    got = np.concatenate([decoder.feed(part, every_position=True) for part in (ids[:13], ids[13:14], ids[14:])])
    np.testing.assert_allclose(got, want, atol=1e-4)
    alone = [package.generate(prompt, max_new_tokens=12, seed=4) for prompt in (ids[:3], ids[:9])]
    together = package.generate([ids[:3], ids[:9]], max_new_tokens=12, seed=4)
    assert [result.token_ids for result in alone] == [result.token_ids for result in together]


def test_the_documented_export_and_run_block_works(documented, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(documented_blocks()[2], "docs/your_own_decoder.md", "exec"), documented)  # noqa: S102 - our own documentation
    assert re.fullmatch(r"\(\d+(, \d+){7}\)\n", capsys.readouterr().out)


OPTIONS = {
    "tiny-transformer": {},
    "post-norm": {"norm_placement": "post", "activation": "gelu"},
    "sinusoidal": {"positions": "sinusoidal", "norm": "rms"},
    "llama-like": {
        "positions": "rotary",
        "norm": "rms",
        "activation": "silu_gated",
        "kv_heads": 1,
        "tie_embeddings": True,
        "bias": False,
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("target", ["ort", "standard"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_every_option_of_the_reference_decoder_exports(options: dict, target: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    module = TinyTransformer(DecoderConfig(vocab_size=200, width=64, context_length=100, **options)).eval()
    made = export(module, tmp_path / "package", target=target)  # compares with PyTorch itself, and raises on a difference
    assert made.manifest.geometry.kv_heads == (options.get("kv_heads") or 4)
    package = onnx_textgen.load(tmp_path / "package", threads=1)
    ids = list(range(0, 160, 5))
    with torch.no_grad():
        want = module(torch.tensor([ids]))[0].numpy()
    np.testing.assert_allclose(package.new_context().feed(ids, every_position=True), want, atol=1e-4)


def test_tiny_transformer_has_the_documented_size() -> None:
    embeddings = 8000 * 128 + 1000 * 128
    layer = 4 * (128 * 128 + 128) + (128 * 256 + 256) + (256 * 128 + 128) + 4 * 128
    head = 128 * 8000 + 8000
    total = sum(parameter.numel() for parameter in TinyTransformer().parameters())
    assert total == embeddings + 2 * layer + 2 * 128 + head
    assert round(total / 1e6, 2) == 2.45


def test_the_eager_cache_obeys_the_cache_law() -> None:
    torch.manual_seed(2)
    module = TinyTransformer(DecoderConfig(vocab_size=50, width=32, positions="rotary", kv_heads=2)).eval()
    ids, positions = torch.arange(20)[None], torch.arange(20)[None]
    with torch.no_grad():
        whole, cache = module(ids), KeyValueCache()
        parts = [module(ids[:, a:b], positions[:, a:b], cache) for a, b in ((0, 7), (7, 8), (8, 20))]
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, atol=1e-5, rtol=0)


def test_a_saved_reference_decoder_comes_back_equal(tmp_path: Path) -> None:
    torch.manual_seed(3)
    for tied in (False, True):
        module = TinyTransformer(DecoderConfig(vocab_size=60, width=32, tie_embeddings=tied)).eval()
        module.save(tmp_path / str(tied))
        again = TinyTransformer.from_folder(tmp_path / str(tied))
        ids = torch.arange(10)[None]
        torch.testing.assert_close(again(ids), module(ids))


class Plainest(nn.Module):
    """One layer of attention over `cached_attention`; the classes below differ from it in one point."""

    def __init__(self, width: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.table, self.qkv, self.out, self.head = (
            nn.Embedding(100, width), nn.Linear(width, 3 * width), nn.Linear(width, width), nn.Linear(width, 100),
        )  # fmt: skip

    def attend(self, x, cache, **options):
        batch, new, width = x.shape
        query, key, value = self.qkv(x).view(batch, new, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        return self.out(cached_attention(query, key, value, cache, **options).transpose(1, 2).reshape(batch, new, width))

    def forward(self, input_ids, cache=None):
        x = self.table(input_ids)
        return self.head(x + self.attend(x, None if cache is None else cache[0]))


class TieInTheForward(Plainest):
    def forward(self, input_ids, cache=None):
        x = self.table(input_ids)
        return nn.functional.linear(x + self.attend(x, None if cache is None else cache[0]), self.table.weight)


class OneLayerThreeTimes(Plainest):
    def forward(self, input_ids, cache=None):
        x = self.table(input_ids)
        for index in range(3):
            x = x + self.attend(x, None if cache is None else cache[index])
        return self.head(x)


class KeysAreValues(Plainest):
    def forward(self, input_ids, past_key_values=None, attention_mask=None):
        x = self.table(input_ids)
        keys = x[:, None] if past_key_values is None else torch.cat([past_key_values[0][0], x[:, None]], dim=2)
        new, total = x.shape[1], keys.shape[2]
        seen = torch.arange(total)[None] <= torch.arange(new)[:, None] + total - new
        mask = seen[None, None] & attention_mask.bool()[:, None, None]
        return self.head(x + nn.functional.scaled_dot_product_attention(x[:, None], keys, keys, attn_mask=mask)[:, 0]), [
            (keys, keys)
        ]


def normed(module: Plainest) -> nn.Module:
    nn.utils.parametrizations.weight_norm(module.out)
    return module


ODD = {
    "a weight that is computed": lambda: normed(Plainest()),
    "a tie within the forward": TieInTheForward,
    "one layer three times": OneLayerThreeTimes,
    "keys that are the values too": KeysAreValues,
    "heads whose size is no multiple of 8": lambda: Plainest(width=60, heads=5),
    "a compiled module": lambda: torch.compile(Plainest()),
    "a parallel module": lambda: nn.DataParallel(Plainest()),
}


@functools.cache
def odd(name: str) -> nn.Module:
    torch.manual_seed(0)
    return ODD[name]()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # PyTorch's own
@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize("name", ODD)
def test_modules_of_odd_forms_are_exported(name: str, precision: str, tmp_path: Path) -> None:
    assert export(odd(name), tmp_path / "package", context_length=64, precision=precision).manifest.precision == precision


class LastOnly(Plainest):
    def forward(self, input_ids, cache=None):
        return super().forward(input_ids, cache)[:, -1:]


class OneCacheTwice(Plainest):
    def forward(self, input_ids, cache=None):
        x = self.table(input_ids)
        return self.head(x + sum(self.attend(x, None if cache is None else cache[0]) for _ in range(2)))


class NothingKept(Plainest):
    def forward(self, input_ids, past_key_values=None):
        return self.head(self.table(input_ids)), None


class BackwardWindow(Plainest):
    def forward(self, input_ids, cache=None):
        x = self.table(input_ids)
        return self.head(x + self.attend(x, None if cache is None else cache[0], window=-3))


def without_numbers() -> nn.Module:
    with torch.device("meta"):
        return Plainest()


WRONG = {
    LastOnly: r"should return logits .* for two tokens it returned a tensor \[1, 1, 100\]",
    OneCacheTwice: r"cache\[0\] was given to more than one attention",
    NothingKept: r"one pair \(key, value\) of \[batch, kv_heads, tokens, head_size\] per layer",
    BackwardWindow: "window should be a number of tokens, or None, found -3",
    without_numbers: "on the meta device, which have no numbers",
    lambda: torch.jit.trace(nn.Linear(3, 3), torch.zeros(1, 3)): "is TorchScript",
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("make", WRONG)
def test_modules_that_cannot_be_exported_are_refused_in_one_line(make, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=WRONG[make]) as caught:
        export(make(), tmp_path / "package", context_length=64)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["random", "json", "types", "tokenizers"])
def test_a_file_that_is_called_like_a_module_takes_the_place_of_none(name: str, tmp_path: Path) -> None:
    path, before = tmp_path / f"{name}.py", sys.modules[name]
    path.write_text(
        "import dataclasses\nfrom torch import nn\n@dataclasses.dataclass\nclass Sizes:\n    width: int = 3\n"
        "def build():\n    return nn.Linear(Sizes().width, 3)\n"
    )
    assert isinstance(open_source(f"{path}:build").module, nn.Linear)
    assert sys.modules[name] is before


def test_a_file_that_fails_is_no_module_afterwards(tmp_path: Path) -> None:
    path, before = tmp_path / "broken.py", set(sys.modules)
    path.write_text("import absent_from_everywhere\n")
    with pytest.raises(OptionError, match="absent_from_everywhere"):
        open_source(f"{path}:build")
    assert not {name for name in set(sys.modules) - before if "broken" in name}


WITHOUT_TRANSFORMERS = """
import sys
sys.modules["transformers"] = None  # importing it fails
from onnx_textgen_export import DecoderConfig, TinyTransformer, export
module = TinyTransformer(DecoderConfig(vocab_size=64, layers=1, heads=2, width=16, context_length=64))
made = export(module, sys.argv[1], precision=sys.argv[2])
assert "transformers" not in made.manifest.versions
print(made.manifest.precision)
"""


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "int4"])
def test_a_module_of_ones_own_is_exported_and_verified_where_there_is_no_transformers(precision: str, tmp_path: Path) -> None:
    arguments = [sys.executable, "-c", WITHOUT_TRANSFORMERS, str(tmp_path / "package"), precision]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.stdout == f"{precision}\n", done.stderr
    assert onnx_textgen.load(tmp_path / "package").generate([1, 2, 3], max_new_tokens=4).token_ids


def test_a_checkpoint_without_transformers_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}', encoding="utf-8")
    for name in [name for name in sys.modules if name.partition(".")[0] == "transformers"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "onnx_textgen_export.huggingface.checkpoint", raising=False)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ExportError, match=re.escape(add_extra("export"))):
        open_source(tmp_path)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="looks at what the process maps, which Linux tells")
@pytest.mark.parametrize("precision", ["fp32", "int4"])
def test_a_folder_gets_its_name_when_no_file_in_it_is_mapped(
    precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def put_folder(partial: Path, target: Path) -> None:
        seen.append([line for line in Path("/proc/self/maps").read_text().splitlines() if str(partial) in line])
        partial.rename(target)

    monkeypatch.setattr(folder, "put_folder", put_folder)
    module = TinyTransformer(DecoderConfig(vocab_size=4096, layers=1, heads=2, width=64, context_length=64))
    export(module, tmp_path / "package", precision=precision)
    assert seen == [[]]
