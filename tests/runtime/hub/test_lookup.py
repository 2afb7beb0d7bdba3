"""Models by their name on the hub: which files are fetched, what the cache serves offline, and what is said where neither can."""

import dataclasses
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import onnx_textgen
from onnx_textgen.diagnostics import inventory
from onnx_textgen.errors import PackageError
from onnx_textgen.hub import lookup as hub
from onnx_textgen.hub.lookup import RECIPE, HubName, files_to_fetch, locate, parse_hub_name
from onnx_textgen.package.integrity import file_record
from onnx_textgen.package.locate import find_package
from onnx_textgen.package.manifest import manifest_to_json
from onnx_textgen.package.reading import read_manifest
from support.recipes import made_recipe

huggingface_hub = pytest.importorskip("huggingface_hub")
pytest.importorskip("huggingface_hub.constants")
STORY = find_package("story")
REVISION = "a" * 40
OURS = sorted(path.relative_to(STORY).as_posix() for path in STORY.rglob("*") if path.is_file())
COMMUNITY = [
    "README.md",
    "config.json",
    "tokenizer.json",
    "run.py",
    "onnx/model.onnx",
    "onnx/model.onnx_data",
    "onnx/model_q4.onnx",
]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The cache of the hub, empty."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    return tmp_path


@pytest.fixture
def offline(cache, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    return cache


def put(cache: Path, name: str, *, lacking: str = "") -> Path:
    """A repository in the cache as the hub lays it out: files are links to what they hold."""
    repository = cache / f"models--{name.replace('/', '--')}"
    folder = repository / "snapshots" / REVISION
    (repository / "blobs").mkdir(parents=True)
    (repository / "refs").mkdir()
    folder.mkdir(parents=True)
    (repository / "refs" / "main").write_text(REVISION, encoding="utf-8")
    for number, file in enumerate(path for path in OURS if path != lacking):
        shutil.copy(STORY / file, repository / "blobs" / str(number))
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).symlink_to(repository / "blobs" / str(number))
    return folder


@pytest.fixture
def server(cache, monkeypatch):
    """A hub that has `files`, and remembers what was fetched."""
    seen = SimpleNamespace(files=OURS, fetched=[])

    def model_info(self, name, *, revision, timeout, files_metadata):
        return SimpleNamespace(siblings=[SimpleNamespace(rfilename=file, size=1) for file in seen.files])

    def snapshot_download(name, *, revision, allow_patterns):
        seen.fetched.append((name, revision, allow_patterns))
        return str(put(cache, name))

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", model_info)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    return seen


@pytest.fixture
def published(cache, monkeypatch, tmp_path_factory):
    """A hub with a repository of a recipe and its source, and no graph; gives what was fetched, and the package."""
    package, source, recipe = made_recipe(tmp_path_factory.mktemp("made"))
    folder = put(cache, "owner/name", lacking="everything")
    shutil.rmtree(folder)
    folder.mkdir()
    here, fetched = {RECIPE: recipe, source.name: source}, []

    def model_info(self, name, *, revision, timeout, files_metadata):
        return SimpleNamespace(siblings=[SimpleNamespace(rfilename=file, size=1) for file in ("config.json", *here)])

    def snapshot_download(name, *, revision, allow_patterns):
        fetched.extend(allow_patterns)
        for file in allow_patterns:
            shutil.copy(here[file], folder / file)
        return str(folder)

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", model_info)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    monkeypatch.setenv("ONNX_TEXTGEN_CACHE", str(cache / "models"))
    return SimpleNamespace(fetched=fetched, package=package, source=source, files=here)


def test_a_recipe_beside_its_source_on_the_hub_is_built_once(published):
    for _ in range(2):
        built = locate("owner/name")
        files = [path.relative_to(built) for path in built.rglob("*") if path.is_file()]
        assert len(files) > 4
        assert all((built / each).read_bytes() == (published.package / each).read_bytes() for each in files)
        assert published.fetched == [RECIPE, published.source.name], "and nothing the second time"
    assert onnx_textgen.load("owner/name").generate([1, 2], max_new_tokens=2).token_ids


