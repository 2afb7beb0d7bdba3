"""Folders that others made, files that are no model, and names of models on the hub that lead elsewhere."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import random
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import onnx_textgen
from onnx_textgen.diagnostics.inventory import list_models
from onnx_textgen.package.hub import PREFIX, locate, parse_hub_name

from .flips import NO_FILES, open_model
from .law import HARMLESS, REFUSED, Case, Law, Verdict, Violation, judged, refused, spread
from .manifests import any_value, check_command, spots

OPTIMUM = Path(__file__).resolve().parents[1] / "packages" / "optimum"
PROMPT, TOKENS = (5, 9, 2, 40), 4


def copied(folder: Path, *names: str) -> Path:
    """A folder of optimum's without some files."""
    made = folder / "theirs"
    made.mkdir()
    for path in OPTIMUM.iterdir():
        if path.name not in names:
            shutil.copy(path, made)
    return made


def use(place: Path) -> Verdict:
    """Open, describe and list what a folder has: any text is harmless, nobody vouches for it."""
    check_command(["info", str(place)])
    check_command(["list", str(place.parent)])

    def generate() -> None:
        list_models(place.parent)
        open_model(place).generate(list(PROMPT), max_new_tokens=TOKENS, max_time=2.0, seed=1)

    return judged(generate)


GENAI: dict[str, Any] = {
    "model": {
        "bos_token_id": 0,
        "context_length": 64,
        "decoder": {
            "filename": "model.onnx",
            "head_size": 8,
            "hidden_size": 32,
            "inputs": {
                "input_ids": "input_ids",
                "attention_mask": "attention_mask",
                "position_ids": "position_ids",
                "past_key_names": "past_key_values.%d.key",
                "past_value_names": "past_key_values.%d.value",
            },
            "outputs": {"logits": "logits", "present_key_names": "present.%d.key", "present_value_names": "present.%d.value"},
            "num_attention_heads": 4,
            "num_hidden_layers": 2,
            "num_key_value_heads": 4,
            "session_options": {"custom_op_library": "/tmp/evil.so", "log_id": "x", "provider_options": [{"evil": {}}]},
        },
        "eos_token_id": [1, 2],
        "pad_token_id": 0,
        "type": "gpt2",
        "vocab_size": 512,
    },
    "search": {"past_present_share_buffer": False, "max_length": 64, "temperature": 0.7, "top_k": 5, "do_sample": True},
}
CONFIG: dict[str, Any] = json.loads((OPTIMUM / "config.json").read_text(encoding="utf-8"))
SETTINGS: dict[str, dict[str, Any]] = {
    "genai_config.json": GENAI,
    "config.json": CONFIG,
    "generation_config.json": {"eos_token_id": [1, 2], "temperature": 0.5, "top_p": 0.9, "top_k": 4, "do_sample": True},
    "tokenizer_config.json": {
        "chat_template": [{"name": "default", "template": "{{ messages }}"}],
        "eos_token": {"content": "</s>"},
        "bos_token": "<s>",
        "model_max_length": 64,
    },
    "special_tokens_map.json": {"eos_token": {"content": "</s>"}, "pad_token": "x"},
    "chat_template.json": {"chat_template": {"default": "{{ messages[0].content }}", "other": "x"}},
}


def with_settings(name: str, text: str, folder: Path) -> Verdict:
    """A file of settings lies in the folder."""
    made = copied(folder, name)
    shutil.copy(OPTIMUM.parent / "ort" / "tokenizer.json", made)
    (made / name).write_text(text, encoding="utf-8", errors="surrogatepass")
    return use(made)


def settings(count: int, choose: random.Random) -> Iterator[Case]:
    """Settings in which one to three values are others."""
    for number in range(count):
        name = list(SETTINGS)[number % len(SETTINGS)]
        value = json.loads(json.dumps(SETTINGS[name]))
        keys = []
        for _ in range(choose.choice((1, 1, 2, 3))):
            holder, key = choose.choice(list(spots(value)))
            holder[key] = any_value(choose)
            keys.append(repr(key))
        text = json.dumps(value)
        yield Case(f"{number}: {name}, {' and '.join(keys)}", functools.partial(with_settings, name, text))


def ill_named(name: Any, folder: Path) -> Verdict:
    """genai's settings name a graph elsewhere."""
    made = copied(folder)
    outside = folder / "outside"
    outside.mkdir()
    for path in OPTIMUM.iterdir():
        shutil.copy(path, outside)
    value = json.loads(json.dumps(GENAI))
    value["model"]["decoder"]["filename"] = name
    (made / "genai_config.json").write_text(json.dumps(value), encoding="utf-8")
    (made / "model.onnx").rename(made / "mine.onnx")
    (made / "link.onnx").symlink_to("nowhere")
    return refused(lambda: open_model(made))


