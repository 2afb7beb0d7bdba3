"""Models of the hub, fetched from a server of our own that speaks as much of its protocol as huggingface_hub asks for."""

import dataclasses
import functools
import hashlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from onnx_textgen_export import ExportError
from onnx_textgen_export.huggingface.checkpoint import refuse_code
from onnx_textgen_export.image_processors import processors
from onnx_textgen_export.tracing.hub import SETTINGS, missing_weights, of_adapter, resolve_adapter, resolve_source, wanted
from support.hub_server import JsonHandler, served

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = {
    "config.json": b"{}",
    "tokenizer.json": b"{}",
    "chat_template.jinja": b"x",
    "modules.json": b"[]",
    "1_Pooling/config.json": b"{}",
    "model-00001-of-00002.safetensors": b"first",
    "model-00002-of-00002.safetensors": b"second",
    "model.safetensors.index.json": json.dumps(
        {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    ).encode(),
    "consolidated.safetensors": b"the same again",
    "pytorch_model.bin": b"pickle",
    "modeling_own.py": b"import os",
    "model.gguf": b"gguf",
    "q8/big-00001-of-00002.gguf": b"gguf one",
    "q8/big-00002-of-00002.gguf": b"gguf two",
    "onnx/model.onnx": b"onnx",
    "onnx/config.json": b"{}",
    "original/model.safetensors": b"again",
    "README.md": b"read me",
    "adapter_config.json": b"{}",
    "adapter_model.safetensors": b"adapter",
}
NEEDED = sorted([*list(FILES)[:8]])


class Hub(JsonHandler):
    """`/api/models/NAME[...]` and `/NAME/resolve/REVISION/FILE`."""

    asked: list[str]

    def answer(self) -> None:
        self.asked.append(self.path)
        path = self.path.partition("?")[0]
        if path.startswith("/api/models/"):
            name, _, rest = path.removeprefix("/api/models/").partition("/")[2].partition("/")
            self.api(name, rest)
        else:
            name, _, file = path.removeprefix("/own/").partition(f"/resolve/{COMMIT}/")
            self.send(FILES[file], {"ETag": f'"{hashlib.sha1(FILES[file]).hexdigest()}"', "X-Repo-Commit": COMMIT})

    def api(self, name: str, rest: str) -> None:
        if name == "gated":
            return self.send(b"{}", {"X-Error-Code": "GatedRepo", "X-Error-Message": "gated"}, 403)
        if name != "model":
            return self.send(b"{}", {"X-Error-Code": "RepoNotFound", "X-Error-Message": "none"}, 401)
        kind, _, revision = rest.partition("/")
        if revision not in ("", "main", "dev", COMMIT):
            return self.send(b"{}", {"X-Error-Code": "RevisionNotFound", "X-Error-Message": "none"}, 404)
        if kind == "tree":
            return self.send(
                [{"type": "file", "path": n, "size": len(b), "oid": hashlib.sha1(b).hexdigest()} for n, b in FILES.items()]
            )
        siblings = [{"rfilename": name, "size": len(body)} for name, body in FILES.items()]
        return self.send({"id": "own/model", "sha": COMMIT, "siblings": siblings, "private": False, "gated": False})


@pytest.fixture
def hub() -> Iterator[tuple[str, list[str]]]:
    asked: list[str] = []
    with served(type("OwnHub", (Hub,), {"asked": asked})) as url:
        yield url, asked


@pytest.fixture(scope="module")
def nowhere() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


@dataclasses.dataclass
class Run:
    """Calls `resolve_source`, or another function, as if huggingface_hub had been imported under another environment."""

    monkeypatch: pytest.MonkeyPatch
    cache: Path

    def __call__(
        self, source: str, endpoint: str, *, offline: bool = False, resolve: Callable[..., Path] = resolve_source
    ) -> list[str]:
        with self.monkeypatch.context() as patch:
            patch.setattr(constants, "ENDPOINT", endpoint)
            patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", endpoint + "/{repo_id}/resolve/{revision}/{filename}")
            patch.setattr(constants, "HF_HUB_CACHE", str(self.cache))
            patch.setattr(constants, "HF_HUB_OFFLINE", offline)
            told: list[str] = []
            return [str(resolve(source, told.append)), *told]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    return Run(monkeypatch, tmp_path / "cache")


def test_a_model_is_fetched_without_code_pickles_or_copies_and_then_needs_no_network(
    hub: tuple[str, list[str]], nowhere: str, run: Run
) -> None:
    endpoint, asked = hub
    folder, stage = run("own/model", endpoint)
    assert stage == "fetch own/model, 0.0 MB"
    assert sorted(str(path.relative_to(folder)) for path in Path(folder).rglob("*") if path.is_file()) == NEEDED
    assert all((Path(folder) / name).read_bytes() == FILES[name] for name in NEEDED)
    assert not [path for path in asked if "/resolve/" in path and path.rpartition("/")[2] not in NEEDED]
    asked.clear()
    assert run("own/model", endpoint, offline=True) == [folder, "source: own/model from the cache"]
    assert asked == []
    assert run("own/model", nowhere) == [folder, "source: own/model from the cache"]
    next(Path(folder).glob("*-00002-*")).unlink()
    with pytest.raises(ExportError, match=r"the cache lacks model-00002-of-00002\.safetensors of own/model"):
        run("own/model", nowhere)


def test_a_gguf_file_is_fetched_alone_and_with_its_parts(hub: tuple[str, list[str]], nowhere: str, run: Run) -> None:
    endpoint, asked = hub
    file, stage = run("own/model/model.gguf@dev", endpoint)
    assert stage == "fetch own/model, 0.0 MB"
    assert Path(file).read_bytes() == b"gguf"
    assert [path.name for path in Path(file).parent.iterdir()] == ["model.gguf"]
    asked.clear()
    part, _ = run("own/model/q8/big-00001-of-00002.gguf", endpoint)
    assert Path(part).with_name("big-00002-of-00002.gguf").read_bytes() == b"gguf two"
    assert {path.rpartition("/")[2] for path in asked if "/resolve/" in path} == {f"big-0000{n}-of-00002.gguf" for n in (1, 2)}
    assert run("own/model/q8/big-00001-of-00002.gguf", nowhere)[0] == part
    with pytest.raises(ExportError, match=r"own/model has no file q4\.gguf; its GGUF files are model\.gguf, q8/big"):
        run("own/model/q4.gguf", endpoint)
    with pytest.raises(ExportError, match="own/model has no file"):
        run("own/model/../../x.gguf", endpoint)


def test_the_environment_says_where_the_cache_is_and_whether_there_is_a_network(tmp_path: Path) -> None:
    snapshot = tmp_path / "hub" / "models--own--model"
    (snapshot / "refs").mkdir(parents=True)
    (snapshot / "refs" / "main").write_text(COMMIT)
    for name in NEEDED:
        (snapshot / "snapshots" / COMMIT / name).parent.mkdir(parents=True, exist_ok=True)
        (snapshot / "snapshots" / COMMIT / name).write_bytes(FILES[name])
    code = "from onnx_textgen_export.tracing.hub import resolve_source; print(resolve_source('own/model'))"
    environment = os.environ | {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        environment.pop(name, None)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert Path(done.stdout.strip()) == snapshot / "snapshots" / COMMIT


def test_a_revision_is_taken_and_a_wrong_one_named(hub: tuple[str, list[str]], run: Run) -> None:
    endpoint, asked = hub
    assert Path(run("own/model@dev", endpoint)[0]).name == COMMIT
    assert any("/revision/dev" in path for path in asked)
    with pytest.raises(ExportError, match="own/model has no revision none; see "):
        run("own/model@none", endpoint)


@pytest.mark.parametrize(
    ("source", "offline", "complaint"),
    [
        ("own/other", False, "there is no folder own/other, and the hub has no such model or keeps it private; check the name"),
        ("own/gated", False, "own/gated requires that you accept its terms at "),
        ("own/model", True, "there is no folder own/model, HF_HUB_OFFLINE is set, and the cache in "),
    ],
)
def test_what_the_hub_refuses_is_one_line(hub: tuple[str, list[str]], run: Run, source: str, offline: bool, complaint: str) -> None:
    with pytest.raises(ExportError, match=complaint) as error:
        run(source, hub[0], offline=offline)
    assert "\n" not in str(error.value)


def test_no_network_and_an_empty_cache_is_one_line(nowhere: str, run: Run) -> None:
    with pytest.raises(ExportError, match=rf"the hub at {nowhere} cannot be reached .* give a local folder") as error:
        run("own/model", nowhere)
    assert "\n" not in str(error.value)


def test_of_an_adapter_on_the_hub_its_own_files_are_fetched_once(run: Run, hub: tuple[str, list[str]], nowhere: str) -> None:
    folder, told = run("own/model@dev", hub[0], resolve=resolve_adapter)
    assert told.startswith("fetch own/model, ")
    needed = {"adapter_config.json", "adapter_model.safetensors", "tokenizer.json", "chat_template.jinja"}
    assert {path.name for path in Path(folder).iterdir()} == needed
    again, told = run("own/model@dev", nowhere, resolve=resolve_adapter)
    assert (again, told) == (folder, "source: own/model from the cache")
    Path(folder, "adapter_model.safetensors").unlink()
    with pytest.raises(ExportError, match="the cache lacks the weights of own/model"):
        run("own/model@dev", nowhere, resolve=resolve_adapter)
    with pytest.raises(ExportError, match="m holds no LoRA adapter"):
        of_adapter(["config.json", "model.safetensors"], "m", allow_pickle=False)
    with pytest.raises(ExportError, match="m has a pickled adapter only"):
        of_adapter(["adapter_config.json", "adapter_model.bin"], "m", allow_pickle=False)


def test_a_folder_wins_over_a_hub_name_and_anything_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own" / "model").mkdir(parents=True)
    assert resolve_source("own/model") == Path("own/model")
    (tmp_path / "own" / "file").write_text("")
    for source in ("nowhere", "/no/where", "./own/other", "own/file", "a/b/c", "../x/y", Path("own/other"), "own/na me"):
        with pytest.raises(ExportError, match=r"is not a folder; give a checkpoint folder, a GGUF file, owner/name"):
            resolve_source(source)


def test_only_the_files_an_export_needs_are_chosen() -> None:
    assert sorted(wanted(FILES, "own/model", allow_pickle=True)) == NEEDED
    assert wanted(["config.json", "weights.safetensors", "adapter_model.safetensors"], "m", allow_pickle=False)[1:] == [
        "weights.safetensors"
    ]
    pickled = ["config.json", "pytorch_model-00001-of-00002.bin", "pytorch_model.bin.index.json", "training_args.bin", "x.py"]
    with pytest.raises(ExportError, match=r"m has pickled weights only, .* add --allow-pickle"):
        wanted(pickled, "m", allow_pickle=False)
    assert wanted(pickled, "m", allow_pickle=True) == pickled[:3]
    with pytest.raises(ExportError, match=r"m has no weights as safetensors; give one of its GGUF files, such as m/model\.gguf"):
        wanted(["config.json", "model.gguf"], "m", allow_pickle=True)


def test_a_cached_folder_without_weights_lacks_them(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    files = functools.partial(wanted, model="m", allow_pickle=False)
    assert missing_weights(tmp_path, files) == "the weights"
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-1.safetensors"}}')
    assert missing_weights(tmp_path, files) == "model-1.safetensors"


def test_a_model_that_brings_its_own_code_is_refused_only_where_its_type_is_unknown(tmp_path: Path) -> None:
    config = {"model_type": "their_own", "auto_map": {"AutoModelForCausalLM": "modeling_own.Own"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ExportError, match=r"is of the type their_own, .* and its Python code is not run"):
        refuse_code(tmp_path)
    for harmless in ({**config, "model_type": "llama"}, {"model_type": "their_own"}):
        (tmp_path / "config.json").write_text(json.dumps(harmless))
        refuse_code(tmp_path)


def test_settings_of_image_processors_are_fetched() -> None:
    assert set(processors.FILES) <= SETTINGS
