"""Models that are opened when they are requested and closed when they are idle."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest

import onnx_textgen
from onnx_textgen import Model
from onnx_textgen.errors import OptionError, PackageError
from onnx_textgen.package.locate import find_package
from onnx_textgen.package.manifest import weights_files
from onnx_textgen_server.pool import model_pool as models
from onnx_textgen_server.pool.model_pool import ModelPool, PoolLimits
from onnx_textgen_server.pool.sources import FolderSource, LoadOptions, OpenSource, find_sources, with_response_templates
from support import patient_http
from support.live_server import served_pool, wait_until
from support.patient_http import LONGEST_WAIT

TINY = Path(__file__).parents[1] / "packages" / "ort"
OPTIONS = LoadOptions(device="cpu", threads=1)
ENDLESS = {"prompt": "A", "max_tokens": 10**6, "context_limit": "shift", "ignore_eos": True, "stream": True}
PROMPT = "Once upon a time"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three models, one that is broken, and what is no model."""
    folder = tmp_path_factory.mktemp("models")
    shutil.copytree(TINY, folder / "tiny")
    shutil.copytree(onnx_textgen.load("tiny-transformer").folder, folder / "small")
    shutil.copytree(onnx_textgen.load("story").folder, folder / "story")
    shutil.copytree(TINY, folder / "broken")
    (folder / "broken" / "manifest.json").write_text("{", encoding="utf-8")
    (folder / "notes").mkdir()
    return folder


def pool_of(folder: Path, **limits: Any) -> ModelPool:
    return ModelPool(find_sources([str(folder)], OPTIONS)[0], PoolLimits(**limits))


def ask(url: str, model: str, prompt: str = PROMPT, **more: Any) -> httpx.Response:
    return patient_http.post(f"{url}/v1/completions", json={"model": model, "prompt": prompt, "max_tokens": 8, "seed": 1, **more})


def statuses(url: str) -> dict[str, str]:
    return {each["id"]: each["status"]["value"] for each in patient_http.get(f"{url}/v1/models").json()["data"]}


@contextlib.contextmanager
def streaming(url: str, model: str) -> Iterator[Iterator[str]]:
    """A text of the model that has begun, and goes on until the block ends."""
    with patient_http.stream("POST", f"{url}/v1/completions", json=ENDLESS | {"model": model}) as stream:
        lines = stream.iter_lines()
        assert next(lines).startswith("data: {")
        yield lines


def problem_of(answer: httpx.Response) -> str:
    message = str(answer.json()["error"]["message"])
    assert "\n" not in message
    return message


def test_all_models_of_a_folder_are_listed_and_none_is_open(folder: Path) -> None:
    with served_pool(pool_of(folder)) as (url, _):
        listed = {each["id"]: each for each in patient_http.get(f"{url}/v1/models").json()["data"]}
        assert list(listed) == ["broken", "small", "story", "tiny"]
        assert listed["story"]["max_model_len"] == 512
        assert listed["story"]["precision"] == "int8"
        assert listed["story"]["status"] == {"value": "unloaded"}
        assert patient_http.get(f"{url}/v1/models/tiny").json()["status"] == {"value": "unloaded"}
        assert patient_http.get(f"{url}/health").json() == {"status": "ok", "models": 4, "loaded": 0}
        assert "choose one of: broken, small, story, tiny" in problem_of(ask(url, "none"))
        assert ask(url, "none").status_code == 404
        assert patient_http.post(f"{url}/v1/completions", json={"prompt": "A"}).status_code == 404, "there are several"


def test_a_model_is_opened_when_it_is_requested_and_gives_its_own_text(folder: Path, story: Model) -> None:
    with served_pool(pool_of(folder)) as (url, _):
        assert ask(url, "story").json()["choices"][0]["text"] == story.generate(PROMPT, max_new_tokens=8, seed=1).text
        assert statuses(url) == {"broken": "unloaded", "small": "unloaded", "story": "loaded", "tiny": "unloaded"}
        assert patient_http.post(f"{url}/tokenize", json={"model": "tiny", "prompt": "A"}).status_code == 200
        ids = patient_http.post(f"{url}/tokenize", json={"model": "small", "prompt": "A dog"}).json()["tokens"]
        assert patient_http.post(f"{url}/detokenize", json={"model": "small", "tokens": ids}).json() == {"prompt": "A dog"}
        assert patient_http.get(f"{url}/health").json()["loaded"] == 3
        page = patient_http.get(f"{url}/metrics").text
        assert "onnx_textgen_loaded_models 3.0" in page
        assert 'onnx_textgen_model_load_seconds_count{gen_ai_request_model="story"} 1.0' in page


