"""Pictures at addresses of the web: fetched where a model was opened so, from public machines alone, within limits."""

from __future__ import annotations

import contextlib
import http.server
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import onnx_textgen
from onnx_textgen import ImageError
from onnx_textgen.images import addresses
from onnx_textgen.images.addresses import fetched, is_global
from onnx_textgen.images.pictures import as_png, read_picture

PIXELS = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
PNG = as_png(PIXELS)


class Pages(http.server.BaseHTTPRequestHandler):
    """A picture, and what is none."""

    protocol_version = "HTTP/1.1"
    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        if self.path.startswith("/to/"):
            return self.send(302, b"", Location=self.path.removeprefix("/to/"))
        if self.path == "/slow":
            self.send_response(200)
            self.end_headers()
            for _ in range(100):
                self.wfile.write(b"x")
                time.sleep(0.05)
            return None
        if self.path == "/cut":
            self.send_response(200)
            self.send_header("Content-Length", "1000000")
            self.end_headers()
            self.wfile.write(PNG)
            self.close_connection = True
            return None
        return self.send(200, PNG) if self.path == "/a.png?size=1" else self.send(404, b"no")

    def send(self, status: int, content: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def site() -> Iterator[str]:
    with served() as address:
        yield address


class served:  # noqa: N801 - a context
    """A server of these pages, by TLS if there is a certificate."""

    def __init__(self, certificate: tuple[Path, Path] | None = None) -> None:
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Pages)
        self.server.daemon_threads = True
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.scheme = "http" if certificate is None else "https"

    def __enter__(self) -> str:
        Pages.asked.clear()
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return f"{self.scheme}://localhost:{self.server.server_port}"

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def public(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine counts as public, by its address of IPv4."""
    monkeypatch.setattr(addresses, "public_address", lambda host, port: "127.0.0.1")


def test_a_picture_is_fetched_if_that_is_asked_for(site: str, public: None) -> None:
    assert np.array_equal(read_picture(f"{site}/a.png?size=1", fetches=True), PIXELS)
    assert np.array_equal(read_picture(f"{site}/to/{site}/to//a.png?size=1", fetches=True), PIXELS)
    Pages.asked.clear()
    with pytest.raises(ImageError, match="is not fetched"):
        read_picture(f"{site}/a.png?size=1")
    assert not Pages.asked


def test_no_machine_that_is_not_public_is_asked(site: str) -> None:
    for address in (f"{site}/a.png", site.replace("localhost", "127.0.0.1"), "http://169.254.169.254/latest", "http://[::1]/a"):
        with pytest.raises(ImageError, match="which is no public address") as error:
            fetched(address, 1000)
        assert "\n" not in str(error.value)
    assert not Pages.asked


def test_a_redirection_to_such_a_machine_is_not_followed(site: str, monkeypatch: pytest.MonkeyPatch) -> None:
    own = addresses.public_address
    monkeypatch.setattr(addresses, "public_address", lambda host, port: "127.0.0.1" if host == "localhost" else own(host, port))
    inside = site.replace("localhost", "127.0.0.1")
    with pytest.raises(ImageError, match=r"127.0.0.1 is 127.0.0.1, which is no public address"):
        fetched(f"{site}/to/{inside}/a.png?size=1", 10**6)
    assert len(Pages.asked) == 1


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/none", "it answers 404"),
        ("/to/ftp://localhost/a", "begin with https:// or http://"),
        ("/to/file:///etc/passwd", "begin with https:// or http://"),
        ("/to//to//to//to//to//to//a", "leads to more than 4 others"),
        ("/cut", "broke off|IncompleteRead"),
    ],
)
def test_what_cannot_be_had_gets_one_line(path: str, why: str, site: str, public: None) -> None:
    with pytest.raises(ImageError, match=why) as error:
        fetched(site + path, 10**7)
    assert "\n" not in str(error.value) and "cannot be fetched" in str(error.value)


def test_limits_of_size_and_time_hold(site: str, public: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ImageError, match="has more than"):
        fetched(f"{site}/a.png?size=1", len(PNG) - 1)
    monkeypatch.setattr(addresses, "MOST_SECONDS", 0.5)
    start = time.monotonic()
    with pytest.raises(ImageError, match="took longer than"):
        fetched(f"{site}/slow", 10**6)
    assert time.monotonic() - start < 3


def test_certificates_are_checked(tmp_path: Path, public: None, monkeypatch: pytest.MonkeyPatch) -> None:
    if (openssl := shutil.which("openssl")) is None:
        pytest.skip("needs openssl")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    named = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-days", "2", "-newkey", "rsa:2048", "-nodes"]
    made = [openssl, "req", "-x509", *named, "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(made, check=True, capture_output=True)
    with served((certificate, key)) as address:
        with pytest.raises(ImageError, match=r"(?i)certificate"):
            fetched(f"{address}/a.png?size=1", 10**6)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert fetched(f"{address}/a.png?size=1", 10**6) == PNG


def test_a_handshake_that_never_ends_is_ended(public: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def drip() -> None:
            connection, _ = server.accept()
            with connection, contextlib.suppress(OSError):
                for byte in b"\x16\x03\x03\x3f\xff" + bytes(100):  # a record that takes its time
                    connection.sendall(bytes([byte]))
                    time.sleep(0.1)

        threading.Thread(target=drip, daemon=True).start()
        monkeypatch.setattr(addresses, "MOST_SECONDS", 0.5)
        start = time.monotonic()
        with pytest.raises(ImageError, match="took longer than"):
            fetched(f"https://localhost:{server.getsockname()[1]}/a", 1000)
        assert time.monotonic() - start < 3


@pytest.mark.parametrize(
    "address", ["http://", "http://user:secret@example.com/a", "http://a" * 1000, "http://[::1", "https://a:99999/"]
)
def test_addresses_of_another_kind_are_refused(address: str) -> None:
    with pytest.raises(ImageError, match="cannot be fetched"):
        fetched(address, 1000)


@given(st.ip_addresses())
def test_only_global_addresses_are_public(address: Any) -> None:
    if is_global(str(address)):
        assert address.is_global and not address.is_private and not address.is_loopback and not address.is_multicast


def test_a_chat_and_its_session_fetch_once_it_is_allowed(site: str, public: None) -> None:
    parts = [{"type": "image_url", "image_url": {"url": f"{site}/a.png?size=1"}}, {"type": "text", "text": "What number is this?"}]
    chat = [{"role": "user", "content": parts}]
    plain = onnx_textgen.load("digits", device="cpu", threads=1)
    with pytest.raises(ImageError, match="are not fetched"):
        plain.encode_chat(chat)
    model = onnx_textgen.load("digits", device="cpu", threads=1, fetch_images=True)
    given = [{"role": "user", "content": [{"type": "image", "image": PIXELS}, parts[1]]}]
    assert model.encode_chat(chat) == plain.encode_chat(given)
    session = model.session()
    Pages.asked.clear()
    session.append(chat)
    assert len(Pages.asked) == 1
    Pages.asked.clear()
    session.chat(temperature=0, max_new_tokens=3)
    assert not Pages.asked  # a session holds the picture
