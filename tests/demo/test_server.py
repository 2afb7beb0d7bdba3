"""The server as a program sees it: what it answers, what it refuses, and that a generation ends with its client."""

import contextlib
import itertools
import json
import re

import httpx
import pytest
from gradio_client import Client
from gradio_client.exceptions import AppError

import onnx_textgen
from onnx_textgen.errors import ModelError, OptionError
from onnx_textgen_demo import api
from onnx_textgen_demo.limits import RUNS
from onnx_textgen_demo.serving.server import DANGEROUS_VARIABLES, QUEUE_LENGTH, serve
from support import patient_http
from support.can_bind import can_bind
from support.patient_http import LONGEST_WAIT
from support.scripted_model import TINY_PACKAGE, ScriptedModel

PATIENCE = {"timeout": LONGEST_WAIT}
INPUTS = {"prompt": "a cat", "max_new_tokens": 40, "temperature": 0.8, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 7}


@pytest.fixture
def client_of(served):
    with contextlib.ExitStack() as stack:

        def connect(model):
            client = Client(served(model), verbose=False, httpx_kwargs=PATIENCE)
            stack.callback(client.close)
            return client

        yield connect


@pytest.fixture(scope="module")
def tiny_client(tiny_address):
    with contextlib.closing(Client(tiny_address, verbose=False, httpx_kwargs=PATIENCE)) as client:
        yield client


def raw(**changes):
    """All of the function's arguments in their order, as a request without Gradio's client has them."""
    return [*(INPUTS | changes).values(), None, None]


def submit(client, **changes):
    return client.submit(**(INPUTS | changes), api_name="/generate")


def test_the_text_grows_and_ends_with_its_numbers(client_of):
    job = submit(client_of(ScriptedModel(seconds_per_token=0.02)))
    job.result(timeout=LONGEST_WAIT)
    texts = [answer["text"] for answer in job.outputs()]
    assert len(set(map(len, texts))) > 3
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(texts))
    last = job.outputs()[-1]
    assert (last["finish_reason"], last["stats"]["decode_tokens_per_second"], len(last["token_ids"])) == ("length", 33.3, 40)


def test_the_page_writes_what_the_model_writes(tiny_client):
    model = onnx_textgen.load(TINY_PACKAGE)
    expected = model.generate("a cat", max_new_tokens=40, temperature=0.8, seed=7)
    answer = submit(tiny_client).result(timeout=LONGEST_WAIT)
    assert (answer["text"], answer["finish_reason"]) == (expected.text, expected.finish_reason)
    assert answer["token_ids"] == list(expected.token_ids)


def test_without_a_seed_a_new_one_is_taken_and_told(client_of):
    client = client_of(onnx_textgen.load(TINY_PACKAGE))
    first, second = (client.submit("a cat", api_name="/generate").result(timeout=LONGEST_WAIT)["stats"]["seed"] for _ in range(2))
    assert first != second


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"prompt": ""}, "prompt is empty"),
        ({"prompt": "a" * 50_001}, "50,001 characters"),
        ({"prompt": "a" * 3_000}, "tokens; this model takes"),
        ({"max_new_tokens": 0}, "max_new_tokens should be"),
        ({"temperature": -1}, "temperature should be"),
        ({"temperature": 1e9}, "temperature should be"),
        ({"top_p": 0}, "top_p should be"),
        ({"seed": "seven"}, "seed should be a whole number"),
        ({"seed": -3}, "seed should be a whole number"),
        ({"seed": 2**63}, "seed should be a whole number"),
        ({"seed": "9" * 5_000}, "seed should be a whole number"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"prompt": 5}, "the prompt should be text, found 5"),
        ({"prompt": ["a"]}, "the prompt should be text, found a list"),
        ({"model": 1}, "model should be a name, found 1"),
        ({"model": []}, "model should be a name, found a list"),
        ({"model": {"a": 1}}, "model should be a name, found a dict"),
        ({"model": "<b>another</b>"}, "there is no model '<b>another</b>'"),
    ],
)
def test_bad_input_is_answered_with_one_readable_line(tiny_client, changes, words):
    with pytest.raises(AppError) as caught:
        submit(tiny_client, **changes).result(timeout=LONGEST_WAIT)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert submit(tiny_client).result(timeout=LONGEST_WAIT)["text"], "the next request should be served"


def test_an_error_in_mid_stream_closes_the_stream(client_of):
    model = ScriptedModel(
        seconds_per_token=0.02, fail_after=30, error=ModelError("the logits are not numbers; export the model again")
    )
    job = submit(client_of(model))
    with pytest.raises(AppError, match="the logits are not numbers"):
        job.result(timeout=LONGEST_WAIT)
    assert job.outputs()[-1]["text"].startswith(" a small cat")
    assert model.open_streams == 0


def test_an_error_of_ours_shows_no_inside_to_the_client(client_of):
    model = ScriptedModel(fail_after=3, error=ZeroDivisionError("secret"))
    with pytest.raises(AppError) as caught:
        submit(client_of(model)).result(timeout=LONGEST_WAIT)
    assert "secret" not in str(caught.value)
    assert model.open_streams == 0


