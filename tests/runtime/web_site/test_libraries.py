"""The libraries of a site: their digests are those of the lock file's packages, and npm is needed only once."""

import dataclasses
import json
import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from onnx_textgen.web_site import libraries
from onnx_textgen.web_site.libraries import LibraryError, cached_libraries, has_digest, read_libraries, web_folder
from support.node import NODE, copy_web


@pytest.fixture
def empty_cache(tmp_path, monkeypatch):
    """A cache of its own, with nothing in it."""
    monkeypatch.setattr("platformdirs.user_cache_path", lambda *_, **__: tmp_path / "cache")
    return tmp_path / "cache" / "web"


def imitation_of_npm(folder, script):
    """A program called npm."""
    program = folder / "npm"
    program.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return str(program)


def test_the_versions_are_those_of_the_lock_file():
    lock = json.loads((web_folder() / "package-lock.json").read_text(encoding="utf-8"))["packages"]
    for each in read_libraries().values():
        assert lock[f"node_modules/{each.package}"]["version"] == each.version
        assert lock[f"node_modules/{each.package}"]["integrity"].startswith("sha512-")


def test_npm_brings_every_file_with_the_digest_that_is_pinned():
    try:
        cache = cached_libraries()
    except LibraryError as error:
        pytest.skip(str(error))
    for each in read_libraries().values():
        assert has_digest(cache / each.local_name, each)


def test_without_npm_the_error_says_what_to_install_or_to_use(empty_cache, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(LibraryError, match=r"install Node\.js .* or use --cdn"):
        cached_libraries()
    assert not list(empty_cache.iterdir())


@pytest.mark.skipif(os.name == "nt", reason="the imitation of npm is a shell script")
def test_a_failing_npm_is_quoted_in_one_line(empty_cache, tmp_path, monkeypatch):
    program = imitation_of_npm(tmp_path, 'echo "npm error code ENOTFOUND" >&2; echo "npm error network no route" >&2; exit 1')
    monkeypatch.setattr(shutil, "which", lambda name: program)
    with pytest.raises(LibraryError, match=r"npm could not fetch .* \(network no route\); check the network"):
        cached_libraries()


@pytest.mark.skipif(os.name == "nt", reason="the imitation of npm is a shell script")
def test_a_file_that_is_not_the_pinned_one_is_refused(empty_cache, tmp_path, monkeypatch):
    package = "node_modules/@huggingface/jinja/dist"
    program = imitation_of_npm(tmp_path, f"mkdir -p {package}; echo evil > {package}/index.js")
    monkeypatch.setattr(shutil, "which", lambda name: program)
    only = {"jinja": read_libraries()["jinja"]}
    monkeypatch.setattr(libraries, "read_libraries", lambda: only)
    with pytest.raises(LibraryError, match=r"@huggingface/jinja .* has another dist/index\.js"):
        cached_libraries()
    assert not list(empty_cache.rglob("index.js"))


@pytest.mark.skipif(os.name == "nt", reason="the imitation of npm is a shell script")
def test_npm_runs_once_and_without_install_scripts(empty_cache, tmp_path, monkeypatch):
    package = "node_modules/@huggingface/jinja/dist"
    script = f'echo "$@" >> {tmp_path}/calls; mkdir -p {package}; printf 123 > {package}/index.js'
    program = imitation_of_npm(tmp_path, script)
    monkeypatch.setattr(shutil, "which", lambda name: program)
    digest = "a665a45920422f9d417e4867efdc4fb8a04a1f3fff1fa07e998e86f7f7a27ae3"  # of 123
    only = {"jinja": dataclasses.replace(read_libraries()["jinja"], size=3, sha256=digest)}
    monkeypatch.setattr(libraries, "read_libraries", lambda: only)
    for _ in range(2):
        assert (cached_libraries() / only["jinja"].local_name).read_text(encoding="utf-8") == "123"
    (call,) = (tmp_path / "calls").read_text(encoding="utf-8").splitlines()
    assert call.startswith("ci --ignore-scripts")
    assert [path.name for path in empty_cache.iterdir()] == [Path(only["jinja"].local_name).parent.name]


def test_the_types_of_the_service_worker_are_right(tmp_path):
    """It has other globals than a page; tests/web checks the types of all other modules."""
    web = copy_web(tmp_path / "web")
    command = [NODE, "node_modules/typescript/bin/tsc", "--project", "tsconfig.service_worker.json"]
    done = subprocess.run(command, cwd=web, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
