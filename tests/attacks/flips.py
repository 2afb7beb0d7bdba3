"""Damage to the files of a package: flipped bits, files cut short, exchanged, or replaced by what is no file."""

from __future__ import annotations

import functools
import itertools
import os
import random
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import onnx_textgen
from onnx_textgen.package.locate import embedded_packages
from onnx_textgen.package.manifest import ALLOWED_FILES, MANIFEST
from onnx_textgen.package.reading import read_manifest

from .law import Case, Law, Verdict, Violation, judged, refused

PACKAGES = list(embedded_packages().values())
FILES = [path for package in PACKAGES for path in sorted(package.rglob("*")) if path.is_file()]
PROMPT, TOKENS = (5, 9, 2, 40), 8


def open_model(folder: Path) -> onnx_textgen.Model:
    """The model of a folder on one thread."""
    return onnx_textgen.load(folder, threads=1, device="cpu")


@functools.cache
def text_of(package: Path) -> tuple[int, ...]:
    """What a whole package writes."""
    return open_model(package).generate(list(PROMPT), max_new_tokens=TOKENS, temperature=0).token_ids


def package_of(path: Path) -> Path:
    """The package that a file belongs to."""
    return next(package for package in PACKAGES if path.is_relative_to(package))


def name_of(path: Path) -> str:
    """A file's name in its package, after the package's."""
    return path.relative_to(package_of(path).parent).as_posix()


def link_files(package: Path, folder: Path, *, but: Path | None = None) -> None:
    """Make `folder` a package of links to the files of another one, but for one file."""
    for path in package.rglob("*"):
        if path.is_file() and path != but:
            (folder / path.relative_to(package)).parent.mkdir(exist_ok=True)
            (folder / path.relative_to(package)).symlink_to(path)


def without(path: Path, folder: Path) -> Path:
    """The place of a file in a package in `folder` that has all others."""
    link_files(package_of(path), folder, but=path)
    place = folder / path.relative_to(package_of(path))
    place.parent.mkdir(exist_ok=True)
    return place


def says_the_same(path: Path) -> Callable[[onnx_textgen.Model], bool]:
    """Whether a model is that of the whole package, where the manifest was changed; no other change passes."""

    def says(model: onnx_textgen.Model) -> bool:
        return path.name == MANIFEST and model.manifest == read_manifest(package_of(path))

    return says


def flip(path: Path, bit: int, folder: Path) -> Verdict:
    """One bit of a file is another."""
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    without(path, folder).write_bytes(content)
    return judged(lambda: open_model(folder), says_the_same(path))  # 1e-7 and 1E-7 are one number


def flips(count: int, choose: random.Random) -> Iterator[Case]:
    """Bits of all files in turn."""
    for path in itertools.islice(itertools.cycle(FILES), count):
        bit = choose.randrange(8 * path.stat().st_size)
        yield Case(f"{name_of(path)}, bit {bit}", functools.partial(flip, path, bit))


def write(content: Callable[[bytes], bytes], path: Path, folder: Path) -> Verdict:
    """A file holds something else."""
    before = path.read_bytes()
    after = content(before)
    without(path, folder).write_bytes(after)
    if after == before:
        raise Violation("the case changes nothing")
    return judged(lambda: open_model(folder), says_the_same(path))  # the last line end says nothing