GRAPH_NAMES = (
    *(
        "../outside/model.onnx",
        "/etc/passwd",
        "./mine.onnx",
        "x/../mine.onnx",
        "..",
        ".",
        "/",
        "link.onnx",
        "mine.onnx\0",
        "mine.onnx/",
        "nothing.onnx",
    ),
    *("..\\outside\\model.onnx", "x" * 5_000, "\ud800", "file:mine.onnx", "config.json", 5, ["mine.onnx"], {"a": 1}, True, -1, 1.5),
)


def empty(_: Path) -> None:
    """A folder with nothing in it."""


def write_all(**contents: bytes) -> Callable[[Path], None]:
    """Writes files, a dot for each two underscores in their names, a slash for three."""

    def write(folder: Path) -> None:
        for name, content in contents.items():
            place = folder / name.replace("___", "/").replace("__", ".")
            place.parent.mkdir(exist_ok=True)
            place.write_bytes(content)

    return write


def graphs_without_end(folder: Path) -> None:
    """3,000 graphs."""
    for number in range(3_000):
        (folder / f"g{number}.onnx").touch()


def linked_to_itself(folder: Path) -> None:
    """The folder of graphs is the folder."""
    (folder / "onnx").symlink_to(".")


def deep(folder: Path) -> None:
    """Folders in folders."""
    place = folder
    for _ in range(100):
        place = place / "onnx"
        place.mkdir()


NO_MODELS: dict[str, Callable[[Path], None]] = {
    "an empty folder": empty,
    "a GGUF file": write_all(model__gguf=b"GGUF\x03\0\0\0" + b"\xff" * 64),
    "a GGUF file that is called a graph": write_all(model__onnx=b"GGUF\x03\0\0\0" + b"\xff" * 64),
    "a safetensors checkpoint": write_all(config__json=b'{"model_type": "llama"}', model__safetensors=b"\xff" * 8 + b"{" * 99),
    "a checkpoint of pickles": write_all(config__json=b"{}", pytorch_model__bin=b"\x80\x04cos\nsystem\n(S'id'\ntR."),
    "a pickle that is called a graph": write_all(model__onnx=b"\x80\x04cos\nsystem\n(S'id'\ntR."),
    "text files": write_all(README__md=b"# Model", notes__txt=b"x"),
    "a text that is called a graph": write_all(model__onnx=b"once upon a time"),
    "an archive that is called a graph": write_all(model__onnx=b"PK\3\4" + b"\0" * 99),
    "an empty graph": write_all(model__onnx=b""),
    "a pointer of git-lfs for a graph": write_all(
        model__onnx=b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n"
    ),
    "half a decoder": write_all(decoder_model__onnx=b"", decoder_with_past_model__onnx=b""),
    "several graphs": write_all(a__onnx=b"", b__onnx=b"", c__onnx=b""),
    "graphs without end": graphs_without_end,
    "a folder that is linked to itself": linked_to_itself,
    "folders in folders": deep,
    "an empty manifest": write_all(manifest__json=b""),
    "a manifest alone": write_all(manifest__json=(OPTIMUM.parent / "ort" / "manifest.json").read_bytes()),
    "a manifest in the folder of graphs": write_all(onnx___manifest__json=b"{}", onnx___model__onnx=b""),
    "settings alone": write_all(config__json=b"{}", tokenizer__json=b"{}"),
    "a shell script": write_all(model__sh=b"#!/bin/sh\nid\n"),
}


def no_model(make: Callable[[Path], None], inner: str, folder: Path) -> Verdict:
    """A folder, or a file in it, that is no model."""
    made = folder / "theirs"
    made.mkdir()
    make(made)
    place = made / inner
    check_command(["list", str(folder)])
    for command in ("info", "verify"):
        check_command([command, str(place)])
    return refused(lambda: open_model(place))


def replaced(make: Callable[[Path], object], name: str, folder: Path) -> Verdict:
    """Something else stands in the place of one of a folder's files."""
    made = copied(folder, name)
    shutil.copy(OPTIMUM.parent / "ort" / "tokenizer.json", made)
    (made / name).unlink(missing_ok=True)
    make(made / name)
    return use(made)


def written_down() -> Iterator[Case]:
    """All of these."""
    for name in GRAPH_NAMES:
        yield Case(f"the graph is called {name!r:.40}", functools.partial(ill_named, name))
    for what, make in NO_MODELS.items():
        for inner in ("", "model.onnx", "model.gguf", "nothing", "config.json", "x\0y", "x" * 5_000):
            yield Case(f"{what} / {inner!r:.20}", functools.partial(no_model, make, inner))
    for name, (what, put) in itertools.product(
        ("model.onnx", "config.json", "tokenizer.json", "chat_template.jinja"), NO_FILES.items()
    ):
        yield Case(f"{name} {what}", functools.partial(replaced, put, name))


CASES = list(written_down())


def no_models(count: int, _: random.Random) -> Sequence[Case]:
    """Some of them."""
    return spread(CASES, count)


# Names on the hub.