def test_requests_that_come_while_a_model_opens_open_it_once_and_others_are_answered(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool, begun, go_on = pool_of(folder), threading.Event(), threading.Event()
    load, opened = onnx_textgen.load, []

    def slow(place: Path, **options: Any) -> Model:
        opened.append(place.name)
        begun.set()
        assert go_on.wait(LONGEST_WAIT)
        return load(place, **options)

    with served_pool(pool) as (url, _), ThreadPoolExecutor(8) as threads:
        assert ask(url, "small").status_code == 200
        monkeypatch.setattr(onnx_textgen, "load", slow)
        asked = [threads.submit(ask, url, "tiny") for _ in range(8)]
        assert begun.wait(LONGEST_WAIT)
        assert wait_until(lambda: pool.waiting == 8)
        assert statuses(url)["tiny"] == "loading"
        assert ask(url, "small").status_code == 200
        go_on.set()
        assert {each.result().status_code for each in asked} == {200}
        assert opened == ["tiny"]


def test_an_idle_model_is_closed_and_opened_again(folder: Path) -> None:
    with served_pool(pool_of(folder, idle_seconds=0.05)) as (url, server):
        first = ask(url, "tiny").json()["choices"]
        assert wait_until(lambda: not server.pool.loaded)
        assert statuses(url)["tiny"] == "unloaded"
        assert ask(url, "tiny").json()["choices"] == first
        assert wait_until(lambda: not server.pool.loaded)
        with streaming(url, "tiny") as lines:
            for _ in range(200):  # takes longer than the model may be idle
                next(lines)
            assert server.pool.loaded
        assert wait_until(lambda: not server.pool.loaded), "the client has left"
        page = patient_http.get(f"{url}/metrics").text
        assert 'onnx_textgen_model_closes_total{gen_ai_request_model="tiny",reason="idle"} 3.0' in page


def test_a_model_that_was_opened_at_the_start_is_closed_when_idle(folder: Path) -> None:
    pool = pool_of(folder, idle_seconds=0.05)
    pool.open_at_start(["tiny"])
    assert [each.name for each in pool.loaded] == ["tiny"]
    with served_pool(pool):
        assert wait_until(lambda: not pool.loaded)


def test_the_least_recently_used_model_makes_room(folder: Path) -> None:
    with served_pool(pool_of(folder, max_loaded=2)) as (url, server):
        for name in ("story", "small", "story", "tiny"):
            assert ask(url, name).status_code == 200
        assert {each.name for each in server.pool.loaded} == {"story", "tiny"}
        page = patient_http.get(f"{url}/metrics").text
        assert 'onnx_textgen_model_closes_total{gen_ai_request_model="small",reason="room"} 1.0' in page


def test_a_model_with_a_running_text_is_never_closed(folder: Path) -> None:
    with served_pool(pool_of(folder, max_loaded=1)) as (url, server):
        with streaming(url, "tiny") as lines:
            answer = ask(url, "small")
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
            assert answer.json()["error"]["type"] == "server_error"
            assert problem_of(answer) == (
                "small is not open, and 1 other models are, the most that this server opens at once; try again later"
            )
            for _ in range(20):
                next(lines)
            assert ask(url, "tiny").status_code == 200
        assert wait_until(lambda: not server.pool.members["tiny"].users)
        assert ask(url, "small").status_code == 200
        assert [each.name for each in server.pool.loaded] == ["small"]


def test_a_model_that_does_not_fit_in_memory_is_not_opened(folder: Path) -> None:
    needed = {
        source.name: source.describe().needed_bytes for source in find_sources([str(folder)], OPTIONS)[0] if source.name != "broken"
    }
    assert needed["tiny"] < needed["small"] <= needed["story"]
    memory = needed["story"] + needed["tiny"]

    def free() -> int:
        return memory - sum(needed[each.name] for each in pool.loaded)

    pool = pool_of(folder, free_bytes=free)
    with served_pool(pool) as (url, _):
        assert ask(url, "tiny").status_code == 200
        with streaming(url, "story"):
            answer = ask(url, "small")
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
            assert "small is not open, needs about" in problem_of(answer)
            assert "GB are free next to the models in use; try again later" in problem_of(answer)
            assert statuses(url) == {"broken": "unloaded", "small": "unloaded", "story": "loaded", "tiny": "loaded"}, (
                "nothing is closed in vain"
            )
        assert wait_until(lambda: not pool.members["story"].users)
        assert ask(url, "small").status_code == 200
        assert "small" in {each.name for each in pool.loaded}


def test_memory_that_nobody_knows_is_no_obstacle(folder: Path) -> None:
    with served_pool(pool_of(folder, free_bytes=lambda: None)) as (url, _):
        assert [ask(url, name).status_code for name in ("tiny", "small")] == [200, 200]


def test_at_the_start_models_open_while_there_is_room(folder: Path) -> None:
    pool = pool_of(folder, free_bytes=lambda: 0)
    pool.open_at_start(["tiny", "small"])
    assert [each.name for each in pool.loaded] == ["tiny"], "the first is opened in any case"
    pool = pool_of(folder, max_loaded=2)
    pool.open_at_start(["tiny", "small", "story"])
    assert [each.name for each in pool.loaded] == ["small", "tiny"]
    with pytest.raises(onnx_textgen.PackageError, match="broken"):
        pool.open_at_start(["broken"])


def test_a_broken_model_is_listed_with_its_problem_and_opens_once_it_is_mended(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(folder / "broken", tmp_path / "models" / "broken")
    shutil.copytree(TINY, tmp_path / "models" / "tiny")
    manifest = tmp_path / "models" / "broken" / "manifest.json"
    with served_pool(pool_of(tmp_path / "models")) as (url, _):
        listed = patient_http.get(f"{url}/v1/models/broken").json()["status"]
        assert (listed["value"], listed["failed"]) == ("unloaded", True)
        assert listed["problem"].startswith("broken cannot be opened: broken/manifest.json ")
        answer = ask(url, "broken")
        assert (answer.status_code, answer.json()["error"]["type"]) == (500, "server_error")
        assert problem_of(answer) == listed["problem"]
        assert str(tmp_path) not in problem_of(answer)
        assert ask(url, "tiny").status_code == 200
        manifest.write_bytes((TINY / "manifest.json").read_bytes())
        assert ask(url, "broken").status_code == 500, "it is not tried at every request"
        monkeypatch.setattr(models, "RETRY_SECONDS", 0)
        assert ask(url, "broken").status_code == 200
        assert patient_http.get(f"{url}/v1/models/broken").json()["status"] == {"value": "loaded"}


def test_damaged_weights_are_told_and_the_other_models_stay(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(TINY, tmp_path / "models" / "tiny")
    shutil.copytree(TINY, tmp_path / "models" / "damaged")
    weights = tmp_path / "models" / "damaged" / "model.onnx.data"
    weights.write_bytes(bytes(len(weights.read_bytes())))
    with served_pool(pool_of(tmp_path / "models")) as (url, _):
        assert "status" in patient_http.get(f"{url}/v1/models/damaged").json()
        answer = ask(url, "damaged")
        assert answer.status_code == 500
        assert problem_of(answer).startswith("damaged cannot be opened: damaged/model.onnx.data is damaged")
        assert ask(url, "tiny").status_code == 200


def replace_model(folder: Path) -> None:
    """Replace a package by another one of the same name."""
    shutil.rmtree(folder)
    shutil.copytree(onnx_textgen.load("tiny-transformer").folder, folder)


def test_a_model_whose_files_changed_is_opened_again_once_it_is_idle(tmp_path: Path) -> None:
    shutil.copytree(TINY, tmp_path / "models" / "one")
    with served_pool(pool_of(tmp_path / "models")) as (url, server):
        replace_model(tmp_path / "models" / "one")
        shutil.rmtree(tmp_path / "models" / "one")
        shutil.copytree(TINY, tmp_path / "models" / "one")  # while it is not open, it may change
        before = ask(url, "one").json()
        with streaming(url, "one") as lines:
            replace_model(tmp_path / "models" / "one")
            answer = ask(url, "one")
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
            assert "has changed since this server opened one; one is opened again as soon as its running texts" in problem_of(
                answer
            )
            next(lines)
        assert wait_until(lambda: not server.pool.members["one"].users)
        after = ask(url, "one").json()
        assert before["system_fingerprint"] != after["system_fingerprint"]
        with onnx_textgen.load("tiny-transformer", device="cpu", threads=1) as other:
            assert after["choices"][0]["text"] == other.generate(PROMPT, max_new_tokens=8, seed=1).text
        page = patient_http.get(f"{url}/metrics").text
        assert 'onnx_textgen_model_closes_total{gen_ai_request_model="one",reason="changed"} 1.0' in page
        shutil.rmtree(tmp_path / "models" / "one")
        assert "one cannot be opened: one is not a folder" in problem_of(ask(url, "one"))
        assert statuses(url) == {"one": "unloaded"}


def test_more_requests_than_may_wait_for_a_model_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pool, go_on, load = pool_of(folder, max_waiting=2), threading.Event(), onnx_textgen.load
    monkeypatch.setattr(onnx_textgen, "load", lambda *each, **options: (go_on.wait(LONGEST_WAIT), load(*each, **options))[1])
    with served_pool(pool) as (url, _), ThreadPoolExecutor(2) as threads:
        asked = [threads.submit(ask, url, name) for name in ("tiny", "small")]
        assert wait_until(lambda: pool.waiting == 2)
        answer = ask(url, "tiny")
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
        go_on.set()
        assert {each.result().status_code for each in asked} == {200}


def test_a_client_that_leaves_while_a_model_opens_does_not_keep_it_open(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pool, go_on, load = pool_of(folder, idle_seconds=0.0), threading.Event(), onnx_textgen.load
    monkeypatch.setattr(onnx_textgen, "load", lambda *each, **options: (go_on.wait(LONGEST_WAIT), load(*each, **options))[1])
    with served_pool(pool) as (url, _):
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(
                f"{url}/v1/completions", json={"model": "tiny", "prompt": "A"}, timeout=httpx.Timeout(LONGEST_WAIT, read=0.2)
            )
        go_on.set()
        assert wait_until(lambda: not pool.loaded and not pool.members["tiny"].users and pool.members["tiny"].opening is None)


def test_a_key_guards_the_models_and_health_tells_no_name(folder: Path) -> None:
    with served_pool(pool_of(folder), api_key="secret") as (url, server):
        assert ask(url, "tiny").status_code == 401
        assert not server.pool.loaded
        assert "tiny" not in patient_http.get(f"{url}/health").text


@pytest.mark.parametrize("most", [1, 2])
def test_twenty_clients_of_three_models_get_their_texts(folder: Path, most: int) -> None:
    names = ["tiny", "small", "story"]
    wanted = {}
    for name in names:
        with onnx_textgen.load(folder / name, device="cpu", threads=1) as model:
            wanted[name] = [model.generate(PROMPT, max_new_tokens=8, seed=seed, temperature=0.8).text for seed in range(4)]
    with served_pool(pool_of(folder, max_loaded=most)) as (url, server):

        def client(number: int) -> None:
            for turn in range(4):
                name, seed = names[(number + turn) % 3], turn
                body = {"model": name, "prompt": PROMPT, "max_tokens": 8, "seed": seed, "temperature": 0.8, "stream": turn % 2 == 0}
                while (answer := patient_http.post(f"{url}/v1/completions", json=body)).status_code == 503:
                    assert "try again later" in problem_of(answer)
                    time.sleep(0.02)
                assert answer.status_code == 200, answer.text
                assert len(server.pool.loaded) <= most
                assert text_of(answer, streamed=body["stream"]) == wanted[name][seed]

        with ThreadPoolExecutor(20) as threads:
            for each in [threads.submit(client, number) for number in range(20)]:
                each.result()
        assert wait_until(lambda: not any(each.users for each in server.pool.members.values()))
        assert server.slots.taken == 0


@pytest.mark.slow
def test_clients_that_leave_while_models_are_exchanged_break_nothing(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    names, slow = ["tiny", "small", "story"], ENDLESS | {"max_tokens": 3000}
    with served_pool(pool_of(folder, max_loaded=1, idle_seconds=0.0)) as (url, server):

        def client(number: int) -> None:
            random = np.random.default_rng(number)
            for turn in range(6):
                body = slow | {"model": names[(number + turn) % 3], "stream": bool(turn % 2), "n": 1 + turn % 3}
                with contextlib.suppress(httpx.TransportError):
                    httpx.post(f"{url}/v1/completions", json=body, timeout=httpx.Timeout(LONGEST_WAIT, read=random.uniform(0, 0.2)))

        with ThreadPoolExecutor(8) as threads:
            for each in [threads.submit(client, number) for number in range(8)]:
                each.result()
        assert wait_until(lambda: not server.slots.taken and not any(each.users for each in server.pool.members.values()))
        assert wait_until(lambda: not server.pool.loaded and not server.pool.closing)
        for name in names:
            assert ask(url, name).status_code == 200
    assert not [record for record in caplog.records if record.exc_info]


def text_of(answer: httpx.Response, *, streamed: bool) -> str:
    if not streamed:
        return str(answer.json()["choices"][0]["text"])
    events = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
    assert events.pop() == "[DONE]"
    return "".join(json.loads(event)["choices"][0]["text"] for event in events)


def test_models_that_the_caller_opened_stay_open(story: Model, folder: Path) -> None:
    pool = ModelPool([OpenSource("own", story), FolderSource("tiny", folder / "tiny", OPTIONS)], PoolLimits(1, 0.0))
    with served_pool(pool) as (url, _):
        assert ask(url, "own").status_code == 200
        assert ask(url, "tiny").status_code == 503
        assert statuses(url) == {"own": "loaded", "tiny": "unloaded"}
    assert not story.generator.opened.is_closed


def test_what_the_pool_opened_is_closed_with_the_server(folder: Path) -> None:
    pool = pool_of(folder)
    with served_pool(pool) as (url, _):
        ask(url, "tiny")
        model = pool.members["tiny"].model
    assert model is not None
    assert model.generator.opened.is_closed


def test_another_exporters_folder_is_a_model_of_the_folder(tmp_path: Path) -> None:
    shutil.copytree(TINY.parent / "optimum", tmp_path / "models" / "theirs")
    with served_pool(pool_of(tmp_path / "models")) as (url, _), openai.OpenAI(base_url=f"{url}/v1", api_key="x") as client:
        (listed,) = client.models.list().data
        assert (listed.id, listed.model_extra["precision"]) == ("theirs", "unknown")
        assert client.completions.create(model="theirs", prompt=[5, 6], max_tokens=2).usage.completion_tokens == 2
        assert patient_http.get(f"{url}/v1/models").json()["data"][0]["status"] == {"value": "loaded"}


def test_what_an_open_model_takes_is_estimated_by_its_files_and_a_text(folder: Path) -> None:
    source = FolderSource("story", folder / "story", OPTIONS)
    with onnx_textgen.load(source.place, device="cpu", threads=1) as model:
        files = sum((source.place / name).stat().st_size for name in ("model.onnx", *weights_files(model.manifest)))
        assert source.describe().needed_bytes == int(1.5 * files) + model.memory().total_bytes
    assert dataclasses.replace(source, place=folder / "tiny").describe().needed_bytes < files


def test_a_closed_model_finds_its_prompts_in_the_folder_of_prefixes(folder: Path, tmp_path: Path) -> None:
    options = dataclasses.replace(OPTIONS, prefix_folder=tmp_path / "saved")
    prompt = "Once upon a time there was a little girl called Lily. She had a big red ball. " * 4
    pool = ModelPool([FolderSource("story", folder / "story", options)], PoolLimits(idle_seconds=0.0))
    with served_pool(pool) as (url, _):
        first = ask(url, "story", prompt + "One day").json()
        assert wait_until(lambda: not pool.loaded and not pool.closing)
        again = ask(url, "story", prompt + "One day").json()
    assert first["choices"] == again["choices"]
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 60


def test_a_response_template_is_given_to_one_model_by_its_name(tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    file.write_text('{"start_anchor": "<a>", "fields": {"thinking": {"open": "(", "close": ")"}, "content": {}}}')
    two = [FolderSource(name, find_package("story")) for name in ("one", "two")]
    assert [each.response_template for each in with_response_templates(two, [f"two={file}"])] == [None, file]
    (one,) = with_response_templates(two[:1], [str(file)])
    with one.open() as model:
        assert model.generator.opened.response_template is not None
        assert "thinking" in model.generator.opened.response_template["fields"]
    with pytest.raises(OptionError, match="should name one of the models: one=FILE, two=FILE"):
        with_response_templates(two, [str(file)])
    file.write_text("{}")
    with pytest.raises(PackageError, match="should have fields"):
        with_response_templates(two, [f"one={file}"])
