"""`verify --runtime node` and `browser`: real runs where Node, its library and a browser are there."""

import json
import shutil
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from onnx_textgen.cli import run
from onnx_textgen.diagnostics.runtimes import browser, node
from onnx_textgen.diagnostics.runtimes.protocol import Task
from onnx_textgen.errors import DeviceError, ModelError
from onnx_textgen.package.reading import read_manifest
from onnx_textgen.web_site.libraries import LibraryError, cached_libraries, web_folder

EXACT = Path(__file__).parents[2] / "packages" / "ort"


@pytest.fixture
def in_web_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder whose node_modules has onnxruntime-node, after `npm ci --ignore-scripts` there."""
    monkeypatch.chdir(web_folder())
    try:
        node.find_node()
    except DeviceError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def found_browser() -> browser.Browser:
    try:
        cached_libraries()
        return browser.find_browser()
    except (DeviceError, LibraryError) as error:
        pytest.skip(str(error))


@pytest.mark.usefixtures("in_web_folder")
def test_node_writes_the_golden_continuations_of_an_embedded_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", "story", "--runtime", "node"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith(": 3 of 3 golden continuations are the same")


@pytest.mark.usefixtures("in_web_folder")
def test_an_error_of_the_program_in_node_is_one_line(tmp_path: Path) -> None:
    folder = shutil.copytree(EXACT, tmp_path / "package")
    (folder / "model.onnx").write_bytes(b"no graph")
    with pytest.raises(ModelError, match=r"onnxruntime-node .* failed: model.onnx is damaged"):
        node.find_node().continue_greedily(folder, read_manifest(folder), [Task((1,), 2)])


def test_a_browser_writes_the_golden_continuations_of_a_package_in_float32(
    found_browser: browser.Browser, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["verify", str(EXACT), "--runtime", "browser"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("onnxruntime-web ")
    assert last.endswith("golden continuations are the same")


def test_an_error_in_the_browser_is_one_line(found_browser: browser.Browser) -> None:
    with pytest.raises(
        ModelError, match=r"^onnxruntime-web .* failed: the model failed while it ran .*out of data bounds"
    ) as raised:
        found_browser.continue_greedily(EXACT, read_manifest(EXACT), [Task((10**6,), 2)])
    assert "\n" not in str(raised.value)


def test_the_server_for_the_browser_gives_the_job_and_listed_files_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    for name in ("manifest.json", "secret.txt"):
        (tmp_path / "package" / name).write_text(name)
    folders = {"web": web_folder(), "package": tmp_path / "package"}
    with browser.serving({"tasks": []}, folders, {"manifest.json"}) as (address, answers):

        def status(path: str) -> int:
            try:
                with urllib.request.urlopen(address + path, timeout=10) as response:
                    assert response.headers["Cross-Origin-Embedder-Policy"] == "require-corp"
                    return response.status
            except urllib.error.HTTPError as error:
                error.close()
                return error.code

        with urllib.request.urlopen(address + "job", timeout=10) as response:
            assert json.load(response) == {"tasks": []}
        wanted = ("package/manifest.json", "web/replay/browser.js")
        others = (
            "package/secret.txt",
            "package/../package/secret.txt",
            "web/../pyproject.toml",
            "web/%2e%2e/pyproject.toml",
            "other/x",
        )
        assert [status(path) for path in wanted] == [200, 200]
        assert [status(path) for path in others] == [404] * len(others)
        urllib.request.urlopen(urllib.request.Request(address + "answer", data=b"done", method="POST"), timeout=10).close()
        assert answers.get(timeout=10) == "done"


def test_a_program_that_is_missing_is_a_line_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    if shutil.which("node"):
        assert run(["verify", "story", "--runtime", "node"]) == 1
        assert "npm install --ignore-scripts onnxruntime-node" in capsys.readouterr().err
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(browser, "PLACES", ())
    for name, command in (("node", "apt install nodejs"), ("browser", "apt install chromium")):
        assert run(["verify", "story", "--runtime", name]) == 1
        out, err = capsys.readouterr()
        assert (out, err.count("\n"), command in err) == ("", 1, True)
