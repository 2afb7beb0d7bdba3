"""Files from an address of the web: what is fetched, and what is refused in one line."""

import functools
import http.server
import threading

import pytest

from onnx_textgen.cli.app import run
from onnx_textgen.errors import PackageError
from onnx_textgen.hub import addresses
from support.recipes import made_recipe


class Handler(http.server.SimpleHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/moved":
            self.send_response(302)
            self.send_header("Location", "ftp://127.0.0.1/x")
            self.end_headers()
        else:
            super().do_GET()

    def log_message(self, *args):
        pass


@pytest.fixture
def web(tmp_path, monkeypatch):
    """A folder, and its address, which counts as a secure one here."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=tmp_path))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setattr(addresses, "SCHEME", "http://")
    yield tmp_path, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_package_is_built_by_a_recipe_from_the_web(web, capsys):
    folder, address = web
    package, source, _ = made_recipe(folder)
    assert run(["build", f"{address}/tiny.recipe", str(source), "--out", str(folder / "built")]) == 0
    assert (folder / "built" / "model.onnx").read_bytes() == (package / "model.onnx").read_bytes()
    assert "proven export" in capsys.readouterr().err


@pytest.mark.parametrize(("place", "message"), [("none", "404"), ("moved", "cannot be fetched"), ("large", "larger than")])
def test_what_cannot_be_fetched_is_one_line(web, place, message):
    folder, address = web
    (folder / "large").write_bytes(b" " * 100_001)
    with pytest.raises(PackageError, match=message) as caught, addresses.fetched(f"{address}/{place}", 100_000):
        pass
    assert "\n" not in str(caught.value)


def test_only_secure_addresses_are_fetched():
    with pytest.raises(PackageError, match="only addresses that begin with https://"), addresses.fetched("http://127.0.0.1/a", 1):
        pass
