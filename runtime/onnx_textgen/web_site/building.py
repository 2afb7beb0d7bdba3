"""Builds the folder of a site: the page, the JavaScript, the files of the model that a browser needs, and `site.json`.

`site.json` describes it all, each file with its size and sha256. The folder is written completely or not at all.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ..errors import OptionError, PackageError
from ..files.replace import LONGEST_WRITE_SECONDS, hidden, put_folder, sweep
from ..files.text_files import read_json, read_text
from ..package.integrity import check_files, file_record
from ..package.manifest import CHAT_TEMPLATE, MANIFEST, TOKENIZER
from ..package.reading import read_manifest
from .answer_marks import answer_marks
from .browser_graphs import browser_graphs, vision_graph
from .libraries import Library, cached_libraries, read_libraries, web_folder

SITE = "site.json"
PAGE = "index.html"
SERVICE_WORKER = "service_worker.js"
"""It is at the root of the site, because a service worker answers for its own folder only."""
MODEL_FOLDER, LIBRARY_FOLDER = "model", "lib"
TEXTS = (TOKENIZER, CHAT_TEMPLATE)
NO_JEKYLL = ".nojekyll"
SHELL = "self.SHELL = "
"""Before the page's files, in the first line of the service worker."""
MADE_BY = "onnx-textgen "
FORMAT_VERSION = 2


@dataclasses.dataclass(frozen=True, slots=True)
class Built:
    """Record of a site that was written."""

    folder: Path
    visitor_bytes: dict[str, int]
    """By device: the bytes that a visitor's browser fetches at the first visit, the page itself not counted."""
    largest_file: int
    """Bytes of the largest file; hosts of static files limit it."""


def build_site(package: Path, out: Path, *, prompts: Sequence[str] = (), cdn: bool = False, replace: bool = False) -> Built:
    """Write the site of a model folder to `out`; the model's files are compared with their hashes first.

    `prompts`: examples to begin with. `cdn`: the browser fetches the libraries from jsDelivr; otherwise the site has copies.
    `replace`: replace an older site. Raises `OptionError` if `out` is something else, `PackageError` for a model folder that is
    damaged or that browsers cannot run, and `LibraryError` if the libraries cannot be had.
    """
    check_place(package, out, replace=replace)
    manifest = read_manifest(package)
    if manifest.architecture != "decoder":
        raise PackageError(
            f"{package} is an {manifest.architecture}, and a site runs decoders only; run it with: onnx-textgen serve"
        )
    check_files(package, manifest)
    graphs = browser_graphs(package, manifest)
    names = dict.fromkeys([MANIFEST, *(name for name in TEXTS if name in manifest.files)])
    vision = vision_graph(package, manifest)
    names |= dict.fromkeys(file for graph in (*graphs.values(), vision) if graph is not None for file in graph.files)
    records = {name: manifest.files.get(name) or file_record(package / name) for name in names}
    libraries = read_libraries()
    copies = None if cdn else cached_libraries()
    description = {
        "format_version": FORMAT_VERSION,
        "made_by": f"{MADE_BY}{version('onnx-textgen')}",
        "name": manifest.name,
        "precision": manifest.precision,
        "prompts": list(prompts),
        "marks": answer_marks(package, manifest),
        "files": {name: {"url": f"{MODEL_FOLDER}/{name}", **dataclasses.asdict(record)} for name, record in records.items()},
        "graphs": {device: dataclasses.asdict(graph) for device, graph in graphs.items()},
        "vision": None if vision is None else dataclasses.asdict(vision),
        "libraries": {name: library_entry(each, cdn=cdn) for name, each in libraries.items()},
    }
    target = Path(os.path.realpath(out))  # a link is kept, and what it points to is replaced
    target.parent.mkdir(parents=True, exist_ok=True)
    sweep(target, older_than=LONGEST_WRITE_SECONDS, is_whole=lambda old: stranger(old) is None)
    new = hidden(target, "partial")
    try:
        for name in names:
            copy(package / name, new / MODEL_FOLDER / name)
        for each in libraries.values() if copies else ():
            copy(copies / each.local_name, new / LIBRARY_FOLDER / each.local_name)  # type: ignore[operator]
        write_page(new, description)
        check_place(package, out, replace=replace)
        put_folder(new, target)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return Built(out, visitor_bytes(description), max(path.stat().st_size for path in out.rglob("*") if path.is_file()))


