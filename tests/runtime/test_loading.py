"""What of a folder takes effect: of one of ours what its manifest lists and as it says, whoever else can write there."""

import json
import shutil
from pathlib import Path

import pytest

import onnx_textgen
from onnx_textgen import loading, textgen
from onnx_textgen.artifact import CHAT_TEMPLATE, TOKENIZER
from onnx_textgen.errors import OnnxTextgenError
from onnx_textgen.inventory import list_models

INJECTED = "INJECTED {{ messages[0].content }}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of a tiny package, which has no chat template."""
    return Path(shutil.copytree(Path(__file__).parents[1] / "packages" / "ort", tmp_path / "package"))


@pytest.mark.parametrize("name", ["chat_template.json", "special_tokens_map.json", "config.json", "generation_config.json"])
def test_a_file_beside_a_manifest_that_does_not_list_it_takes_no_effect(folder: Path, name: str) -> None:
    settings = {"chat_template": INJECTED, "eos_token_id": 5, "temperature": 0.1, "bos_token": "b"}
    without = onnx_textgen.load(folder, threads=1, device="cpu")
    (folder / name).write_text(json.dumps(settings))
    model = onnx_textgen.load(folder, threads=1, device="cpu")
    assert (model.chat_template, model.manifest) == (None, without.manifest)
    assert [entry.has_chat_template for entry in list_models(folder)] == [False]


def test_a_template_that_comes_after_the_files_were_checked_takes_no_effect(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checked, opened = loading.open_graph, []

    def late(*args, **options):
        (folder / CHAT_TEMPLATE).write_text(INJECTED)
        opened.append(args)
        return checked(*args, **options)

    monkeypatch.setattr(loading, "open_graph", late)
    assert onnx_textgen.load(folder, threads=1, device="cpu").chat_template is None
    assert opened


def test_a_tokenizer_that_is_replaced_after_the_files_were_checked_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = textgen.Model.__init__

    def late(self, *args, **options):
        path = folder / TOKENIZER
        path.write_text(path.read_text().replace("</s>", "</t>"))
        build(self, *args, **options)

    monkeypatch.setattr(textgen.Model, "__init__", late)
    with pytest.raises(OnnxTextgenError, match=r"tokenizer.json is damaged: its sha256 is"):
        onnx_textgen.load(folder, threads=1, device="cpu")