PARTS = (
    *(
        "..",
        ".",
        "...",
        "",
        "own",
        "mod",
        "onnx",
        "model.onnx",
        "~",
        "~root",
        "%2e%2e",
        "..%2f",
        "\\..",
        "..\\..",
        "\0",
        "\n",
        "a\nb",
        "\x1b[31m",
        "é",
        "\u202e",
    ),
    *(
        "\uff0e\uff0e",
        "x" * 300,
        "*",
        "?",
        "[a]",
        "-rf",
        "--",
        ".git",
        "refs",
        "blobs",
        "snapshots",
        "C:",
        "CON",
        " ",
        ". .",
        "@",
        "@main",
        "@..",
        "@../../x",
        "@/etc",
    ),
    *("outside", "etc", "passwd", "models--own--mod", "a" * 40),
)
NAMES = (
    *(
        "own/mod/../../outside",
        "own/mod/..",
        "own/mod/../..",
        "own/mod/./../../outside",
        "own/mod/onnx/../../../outside",
        "../own/mod",
        "own/..",
    ),
    *(
        "own/mod@../../outside",
        "own/mod@..",
        "own/mod/..@main",
        "own/mod//etc",
        "own/mod///outside",
        "/etc/passwd",
        "//own/mod",
        "own/mod/",
        "own//mod",
    ),
    *(
        "own/mod\0/../outside",
        "own/mod\n",
        "own/mod/a\nb",
        "own/mod/\\..\\..\\outside",
        "own/mod/..\\..\\outside",
        "own\\..\\mod",
        "own/mod/%2e%2e/outside",
    ),
    *(
        "own/mod/link",
        "own/mod/link/model.onnx",
        "own/" + "m" * 5_000,
        "own/mod/" + "a/" * 3_000,
        "own/mod@" + "r" * 5_000,
        "\uff4f\uff57\uff4e/mod",
        "own/mod@main",
    ),
)


@contextlib.contextmanager
def hub_in(folder: Path) -> Iterator[Path]:
    """A cache of the hub with one model, a link in it that leads out, and a model beside the cache; no network."""
    import huggingface_hub  # noqa: PLC0415  (it takes a third of a second)
    import huggingface_hub.constants  # noqa: PLC0415

    cache, outside = folder / "cache", folder / "outside"
    snapshot = cache / "models--own--mod" / "snapshots" / ("a" * 40)
    (cache / "models--own--mod" / "refs").mkdir(parents=True)
    (cache / "models--own--mod" / "refs" / "main").write_text("a" * 40, encoding="utf-8")
    shutil.copytree(OPTIMUM, snapshot)
    shutil.copytree(OPTIMUM, outside)
    for place in (cache, cache / "models--own--mod", cache / "models--own--mod" / "snapshots"):
        (place / "outside").symlink_to(outside)
    constants = huggingface_hub.constants
    patched = mock.patch.multiple(constants, HF_HUB_CACHE=str(cache), HF_HUB_OFFLINE=True)
    with patched, mock.patch.dict(os.environ, {"HF_HUB_CACHE": str(cache)}), contextlib.chdir(folder):
        yield snapshot


OPENED: list[str] = []


@functools.cache
def watch_files() -> None:
    """From here on, remember the path of each file that Python opens."""
    sys.addaudithook(lambda event, args: OPENED.append(str(args[0])) if event == "open" else None)


def named(name: str, folder: Path) -> Verdict:
    """A name leads to the model's own folder in the cache, or nowhere; nothing outside is opened on the way."""
    watch_files()
    with hub_in(folder) as snapshot:
        OPENED.clear()
        outside = (folder / "outside").resolve()

        def find() -> Path:
            assert parse_hub_name(PREFIX + name) is not None, "with this mark it is a name on the hub"
            return locate(PREFIX + name)

        places: list[Path] = []
        verdict = judged(lambda: places.append(find()))
        if verdict == HARMLESS:
            judged(lambda: onnx_textgen.load(PREFIX + name, threads=1, device="cpu"))
            if not Path(os.path.normpath(places[0])).is_relative_to(snapshot):
                raise Violation(f"it leads to {places[0]}")
        check_command(["info", PREFIX + name])
        if found := [path for path in OPENED if "\0" not in path and Path(path).resolve().is_relative_to(outside)]:
            raise Violation(f"it opened {found[0]}")
        return verdict if verdict == REFUSED else HARMLESS


def hub_names(count: int, choose: random.Random) -> Iterator[Case]:
    """Those written down, and random ones of odd parts."""
    for number in range(count):
        if number < len(NAMES):
            name = NAMES[number]
        else:
            name = "own/mod/" * (choose.random() < 0.7) + "/".join(choose.choices(PARTS, k=choose.randrange(1, 6)))
        yield Case(f"{name!r:.80}", functools.partial(named, name))


LAWS = (
    Law(
        "Settings of any content next to another exporter's graph give an error in one line, or a text",
        settings,
        whole=300,
        quick=36,
    ),
    Law("Anything that is not a model is refused in one line, and nothing waits for it", no_models, whole=len(CASES), quick=40),
    Law("A name on the hub leads into that model's folder of the cache, or nowhere", hub_names, whole=1_000, quick=60),
)
