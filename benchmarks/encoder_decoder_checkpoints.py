"""Export tiny checkpoints of every type of encoder-decoder by the plain command, and compare their texts with transformers'.

python benchmarks/encoder_decoder_checkpoints.py [TYPE ...]

Each checkpoint is what `save_pretrained` writes of a model with drawn weights, with a tokenizer of characters. A line per type says
whether the texts are equal or the export was refused, whose reason is on stderr.
"""

import sys
import tempfile
import time
from pathlib import Path

import torch
import transformers

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))
import onnx_textgen  # noqa: E402
from onnx_textgen.cli import run  # noqa: E402
from onnx_textgen.errors import OnnxTextgenError  # noqa: E402
from support.tiny_encoder_decoders import TYPES, tiny_encoder_decoder  # noqa: E402

TEXT, NEW = "once upon a time the dog ran", 20


def compare(kind: str, work: Path) -> str:
    """Export one type; returns how it ended."""
    made = tiny_encoder_decoder(kind)
    made.save_pretrained(work / "checkpoint")
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(ROOT / "tests" / "packages" / "ort" / "tokenizer.json"))
    tokenizer.save_pretrained(work / "checkpoint")
    if run(["export", str(work / "checkpoint"), "--out", str(work / "package")]) != 0:
        return "refused"
    model = onnx_textgen.load(work / "package", device="cpu")
    ours = list(model.generate(TEXT, max_new_tokens=NEW, temperature=0, num_beams=1, repetition_penalty=1.0).token_ids)
    reference = type(made).from_pretrained(work / "checkpoint").eval()
    with torch.inference_mode():
        ids = reference.generate(torch.tensor([model.encode(TEXT)]), max_new_tokens=NEW, do_sample=False, num_beams=1)[0].tolist()
    theirs = ids[len(model.manifest.encoder.start_ids) :]
    end = next((at for at, token in enumerate(theirs) if token in model.manifest.eos_ids), len(theirs))
    return "equal" if ours == theirs[:end] else f"DIFFERENT: {ours} and {theirs[:end]}"


def main(kinds: list[str]) -> None:
    """Try the types."""
    transformers.logging.set_verbosity_error()
    for kind in kinds or TYPES:
        start = time.monotonic()
        with tempfile.TemporaryDirectory() as work:
            try:
                found = compare(kind, Path(work))
            except OnnxTextgenError as error:
                found = f"failed: {error}"
        print(f"{kind}: {found} ({time.monotonic() - start:.0f} s)", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
