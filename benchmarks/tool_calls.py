"""A hundred turns that call tools, against a live server: whether each call parses and fits its tool's JSON Schema.

    python benchmarks/tool_calls.py PACKAGE [--turns 100] [--threads 2]

Ten tools, in groups of three of which one has to be called: any of them, or in every second pair of rounds a certain one. Rounds
are whole and streamed by turns, at temperature 0.7, and every second turn continues the conversation with the result of the call
before. A call counts if it is the only one of an answer that the model ended, its arguments are JSON, and they fit the schema.
Needs the extras serve and dev. Ends with 1 unless all calls count.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import jsonschema
import openai

TEMPERATURE, MOST_TOKENS = 0.7, 600


def tool(name: str, description: str, required: list[str] | None = None, **properties: Any) -> dict[str, Any]:  # noqa: ANN401
    """A tool in OpenAI's form; all of its arguments are required, unless `required` names them."""
    schema = {
        "type": "object",
        "properties": {key: value for key, value in properties.items() if key != "defs"},
        "required": [key for key in properties if key != "defs"] if required is None else required,
        "additionalProperties": False,
        **({"$defs": properties["defs"]} if "defs" in properties else {}),
    }
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


def record(**properties: Any) -> dict[str, Any]:  # noqa: ANN401
    """The schema of an object whose keys are all required."""
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


TEXT, WORD = {"type": "string", "maxLength": 80}, {"type": "string", "minLength": 1, "maxLength": 20}
DAY = {"type": "string", "pattern": r"^20[0-9]{2}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9])$"}
SEATS = {"enum": ["window", "aisle"]}
PASSENGER = record(name=WORD, age={"type": "integer", "minimum": 0, "maximum": 120}, seat=SEATS)
LEAF = {"type": "object", "properties": {"name": WORD}, "required": ["name"], "additionalProperties": False}
NODE = record(name=WORD, children={"type": "array", "items": {"$ref": "#/$defs/leaf"}, "maxItems": 3})
COUNT = {"type": "integer", "minimum": 0, "maximum": 999}
BYTE = {"type": "integer", "minimum": 0, "maximum": 255}
LIGHT = record(room={"enum": ["Küche", "Flur", "Wohnzimmer"]}, color={"type": "array", "items": BYTE, "minItems": 3, "maxItems": 3})
ADDRESS = {"anyOf": [record(email=WORD), record(phone={"type": "string", "pattern": "^[0-9]{5}$"})]}
LIMIT = {"anyOf": [{"type": "integer", "minimum": 1, "maximum": 99}, {"type": "null"}]}


def some_of(items: dict[str, Any], *, least: int = 0, most: int = 3) -> dict[str, Any]:
    """The schema of a list."""
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


CASES = [
    ("What is the weather in Oslo?", tool("get_weather", "Get the weather.", city=WORD, unit={"enum": ["celsius", "fahrenheit"]})),
    (
        "Book a flight to Rome for Ann, 34, and Bo, 7.",
        tool("book_flight", "Book seats.", to=WORD, day=DAY, passengers=some_of(PASSENGER, least=1)),
    ),
    (
        "Find cheap blue shoes.",
        tool(
            "search_products",
            "Search a shop.",
            query=WORD,
            price=record(least=COUNT, most=COUNT),
            colors=some_of({"enum": ["red", "green", "blue"]}),
        ),
    ),
    (
        "Meet Zoë and Łukasz on Monday at 10.",
        tool(
            "create_event",
            "Add to the calendar.",
            title=TEXT,
            guests=some_of({"enum": ["Zoë", "Łukasz", "李雷", "Мария"]}, least=1, most=4),
            start=record(day=DAY, hour={"type": "integer", "minimum": 0, "maximum": 23}),
            repeats={"type": "boolean"},
        ),
    ),
    (
        "Say good morning in Japanese.",
        tool("translate", "Translate a text.", text=TEXT, into={"enum": ["日本語", "русский", "français", "العربية", "emoji 🙂"]}),
    ),
    (
        "How much is 20 dollars in euros?",
        tool("convert", "Convert money.", amount=COUNT, source={"enum": ["USD", "EUR"]}, target={"enum": ["EUR", "JPY"]}),
    ),
    ("Make the kitchen warm and bright.", tool("set_lights", "Set lights.", rooms=some_of(LIGHT, least=1, most=2))),
    ("Tell Ann that I am late.", tool("send", "Send a message.", to=ADDRESS, text=TEXT)),
    (
        "Draw the tree of a small family.",
        tool("draw_tree", "Draw a tree.", root={"$ref": "#/$defs/node"}, defs={"node": NODE, "leaf": LEAF}),
    ),
    ("Show the last orders.", tool("query", "Query a table.", ["table"], table={"enum": ["orders", "users"]}, limit=LIMIT)),
]


