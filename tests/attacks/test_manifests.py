"""Manifests of anything that JSON can say, each with its right digest, so that nothing but the reading of it stands in between."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

import onnx_textgen
from onnx_textgen.package.manifest import MANIFEST, manifest_digest
from support.examples import examples

from .law import PACKAGE, Cell, Verdict, check_command, judged, open_model
from .values import Draw, with_other_values

PROMPT, TOKENS = [5, 9, 2, 40], 8
ORIGINAL = json.loads((PACKAGE / MANIFEST).read_text(encoding="utf-8"))
BEHIND = (b"\0", b"{}", b" " * 10_000, b"//", b"\x1a")
LETTERS = ("\\u0061", "\\ud800", "\\x61", "\u0430")
NO_UTF8 = (b"\xff", b"\xc0\xaf", b"\xed\xa0\x80")
ONES = ("01", "+1", "1.", "0x1", "1_0", "9" * 5_000, "-" * 9 + "1")


@st.composite
def contents(draw: Draw) -> bytes:
    """A manifest's bytes with the digest of what it says, in one of the ways JSON may be written, or must not."""
    value = draw(with_other_values(ORIGINAL))
    value = {key: item for key, item in value.items() if key != "sha256"} | {"sha256": manifest_digest(value)}
    text = json.dumps(value, indent=draw(st.sampled_from((None, 1, 9))), ensure_ascii=True)
    ways: tuple[Callable[[], bytes], ...] = (
        lambda: b"\xef\xbb\xbf" + text.encode(),
        functools.partial(text.encode, "utf-16"),
        (text[:-1] + ', "name": "again"}').encode,
        lambda: text.encode() + draw(st.sampled_from(BEHIND)),
        lambda: text.replace("a", draw(st.sampled_from(LETTERS)), 1).encode(),
        lambda: text.encode().replace(b"o", draw(st.sampled_from(NO_UTF8)), 1),
        lambda: text.replace("1", draw(st.sampled_from(ONES)), 1).encode(),
        (text[:-1] + ', "certificate": ' + "[" * 100_000 + "}").encode,
    )
    return ways[draw(st.integers(0, 7))]() if draw(st.integers(0, 4)) == 4 else text.encode()


@functools.cache
def ids() -> tuple[int, ...]:
    """What the whole package writes."""
    return open_model(PACKAGE).generate(PROMPT, max_new_tokens=TOKENS, temperature=0).token_ids


def is_harmless(model: onnx_textgen.Model) -> bool:
    """Whether the text is the package's own, if shorter: ends and limits are the manifest's to say. All commands tell of it."""
    made = model.generate(PROMPT, max_new_tokens=TOKENS, temperature=0)
    for command in (["info"], ["info", "--json"], ["verify"]):
        check_command(*command, str(model.folder))
    check_command("list", str(model.folder.parent))
    return made.token_ids == ids() or (made.finish_reason in ("eos", "length") and made.token_ids == ids()[: len(made.token_ids)])


def open_with(folder: Path, content: bytes) -> Verdict:
    """Open a package with another manifest."""
    for path in PACKAGE.iterdir():
        if path.name != MANIFEST:
            (folder / path.name).symlink_to(path)
    (folder / MANIFEST).write_bytes(content)
    return judged(lambda: open_model(folder), is_harmless)


@examples(100)
@given(contents())
def test_a_manifest_of_any_content_is_refused_in_one_line_or_changes_no_token(cell: Cell, content: bytes) -> None:
    cell.hold(open_with, content)
