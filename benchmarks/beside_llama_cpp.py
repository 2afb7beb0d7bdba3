"""Compare a GGUF file's export with llama.cpp on the same file: token ids of texts, greedy tokens, and KL divergence.

    python benchmarks/beside_llama_cpp.py FILE.gguf [--package DIR] [--record FILE.json]

Needs `pip install "onnx-textgen[export]" llama-cpp-python`. llama.cpp and our runtime round activations to 8 bits differently. So a
greedy text may leave llama.cpp's where llama.cpp's two best tokens were close; the table shows how close they were. Divergence is
from the package's graph with products in float32, which its certificate proves to be PyTorch on the file's numbers.
`--record` writes what llama.cpp does for tests/export/test_trained_model.py.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import importlib.metadata
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import onnx_textgen
from onnx_textgen.inference.decoder import Decoder
from onnx_textgen.machine_limits import usable_cores
from onnx_textgen.package.manifest import GRAPH
from onnx_textgen_export import export
from onnx_textgen_export.calibration.texts import TEXTS as TEXTS_FOLDER
from onnx_textgen_export.proof.measures import log_softmax
from onnx_textgen_export.proof.probe_text import PROBE_TEXT
from onnx_textgen_export.proof.same_weights import in_float32

HERE = Path(__file__).resolve().parent
sys.path += [str(HERE / folder) for folder in ("compare", "compare/workers")]  # which are no packages
from llama_cpp_worker import Engine  # noqa: E402
from machine import processor  # noqa: E402

CONTEXT = 512
WINDOW, MEASURED = 256, 2048
"""Tokens that are fed together, and of each kind of text."""
PROMPTS = [
    "The capital of France is",
    "Once upon a time, there was a",
    "Water boils at a temperature of",
    "The three primary colours are red,",
    "In 1969 the first human",
    "To make a cup of tea, first",
    "def factorial(n):\n    if n == 0:\n        return",
    "import numpy as np\n\ndef mean(values):\n",
    "SELECT name, age FROM people WHERE age >",
    '{"name": "Ada", "languages": ["Python",',
]
QUESTIONS = [
    "What is the capital of Italy?",
    "Write one sentence about the sea.",
    "How many days does a week have?",
    "Name three animals that can fly.",
    "What is 12 plus 30?",
    "Explain in one sentence what a prime number is.",
    "Write a function in Python that reverses a string.",
    "Translate into French: good morning.",
    "Give me a recipe for pancakes.",
    "Why is the sky blue?",
]
TEXTS = [
    "Hello world",
    " Hello  world ",
    "\n\n\nthree lines",
    "\ttabs\t\tand spaces   ",
    "don't I'll we've he'd",
    "1234567890 3.14 1,000,000",
    "for (int i = 0; i < 10; ++i) {\n    x[i] += 2;\n}",
    "naïve café Ünïcödé",
    "Привет, мир",
    "你好,世界",
    "こんにちは",
    "안녕하세요",
    "नमस्ते दुनिया",
    "مرحبا بالعالم",
    "🦙🚀 👩‍👩‍👧 ✅",
    "e\u0301 combining",
    "\u200bzero\u200dwidth",
    "<|im_start|>user\nhi<|im_end|>\n",
    "<|not_a_token|>",
    "",
    " ",
    "  ",
    "\r\n",
    "=======",
    "!!!???...",
    "https://example.org/a?b=c&d=%20",
    "camelCaseAndPascalCase",
    "\uff21\uff22 full width",
    "\u00a0no\u00a0break",
    "ǅ ß ﬁ İ",
]


class LlamaCpp(Engine):
    """llama.cpp with one file, on the CPU."""

    def token_ids(self, text: str) -> list[int]:
        """The ids of a text, special tokens parsed, nothing added."""
        data, vocabulary = text.encode(), self.library.llama_model_get_vocab(self.model)
        ids = (ctypes.c_int32 * (len(data) + 1))()
        count = self.library.llama_tokenize(vocabulary, data, len(data), ids, len(ids), False, True)
        return list(ids[:count])

    def greedy(self, ids: Sequence[int], new: int, ends: Sequence[int]) -> tuple[list[int], list[float]]:
        """The likeliest tokens, and how far each was ahead of the second, in nats."""
        found = list(self.generate(ids, new))
        found = found[: next((place for place, token in enumerate(found) if token in ends), new) + 1]
        second, first = np.partition(self.logits([*ids, *found])[len(ids) - 1 : -1], -2, axis=-1)[:, -2:].T
        return found, (first - second).tolist()


def compare_texts(model: onnx_textgen.Model, llama: LlamaCpp) -> Iterator[dict[str, Any]]:
    """The ids of each text by llama.cpp, and whether ours are the same."""
    for text in TEXTS:
        ids = llama.token_ids(text)
        ours = model.tokenizer.encode(text) if text else []
        yield {"text": text, "ids": ids, "same": ours == ids, "ours": ours}


def prompts_of(model: onnx_textgen.Model) -> Iterator[tuple[str, list[int]]]:
    """Each prompt with its ids: texts to continue, and questions in the model's template if it has one."""
    for prompt in PROMPTS:
        yield prompt, model.encode(prompt)
    for question in QUESTIONS if model.chat_template is not None else ():
        yield question, model.encode_chat([{"role": "user", "content": question}])


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    """The first place where two texts differ; None if neither does, as far as both go."""
    return next((place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)


def windows_of(model: onnx_textgen.Model) -> Iterator[tuple[str, list[list[int]]]]:
    """The windows of each kind of text on which exports measure rounding."""
    ids = {"prose": model.encode(PROBE_TEXT, any_length=True)}
    ids |= {kind: model.encode((TEXTS_FOLDER / f"{kind}.txt").read_text(), any_length=True) for kind in ("code", "languages")}
    talks = json.loads((TEXTS_FOLDER / "chats.json").read_text())["measured"]
    ids["chat"] = [token for talk in talks for token in model.encode_chat(talk)] if model.chat_template is not None else []
    for kind, tokens in ids.items():
        yield kind, [tokens[start : start + WINDOW] for start in range(0, min(len(tokens), MEASURED), WINDOW)]


def divergence(wanted: Sequence[np.ndarray], found: Sequence[np.ndarray]) -> str:
    """The mean divergence of logits on windows, and the largest of a token."""
    pairs = [(log_softmax(each), log_softmax(other)) for each, other in zip(wanted, found, strict=True)]
    each = np.concatenate([(np.exp(one) * (one - other)).sum(axis=1) for one, other in pairs])
    return f"{each.mean():.5f} ({each.max():.3f})"


def divergences(model: onnx_textgen.Model, llama: LlamaCpp) -> Iterator[tuple[str, int, str, str]]:
    """Per kind of text: tokens, and how far llama.cpp and the package are from float32."""
    with in_float32(model.folder / GRAPH) as exact:
        for kind, windows in windows_of(model):
            if not windows:
                continue
            wanted, ours = (
                [Decoder(graph, model.manifest.geometry).feed(window, every_position=True) for window in windows]
                for graph in (exact, model.graph)
            )
            theirs = [llama.logits(window) for window in windows]
            yield kind, sum(map(len, windows)), divergence(wanted, theirs), divergence(wanted, ours)


def main() -> None:
    """Compare, and print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--package", type=Path, help="the file's export; default: it is exported now, as stored")
    parser.add_argument("--new-tokens", type=int, default=48)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--record", type=Path, help="write llama.cpp's ids and tokens to this JSON file, for a test")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="onnx-textgen-") as folder:
        package = asked.package or export(asked.file, Path(folder) / "package", report=print).folder
        compare(asked, onnx_textgen.load(package, device="cpu", threads=asked.threads), Console(highlight=False, markup=False))


def compare(asked: argparse.Namespace, model: onnx_textgen.Model, console: Console) -> None:
    """Run llama.cpp and our package over the same texts, and print what differs."""
    llama = LlamaCpp(str(asked.file), asked.threads or usable_cores(), CONTEXT)
    console.print(f"{asked.file.name} on {processor()}; llama-cpp-python {importlib.metadata.version('llama-cpp-python')}")
    texts = list(compare_texts(model, llama))
    console.print(f"\ntoken ids: {sum(each['same'] for each in texts)} of {len(texts)} texts the same")
    for each in texts:
        if not each["same"]:
            console.print(f"  {each['text']!r}: llama.cpp {each['ids']}, here {each['ours']}")
    table, records = Table("prompt", "tokens", "same", "llama.cpp's lead there"), list[dict[str, Any]]()
    for text, ids in prompts_of(model):
        new, ahead = llama.greedy(ids, asked.new_tokens, model.manifest.eos_ids)
        ours = list(model.generate(ids, max_new_tokens=len(new), temperature=0).token_ids)
        place = first_difference(new, ours)
        lead = "" if place is None else f"{ahead[place]:.3f} nats"
        table.add_row(text.partition("\n")[0][:48], f"{len(new)}", "all" if place is None else f"{place}", lead)
        records.append({"prompt_ids": ids, "new_ids": new, "ahead": [round(each, 4) for each in ahead]})
    console.print(table)
    table = Table("text", "tokens", "KL (largest of a token): llama.cpp", "here")
    for kind, tokens, theirs, mine in divergences(model, llama):
        table.add_row(kind, f"{tokens:,}", theirs, mine)
    console.print(table)
    if asked.record is not None:
        digest = hashlib.sha256(asked.file.read_bytes()).hexdigest()
        kept = {"sha256": digest, "texts": [{key: each[key] for key in ("text", "ids")} for each in texts], "greedy": records}
        asked.record.write_text(json.dumps(kept) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
