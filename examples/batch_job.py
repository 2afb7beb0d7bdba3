"""Generate a text for each line of a file of prompts, eight at a time; after an interruption, resume where it stopped.

    pip install onnx-textgen
    python examples/batch_job.py prompts.txt texts.jsonl --model story --max-new-tokens 60

Each line is a prompt. The seed of a text is the number of its line, so a second run writes the same texts.
"""

from __future__ import annotations

import argparse
import json
from itertools import islice
from pathlib import Path

import onnx_textgen

AT_A_TIME = 8


def main() -> None:
    """Read prompts, write one JSON object per line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts", type=Path)
    parser.add_argument("texts", type=Path)
    parser.add_argument("--model")
    parser.add_argument("--max-new-tokens", type=int, default=60)
    arguments = parser.parse_args()
    model = onnx_textgen.BatchGenerator(arguments.model, max_new_tokens=arguments.max_new_tokens)
    done = len(arguments.texts.read_text(encoding="utf-8").splitlines()) if arguments.texts.exists() else 0
    with arguments.prompts.open(encoding="utf-8") as lines, arguments.texts.open("a", encoding="utf-8") as out:
        rows = ((number, line.rstrip("\n")) for number, line in enumerate(lines))
        rest = islice(rows, done, None)
        while group := list(islice(rest, AT_A_TIME)):
            made = model({"prompt": [prompt for _, prompt in group], "seed": [number for number, _ in group]})
            for (number, prompt), text in zip(group, made["generated_text"], strict=True):
                out.write(json.dumps({"line": number, "prompt": prompt, "text": text}, ensure_ascii=False) + "\n")
            out.flush()


if __name__ == "__main__":
    main()
