"""Damage to the files of a package: flipped bits, files cut short, exchanged, or replaced by what is no file."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable
from pathlib import Path

from hypothesis import assume, example, given
from hypothesis import strategies as st

import onnx_textgen
from onnx_textgen.package.locate import embedded_packages
from onnx_textgen.package.manifest import ALLOWED_FILES, MANIFEST
from onnx_textgen.package.reading import read_manifest
from support.examples import examples

from .law import Cell, Verdict, judged, open_model, refused
from .no_files import NO_FILES, make_sparse
from .values import places

PACKAGES = list(embedded_packages().values())
STORY = embedded_packages()["story"]
FILES = [path for package in PACKAGES for path in sorted(package.rglob("*")) if path.is_file()]
PROMPT, TOKENS = [5, 9, 2, 40], 8
files = st.sampled_from(FILES)


@functools.cache
def ids_of(package: Path) -> tuple[int, ...]:
    """What a whole package writes."""
    return open_model(package).generate(PROMPT, max_new_tokens=TOKENS, temperature=0).token_ids


def package_of(path: Path) -> Path:
    """The package that a file belongs to."""
    return next(package for package in PACKAGES if path.is_relative_to(package))


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


def write(folder: Path, path: Path, content: bytes) -> Verdict:
    """Write something else into a file. A manifest may say the same by other bytes: 1e-7 and 1E-7 are one number."""
    without(path, folder).write_bytes(content)
    return judged(
        lambda: open_model(folder),
        lambda model: path.name == MANIFEST and model.manifest == read_manifest(package_of(path)),
    )


def flip(folder: Path, path: Path, bit: int) -> Verdict:
    """Flip one bit of a file."""
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    return write(folder, path, bytes(content))


@examples(150)
@given(path=files, place=places)
def test_one_flipped_bit_in_any_file_of_a_package_is_refused(cell: Cell, path: Path, place: int) -> None:
    cell.hold(flip, path, place * 8 * path.stat().st_size >> 24)


def resize(folder: Path, path: Path, length: int, more: bytes) -> Verdict:
    """Leave so many bytes of a file, and put some behind them."""
    return write(folder, path, path.read_bytes()[:length] + more)


@st.composite
def lengths(draw: st.DrawFn) -> tuple[Path, int, bytes]:
    """A file, and its beginning or more than itself."""
    path = draw(files)
    size = path.stat().st_size
    if draw(st.integers(0, 3)) == 0:
        more = draw(st.binary(min_size=1, max_size=9))
        return path, size, b"}" + more if path.name == MANIFEST else more  # blanks behind JSON are no damage
    ends = st.sampled_from((0, 1, size // 2, size - 1, max(size - 4096, 0), min(4096, size - 1)))
    return path, draw(ends | places.map(lambda place: place * size >> 24)), b""


@examples(50)
@given(lengths())
def test_a_file_that_is_truncated_or_extended_is_refused(cell: Cell, change: tuple[Path, int, bytes]) -> None:
    cell.hold(resize, *change)


def exchange(folder: Path, path: Path, other: Path) -> Verdict:
    """Put another file, which is whole, in the place of one."""
    without(path, folder).symlink_to(other)
    return refused(lambda: open_model(folder))


@examples(25)
@given(files, files)
def test_a_file_that_is_swapped_with_another_is_refused(cell: Cell, path: Path, other: Path) -> None:
    assume(path != other and path.read_bytes() != other.read_bytes())
    cell.hold(exchange, path, other)


def replace(folder: Path, path: Path, what: str) -> Verdict:
    """Put something that is no file of the package in the place of one."""
    NO_FILES[what](without(path, folder))
    return refused(lambda: open_model(folder))


@examples(60)
@given(files, st.sampled_from(list(NO_FILES)))
def test_a_folder_link_pipe_or_device_instead_of_a_file_is_refused_and_nothing_waits_for_it(
    cell: Cell, path: Path, what: str
) -> None:
    cell.hold(replace, path, what)


INJECTED = b'{"chat_template": "INJECTED", "eos_token_id": 5, "temperature": 0.1, "bos_token": "b", "bos_token_id": 3}'
BESIDE = (
    *("chat_template.json", "special_tokens_map.json", "config.json", "generation_config.json", "adapter_config.json"),
    *("adapter_model.safetensors", "model.safetensors", "added_tokens.json", "vocab.json", "merges.txt", "tokenizer.model"),
    *("processor_config.json", "preprocessor_config.json", "params.json", "model.onnx_data", "model.onnx.data.1", "model.bin"),
    *("onnx/model.onnx", "model_q4.onnx", "model_fp16.onnx", "decoder_model_merged.onnx", "model.ort", "custom_ops.so"),
    *("sitecustomize.py", "modeling.py", "additional_chat_templates/default.jinja", "manifest.json.bak", ".manifest.json"),
    "README.md",
)
UNLISTED = sorted({*BESIDE, *ALLOWED_FILES} - read_manifest(STORY).files.keys())
KINDS: dict[str, Callable[[Path], object]] = {
    "settings": lambda place: place.write_bytes(INJECTED),
    "a folder": Path.mkdir,
    "a pipe": os.mkfifo,
    "a link to nowhere": lambda place: place.symlink_to("nowhere"),
    "64 GiB of nothing": make_sparse,
}


def put_beside(folder: Path, name: str, what: str) -> Verdict:
    """Put a file more into a package: it takes no effect, and one that a package may have is refused."""
    link_files(STORY, folder)
    (folder / name).parent.mkdir(exist_ok=True)
    KINDS[what](folder / name)

    def is_same(model: onnx_textgen.Model) -> bool:
        ids = model.generate(PROMPT, max_new_tokens=TOKENS, temperature=0).token_ids
        return ids == ids_of(STORY) and model.chat_template is None and model.manifest == read_manifest(STORY)

    return judged(lambda: open_model(folder), is_same)


@examples(30)
@given(st.sampled_from(list(itertools.product(UNLISTED, KINDS))))
@example(("chat_template.jinja", "settings"))
@example(("tokenizer.model", "a pipe"))
def test_a_file_that_the_manifest_does_not_list_takes_no_effect(cell: Cell, one: tuple[str, str]) -> None:
    cell.hold(put_beside, *one)
