"""The preview: the files of the site with the headers for threads, on this machine only; and the command."""

import re
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from onnx_textgen.cli import run
from onnx_textgen.hosts import listen
from onnx_textgen.web_site.building import build_site
from onnx_textgen.web_site.preview import SiteServer

TINY = Path(__file__).parents[2] / "packages" / "ort"


@pytest.fixture
def address(tmp_path):
    folder = build_site(TINY, tmp_path / "site", cdn=True).folder
    (tmp_path / "secret.txt").write_text("secret", encoding="utf-8")
    (listener,) = listen("127.0.0.1", 0)
    with SiteServer(folder, listener) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server.address
        server.shutdown()
        thread.join()


def get(url):
    with urllib.request.urlopen(url, timeout=20) as answer:
        return answer.headers, answer.read()


def test_files_have_the_headers_for_threads_and_their_types(address):
    headers, content = get(address)
    assert headers["Cross-Origin-Opener-Policy"] == "same-origin"
    assert headers["Cross-Origin-Embedder-Policy"] == "require-corp"
    assert content.startswith(b"<!doctype html>")
    assert get(address + "site/main.js")[0]["Content-Type"].startswith("text/javascript")
    assert get(address + "site.json")[0]["Content-Type"].startswith("application/json")


def test_nothing_outside_of_the_site_is_served(address):
    for path in ("../secret.txt", "%2e%2e/secret.txt", "/etc/hostname"):
        with pytest.raises(urllib.error.HTTPError) as error:
            get(address + path)
        error.value.close()


def test_the_command_builds_a_site_and_serves_it_until_it_is_interrupted(tmp_path):
    command = [sys.executable, "-m", "onnx_textgen.cli", "site", str(TINY), "--out", str(tmp_path / "site"), "--cdn"]
    process = subprocess.Popen(
        [*command, "--preview", "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8"
    )
    try:
        assert process.stderr is not None
        assert (found := re.match(r"(http://127\.0\.0\.1:\d+/)  \(Ctrl-C ends it\)", process.stderr.readline()))
        assert b"site/main.js" in get(found[1])[1]
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode == 0
    assert out == f"{tmp_path / 'site'}: a visitor fetches 14.7 MB (WebAssembly) or 27.3 MB (WebGPU), once\n"


def test_a_second_site_in_the_same_place_needs_force(tmp_path, capsys):
    command = ["site", str(TINY), "--out", str(tmp_path / "site"), "--cdn"]
    assert run(command) == 0
    capsys.readouterr()
    assert run(command) == 2
    assert "has a site already" in capsys.readouterr().err
    assert run([*command, "--force"]) == 0


def test_a_folder_of_another_exporter_is_refused_because_nothing_of_it_can_be_checked(tmp_path, capsys):
    assert run(["site", str(TINY.parent / "optimum"), "--out", str(tmp_path / "site"), "--cdn"]) == 1
    assert "has no manifest.json, which says what the browser has to check" in capsys.readouterr().err