def check_place(package: Path, out: Path, *, replace: bool) -> None:
    """Raise `OptionError` if a site cannot be written to `out`."""
    if out.resolve() == package.resolve() or out.resolve() in package.resolve().parents:
        raise OptionError(f"--out {out} is the model folder or contains it; choose another folder")
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if (name := stranger(out)) is not None:
        raise OptionError(f"--out {out} exists and is not a site of onnx-textgen, which has no {name}; choose another folder")
    if not replace:
        raise OptionError(f"--out {out} has a site already; choose another folder, or replace it with --force")


def stranger(out: Path) -> str | None:
    """The name of a file in a folder that a site of onnx-textgen has not; None if the folder is a site.

    A site names its files: those of the page in the service worker, the others in `site.json`.
    """
    try:
        description = read_json(out / SITE)
        first = read_text(out / SERVICE_WORKER).partition("\n")[0]
        shell = json.loads(first.removeprefix(SHELL).removesuffix(";"))
        entries = [*description["files"].values(), *description["libraries"].values()]
        known = {SITE, SERVICE_WORKER, NO_JEKYLL, *shell["files"], *(entry["url"] for entry in entries)}
        is_ours = str(description["made_by"]).startswith(MADE_BY) and description["format_version"] <= FORMAT_VERSION
    except (OSError, ValueError, LookupError, TypeError, AttributeError, PackageError):
        is_ours, known = False, set()
    names = (path.relative_to(out).as_posix() for path in sorted(out.rglob("*")) if path.is_symlink() or not path.is_dir())
    return next((name for name in names if not is_ours or name not in known), None if is_ours else SITE)


def copy(source: Path, target: Path) -> None:
    """Copy a file into a folder that may not exist yet."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def library_entry(library: Library, *, cdn: bool) -> dict[str, Any]:
    """Return the entry of a library in `site.json`."""
    url = library.cdn_url if cdn else f"{LIBRARY_FOLDER}/{library.local_name}"
    return {
        "url": url,
        "size": library.size,
        "sha256": library.sha256,
        "package": f"{library.package} {library.version}",
        "licence": library.licence,
    }


def write_page(new: Path, description: dict[str, Any]) -> None:
    """Write the page, its modules, `site.json` and the service worker, which keeps all of these for visits without a network."""
    (new / SITE).write_text(json.dumps(description, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    (new / NO_JEKYLL).touch()  # GitHub Pages publishes every file unchanged
    for source, name in page_files():
        copy(source, new / name)
    shell = {name: hashlib.sha256((new / name).read_bytes()).hexdigest() for name in [SITE, *(name for _, name in page_files())]}
    listed = json.dumps({"version": hashlib.sha256(json.dumps(shell).encode()).hexdigest()[:16], "files": list(shell)})
    # A browser installs a service worker again if its text has changed, which it has if any file of the page has.
    program = read_text(web_folder() / "site" / SERVICE_WORKER)
    (new / SERVICE_WORKER).write_text(f"{SHELL}{listed};\n{program}", encoding="utf-8")


def page_files() -> Iterator[tuple[Path, str]]:
    """The files of the page, and their names in the site."""
    for folder in ("site", "textgen"):
        for path in sorted((web_folder() / folder).rglob("*")):
            if path.is_file() and path.name not in (PAGE, SERVICE_WORKER):
                yield path, path.relative_to(web_folder()).as_posix()
    yield web_folder() / "site" / PAGE, PAGE


def visitor_bytes(description: dict[str, Any]) -> dict[str, int]:
    """By device, what a browser fetches: the graphs with their weights, the texts, and the libraries of the device."""
    files, libraries = description["files"], description["libraries"]
    texts = {name for name in files if name in (MANIFEST, *TEXTS)}
    if (vision := description["vision"]) is not None:
        texts |= {vision["graph"], *vision["data"].values()}
    return {
        device: sum(files[name]["size"] for name in texts | {graph["graph"], *graph["data"].values()})
        + sum(each["size"] for name, each in libraries.items() if not name.startswith("onnxruntime") or device in name)
        for device, graph in description["graphs"].items()
    }