def test_a_recipe_on_the_hub_without_its_source_says_so(published):
    del published.files[published.source.name]
    with pytest.raises(PackageError, match=r"recipe of owner/name is for 'source\.safetensors', which is not there"):
        locate("owner/name")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("owner/name", HubName("owner/name")),
        ("owner/name@v1", HubName("owner/name", revision="v1")),
        ("hf:owner/na.me-2", HubName("owner/na.me-2")),
        ("hf:owner/name/", HubName("owner/name")),
        ("hf:owner/name/cpu/int4@v1", HubName("owner/name", "cpu/int4", "v1")),
        *((text, None) for text in ("story", "./owner/name", "../name", "/owner/name", "~/name", "owner/name/more", "name/")),
        (None, None),
        (Path("owner/name"), None),
    ],
)
def test_what_is_a_name_on_the_hub(text, name):
    assert parse_hub_name(text) == name


def test_a_folder_that_is_there_is_no_name_on_the_hub_unless_it_is_marked(tmp_path, monkeypatch):
    (tmp_path / "owner" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert parse_hub_name("owner/name") is None
    assert locate("owner/name") == Path("owner/name")
    assert parse_hub_name("hf:owner/name") == HubName("owner/name")


WAYS_OUT = ["hf:a/b/..", "hf:a/b/../../../outside", "hf:a/b/onnx/../../c", "hf:a/b@../../c", "hf:a/b/c@..", "hf:a/b/c\\..\\..\\d"]


@pytest.mark.parametrize("text", ["hf:", "hf:name", "hf:/a/b", "hf:a/b@", "hf:../b", *WAYS_OUT])
def test_a_marked_name_that_is_none_is_an_error(text):
    with pytest.raises(PackageError, match="write hf:owner/name"):
        parse_hub_name(text)


@pytest.mark.parametrize(
    ("files", "inside", "expected"),
    [
        ([*OURS, "README.md", "model.safetensors", "run.py"], "", OURS),
        ([f"int8/{name}" for name in OURS] + OURS, "int8", [f"int8/{name}" for name in OURS]),
        (COMMUNITY, "", ["config.json", "onnx/model.onnx", "onnx/model.onnx_data", "tokenizer.json"]),
        (COMMUNITY, "onnx/model_q4.onnx", ["config.json", "onnx/model_q4.onnx", "tokenizer.json"]),
        (["cpu/genai_config.json", "cpu/own.onnx", "cpu/own.onnx.data", "gpu/own.onnx"], "cpu", None),
    ],
)
def test_one_graph_is_fetched_with_what_lies_beside_it_and_nothing_else(files, inside, expected):
    assert sorted(files_to_fetch(files, HubName("a/b", inside))) == sorted(expected or files[:3])


PAIR = [f"onnx/{name}" for name in ("decoder_model.onnx", "decoder_with_past_model.onnx", "decoder_with_past_model.onnx_data")]
HALVES = [f"onnx/{stem}{variant}.onnx" for variant in ("", "_q4") for stem in ("encoder_model", "decoder_model_merged")]


@pytest.mark.parametrize(
    ("files", "inside", "expected"),
    [
        (HALVES, "", HALVES[:2]),
        (HALVES, "onnx/decoder_model_merged_q4.onnx", HALVES[2:]),
        ([HALVES[0], *PAIR], "", [HALVES[0], *PAIR]),
    ],
)
def test_all_graphs_of_an_encoder_decoder_are_fetched(files, inside, expected):
    assert files_to_fetch(["config.json", "README.md", *files], HubName("a/b", inside)) == ["config.json", *sorted(expected)]


def test_an_encoder_without_a_decoder_is_not_fetched():
    with pytest.raises(PackageError, match="no graph with a usual name"):
        files_to_fetch(["config.json", "onnx/encoder_model.onnx"], HubName("a/b"))


def test_a_repository_without_a_graph_is_answered_with_the_line_that_makes_one():
    with pytest.raises(PackageError, match="onnx-textgen export a/b --out DIR"):
        files_to_fetch(["config.json", "model.safetensors"], HubName("a/b"))
    with pytest.raises(PackageError, match="such as hf:a/b/cpu/int4"):
        files_to_fetch(["cpu/int4/model.onnx"], HubName("a/b"))


@pytest.mark.parametrize("text", ["someone/story", "hf:someone/story"])
def test_a_model_is_fetched_and_opens(server, text):
    model = onnx_textgen.load(text, threads=1, device="cpu")
    assert model.generate("The dog", max_new_tokens=3).token_ids
    assert server.fetched == [("someone/story", None, OURS)]


def test_offline_the_cache_serves(offline):
    folder = put(offline, "someone/story")
    assert locate("someone/story") == folder
    assert onnx_textgen.load("hf:someone/story", threads=1, device="cpu").manifest.name == "story"


def test_offline_what_is_missing_is_said_in_one_line(offline):
    with pytest.raises(PackageError, match=r"^there is no folder someone/story, HF_HUB_OFFLINE is set, and the cache in .* has no"):
        locate("someone/story")
    put(offline, "someone/story", lacking="onnx/model_quantized.onnx_data")
    with pytest.raises(PackageError, match=r"the cache lacks onnx/model_quantized.onnx_data of someone/story; unset it once$"):
        locate("someone/story")
    with pytest.raises(PackageError, match="the cache lacks int4 of someone/story"):
        locate("hf:someone/story/int4")


def test_without_a_network_the_cache_serves_too(cache, monkeypatch):
    def unreachable(self, name, **options):
        raise ConnectionError("no route to host")

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", unreachable)
    folder = put(cache, "someone/story")
    assert locate("someone/story") == folder
    with pytest.raises(PackageError, match=r"the hub at .* cannot be reached \(no route to host\)"):
        locate("someone/else")


def test_the_inventory_names_what_ships_and_what_the_cache_holds(cache):
    assert inventory.hub_cache() == cache
    folder = put(cache, "someone/story")
    (cache / "models--someone--torch" / "snapshots" / REVISION).mkdir(parents=True)
    shutil.copytree(folder, folder.parent / ("b" * 40))
    found = {entry.name: entry for entry in inventory.list_models()}
    assert list(found) == ["digits", "story", "tiny-transformer", "someone/story", f"someone/story@{'b' * 40}"]
    one = found["someone/story"]
    assert (one.precision, one.context_length, one.has_chat_template, one.origin) == ("int8", 512, False, "hub cache")
    assert one.size_bytes == found["story"].size_bytes


def test_the_inventory_of_a_folder_has_what_others_made_and_what_cannot_be_read(tmp_path):
    packages = Path(__file__).parents[2] / "packages"
    for name in ("optimum", "ort"):
        shutil.copytree(packages / name, tmp_path / name)
    template, manifest = tmp_path / "ort" / "chat_template.jinja", read_manifest(tmp_path / "ort")
    template.write_text("{{ messages }}", encoding="utf-8")
    listing_it = dataclasses.replace(manifest, files=manifest.files | {template.name: file_record(template)})
    (tmp_path / "ort" / "manifest.json").write_text(manifest_to_json(listing_it), encoding="utf-8")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "manifest.json").write_text("{", encoding="utf-8")
    (tmp_path / "empty").mkdir()
    broken, optimum, ort = inventory.list_models(tmp_path)
    assert "not valid JSON" in broken.problem
    assert (optimum.precision, optimum.context_length, optimum.problem) == ("unknown", 256, None)
    assert (ort.precision, ort.has_chat_template, ort.name) == ("fp32", True, str(tmp_path / "ort"))
    assert [entry.folder for entry in inventory.list_models(tmp_path / "ort")] == [tmp_path / "ort"]
    with pytest.raises(PackageError, match="is not a folder"):
        inventory.list_models(tmp_path / "nowhere")


def test_the_variables_of_the_hub_say_where_its_cache_is(monkeypatch, tmp_path):
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    assert inventory.hub_cache() == tmp_path / "hub"
    monkeypatch.delenv("HF_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert inventory.hub_cache() == tmp_path / "huggingface" / "hub"


def test_a_missing_huggingface_hub_is_answered_with_the_line_that_adds_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(PackageError, match="pip install -U huggingface_hub"):
        hub.fetch(HubName("a/b"))


def test_the_library_of_the_hub_is_left_alone_until_a_name_asks_for_it():
    code = (
        "import sys, onnx_textgen, onnx_textgen.diagnostics.inventory as inventory; onnx_textgen.load(threads=1, device='cpu'); "
        "inventory.list_models(); print('huggingface_hub' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "False\n"


def test_a_folder_without_the_files_that_were_not_asked_for_is_found_without_a_network(cache, monkeypatch):
    folder = put(cache, "someone/story")
    incomplete = OSError("2 file(s) are missing (README.md)")
    incomplete.snapshot_path = folder

    def refuse(*_, **__):
        raise incomplete

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", refuse)
    assert locate("someone/story") == folder
