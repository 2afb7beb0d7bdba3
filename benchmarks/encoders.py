"""Vectors of texts: how fast, and how well they find answers, at each precision and beside sentence-transformers and fastembed.

    pip install sentence-transformers fastembed
    python benchmarks/encoders.py CHECKPOINT [--threads 2] [--rounds 7]

CHECKPOINT: a folder in the form of sentence-transformers. It is exported to a temporary folder at fp32 and int8; fastembed gets the
graph that PyTorch's own exporter makes. Texts are the questions and answers of docs/questions.md, and its sentences. All programs
take turns in processes of their own. Prints medians of the milliseconds for one sentence, for all of them, and for four long texts,
with ratios to sentence-transformers (above 1 is faster); how often the nearest answer to a question is its own, and the mean
reciprocal rank; and the least cosine with sentence-transformers' vectors. The machine should do nothing else meanwhile.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

PAGE = Path(__file__).resolve().parents[1] / "docs" / "questions.md"
PROGRAMS = {
    "onnx-textgen fp32": """
import onnx_textgen
model = onnx_textgen.load(folder + "/fp32", device="cpu", threads=threads)
embed = model.embed
""",
    "onnx-textgen int8": """
import onnx_textgen
model = onnx_textgen.load(folder + "/int8", device="cpu", threads=threads)
embed = model.embed
""",
    "sentence-transformers": """
import torch
torch.set_num_threads(threads)
from sentence_transformers import SentenceTransformer
model = SentenceTransformer(checkpoint, device="cpu")
embed = lambda texts: model.encode(texts, show_progress_bar=False)
""",
    "fastembed": """
from fastembed import TextEmbedding
from fastembed.common.model_description import ModelSource, PoolingType
sizes = {"pooling": PoolingType.MEAN, "normalization": True, "dim": width, "model_file": "model.onnx"}
TextEmbedding.add_custom_model(model="given", sources=ModelSource(hf="given"), **sizes)
model = TextEmbedding("given", specific_model_path=folder + "/torch", threads=threads)
embed = lambda texts: list(model.embed(texts))
""",
}
WORKER = """
import json, sys, time
import numpy
folder, checkpoint, threads, width = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
answers, sys.stdout = sys.stdout, sys.stderr
{make}
embed(["A dog."])
print("ready", file=answers, flush=True)
for line in sys.stdin:
    start = time.perf_counter()
    found = embed(json.loads(line))
    seconds = time.perf_counter() - start
    print(json.dumps([seconds, numpy.asarray(found).tolist()]), file=answers, flush=True)
"""
Vectors = npt.NDArray[np.float64]


class Program:
    """One program, in a process of its own."""

    def __init__(self, make: str, folder: Path, checkpoint: str, threads: int, width: int) -> None:
        command = [sys.executable, "-c", WORKER.format(make=make), str(folder), checkpoint, str(threads), str(width)]
        quiet = subprocess.DEVNULL
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=quiet, text=True)
        self.answers: IO[str] = self.process.stdout  # type: ignore[assignment]
        self.is_there = self.answers.readline() == "ready\n"

    def embed(self, texts: list[str]) -> tuple[float, Vectors]:
        """Seconds, and the vectors."""
        assert self.process.stdin is not None, "it is a pipe"
        print(json.dumps(texts), file=self.process.stdin, flush=True)
        seconds, vectors = json.loads(self.answers.readline())
        return seconds, np.array(vectors)


def questions_and_answers() -> tuple[list[str], list[str]]:
    """The questions of the page, and its answers, without marks of Markdown."""
    sections = re.split(r"^### ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    pairs = [section.partition("\n") for section in sections]
    plain = [re.sub(r"```.*?```|[`*\[\]]|\([^)]*\)|^#.*$", " ", answer, flags=re.DOTALL | re.MULTILINE) for _, _, answer in pairs]
    return [question.strip() for question, _, _ in pairs], [" ".join(answer.split()) for answer in plain]


def write_plain_graph(checkpoint: str, folder: Path) -> None:
    """The graph that PyTorch's own exporter makes, with the files that fastembed reads."""
    import shutil  # noqa: PLC0415

    import torch  # noqa: PLC0415
    from transformers import AutoModel  # noqa: PLC0415

    folder.mkdir()
    for path in Path(checkpoint).glob("*.json"):
        shutil.copy(path, folder)
    model, names = AutoModel.from_pretrained(checkpoint, attn_implementation="eager").eval(), ["input_ids", "attention_mask"]
    ids = torch.ones(2, 7, dtype=torch.int64)
    both = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    types = [torch.zeros_like(ids)] if getattr(model.config, "type_vocab_size", 0) > 1 else []
    names += ["token_type_ids"] if types else []
    given: dict[str, Any] = dict(zip(names, [ids, torch.ones_like(ids), *types], strict=True))
    torch.onnx.export(
        model,
        kwargs=given,
        f=str(folder / "model.onnx"),
        dynamo=True,
        dynamic_shapes=dict.fromkeys(names, both),
        input_names=names,
        output_names=["last_hidden_state"],
        external_data=False,
    )


def ranks(questions: Vectors, answers: Vectors) -> list[int]:
    """The rank of each question's own answer among all, 1 for the nearest."""
    return [int((row > row[index]).sum()) + 1 for index, row in enumerate(questions @ answers.T)]


def main() -> None:
    """Read the options, export, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    from onnx_textgen_export import export  # noqa: PLC0415

    questions, answers = questions_and_answers()
    sentences = [each.strip() for answer in answers for each in re.split(r"(?<=[.:])\s", answer) if len(each) > 20]
    kinds = {"one sentence": sentences[:1], f"{len(sentences)} sentences": sentences, "4 long texts": [" ".join(sentences)] * 4}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        made = [export(given.checkpoint, folder / precision, precision=precision) for precision in ("fp32", "int8")]
        width = made[0].manifest.geometry.hidden_size
        write_plain_graph(given.checkpoint, folder / "torch")
        programs = {name: Program(make, folder, given.checkpoint, given.threads, width) for name, make in PROGRAMS.items()}
        programs = {name: program for name, program in programs.items() if program.is_there}
        measured: dict[tuple[str, str], list[float]] = {(name, kind): [] for name in programs for kind in kinds}
        for _ in range(given.rounds):
            for kind, texts in kinds.items():
                for name, program in programs.items():
                    measured[name, kind].append(program.embed(texts)[0])
        vectors = {name: (program.embed(questions)[1], program.embed(answers)[1]) for name, program in programs.items()}
        for program in programs.values():
            program.process.kill()
    own = "sentence-transformers"
    for name in programs:
        times = {kind: statistics.median(measured[name, kind]) for kind in kinds}
        ratios = {
            kind: statistics.median(a / b for a, b in zip(measured[own, kind], measured[name, kind], strict=True)) for kind in kinds
        }
        places = ranks(*vectors[name])
        cosine = min(float((a * b).sum(axis=1).min()) for a, b in zip(vectors[name], vectors[own], strict=True))
        print(
            f"{name:<22}",
            *(f"{kind} {1000 * seconds:.1f} ms ({ratios[kind]:.2f})" for kind, seconds in times.items()),
            f"right {places.count(1)} of {len(places)}, mean reciprocal rank {statistics.mean(1 / place for place in places):.3f}",
            f"cosine {cosine:.6f}",
            sep="; ",
        )


if __name__ == "__main__":
    main()
