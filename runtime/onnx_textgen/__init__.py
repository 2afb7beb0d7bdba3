"""Generate text from ONNX decoders without PyTorch.

>>> import onnx_textgen
>>> model = onnx_textgen.load()  # the embedded default, or load("folder")
>>> model.generate("Once upon a time", max_new_tokens=8, temperature=0).finish_reason
'length'
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # that of `typing`, whose import takes longer than all of this
if TYPE_CHECKING:
    from .cancellation import Cancellation
    from .errors import OnnxTextgenError
    from .generation_config import GenerationConfig
    from .loading import load
    from .results import Alternative, Choice, Chunk, Generation, Score, Stats
    from .textgen import Model

# Here, because whatever of ours imports ONNX Runtime imports this first; a user's own setting stays.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

__version__ = "0.1.0"
__all__ = [
    "Alternative",
    "BatchGenerator",
    "Cancellation",
    "Choice",
    "Chunk",
    "Conversation",
    "Generation",
    "GenerationConfig",
    "Model",
    "OnnxTextgenError",
    "Score",
    "Stats",
    "load",
]

# Imported when first used: the command line starts, and says what is wrong, where ONNX Runtime itself is broken.
HOMES = {
    "Alternative": "results",
    "BatchGenerator": "batch_generator",
    "Choice": "results",
    "Cancellation": "cancellation",
    "Chunk": "results",
    "Conversation": "conversation",
    "Generation": "results",
    "GenerationConfig": "generation_config",
    "Model": "textgen",
    "OnnxTextgenError": "errors",
    "Score": "results",
    "Stats": "results",
    "load": "loading",
}


def __getattr__(name: str) -> object:
    """Import one of the public names."""
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib  # noqa: PLC0415

    value = getattr(importlib.import_module(f".{HOMES[name]}", __name__), name)
    globals()[name] = value
    return value
