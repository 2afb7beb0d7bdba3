"""`push`: a folder goes to a hub and comes back by `pull` and `load`, with a card; errors are lines without the token."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("huggingface_hub")
from huggingface_hub import ModelCard

import onnx_textgen
from onnx_textgen.cli import run
from onnx_textgen.cli.publishing.model_card import LICENCE, in_markdown, model_card
from onnx_textgen.errors import OptionError, PackageError
from onnx_textgen.hub.lookup import RECIPE
from onnx_textgen.hub.pushing import CARD, MARK, check_login
from onnx_textgen.hub.short_models import recipe_of
from onnx_textgen.package.locate import find_package
from onnx_textgen.package.manifest import MANIFEST, manifest_to_json
from onnx_textgen.package.reading import read_manifest
from support.hub_server import TOKEN, Hub, Repository, hub_server, use_hub

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")  # huggingface_hub's, of its HTTP library
STORY = find_package("story")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    """A hub that knows the user, and empty caches."""
    with hub_server() as found:
        use_hub(monkeypatch, found.url, tmp_path / "hub")
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setenv("ONNX_TEXTGEN_CACHE", str(tmp_path / "models"))
        yield found


def test_a_folder_comes_back_from_the_hub_as_it_was(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["push", str(STORY), "me/story", "--license", "cc-by-4.0", "--base-model", "me/original"]) == 0
    out, err = capsys.readouterr()
    assert out.replace("\n", " ").strip() == f"{hub.url}/me/story; run it anywhere with: onnx-textgen pull me/story"
    assert "upload 11 files to me/story, 9.1 MB" in err.replace("\n", " ")
    found = hub.repositories["me/story"]
    assert (found.private, found.commits) == (False, 1)
    assert found.files.keys() == {*read_manifest(STORY).files, MANIFEST, CARD}
    assert all(data == (STORY / name).read_bytes() for name, data in found.files.items() if name != CARD)
    with onnx_textgen.load("me/story", device="cpu", threads=1) as model:
        assert "hub" in model.folder.parts
        want = onnx_textgen.load("story").generate("Once", max_new_tokens=5, seed=1).text
        assert model.generate("Once", max_new_tokens=5, seed=1).text == want
    assert TOKEN not in out + err


def test_the_card_is_what_the_hub_reads_and_holds_proof_files_and_commands(hub: Hub) -> None:
    run(["push", "story", "me/story", "--license", "cc-by-4.0", "--base-model", "me/original"])  # by its name
    card = ModelCard(hub.repositories["me/story"].files[CARD].decode())
    fields = card.data.to_dict()
    assert (fields["license"], fields["base_model"], fields["pipeline_tag"]) == ("cc-by-4.0", ["me/original"], "text-generation")
    assert {"onnx", "onnx-textgen", "transformers.js"} <= set(fields["tags"])
    manifest = read_manifest(STORY)
    assert all(f"| {name} | " in card.text and record.sha256[:16] in card.text for name, record in manifest.files.items())
    assert 'onnx-textgen generate "Once upon a time" --model me/story' in card.text
    assert 'pipeline("text-generation", "me/story")' in card.text
    assert "onnxruntime_genai" in card.text
    assert all(f"| {scenario['name']} | " in card.text for scenario in manifest.certificate["scenarios"])


def test_a_new_version_replaces_the_files_of_the_one_before_and_no_others(hub: Hub, tmp_path: Path) -> None:
    run(["push", str(STORY), "me/story"])
    found = hub.repositories["me/story"]
    found.files |= {"notes.txt": b"mine", "figure.onnx": b"mine"}
    other = find_package("tiny-transformer")
    assert run(["push", str(other), "me/story"]) == 0
    assert found.files.keys() == {*read_manifest(other).files, MANIFEST, CARD, "notes.txt", "figure.onnx"}
    found.files[CARD] = b"# A card of my own"
    assert run(["push", str(other), "me/story"]) == 0
    assert found.files[CARD] == b"# A card of my own"
    assert MARK.encode() not in found.files[CARD]


def test_a_private_repository_needs_the_token_that_is_found_by_itself(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(["push", str(STORY), "me/story", "--private"]) == 0
    assert hub.repositories["me/story"].private
    monkeypatch.setenv("HF_TOKEN", "hf_other")
    assert run(["info", "me/story"]) == 1
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert run(["info", "me/story"]) == 0
    assert TOKEN not in "".join(capsys.readouterr())
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and TOKEN.encode() in path.read_bytes()]


def test_a_gated_repository_needs_the_token_of_somebody_who_has_access(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(["push", str(STORY), "me/story"])
    hub.repositories["me/story"].gated = True
    capsys.readouterr()
    monkeypatch.setenv("HF_TOKEN", "hf_other")
    assert run(["pull", "me/story"]) == 1
    _, err = capsys.readouterr()
    assert "error: me/story requires that you accept its terms" in err.replace("\n", " ")
    assert "hf_other" not in err
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert run(["pull", "me/story"]) == 0
    assert run(["generate", "Once", "--model", "me/story", "-n", "3"]) == 0


@pytest.mark.parametrize(
    "case",
    [
        ("hf_other", "me/story", "the hub does not know you; run: hf auth login"),
        (TOKEN, "others/story", "the hub refuses others/story: your token may not write to others"),
        (TOKEN, "me/story..more", "me/story..more is not a name on the hub"),
    ],
)
def test_what_the_hub_refuses_is_one_line(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], case: tuple[str, str, str]
) -> None:
    token, name, said = case
    monkeypatch.setenv("HF_TOKEN", token)
    assert run(["push", str(STORY), name]) == 1
    out, err = capsys.readouterr()
    assert out == "" and said in err and err.count("\n") == 1 and token not in err
    assert hub.repositories == {}


@pytest.mark.parametrize(
    "arguments",
    [
        ["mine"],
        ["me/a/b"],
        ["me/a\nb"],
        ["me/a", "--license", "mit\nx: y"],
        ["me/a", "--license", "no"],
        ["me/a", "--license", "1.0"],
        ["me/a", "--base-model", "me/[x](y)"],
        ["me/<b>"],
    ],
)
def test_what_would_not_fit_a_card_is_refused_before_the_hub_is_asked(
    hub: Hub, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert run(["push", str(STORY), *arguments]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert hub.asked == []


def test_a_public_repository_is_not_taken_for_a_private_one(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    hub.repositories["me/story"] = Repository(private=False)
    assert run(["push", str(STORY), "me/story", "--private"]) == 1
    assert "me/story is public already" in capsys.readouterr().err
    assert hub.repositories["me/story"].files == {}


def test_fields_that_the_hub_refuses_are_one_line_and_nothing_is_made(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["push", str(STORY), "me/story", "--license", "unheard-of"]) == 1
    err = capsys.readouterr().err
    assert "license must be one of" in err and err.count("\n") == 1
    assert hub.repositories == {}


def test_names_are_checked_before_a_long_work(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    check_login("me/x")
    check_login("we/x")
    for name, wrong in (("others/x", PackageError), ("story", OptionError)):
        with pytest.raises(wrong):
            check_login(name)
    monkeypatch.setenv("HF_TOKEN", "hf_other")
    with pytest.raises(PackageError, match="does not know you"):
        check_login("me/x")


@pytest.mark.parametrize("certificate", [{"summary": "x"}, {"scenarios": 5}, {"summary": [1], "scenarios": [3, {"name": 7}]}])
def test_a_certificate_of_any_form_makes_a_card(certificate: dict[str, object]) -> None:
    manifest = dataclasses.replace(read_manifest(STORY), certificate=certificate)
    assert "## Proof" in model_card(manifest, "me/story", has_chat=False)


def test_a_card_names_only_runtimes_that_open_the_folder() -> None:
    whole = read_manifest(STORY)
    weights = {
        name: record for name, record in whole.files.items() if name.endswith("_data") or name in ("model.onnx", "tokenizer.json")
    }
    alone = dataclasses.replace(whole, files=weights, quantization={})
    card = model_card(alone, "me/story", has_chat=False, base="me/original")
    assert not [word for word in ("transformers.js", "onnxruntime-genai", "base_model_relation") if word in card]
    assert "base_model_relation: quantized" in model_card(whole, "me/story", has_chat=False, base="me/original")


def test_a_damaged_folder_is_not_uploaded(hub: Hub, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    shutil.copytree(STORY, tmp_path / "story")
    (tmp_path / "story" / "config.json").write_bytes(b"{}")
    assert run(["push", str(tmp_path / "story"), "me/story"]) == 1
    assert "config.json" in capsys.readouterr().err
    assert hub.asked == []


def test_a_manifest_of_others_deletes_nothing(hub: Hub) -> None:
    hub.repositories["me/story"] = Repository(private=False, files={MANIFEST: b"[]", "a.bin": b"x"})
    assert run(["push", str(STORY), "me/story"]) == 0
    assert "a.bin" in hub.repositories["me/story"].files


def test_a_recipe_goes_next_to_its_source_whose_card_stays(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = recipe_of("smollm2")
    assert recipe is not None
    hub.repositories["me/weights-GGUF"] = Repository(private=False, files={"README.md": b"# Weights"})
    assert run(["push", str(recipe), "me/weights-GGUF"]) == 0
    assert "licence" not in capsys.readouterr().err, "the card is not ours"
    files = hub.repositories["me/weights-GGUF"].files
    assert (files[RECIPE], files["README.md"]) == (recipe.read_bytes(), b"# Weights")
    assert run(["push", str(recipe), "me/new", "--license", "Apache-2.0", "--base-model", "me/original"]) == 0
    fields = ModelCard(hub.repositories["me/new"].files[CARD].decode()).data.to_dict()
    assert (fields["license"], fields["base_model"]) == ("apache-2.0", ["me/original"])
    assert "licence" not in capsys.readouterr().err


def test_names_and_licences() -> None:
    assert in_markdown("a|b\n<script>[x](y)") == r"a\|b \<script\>\[x\](y)"
    assert LICENCE.search("owner/name, MIT") and not LICENCE.search("permit, or so")


def test_the_card_of_a_hostile_manifest_has_no_html(hub: Hub, tmp_path: Path) -> None:
    shutil.copytree(STORY, tmp_path / "story")
    manifest = dataclasses.replace(
        read_manifest(STORY), source="<img src=x>\n---\nlicense: mit", versions={"a": "<img src=y>\n# b"}, sha256=""
    )
    (tmp_path / "story" / MANIFEST).write_text(manifest_to_json(manifest), encoding="utf-8")
    assert run(["push", str(tmp_path / "story"), "me/story"]) == 0
    card = hub.repositories["me/story"].files[CARD].decode()
    assert "<img" not in card.replace(r"\<img", "") and json.dumps(ModelCard(card).data.to_dict()).count("mit") == 0