def lengths(count: int, choose: random.Random) -> Iterator[Case]:
    """Files cut short at all kinds of places, and with more behind them."""
    for number in range(count):
        round_, path = number // len(FILES), FILES[number % len(FILES)]
        size = path.stat().st_size
        ends = [0, size - 1, size // 2, 1, size - 4096, 4096]
        cut = ends[round_] if round_ < len(ends) and 0 <= ends[round_] < size else choose.randrange(size)
        if round_ % 4 == 3:
            more = bytes(choose.choices(b"\0 \n}x", k=choose.randrange(1, 10)))
            more = more if path.name != MANIFEST else b"}" + more  # blanks behind JSON are no damage
            yield Case(f"{name_of(path)} and {more!r}", functools.partial(write, lambda b, m=more: b + m, path))
        else:
            name = f"{name_of(path)}, its first {cut} bytes"
            yield Case(name, functools.partial(write, lambda b, c=cut: b[:c], path))


def exchanges(count: int, choose: random.Random) -> Iterator[Case]:
    """Each file in the place of each other one, of the same package or of another."""
    pairs = [(a, b) for a, b in itertools.product(FILES, FILES) if a != b and a.read_bytes() != b.read_bytes()]
    for path, other in choose.sample(pairs, min(count, len(pairs))):
        name = f"{name_of(path)} is {name_of(other)}"
        yield Case(name, functools.partial(exchange, path, other))


def exchange(path: Path, other: Path, folder: Path) -> Verdict:
    """A file is another one, which is whole."""
    without(path, folder).symlink_to(other)
    return refused(lambda: open_model(folder))


def device(major: int, minor: int) -> Callable[[Path], None]:
    """Makes a device; a link to it where that needs more rights than we have."""

    def make(place: Path) -> None:
        try:
            os.mknod(place, 0o666 | stat.S_IFCHR, os.makedev(major, minor))
        except OSError:
            place.symlink_to("/dev/zero")

    return make


def listen(place: Path) -> None:
    """A socket in the file system."""
    with socket.socket(socket.AF_UNIX) as made:
        where = Path.cwd()
        os.chdir(place.parent)  # the path of a socket may have a hundred characters
        try:
            made.bind(place.name)
        finally:
            os.chdir(where)


def make_sparse(place: Path, size: int = 2**36) -> None:
    """A file of 64 GiB that takes no room."""
    with place.open("wb") as file:
        file.truncate(size)


def no_file(place: Path) -> None:
    """Nothing at all."""


NO_FILES: dict[str, Callable[[Path], object]] = {
    "is missing": no_file,
    "is a folder": Path.mkdir,
    "is a pipe": os.mkfifo,
    "is a socket": listen,
    "is a device without end": device(1, 5),
    "is an empty device": device(1, 3),
    "is a link to nowhere": lambda place: place.symlink_to("nowhere"),
    "is a link to itself": lambda place: place.symlink_to(place.name),
    "is a link to a folder": lambda place: place.symlink_to("/"),
    "is a link to /dev/zero": lambda place: place.symlink_to("/dev/zero"),
    "is a link to /dev/stdin": lambda place: place.symlink_to("/dev/stdin"),
    "is a link to /proc/self/mem": lambda place: place.symlink_to("/proc/self/mem"),
    "is a link to a file elsewhere": lambda place: place.symlink_to("/etc/hostname"),
    "is of 64 GiB of nothing": make_sparse,
}


def replace(make: Callable[[Path], object], path: Path, folder: Path) -> Verdict:
    """Something else stands in the place of a file."""
    make(without(path, folder))
    return refused(lambda: open_model(folder))


def replacements(count: int, choose: random.Random) -> Iterator[Case]:
    """Every file by everything."""
    both = list(itertools.product(FILES, NO_FILES.items()))
    for path, (what, make) in choose.sample(both, min(count, len(both))):
        yield Case(f"{name_of(path)} {what}", functools.partial(replace, make, path))


INJECTED = b'{"chat_template": "INJECTED", "eos_token_id": 5, "temperature": 0.1, "bos_token": "b", "bos_token_id": 3}'
BESIDE = (
    *("chat_template.json", "special_tokens_map.json", "config.json", "generation_config.json", "adapter_config.json"),
    *("adapter_model.safetensors", "model.safetensors", "added_tokens.json", "vocab.json", "merges.txt", "tokenizer.model"),
    *("processor_config.json", "preprocessor_config.json", "params.json", "model.onnx_data", "model.onnx.data.1", "model.bin"),
    *("onnx/model.onnx", "model_q4.onnx", "model_fp16.onnx", "decoder_model_merged.onnx", "model.ort", "custom_ops.so"),
    *(
        "sitecustomize.py",
        "modeling.py",
        "additional_chat_templates/default.jinja",
        "manifest.json.bak",
        ".manifest.json",
        "README.md",
    ),
)
KINDS: dict[str, Callable[[Path], object]] = {
    "settings": lambda place: place.write_bytes(INJECTED),
    "a folder": Path.mkdir,
    "a pipe": os.mkfifo,
    "a link to nowhere": lambda place: place.symlink_to("nowhere"),
    "64 GiB of nothing": make_sparse,
}


def put_beside(package: Path, name: str, make: Callable[[Path], object], folder: Path) -> Verdict:
    """A file more lies in a package: it takes no effect, and one that a package may have is refused."""
    link_files(package, folder)
    place = folder / name
    place.parent.mkdir(exist_ok=True)
    make(place)

    def same(model: onnx_textgen.Model) -> bool:
        ids = model.generate(list(PROMPT), max_new_tokens=TOKENS, temperature=0).token_ids
        return ids == text_of(package) and model.chat_template is None and model.manifest == read_manifest(package)

    return judged(lambda: open_model(folder), same)


def beside(count: int, choose: random.Random) -> Iterator[Case]:
    """Every name as everything."""
    package = PACKAGES[0]
    listed = read_manifest(package).files.keys()
    every = list(itertools.product(sorted({*BESIDE, *ALLOWED_FILES} - listed), KINDS.items()))
    for name, (what, make) in choose.sample(every, min(count, len(every))):
        yield Case(f"{name}, {what}", functools.partial(put_beside, package, name, make))


LAWS = (
    Law("One flipped bit in any file of a package is refused", flips, whole=2_000, quick=160),
    Law("A file that is truncated or extended is refused", lengths, whole=400, quick=48),
    Law("A file that is swapped with another is refused", exchanges, whole=200, quick=20),
    Law("A folder, link, pipe or device instead of a file is refused, and nothing waits for it", replacements, whole=224, quick=56),
    Law("A file that the manifest does not list takes no effect", beside, whole=155, quick=30),
)
