"""The embedded model's tokenizer with further tokens in the form of Qwen's marks: added, and not special."""

from __future__ import annotations

import json
from collections.abc import Sequence

from onnx_textgen.package.locate import find_package
from onnx_textgen.package.manifest import TOKENIZER
from onnx_textgen.package.reading import read_manifest
from onnx_textgen.text.tokenizer import TextTokenizer

FLAGS = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}


def with_added_tokens(plain: Sequence[str] = (), *, special: Sequence[str] = (), normalizer: str | None = None) -> TextTokenizer:
    """The tokenizer with added tokens in the places of its last merges, and with a normalizer of such a type."""
    folder = find_package("story")
    manifest, spec = read_manifest(folder), json.loads((folder / TOKENIZER).read_text(encoding="utf-8"))
    vocabulary, added = spec["model"]["vocab"], [*plain, *special]
    for place, content in enumerate(added, start=len(vocabulary) - len(added)):
        (last,) = (token for token, token_id in vocabulary.items() if token_id == place)
        del vocabulary[last]
        spec["added_tokens"].append({"id": place, "content": content, "special": content in special, **FLAGS})
    spec["model"]["merges"] = spec["model"]["merges"][: -len(added) or None]
    spec["normalizer"] = normalizer and {"type": normalizer}
    return TextTokenizer(json.dumps(spec), eos_ids=manifest.eos_ids, bos_id=manifest.bos_id)
