"""The embedded model with a tokenizer that has control tokens for a suffix; what it writes there means nothing."""

import hashlib
import json
import shutil
from pathlib import Path

from onnx_textgen.package.manifest import manifest_digest

NAMES = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>")


def make_infilling_folder(story: Path, folder: Path) -> list[int]:
    """Write the folder; returns the ids of `NAMES`, which are those of the last merges."""
    shutil.copytree(story, folder)
    path = folder / "tokenizer.json"
    spec = json.loads(path.read_text(encoding="utf-8"))
    vocabulary, merges = spec["model"]["vocab"], spec["model"]["merges"]
    ids = [len(vocabulary) - place for place in range(len(NAMES), 0, -1)]
    spec["model"]["vocab"] = {token: token_id for token, token_id in vocabulary.items() if token_id not in ids}
    spec["model"]["merges"] = merges[: -len(NAMES)]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
    spec["added_tokens"] += [{"id": token_id, "content": name, **flags} for token_id, name in zip(ids, NAMES, strict=True)]
    path.write_text(json.dumps(spec), encoding="utf-8")
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    content = path.read_bytes()
    manifest["files"]["tokenizer.json"] |= {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    manifest["sha256"] = manifest_digest(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    return ids
