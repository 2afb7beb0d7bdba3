"""The words that must not come back: direct English and the field's terms, in docs, docstrings, comments and messages.

Each entry of `DENIED` is a pattern with the better words, which the failure shows. CONTRIBUTING.md has the word list.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

SCOPE = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "docs",
    "demo",
    "export",
    "examples",
    "artifacts",
    "runtime",
)
"""Files and folders whose words are checked. A folder that is clean is added here."""

GENERATED = {"docs/architectures.md", "docs/options.md"}
"""Pages whose tables a program writes, model texts and messages included; the words of the program count."""

DENIED = {
    r"so many": "the number itself, 'that many', or 'as many as ...'",
    r"of (its|their|his|your|our|one's) own": "'its own ...', 'separate', 'private', 'custom'",
    r"behind(?! a proxy)": "'after' (tokens), 'below', 'under'; 'keys and values of', not 'behind', a text",
    r"beside": "'next to', 'compared with', 'in addition to', 'and'",
    r"anew": "'again', 'from scratch'",
    r"as (it is|they are)(?=[\s.,;:)]|$)": "'unchanged', 'without conversion'",
    r"(let|lets|letting) go": "'release'",
    r"(go|goes|going|went|gone) on": "'continue'",
    r"several(?=[.,;:)]| (?:of|at|in|over|are|may|can|side|together)\b)": "a noun after it: 'several texts', or 'a batch'",
    r"what (there is|is there)": "name the thing: 'the text so far', 'what is installed'",
    r"(take|takes|taken|taking|took) \w* ?back": "'roll back' (cache), 'undo' (chat)",
    r"(mend|mends|mended|mending)": "'fix'",
    r"in a circle": "'repeats', 'in a loop'",
    r"some (?=\d)": "'about'",
    r"in place of": "'instead of'",
    r"strangers?(?:'s)?": "'untrusted'",
}


def prose_of_markdown(text: str) -> Iterator[tuple[int, str]]:
    """The text, with its first line's number; blank where code, addresses of links and generated parts are."""
    lines, is_code, is_generated = list[str](), False, False
    for line in text.splitlines():
        is_fence = line.lstrip().startswith("```")
        is_code ^= is_fence
        is_generated = bool(re.match(r"<!-- (measured|attacks|tables)", line)) or (is_generated and "<!-- " not in line)
        lines.append("" if is_code or is_fence or is_generated else re.sub(r"`[^`]*`|\]\([^)]*\)", " ` ", line))
    yield 1, "\n".join(lines)


def prose_of_python(text: str) -> Iterator[tuple[int, str]]:
    """Comments and strings, docstrings and messages among them, each with its first line's number."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, re.sub(r"`[^`\n]*`", " ` ", node.value)


def denied_in(name: str, text: str) -> list[str]:
    """What is wrong in a file, a line each: its place, the words found, and the better ones."""
    wrong = []
    for first, prose in prose_of_python(text) if name.endswith(".py") else prose_of_markdown(text):
        for pattern, better in DENIED.items():
            spaced = pattern.replace(" ", r"\s+")  # a phrase may run over the end of a line
            for found in re.finditer(rf"\b(?:{spaced})(?!\w)", prose, flags=re.IGNORECASE):
                number = first + prose[: found.start()].count("\n")
                wrong.append((number, f"{name}:{number}: {' '.join(found[0].split())!r}; write {better}"))
    return [line for _, line in sorted(wrong)]


def files_of(place: str) -> list[Path]:
    """The texts of a file or folder of the scope."""
    path = ROOT / place
    return [path] if path.is_file() else sorted(each for kind in ("*.md", "*.py") for each in path.rglob(kind))


@pytest.mark.parametrize("place", SCOPE)
def test_no_denied_word_is_in(place: str) -> None:
    files = {path.relative_to(ROOT).as_posix(): path for path in files_of(place)}
    assert files
    texts = {name: path.read_text(encoding="utf-8") for name, path in files.items() if name not in GENERATED}
    wrong = [line for name, text in texts.items() for line in denied_in(name, text)]
    assert not wrong, "\n" + "\n".join(wrong)


def test_a_denied_word_is_found_in_prose_and_not_in_code() -> None:
    markdown = "It goes\non `behind` this.\n```\nbeside\n```\n[x](beside.md)\n<!-- measured: a -->\nanew\n<!-- end -->\nanew\n"
    assert [line.split(";")[0] for line in denied_in("page.md", markdown)] == ["page.md:1: 'goes on'", "page.md:10: 'anew'"]
    python = 'def beside():\n    """Begin anew."""\n    raise ValueError("none is behind")  # so many\n'
    assert sorted(line.split(";")[0] for line in denied_in("a.py", python)) == [
        "a.py:2: 'anew'",
        "a.py:3: 'behind'",
        "a.py:3: 'so many'",
    ]
