"""`generate` as a tool, called by the official client of the Model Context Protocol."""

import ast
import asyncio
import contextlib
import importlib
import sys
import threading

import pytest

import onnx_textgen
from demo.conftest import find_free_port, served_page
from onnx_textgen.cli import run
from onnx_textgen_demo.limits import RUNS
from support import patient_http
from support.patient_http import LONGEST_WAIT
from support.scripted_model import TINY_PACKAGE, ScriptedModel

WISH = {"prompt": "a cat", "max_new_tokens": 40, "temperature": 0.8, "seed": 7}


@pytest.fixture
def served():
    """Call it with a model to serve its page with the tool; gives the address of the page."""
    pytest.importorskip("mcp", reason='needs the extra mcp: pip install "onnx-textgen[mcp]"')
    with contextlib.ExitStack() as stack:
        yield lambda model: stack.enter_context(served_page(model, mcp=True))


def ask(address, *calls):
    """The tools of a page, and what these calls give, all made at once."""
    mcp, http = importlib.import_module("mcp"), importlib.import_module("mcp.client.streamable_http")

    async def session_of_calls():
        async with (
            http.streamablehttp_client(f"{address}gradio_api/mcp/") as (read, write, _),
            mcp.ClientSession(read, write) as session,
        ):
            await session.initialize()
            tools = (await session.list_tools()).tools
            return tools, await asyncio.gather(*(session.call_tool(name, wish) for name, wish in calls))

    return asyncio.run(session_of_calls())


def test_the_tool_writes_what_the_model_writes(served):
    model = onnx_textgen.load(TINY_PACKAGE)
    tools, (answer,) = ask(served(model), ("generate", WISH))
    assert [tool.name for tool in tools] == ["generate"]
    assert tools[0].inputSchema["required"] == ["prompt"]
    assert {"top_k", "stop", "model"} <= tools[0].inputSchema["properties"].keys()
    assert not answer.isError
    found, expected = ast.literal_eval(answer.content[0].text), model.generate(**WISH)
    assert (found["text"], found["token_ids"]) == (expected.text, list(expected.token_ids))
    assert found["finish_reason"] == expected.finish_reason


def test_bad_input_is_told_in_one_line_and_listeners_of_the_page_are_no_tools(served):
    address = served(onnx_textgen.load(TINY_PACKAGE))
    calls = [WISH | {"prompt": ""}, WISH | {"prompt": "a" * 50_001}, WISH | {"model": "<b>"}]
    _, answers = ask(address, *(("generate", wish) for wish in calls), ("describe", {"name": "x"}), ("compare", {}))
    assert all(answer.isError and "\n" not in answer.content[0].text for answer in answers)
    words = [answer.content[0].text for answer in answers]
    assert "prompt is empty" in words[0]
    assert "50,001 characters" in words[1]
    assert "there is no model '<b>'" in words[2]
    assert all("Unknown tool" in each for each in words[3:])


def test_calls_of_the_tool_share_the_model_with_all_others(served, monkeypatch):
    model, most, are_two = ScriptedModel(), [0], threading.Event()
    write = model.write

    def watched(*arguments):
        for chunk in write(*arguments):
            most[0] = max(most[0], model.open_streams)
            if model.open_streams > 1:
                are_two.set()
            are_two.wait(LONGEST_WAIT)  # nobody's text ends before another one has begun
            yield chunk

    monkeypatch.setattr(model, "write", watched)
    limit = RUNS["concurrency_limit"]
    _, answers = ask(served(model), *[("generate", WISH)] * (limit + 3))
    assert not any(answer.isError for answer in answers)
    assert 1 < most[0] <= limit


def test_calls_are_all_that_is_reached(served):
    address = served(ScriptedModel())
    link = f"{address}gradio_api/mcp/%3C%2Fscript%3E%3Cscript%3Ealert(1)%3C%2Fscript%3E/gradio_api/mcp"
    assert patient_http.get(link).status_code == patient_http.post(link).status_code == 404
    for other in ("sse", "schema", "messages/", "http"):
        assert patient_http.get(f"{address}gradio_api/mcp/{other}").status_code == 404
    assert patient_http.get(f"{address}gradio_api/mcp/").status_code == 405
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    headers = {"Accept": "application/json, text/event-stream"}
    assert patient_http.post(f"{address}gradio_api/mcp/", json=call, headers=headers).status_code == 200
    foreign = patient_http.post(f"{address}gradio_api/mcp/", json=call, headers=headers | {"Host": "evil.example"})
    assert foreign.status_code == 400


def test_without_the_extra_the_flag_says_how_to_get_it(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "mcp", None)
    assert run(["demo", str(TINY_PACKAGE), "--mcp", "--no-open", "--port", str(find_free_port())]) == 1
    assert capsys.readouterr().err.splitlines() == [
        'error: --mcp needs mcp, which is not installed; add it with: pip install "onnx-textgen[mcp]"'
    ]
