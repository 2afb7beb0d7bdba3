"""Saved beginnings of prompts: the same text after a restart, within a number of bytes, whatever lies in the folder."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnx")

from hypothesis import HealthCheck, given
from hypothesis import strategies as st

import onnx_textgen
from onnx_textgen import Model
from onnx_textgen.api import prefix_folder
from onnx_textgen.api.prefix_folder import ABANDONED_SECONDS, FILE, PARTIAL, SHORTEST, PrefixFolder
from onnx_textgen.api.session_file import write_session
from onnx_textgen.backends.kernels import instructions
from onnx_textgen.errors import OptionError, PackageError
from onnx_textgen.inference.prefill import prefill
from onnx_textgen.kv_cache.snapshot import Snapshot
from support.adapted_story import make_adapted_story
from support.examples import examples
from support.patient_http import LONGEST_WAIT

BEGIN = "Once upon a time, there was a little girl called Lily. She had a red ball and a big brown dog. " * 4
OPTIONS = {"max_new_tokens": 12, "seed": 3}


def open_model(folder: Path, **more: object) -> Model:
    return onnx_textgen.load(**{"threads": 1, "device": "cpu", "prefix_folder": folder, **more})  # type: ignore[arg-type]


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if FILE.fullmatch(path.name))


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in files(folder))


@pytest.fixture(scope="module")
def forgetful() -> Model:
    return onnx_textgen.load(threads=1, device="cpu", prefix_cache=0)


SHARED: dict = {}
"""For properties, which take no fixtures of functions."""


@pytest.fixture(autouse=True, scope="module")
def shared(forgetful: Model, tmp_path_factory: pytest.TempPathFactory) -> None:
    ids = forgetful.encode(BEGIN + "The cat sat")
    SHARED.update(
        forgetful=forgetful,
        mindful=onnx_textgen.load(threads=1, device="cpu"),
        folder=tmp_path_factory.mktemp("bounded") / "prefixes",
        logits=prefill(forgetful.new_context(), ids),
    )


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one prompt."""
    folder = tmp_path_factory.mktemp("written") / "prefixes"
    with open_model(folder) as model:
        model.generate(BEGIN + "One day", **OPTIONS)
    assert len(files(folder)) == 1
    return folder


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "prefixes"))


@pytest.mark.parametrize("end", ["One day", "The dog ran away", ""])
def test_after_a_restart_the_text_is_the_same_and_the_beginning_is_not_computed(folder: Path, forgetful: Model, end: str) -> None:
    want = forgetful.generate(BEGIN + end, **OPTIONS)
    with open_model(folder) as model:
        found = model.generate(BEGIN + end, **OPTIONS)
        assert (found.text, found.token_ids) == (want.text, want.token_ids)
        assert found.stats.reused_tokens >= 90
        assert model.generate(BEGIN + end, **OPTIONS).stats.reused_tokens >= 90, "now it is in memory"
    assert len(files(folder)) == 1, "what is saved is not saved again"


def test_logits_of_a_saved_beginning_agree_to_the_last_bit(folder: Path, forgetful: Model) -> None:
    ids = forgetful.encode(BEGIN + "The cat sat")
    with open_model(folder) as model:
        decoder = model.new_context()
        model.generator.prefixes.prepare(decoder, ids)
        assert len(decoder.token_ids[0]) >= 90
        np.testing.assert_array_equal(prefill(decoder, ids), prefill(forgetful.new_context(), ids))


def test_a_growing_chat_is_saved_when_it_has_grown_by_a_part(tmp_path: Path, forgetful: Model) -> None:
    random = np.random.default_rng(1)
    ids = random.integers(2, 1000, 480).tolist()
    with open_model(tmp_path) as model:
        for length in (SHORTEST - 2, 100, 120, 140, 200, 240, 400, 450):
            model.generate(ids[:length], max_new_tokens=1)
            wait_for_writer(model)
    assert len(files(tmp_path)) == 1, "a file that is the beginning of another is removed"
    with open_model(tmp_path) as model:
        assert model.generate(ids, max_new_tokens=1).stats.reused_tokens == 400


def wait_for_writer(model: Model) -> None:
    end = time.monotonic() + LONGEST_WAIT
    while model.generator.prefixes.saved.is_writing:  # type: ignore[union-attr]
        assert time.monotonic() < end
        time.sleep(0.001)


