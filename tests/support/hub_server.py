"""A hub in memory: as much of its HTTP API as huggingface_hub uses to make repositories, to commit (by Git LFS) and to fetch."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import hashlib
import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from huggingface_hub import constants

TOKEN = "hf_secretsecretsecretsecret"
OWNER, ORGANISATION = "me", "we"


@dataclasses.dataclass
class Repository:
    """Its files, and how often they were committed."""

    private: bool
    gated: bool = False
    files: dict[str, bytes] = dataclasses.field(default_factory=dict)
    commits: int = 0

    @property
    def sha(self) -> str:
        return f"{self.commits:040d}"


@dataclasses.dataclass
class Hub:
    """What the server keeps."""

    repositories: dict[str, Repository] = dataclasses.field(default_factory=dict)
    objects: dict[str, bytes] = dataclasses.field(default_factory=dict)
    """Uploads of Git LFS, by their sha256."""
    asked: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    """Methods and paths."""
    url: str = ""


class JsonHandler(http.server.BaseHTTPRequestHandler):
    """One request, answered by `answer` with JSON or bytes."""

    def log_message(self, *_: object) -> None:
        pass

    def answer(self) -> None:
        raise NotImplementedError

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def do_POST(self) -> None:
        self.answer()

    def do_PUT(self) -> None:
        self.answer()

    def send(self, body: object, headers: dict[str, str] | None = None, status: int = 200) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for key, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


class Handler(JsonHandler):
    """One request to a `Hub`."""

    hub: Hub

    def answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.asked.append((self.command, path))
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        known = self.headers.get("Authorization") == f"Bearer {TOKEN}"
        if path.startswith("/objects/"):
            self.hub.objects[hashlib.sha256(body).hexdigest()] = body
            self.send(b"")
        elif path == "/api/whoami-v2":
            self.send({"name": OWNER, "type": "user", "orgs": [{"name": ORGANISATION}]}) if known else self.refuse(401)
        elif path == "/api/validate-yaml":  # the fields of a card
            errors = [{"message": "license must be one of ..."}] if "license: unheard-of" in json.loads(body)["content"] else []
            self.send({"errors": errors, "warnings": [{"message": "more fields are better"}]}, status=400 if errors else 200)
        elif path == "/api/repos/create":
            self.create(json.loads(body), known=known)
        elif path.endswith("/info/lfs/objects/batch"):
            objects = json.loads(body)["objects"]
            place = {each["oid"]: {"upload": {"href": f"{self.hub.url}/objects/{each['oid']}"}} for each in objects}
            self.send({"transfer": "basic", "objects": [{**each, "actions": place[each["oid"]]} for each in objects]})
        elif path.startswith("/api/models/"):
            owner, name, *rest = path.removeprefix("/api/models/").split("/", 3)
            self.model(f"{owner}/{name}", rest, body, known=known)
        else:
            name, _, rest = path[1:].partition("/resolve/")
            self.file(name, rest.partition("/")[2], known=known)

    def create(self, given: dict[str, Any], *, known: bool) -> None:
        owner = given.get("organization") or OWNER
        if not known:
            return self.refuse(401)
        if owner not in (OWNER, ORGANISATION):
            return self.refuse(403)
        name = f"{owner}/{given['name']}"
        if name in self.hub.repositories:
            return self.send({"url": f"{self.hub.url}/{name}"}, status=409)
        self.hub.repositories[name] = Repository(given.get("visibility") == "private" or bool(given.get("private")))
        return self.send({"url": f"{self.hub.url}/{name}", "name": name, "id": name})

    def visible(self, name: str, *, known: bool) -> Repository | None:
        found = self.hub.repositories.get(name)
        if found is None or (found.private and not known):
            self.refuse(401 if not known else 404, "RepoNotFound")
        else:
            return found
        return None

    def model(self, name: str, rest: list[str], body: bytes, *, known: bool) -> None:
        if (found := self.visible(name, known=known)) is None:
            return
        kind = rest[0] if rest else "revision"
        if kind == "preupload":
            files = [each["path"] for each in json.loads(body)["files"]]
            modes = {path: "lfs" if path.endswith((".onnx", "_data", ".recipe")) else "regular" for path in files}
            self.send({"files": [{"path": path, "uploadMode": mode, "shouldIgnore": False} for path, mode in modes.items()]})
        elif kind == "commit":
            self.commit(name, found, [json.loads(line) for line in body.splitlines()])
        elif kind == "tree":
            oid = {path: hashlib.sha1(data).hexdigest() for path, data in found.files.items()}
            self.send([{"type": "file", "path": path, "size": len(data), "oid": oid[path]} for path, data in found.files.items()])
        else:
            siblings = [{"rfilename": path, "size": len(data)} for path, data in found.files.items()]
            self.send({"id": name, "sha": found.sha, "siblings": siblings, "private": found.private, "gated": found.gated})

    def commit(self, name: str, found: Repository, lines: list[dict[str, Any]]) -> None:
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                found.files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                found.files[value["path"]] = self.hub.objects[value["oid"]]
            elif line["key"] == "deletedFile":
                del found.files[value["path"]]
        found.commits += 1
        url = f"{self.hub.url}/{name}/commit/{found.sha}"
        self.send({"success": True, "commitOid": found.sha, "commitUrl": url, "hookOutput": ""})

    def file(self, name: str, path: str, *, known: bool) -> None:
        if (found := self.visible(name, known=known)) is None:
            return
        if found.gated and not known:  # everyone may see that it is there, and what it has
            return self.refuse(401, "GatedRepo")
        if path not in found.files:
            return self.refuse(404, "EntryNotFound")
        data = found.files[path]
        self.send(data, {"ETag": f'"{hashlib.sha1(data).hexdigest()}"', "X-Repo-Commit": found.sha})

    def refuse(self, status: int, code: str = "") -> None:
        self.send({"error": "no"}, {"X-Error-Code": code, "X-Error-Message": "no"} if code else {}, status)


@contextlib.contextmanager
def served(handler: type[JsonHandler]) -> Iterator[str]:
    """The address of a server."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextlib.contextmanager
def hub_server() -> Iterator[Hub]:
    """A hub that is served."""
    hub = Hub()
    with served(type("OwnHandler", (Handler,), {"hub": hub})) as hub.url:
        yield hub


def use_hub(monkeypatch: pytest.MonkeyPatch, url: str, cache: Path) -> None:
    """Let huggingface_hub use this hub and this cache, without its protocol Xet."""
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