def test_no_text_takes_longer_than_the_page_allows(tiny_client, monkeypatch):
    monkeypatch.setattr(api, "MOST_SECONDS", 1e-6)
    assert submit(tiny_client).result(timeout=LONGEST_WAIT)["finish_reason"] == "deadline"


def test_cancelling_ends_the_generation(client_of, eventually):
    model = ScriptedModel(seconds_per_token=0.01)
    job = submit(client_of(model), max_new_tokens=90_000)
    eventually(lambda: len(job.outputs()) > 3)
    job.cancel()
    eventually(lambda: model.open_streams == 0)
    assert model.streamed_tokens < 90_000


def test_a_client_that_goes_away_ends_the_generation(served, eventually):
    model = ScriptedModel(seconds_per_token=0.01)
    api = served(model) + "gradio_api"
    data = raw(max_new_tokens=90_000)
    event = patient_http.post(f"{api}/call/generate", json={"data": data}).json()["event_id"]
    with patient_http.stream("GET", f"{api}/call/generate/{event}") as response:
        lines = response.iter_lines()
        while "cat" not in next(lines):
            pass
        assert model.open_streams == 1
    eventually(lambda: model.open_streams == 0)
    assert model.streamed_tokens < 90_000


def test_a_few_texts_are_written_at_a_time_and_a_full_queue_says_so(served, eventually):
    model = ScriptedModel()
    model.may_go_on.clear()  # no text ends while others are asked for
    call = served(model) + "gradio_api/call/generate"
    most = RUNS["concurrency_limit"]
    answers = [patient_http.post(call, json={"data": raw(max_new_tokens=100)}) for _ in range(QUEUE_LENGTH + most + 3)]
    refused = [answer for answer in answers if answer.status_code != 200]
    assert refused
    assert all(answer.status_code == 503 and "full" in answer.text for answer in refused)
    eventually(lambda: model.open_streams == most)
    model.may_go_on.set()
    eventually(lambda: model.streamed_tokens > most * 100 + 10)  # others have begun since the first ended
    assert model.open_streams <= most


def test_generate_is_the_only_function_offered(tiny_client):
    assert list(tiny_client.view_api(return_format="dict", print_info=False)["named_endpoints"]) == ["/generate"]
    assert patient_http.get(f"{tiny_client.src}docs").status_code == 404
    assert patient_http.get(f"{tiny_client.src}gradio_api/mcp/schema").status_code == 404


def test_nothing_is_reported_and_nothing_shared(tiny_address):
    config = patient_http.get(f"{tiny_address}config").json()
    assert config["analytics_enabled"] is False
    assert "googleapis" not in json.dumps(config)


@pytest.mark.parametrize("name", DANGEROUS_VARIABLES)
def test_an_environment_that_opens_more_than_the_page_is_refused(name, monkeypatch, page):
    monkeypatch.setenv(name, "1")
    with pytest.raises(OptionError, match=name):
        serve(page, host="127.0.0.1", port=7860)


def test_a_host_that_others_can_reach_needs_a_word(page):
    with pytest.raises(OptionError, match="--allow-public"):
        serve(page, host="0.0.0.0", port=7860)


@pytest.mark.skipif(not can_bind("::1"), reason="this machine has no IPv6")
def test_an_ipv6_host_serves_the_page(page, free_port):
    served = serve(page, host="::1", port=free_port)
    address = served.address
    try:
        assert address == f"http://[::1]:{free_port}/"
        assert patient_http.get(address).status_code == 200
        assert patient_http.get(address, headers={"Host": "[::2]"}).status_code == 400
        with contextlib.closing(Client(address, verbose=False, httpx_kwargs=PATIENCE)) as client:
            assert submit(client, max_new_tokens=3).result(timeout=LONGEST_WAIT)["text"]
    finally:
        served.close()


@pytest.mark.skipif(not can_bind("::"), reason="this machine has no IPv6")
def test_every_address_of_ipv6_takes_callers_by_ipv4_too(page):
    served = serve(page, host="::", port=0, allow_public=True)
    try:
        port = httpx.URL(served.address).port
        for host in ("127.0.0.1", "[::1]"):
            assert patient_http.get(f"http://{host}:{port}/").status_code == 200
    finally:
        served.close()


def test_closing_the_page_ends_what_is_being_written(page_of, eventually, capfd):
    model = ScriptedModel(seconds_per_token=0.02)
    served = serve(page_of(model), host="127.0.0.1", port=0)
    with contextlib.closing(Client(served.address, verbose=False, httpx_kwargs=PATIENCE)) as client:
        job = submit(client, max_new_tokens=100_000)
        eventually(job.outputs)
        served.close()
        eventually(lambda: model.open_streams == 0)
        eventually(job.done)
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("host", "words"),
    [("no.such.host.invalid", "--host no.such.host.invalid is not an address"), ("127.0.0.1:7860", "--host takes an address")],
)
def test_a_host_that_cannot_be_one_is_one_readable_line(page, host, words):
    with pytest.raises(OptionError, match=re.escape(words)):
        serve(page, host=host, port=0, allow_public=True)