def test_two_models_and_their_adapters_share_a_folder(tmp_path: Path) -> None:
    adapted = make_adapted_story(tmp_path / "adapted", "french", "legal")
    other = onnx_textgen.load("tiny-transformer").folder
    shared = tmp_path / "prefixes"
    wanted = {}
    for turn in range(2):
        for package in (adapted, other):
            with open_model(shared, package=package) as model:
                for adapter in (None, *model.manifest.adapters):
                    found = model.generate(BEGIN, **OPTIONS, adapter=adapter)
                    assert (found.stats.reused_tokens > 0) == (turn == 1)
                    assert wanted.setdefault((package, adapter), found.text) == found.text
                    wait_for_writer(model)
    assert len(files(shared)) == 4
    assert len({path.name.split("-")[1] for path in files(shared)}) == 2
    again = make_adapted_story(tmp_path / "again", "legal", "french")  # the names are exchanged
    with open_model(shared, package=again) as model, onnx_textgen.load(again, threads=1, device="cpu", prefix_cache=0) as fresh:
        found = model.generate(BEGIN, **OPTIONS, adapter="french")
        assert found.stats.reused_tokens == 0
        assert found.text == fresh.generate(BEGIN, **OPTIONS, adapter="french").text


@pytest.mark.parametrize("change", [{"threads": 2}, {"versions": True}, {"kernels": True}])
def test_another_engine_does_not_read_it(folder: Path, monkeypatch: pytest.MonkeyPatch, change: dict) -> None:
    change = dict(change)
    if change.pop("versions", False):
        monkeypatch.setattr(prefix_folder, "version_of", lambda _: "99")
    if change.pop("kernels", False):
        monkeypatch.setattr(prefix_folder, "instructions", lambda: None if instructions() else "others")
        monkeypatch.setattr(prefix_folder, "LIBRARY", Path(__file__))
    with open_model(folder, **change) as model:
        assert model.generate(BEGIN, **OPTIONS).stats.reused_tokens == 0
    assert len(files(folder)) == 2