@contextlib.contextmanager
def served(package: str, threads: int) -> Iterator[str]:
    """The address of a server of the package."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    start = "from onnx_textgen.cli import main; main()"
    server = subprocess.Popen([sys.executable, "-c", start, "serve", f"small={package}", "--port", port, "--threads", str(threads)])
    url = f"http://127.0.0.1:{port}"
    try:
        while server.poll() is None:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{url}/health").close()  # our own server
                break
            time.sleep(0.1)
        yield f"{url}/v1"
    finally:
        server.terminate()
        server.wait()


def ask(client: openai.OpenAI, asked: dict[str, Any], *, streamed: bool) -> tuple[str, list[dict[str, str]]]:
    """Why an answer ended, and its calls, each an id, a name and arguments."""
    calls = list[dict[str, str]]()
    if not streamed:
        choice = client.chat.completions.create(**asked).choices[0]
        for each in choice.message.tool_calls or ():
            calls.append({"id": each.id, "name": each.function.name, "arguments": each.function.arguments})
        return choice.finish_reason, calls
    reason = ""
    for chunk in client.chat.completions.create(**asked, stream=True):
        for part in chunk.choices[0].delta.tool_calls or ():
            if part.index == len(calls):
                calls.append({"id": part.id, "name": part.function.name, "arguments": ""})
            calls[part.index]["arguments"] += part.function.arguments
        reason = chunk.choices[0].finish_reason or reason
    return reason, calls


def problem_of(reason: str, calls: list[dict[str, str]], tools: list[dict[str, Any]]) -> str:
    """What is wrong with an answer; empty if nothing is."""
    if reason != "tool_calls" or len(calls) != 1:
        return f"{len(calls)} calls, ended by {reason}"
    schemas = {each["function"]["name"]: each["function"]["parameters"] for each in tools}
    try:
        jsonschema.validate(json.loads(calls[0]["arguments"]), schemas[calls[0]["name"]])
    except (ValueError, KeyError, jsonschema.ValidationError) as error:
        return f"{type(error).__name__}: {calls[0]}"
    return ""


def said_by(call: dict[str, str]) -> list[dict[str, Any]]:
    """A call and its result, as messages."""
    function = {"name": call["name"], "arguments": call["arguments"]}
    return [
        {"role": "assistant", "content": "", "tool_calls": [{"id": call["id"], "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": call["id"], "content": "done"},
    ]


def request(turn: int, said: list[dict[str, Any]]) -> dict[str, Any]:
    """The request of a turn."""
    tools = [CASES[(turn + other) % len(CASES)][1] for other in range(3)]
    named = {"type": "function", "function": {"name": tools[0]["function"]["name"]}}
    return {
        "model": "small",
        "messages": said,
        "tools": tools,
        "tool_choice": named if turn // len(CASES) % 4 >= 2 else "required",
        "parallel_tool_calls": False,
        "temperature": TEMPERATURE,
        "seed": turn,
        "max_tokens": MOST_TOKENS,
    }


Row = tuple[bool, bool, float]
"""Whether a call was streamed, whether it counts, and its seconds."""


def rows_of(client: openai.OpenAI, turns: int) -> dict[str, list[Row]]:
    """Take all turns; returns the calls of each tool."""
    rows: dict[str, list[Row]] = {each["function"]["name"]: [] for _, each in CASES}
    said = list[dict[str, Any]]()
    for turn in range(turns):
        said = [*(said if turn % 2 else ()), {"role": "user", "content": CASES[turn % len(CASES)][0]}]
        asked, streamed, start = request(turn, said), turn // len(CASES) % 2 == 1, time.perf_counter()
        reason, calls = ask(client, asked, streamed=streamed)
        problem = problem_of(reason, calls, asked["tools"])
        if problem:
            print(f"turn {turn}: {problem}", file=sys.stderr)
        name = calls[0]["name"] if calls else asked["tools"][0]["function"]["name"]
        rows[name].append((streamed, not problem, time.perf_counter() - start))
        said += said_by(calls[0]) if not problem else []
    return rows


def main() -> None:
    """Print a row for each tool, and the sum."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package")
    parser.add_argument("--turns", type=int, default=100)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    with served(arguments.package, arguments.threads) as url, openai.OpenAI(base_url=url, api_key="unused") as client:
        rows = rows_of(client, arguments.turns)
    print("| tool | calls whole | count | calls streamed | count | median seconds |\n|---|---:|---:|---:|---:|---:|")
    for name, found in [*rows.items(), ("all", [each for row in rows.values() for each in row])]:
        whole, streams = ([fits for is_stream, fits, _ in found if is_stream == kind] for kind in (False, True))
        median = statistics.median(seconds for *_, seconds in found) if found else 0.0
        print(f"| {name} | {len(whole)} | {sum(whole)} | {len(streams)} | {sum(streams)} | {median:.2f} |")
    sys.exit(0 if all(fits for row in rows.values() for _, fits, _ in row) else 1)


if __name__ == "__main__":
    main()
