"""A folder of the four kinds of text for `benchmarks/quality`: prose, code, chats, and other languages.

    apt-get download debian-faq-{de,fr,it,ja,ru,zh-cn}; for each in *.deb; do dpkg-deb -x $each FAQ; done
    python benchmarks/quality/kinds.py CORPORA FAQ OUT

CORPORA holds wikitext2_valid.txt (the validation half of WikiText-2) and dialogue_topical_chat.txt.zst (Topical-Chat, its documents
separated by `<|endoftext|>`, turns begun with `User:` or `Assistant:`). Code is the standard library's `argparse`.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))
from artifacts.train.corpora import read_documents

CHATS = 200
SHORTEST = 100
"""Characters of a paragraph."""


def paragraphs(file: Path) -> Iterator[str]:
    """The longer paragraphs of a translated page, each in one line; those still in English are left out."""
    gap = "" if re.search(r"\.(ja|zh-cn)\.", file.name) else " "
    for text in re.split(r"\n\s*\n", gzip.decompress(file.read_bytes()).decode()):
        line = gap.join(map(str.strip, text.splitlines()))
        if len(line) >= SHORTEST and " the " not in line:
            yield line


def messages(document: str) -> Iterator[dict[str, str]]:
    """The turns of a dialogue."""
    for line in document.splitlines():
        role, _, content = line.partition(": ")
        if content:
            yield {"role": role.lower(), "content": content}


def main() -> None:
    """Write the folder."""
    corpora, pages, out = map(Path, sys.argv[1:])
    out.mkdir(parents=True)
    shutil.copy(corpora / "wikitext2_valid.txt", out / "prose.txt")
    shutil.copy(argparse.__file__, out / "code.txt")
    talks = read_documents(corpora / "dialogue_topical_chat.txt.zst")[:CHATS]
    (out / "chat.json").write_text(json.dumps([list(messages(talk)) for talk in talks], indent=1), encoding="utf-8")
    translated = zip(*(paragraphs(file) for file in sorted(pages.rglob("debian-faq.*.txt.gz"))), strict=False)
    (out / "languages.txt").write_text("\n".join(itertools.chain.from_iterable(translated)), encoding="utf-8")


if __name__ == "__main__":
    main()
