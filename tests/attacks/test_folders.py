"""Folders that others made, and files that are no model."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from onnx_textgen.diagnostics.inventory import list_models
from onnx_textgen.package.locate import embedded_packages
from support.examples import examples

from .law import PACKAGE, Cell, Verdict, check_command, judged, open_model, refused
from .no_files import NO_FILES
from .values import with_other_values

OPTIMUM = PACKAGE.parent / "optimum"
PROMPT, TOKENS = [5, 9, 2, 40], 4


def copied(folder: Path, *without: str) -> Path:
    """A folder of optimum's without some files, and with a tokenizer."""
    made = folder / "theirs"
    made.mkdir()
    for path in (*OPTIMUM.iterdir(), PACKAGE / "tokenizer.json"):
        if path.name not in without:
            shutil.copy(path, made)
    return made


def use(place: Path) -> Verdict:
    """Open, describe and list what a folder has: any text is harmless, nobody vouches for it."""
    check_command("info", str(place))
    check_command("list", str(place.parent))

    def generate() -> None:
        list_models(place.parent)
        open_model(place).generate(PROMPT, max_new_tokens=TOKENS, max_time=2.0, seed=1)

    return judged(generate)


GENAI: dict[str, Any] = json.loads((embedded_packages()["story"] / "genai_config.json").read_text(encoding="utf-8"))
GENAI["model"] |= {"vocab_size": 512, "context_length": 64, "eos_token_id": [1, 2]}
GENAI["model"]["decoder"] |= {"filename": "model.onnx", "num_hidden_layers": 2, "num_key_value_heads": 2, "head_size": 16}
GENAI["model"]["decoder"]["inputs"]["position_ids"] = "position_ids"
GENAI["model"]["decoder"]["session_options"] = {"custom_op_library": "/tmp/evil.so", "provider_options": [{"evil": {}}]}
GENAI["search"] = {"past_present_share_buffer": False, "max_length": 64, "temperature": 0.7, "top_k": 5, "do_sample": True}
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


def with_settings(folder: Path, name: str, text: str) -> Verdict:
    """Put a file of settings into the folder."""
    made = copied(folder, name)
    (made / name).write_text(text, encoding="utf-8", errors="surrogatepass")
    return use(made)


@examples(36)
@given(st.data(), st.sampled_from(list(SETTINGS)))
def test_settings_of_any_content_next_to_another_exporters_graph_give_an_error_in_one_line_or_a_text(
    cell: Cell, data: st.DataObject, name: str
) -> None:
    cell.hold(with_settings, name, json.dumps(data.draw(with_other_values(SETTINGS[name]))))


def ill_named(folder: Path, name: Any) -> Verdict:
    """Let genai's settings name a graph elsewhere."""
    made = copied(folder)
    shutil.copytree(OPTIMUM, folder / "outside")
    value = json.loads(json.dumps(GENAI))
    value["model"]["decoder"]["filename"] = name
    (made / "genai_config.json").write_text(json.dumps(value), encoding="utf-8")
    (made / "model.onnx").rename(made / "mine.onnx")
    (made / "link.onnx").symlink_to("nowhere")
    return refused(lambda: open_model(made))


GRAPH_NAMES: tuple[Any, ...] = (
    *("../outside/model.onnx", "/etc/passwd", "./mine.onnx", "x/../mine.onnx", "..", ".", "/", "link.onnx", "mine.onnx\0"),
    *("mine.onnx/", "nothing.onnx", "..\\outside\\model.onnx", "x" * 5_000, "\ud800", "file:mine.onnx", "config.json"),
    *(5, ["mine.onnx"], {"a": 1}, True, -1, 1.5),
)


PICKLE = b"\x80\x04cos\nsystem\n(S'id'\ntR."
GGUF = b"GGUF\x03\0\0\0" + b"\xff" * 64
NO_MODELS: dict[str, dict[str, bytes]] = {
    "an empty folder": {},
    "a GGUF file": {"model.gguf": GGUF},
    "a GGUF file that is called a graph": {"model.onnx": GGUF},
    "a safetensors checkpoint": {"config.json": b'{"model_type": "llama"}', "model.safetensors": b"\xff" * 8 + b"{" * 99},
    "a checkpoint of pickles": {"config.json": b"{}", "pytorch_model.bin": PICKLE},
    "a pickle that is called a graph": {"model.onnx": PICKLE},
    "text files": {"README.md": b"# Model", "notes.txt": b"x"},
    "a text that is called a graph": {"model.onnx": b"once upon a time"},
    "an archive that is called a graph": {"model.onnx": b"PK\3\4" + b"\0" * 99},
    "an empty graph": {"model.onnx": b""},
    "a pointer of git-lfs for a graph": {"model.onnx": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n"},
    "half a decoder": {"decoder_model.onnx": b"", "decoder_with_past_model.onnx": b""},
    "several graphs": {"a.onnx": b"", "b.onnx": b"", "c.onnx": b""},
    "graphs without end": {f"g{number}.onnx": b"" for number in range(3_000)},
    "folders in folders": {"onnx/" * 100 + "model.txt": b""},
    "an empty manifest": {"manifest.json": b""},
    "a manifest alone": {"manifest.json": (PACKAGE / "manifest.json").read_bytes()},
    "a manifest in the folder of graphs": {"onnx/manifest.json": b"{}", "onnx/model.onnx": b""},
    "settings alone": {"config.json": b"{}", "tokenizer.json": b"{}"},
    "a shell script": {"model.sh": b"#!/bin/sh\nid\n"},
}
TO_ITSELF = "a folder of graphs that is the folder"
PLACES = ("", "model.onnx", "model.gguf", "nothing", "config.json", "x\0y", "x" * 5_000)


def no_model(folder: Path, what: str, inner: str) -> Verdict:
    """Open a folder, or a file in it, that is no model."""
    made = folder / "theirs"
    made.mkdir()
    for name, content in NO_MODELS.get(what, {}).items():
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_bytes(content)
    if what == TO_ITSELF:
        (made / "onnx").symlink_to(".")
    check_command("list", str(folder))
    for command in ("info", "verify"):
        check_command(command, str(made / inner))
    return refused(lambda: open_model(made / inner))


def replaced(folder: Path, what: str, name: str) -> Verdict:
    """Put something else in the place of one of a folder's files."""
    made = copied(folder, name)
    NO_FILES[what](made / name)
    return use(made)


CASES = [
    *((ill_named, name) for name in GRAPH_NAMES),
    *((no_model, *case) for case in itertools.product((*NO_MODELS, TO_ITSELF), PLACES)),
    *((replaced, *case) for case in itertools.product(NO_FILES, (*SETTINGS, "model.onnx", "chat_template.jinja"))),
]


@examples(40)
@given(st.sampled_from(CASES))
def test_anything_that_is_not_a_model_is_refused_in_one_line_and_nothing_waits_for_it(cell: Cell, case: Any) -> None:
    cell.hold(*case)
