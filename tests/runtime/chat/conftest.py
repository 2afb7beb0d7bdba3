"""The tokenizer of the embedded model, and what makes rules over it."""

import pytest

from onnx_textgen.package.locate import find_package
from onnx_textgen.package.manifest import TOKENIZER
from onnx_textgen.package.reading import read_manifest
from onnx_textgen.sampling.grammar import Rules
from onnx_textgen.text.tokenizer import TextTokenizer


@pytest.fixture(scope="session")
def tokenizer() -> TextTokenizer:
    folder = find_package("story")
    manifest = read_manifest(folder)
    return TextTokenizer.from_file(folder / TOKENIZER, eos_ids=manifest.eos_ids, bos_id=manifest.bos_id)


@pytest.fixture(scope="session")
def rules(tokenizer: TextTokenizer) -> Rules:
    return Rules(tokenizer, vocab_size=read_manifest(find_package("story")).geometry.vocab_size, eos_ids=tokenizer.eos_ids)