@given(st.data())
@examples(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_file_is_ignored_and_removed(
    written: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = Path(shutil.copytree(written, tmp_path_factory.mktemp("damaged") / "prefixes"))
    (path,) = files(folder)
    content = bytearray(path.read_bytes())
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    else:
        place = data.draw(st.integers(0, len(content) - 1))
        content[place] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(content)
    ids = SHARED["forgetful"].encode(BEGIN + "The cat sat")
    model = SHARED["mindful"]
    model.generator.prefixes.saved = PrefixFolder(folder, 2**30, model.generator.opened)
    decoder = model.new_context()
    model.generator.prefixes.prepare(decoder, ids)
    assert path.exists() == bool(decoder.token_ids[0]), "it is used, as nobody reads the bit, or removed"
    np.testing.assert_array_equal(prefill(decoder, ids), SHARED["logits"])
    model.generator.prefixes.clear()
    model.generator.prefixes.close()


@given(st.data())
@examples(30)
def test_values_that_changed_under_right_checksums_are_found_by_the_digest(written: Path, data: st.DataObject) -> None:
    (path,) = files(written)
    with np.load(path) as archive:
        arrays = dict(archive)
    name = data.draw(st.sampled_from([each for each in sorted(arrays) if each.startswith(("cache/", "sha256"))]))
    changed = arrays[name].copy()
    place = data.draw(st.integers(0, changed.nbytes - 1))
    changed.reshape(-1).view(np.uint8)[place] ^= 1 << data.draw(st.integers(0, 7))
    folder = Path(tempfile.mkdtemp(dir=written.parent))
    np.savez(folder / path.name, **{**arrays, name: changed})
    model = SHARED["mindful"]
    model.generator.prefixes.saved = PrefixFolder(folder, 2**30, model.generator.opened)
    decoder = model.new_context()
    model.generator.prefixes.prepare(decoder, SHARED["forgetful"].encode(BEGIN + "The cat sat"))
    assert not decoder.token_ids[0]
    assert not (folder / path.name).exists()
    model.generator.prefixes.clear()
    model.generator.prefixes.close()


def hostile_zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("header.npy", bytes(2**20))
        archive.writestr("token_ids_held.npy", bytes(2**27))


HOSTILE = {
    "empty": lambda path: path.write_bytes(b""),
    "zip bomb": hostile_zip,
    "folder": Path.mkdir,
    "dangling link": lambda path: path.symlink_to("nowhere"),
    "link to a device": lambda path: path.symlink_to("/dev/zero"),
    "sparse": lambda path: path.touch() or os.truncate(path, 2**40),
}


@pytest.mark.skipif(sys.platform == "win32", reason="links and sparse files")
@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_files_are_ignored(written: Path, tmp_path: Path, forgetful: Model, kind: str) -> None:
    (good,) = files(written)
    path = tmp_path / good.name
    try:
        HOSTILE[kind](path)
    except OSError:
        pytest.skip("this file system has no file so large")
    with open_model(tmp_path) as model:
        found = model.generate(BEGIN + "One day", **OPTIONS)
    assert found.text == forgetful.generate(BEGIN + "One day", **OPTIONS).text
    assert found.stats.reused_tokens == 0
    if kind != "folder":
        assert [each.name for each in files(tmp_path)] == [good.name], "it was removed, and the prompt was saved"
        assert path.stat(follow_symlinks=False).st_size == good.stat().st_size


def test_a_file_under_the_name_of_another_prompt_is_not_used(folder: Path, forgetful: Model) -> None:
    (path,) = files(folder)
    with open_model(folder) as model:
        digest = model.generator.prefixes.saved.digest  # type: ignore[union-attr]
        decoder = model.new_context()
        prefill(decoder, np.random.default_rng(2).integers(2, 1000, 100).tolist())
        snapshot = decoder.snapshot()
        write_session(path, digest, (), (), Snapshot(tuple(forgetful.encode(BEGIN)[:100]), snapshot.tensors), adapters={})
        found = model.generate(BEGIN, **OPTIONS)
    assert found.text == forgetful.generate(BEGIN, **OPTIONS).text
    assert found.stats.reused_tokens == 0


def test_files_that_are_not_ours_stay(tmp_path: Path) -> None:
    for name in ("notes.txt", "prefix-1.npz", ".prefix"):
        (tmp_path / name).write_bytes(bytes(5000))
        os.utime(tmp_path / name, (0, 0))
    with open_model(tmp_path, prefix_folder_bytes=1000) as model:
        model.generate(BEGIN, **OPTIONS)
    assert {path.name for path in tmp_path.iterdir()} == {"notes.txt", "prefix-1.npz", ".prefix"}


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(SHORTEST, 200)), min_size=1, max_size=8), st.integers(1, 3))
@examples(15)
def test_the_bytes_are_bounded_and_the_least_recently_used_goes_first(prompts: list[tuple[int, int]], room: int) -> None:
    model, folder = SHARED["mindful"], SHARED["folder"]
    shutil.rmtree(folder, ignore_errors=True)
    limit = room * model.new_context().bytes_of(220)
    for text, length in prompts:
        model.generator.prefixes.saved = saved = PrefixFolder(folder, limit, model.generator.opened)
        model.generate(np.random.default_rng(text).integers(2, 1000, length).tolist(), max_new_tokens=1)
        saved.close()
        assert size_of(folder) <= limit
        model.generator.prefixes.clear()
    text, length = prompts[-1]
    model.generator.prefixes.saved = PrefixFolder(folder, limit, model.generator.opened)
    ids = np.random.default_rng(text).integers(2, 1000, length + 8).tolist()
    assert model.generate(ids[: length + 4], max_new_tokens=1).stats.reused_tokens >= length - 2 - max(SHORTEST, length // 4)
    model.generator.prefixes.close()
    model.generator.prefixes.clear()


def test_several_processes_keep_to_one_limit(tmp_path: Path) -> None:
    limit = 5 * SHARED["mindful"].new_context().bytes_of(120)
    with open_model(tmp_path, prefix_folder_bytes=limit) as one, open_model(tmp_path, prefix_folder_bytes=limit) as two:
        for turn in range(8):
            for model, seed in ((one, turn), (two, 100 + turn)):
                model.generate(np.random.default_rng(seed).integers(2, 1000, 100).tolist(), max_new_tokens=1)
                wait_for_writer(model)
                assert size_of(tmp_path) <= limit
        ids = np.random.default_rng(107).integers(2, 1000, 100).tolist()
        assert one.generate([*ids, 5, 6], max_new_tokens=1).stats.reused_tokens == 100, "what the other process has saved"


WRITER = """
import sys, numpy, onnx_textgen
model = onnx_textgen.load(threads=1, device="cpu", prefix_folder=sys.argv[1])
print("ready", flush=True)
seed = int(sys.argv[2])
while True:
    seed += 1
    model.generate(numpy.random.default_rng(seed).integers(2, 1000, 400).tolist(), max_new_tokens=1)
"""


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def kind_of(name: str) -> str:
    return "partial" if PARTIAL.fullmatch(name) else "whole"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL")
def test_a_process_that_is_killed_while_it_writes_leaves_a_folder_that_works(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for turn in range(6):
        before = names_in(tmp_path)
        command = [sys.executable, "-c", WRITER, str(tmp_path), str(1000 * turn)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            end = time.monotonic() + LONGEST_WAIT
            while {"whole", "partial"} - {kind_of(name) for name in names_in(tmp_path) - before}:
                assert time.monotonic() < end
            time.sleep(random.uniform(0, 0.01))
            process.send_signal(signal.SIGKILL)
    left = [path for path in tmp_path.iterdir() if PARTIAL.fullmatch(path.name)]
    for path in left:
        os.utime(path, (0, time.time() - ABANDONED_SECONDS - 1))
    with open_model(tmp_path) as model:
        assert not [path for path in tmp_path.iterdir() if PARTIAL.fullmatch(path.name)]
        for turn in range(6):
            ids = np.random.default_rng(1000 * turn + 1).integers(2, 1000, 400).tolist()
            found = model.generate(ids, max_new_tokens=8, temperature=0)
            assert found.token_ids == SHARED["forgetful"].generate(ids, max_new_tokens=8, temperature=0).token_ids
            assert found.stats.reused_tokens > 300, "the first prompt of each process was written whole"


def test_texts_do_not_wait_for_writing_and_the_latest_prompt_is_written_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, begun, written = threading.Event(), threading.Event(), []

    def slow(path: Path, *arguments: object, **more: object) -> None:
        begun.set()
        assert go_on.wait(LONGEST_WAIT)
        written.append(path)

    monkeypatch.setattr(prefix_folder, "write_session", slow)
    with open_model(tmp_path) as model:
        for seed in range(5):
            model.generate(np.random.default_rng(seed).integers(2, 1000, 100).tolist(), max_new_tokens=1)
            assert begun.wait(LONGEST_WAIT)
        go_on.set()
    assert len(written) == 2, "the first, and the last of those that came meanwhile"


@pytest.mark.parametrize("error", [OSError("no space left"), PackageError("cannot be written"), MemoryError()])
def test_a_folder_that_cannot_be_written_costs_no_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(prefix_folder, "write_session", fail)
    with open_model(tmp_path) as model:
        assert model.generate(BEGIN, **OPTIONS).text
    assert "was not saved" in caplog.text
    assert "Lily" not in caplog.text


def test_what_cannot_be_a_folder_or_has_no_memory_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(PackageError, match="prefixes cannot be saved in"):
        open_model(tmp_path / "file")
    with pytest.raises(OptionError, match="prefix_cache is 0"):
        open_model(tmp_path, prefix_cache=0)
    with pytest.raises(OptionError, match="prefix_folder_bytes should be"):
        open_model(tmp_path, prefix_folder_bytes=0)


def test_the_prompts_of_a_session_are_saved_too(tmp_path: Path, forgetful: Model) -> None:
    texts = []
    for _ in range(2):
        with open_model(tmp_path) as model:
            session = model.session()
            session.append(BEGIN)
            texts.append(session.generate(**OPTIONS))
    assert [each.stats.reused_tokens > SHORTEST for each in texts] == [False, True]
    assert [each.text for each in texts] == [forgetful.generate(BEGIN, **OPTIONS).text] * 2


def test_a_file_that_is_known_twice_is_removed_by_neither(folder: Path) -> None:
    """Another thread may read a file that this one has just written."""
    with open_model(folder) as model:
        saved, context = model.generator.prefixes.saved, model.new_context()
        saved.refresh(context)
        (path,) = saved.paths.values()
        saved.add(path, dataclasses.replace(next(iter(saved.paths))))
        assert list(saved.paths.values()) == [path]
        model.generate(BEGIN[::-1] * 2, **OPTIONS)
    assert path.exists() and len(files(folder)) == 2


def test_a_session_does_not_read_what_it_has_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_model(tmp_path) as model:
        session = model.session()
        session.append(BEGIN)
        session.generate(**OPTIONS)
        model.generator.prefixes.saved.writer.submit(lambda: None).result()
        assert len(files(tmp_path)) == 1 and not model.generator.prefixes.held_bytes
        monkeypatch.setattr(prefix_folder, "read_session", lambda *_, **__: pytest.fail("it read a file"))
        session.append(" Then")
        assert session.generate(**OPTIONS).stats.reused_tokens > SHORTEST
