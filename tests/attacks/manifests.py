"""Manifests of anything that JSON can say, each with its right digest, so that nothing but the reading of it stands in between."""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx_textgen
from onnx_textgen.cli import run
from onnx_textgen.errors import OnnxTextgenError
from onnx_textgen.package.manifest import MANIFEST, manifest_digest

from .flips import open_model
from .law import Case, Law, Verdict, Violation, check_line, judged

PACKAGE = Path(__file__).resolve().parents[1] / "packages" / "ort"
PROMPT, TOKENS = (5, 9, 2, 40), 8
Spot = tuple[Any, Any]
"""A list or an object, and the index or key of one of its values."""

NUMBERS = (0, -1, 1, 2, 7, 255, 2**31, 2**63, 2**64, -(2**63), 10**30, 10**4_000, 0.5, -0.0, 1e308, 5e-324, 1e400, -1e400)
TEXTS = (
    *(
        "",
        "x",
        "ort",
        "standard",
        "fp32",
        "int4",
        "unknown",
        "\0",
        "a\nb\r\nc",
        "\ud800",
        "\x1b]0;owned\x07",
        "\x9b31m",
        "\u202eabc",
        "🙂",
    ),
    *(
        "../../etc/passwd",
        "/etc/passwd",
        "{0.__class__}",
        "{{ 7*7 }}",
        "%s%n",
        "[bold red]x[/]",
        "[/nothing]",
        "x" * 100_000,
        "0" * 64,
        "1",
    ),
)
OTHERS: tuple[Callable[[], Any], ...] = (
    lambda: None,
    lambda: True,
    lambda: False,
    lambda: float("nan"),
    list,
    dict,
    lambda: [[]],
    lambda: [None] * 1_000,
    lambda: {"": {"": ""}},
    lambda: {"a" * 10_000: 1},
    lambda: functools.reduce(lambda inner, _: [inner], range(60), [1]),
    lambda: functools.reduce(lambda inner, _: {"summary": inner}, range(60), {}),
)
NAMES = (
    "format_version",
    "sha256",
    "files",
    "size",
    "geometry",
    "custom_ops",
    "session_options",
    "__class__",
    "model.onnx",
    "",
    "\0",
    "\ud800",
)


def spots(value: Any) -> Iterator[Spot]:
    """Every place in a JSON value."""
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from spots(value[key])


def any_value(choose: random.Random) -> Any:
    """A JSON value of any kind."""
    kind = choose.randrange(3)
    return choose.choice(NUMBERS) if kind == 0 else choose.choice(TEXTS) if kind == 1 else choose.choice(OTHERS)()


def mutate(value: dict[str, Any], choose: random.Random) -> str:
    """Change one thing; what was changed, for the name of the case."""
    holder, key = choose.choice(list(spots(value)))
    before, what = holder[key], choose.randrange(8)
    if what == 0:
        del holder[key]
    elif what == 1 and isinstance(holder, dict):
        holder[choose.choice(NAMES)] = any_value(choose)
    elif what == 2 and isinstance(holder, dict):
        holder[choose.choice(NAMES)] = holder.pop(key)
    elif what == 3 and isinstance(before, int | float) and not isinstance(before, bool):
        holder[key] = choose.choice((before + 1, before - 1, -before, before * 1_000, before * 2**70, float(before), str(before)))
    elif what == 4 and isinstance(before, list):
        holder[key] = choose.choice((before * 300, before[::-1], before[:-1], [before], dict(enumerate(before))))
    elif what == 5:
        other, there = choose.choice(list(spots(value)))
        holder[key] = json.loads(json.dumps(other[there]))
    else:
        holder[key] = any_value(choose)
    return f"{key!r:.30} ({('goes', 'beside', 'renamed', 'number', 'list', 'copied', 'other', 'other')[what]})"


def text_of(value: dict[str, Any], choose: random.Random) -> bytes:
    """A manifest's bytes with the digest of what it says, in one of the ways JSON may be written, or must not."""
    value = {key: item for key, item in value.items() if key != "sha256"} | {"sha256": manifest_digest(value)}
    text = json.dumps(value, indent=choose.choice((None, 1, 9)), ensure_ascii=True)
    ways: dict[int, Callable[[], bytes]] = {
        0: lambda: b"\xef\xbb\xbf" + text.encode(),
        1: functools.partial(text.encode, "utf-16"),
        2: (text[:-1] + ', "name": "again"}').encode,
        3: lambda: text.encode() + choose.choice((b"\0", b"{}", b" " * 10_000, b"//", b"\x1a")),
        4: lambda: text.replace("a", choose.choice(("\\u0061", "\\ud800", "\\x61", "\u0430")), 1).encode(),
        5: lambda: text.encode().replace(b"o", choose.choice((b"\xff", b"\xc0\xaf", b"\xed\xa0\x80")), 1),
        6: lambda: text.replace("1", choose.choice(("01", "+1", "1.", "0x1", "1_0", "9" * 5_000, "-" * 9 + "1")), 1).encode(),
        7: (text[:-1] + ', "certificate": ' + "[" * 100_000 + "}").encode,
    }
    return ways.get(choose.randrange(40), text.encode)()


@functools.cache
def ids_of(folder: Path) -> tuple[int, ...]:
    """What a whole package writes."""
    return open_model(folder).generate(list(PROMPT), max_new_tokens=TOKENS, temperature=0).token_ids


def check_command(arguments: list[str]) -> None:
    """Run a command line; an error of ours in a line is none here, and no other one is turned into a line."""
    try:
        code = run(arguments)
    except OnnxTextgenError as error:
        check_line(str(error))
    else:
        if code not in (0, 1):
            raise Violation(f"{' '.join(arguments)} ended with {code}")


def is_harmless(model: onnx_textgen.Model) -> bool:
    """Whether the text is the package's own, if shorter: ends and limits are the manifest's to say. All commands tell of it."""
    made = model.generate(list(PROMPT), max_new_tokens=TOKENS, temperature=0)
    folder, wanted = str(model.folder), ids_of(PACKAGE)
    for command in (["info", folder], ["info", folder, "--json"], ["list", str(model.folder.parent)], ["verify", folder]):
        check_command(command)
    return made.token_ids == wanted or (made.finish_reason in ("eos", "length") and made.token_ids == wanted[: len(made.token_ids)])


def open_with(content: bytes, folder: Path) -> Verdict:
    """A package with another manifest."""
    for path in PACKAGE.iterdir():
        if path.name != MANIFEST:
            (folder / path.name).symlink_to(path)
    (folder / MANIFEST).write_bytes(content)
    return judged(lambda: open_model(folder), is_harmless)


def fuzzed(count: int, choose: random.Random) -> Iterator[Case]:
    """One to three changes each."""
    original = (PACKAGE / MANIFEST).read_text(encoding="utf-8")
    for number in range(count):
        value = json.loads(original)
        changes = [mutate(value, choose) for _ in range(choose.choice((1, 1, 2, 3)))]
        yield Case(f"{number}: {', '.join(changes)}", functools.partial(open_with, text_of(value, choose)))


LAWS = (Law("A manifest of any content is refused in one line, or changes no token", fuzzed, whole=1_000, quick=100),)
