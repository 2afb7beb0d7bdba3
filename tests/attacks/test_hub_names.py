"""Names of models on the hub that lead elsewhere."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from hypothesis import example, given
from hypothesis import strategies as st

from onnx_textgen.hub.lookup import PREFIX, locate, parse_hub_name
from support.examples import examples

from .law import HARMLESS, PACKAGE, REFUSED, Cell, Verdict, Violation, check_command, judged, open_model

OPTIMUM = PACKAGE.parent / "optimum"
PARTS = (
    *("..", ".", "...", "", "own", "mod", "onnx", "model.onnx", "~", "~root", "%2e%2e", "..%2f", "\\..", "..\\..", "\0", "\n"),
    *("a\nb", "\x1b[31m", "é", "\u202e", "\uff0e\uff0e", "x" * 300, "*", "?", "[a]", "-rf", "--", ".git", "refs", "blobs"),
    *("snapshots", "C:", "CON", " ", ". .", "@", "@main", "@..", "@../../x", "@/etc", "outside", "etc", "passwd", "link"),
    *("models--own--mod", "a" * 40, "\uff4f\uff57\uff4e"),
)  # fmt: skip
NAMES = (
    *("own/mod/../../outside", "own/mod/..", "own/mod/../..", "own/mod/./../../outside", "own/mod/onnx/../../../outside"),
    *("../own/mod", "own/..", "own/mod@../../outside", "own/mod@..", "own/mod/..@main", "own/mod//etc", "own/mod///outside"),
    *("/etc/passwd", "//own/mod", "own/mod/", "own//mod", "own/mod\0/../outside", "own/mod\n", "own/mod/a\nb", "own/mod@main"),
    *("own/mod/\\..\\..\\outside", "own/mod/..\\..\\outside", "own\\..\\mod", "own/mod/%2e%2e/outside", "own/mod/outside"),
    *("own/mod/outside/model.onnx", "own/" + "m" * 5_000, "own/mod/" + "a/" * 3_000, "own/mod@" + "r" * 5_000),
)  # fmt: skip
joined = st.lists(st.sampled_from(PARTS) | st.text(max_size=9), min_size=1, max_size=5).map("/".join)
names = st.sampled_from(NAMES) | joined | joined.map("own/mod/".__add__)


@contextlib.contextmanager
def hub_in(folder: Path) -> Iterator[Path]:
    """A cache of the hub with one model, links in it that lead out, and a model beside the cache; no network."""
    import huggingface_hub  # noqa: PLC0415  (it takes a third of a second)
    import huggingface_hub.constants  # noqa: PLC0415

    cache, outside = folder / "cache", folder / "outside"
    model = cache / "models--own--mod"
    snapshot = model / "snapshots" / ("a" * 40)
    (model / "refs").mkdir(parents=True)
    (model / "refs" / "main").write_text("a" * 40, encoding="utf-8")
    shutil.copytree(OPTIMUM, snapshot)
    shutil.copytree(OPTIMUM, outside)
    for place in (cache, model, snapshot.parent):
        (place / "outside").symlink_to(outside)
    patched = mock.patch.multiple(huggingface_hub.constants, HF_HUB_CACHE=str(cache), HF_HUB_OFFLINE=True)
    with patched, mock.patch.dict(os.environ, {"HF_HUB_CACHE": str(cache)}), contextlib.chdir(folder):
        yield snapshot


OPENED: list[str] = []


@functools.cache
def watch_files() -> None:
    """From here on, remember the path of each file that Python opens."""
    sys.addaudithook(lambda event, args: OPENED.append(str(args[0])) if event == "open" else None)


def find(folder: Path, name: str) -> Verdict:
    """Look for a name: it leads to the model's own folder in the cache, or nowhere; nothing outside is opened on the way."""
    watch_files()
    with hub_in(folder) as snapshot:
        OPENED.clear()
        outside, found = (folder / "outside").resolve(), list[Path]()

        def look() -> None:
            if parse_hub_name(PREFIX + name) is None:
                raise Violation("with this mark it is a name on the hub")
            found.append(locate(PREFIX + name))

        verdict = judged(look)
        if verdict == HARMLESS:
            judged(lambda: open_model(found[0]))
            if not Path(os.path.normpath(found[0])).is_relative_to(snapshot):
                raise Violation(f"it leads to {found[0]}")
        check_command("info", PREFIX + name)
        if opened := [path for path in OPENED if "\0" not in path and Path(path).resolve().is_relative_to(outside)]:
            raise Violation(f"it opened {opened[0]}")
        return REFUSED if verdict == REFUSED else HARMLESS


@examples(60)
@given(names)
@example("own/mod/../../outside")
@example("own/mod/outside/model.onnx")
def test_a_name_on_the_hub_leads_into_that_models_folder_of_the_cache_or_nowhere(cell: Cell, name: str) -> None:
    cell.hold(find, name)
