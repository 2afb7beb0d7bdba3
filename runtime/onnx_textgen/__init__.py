"""Generate text from ONNX decoders without PyTorch.

>>> import onnx_textgen
>>> model = onnx_textgen.load()  # the embedded default, or load("folder")
>>> model.generate("Once upon a time", max_new_tokens=8, temperature=0).finish_reason
'length'
"""

from __future__ import annotations

import os

# As in `typing`, whose import would take longer than this whole module; jedi reads the names below only if this is no literal.
TYPE_CHECKING = bool()  # noqa: UP018 - see above
if TYPE_CHECKING:  # for type checkers and editors
    from .answers.records import ChatAnswer, ChatChunk, ToolCall, tool_result
    from .answers.tools import Tool
    from .api.batch_generator import BatchGenerator
    from .api.loading import load
    from .api.model import Model
    from .api.session import Session
    from .cancellation import Cancellation, InterruptedRunError
    from .errors import (
        AudioError,
        BusyError,
        DeviceError,
        ImageError,
        ModelError,
        OnnxTextgenError,
        OptionError,
        PackageError,
        PromptError,
        RuleError,
        TemplateError,
        TokenizerError,
    )
    from .options.generation_config import GenerationConfig
    from .results import Alternative, Choice, Chunk, Generation, RankedDocument, Score, Segment, Stats, Transcription

# Set here because this module is imported before ONNX Runtime; a user's own setting stays.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

__version__ = "0.3.0"
__all__ = [
    "Alternative",
    "AudioError",
    "BatchGenerator",
    "BusyError",
    "Cancellation",
    "ChatAnswer",
    "ChatChunk",
    "Choice",
    "Chunk",
    "DeviceError",
    "Generation",
    "GenerationConfig",
    "ImageError",
    "InterruptedRunError",
    "Model",
    "ModelError",
    "OnnxTextgenError",
    "OptionError",
    "PackageError",
    "PromptError",
    "RankedDocument",
    "RuleError",
    "Score",
    "Segment",
    "Session",
    "Stats",
    "TemplateError",
    "TokenizerError",
    "Tool",
    "ToolCall",
    "Transcription",
    "load",
    "tool_result",
]

# Imported at first use: so the command line starts, and can say what is wrong, if ONNX Runtime itself is broken.
HOMES = {
    "api.batch_generator": ("BatchGenerator",),
    "cancellation": ("Cancellation", "InterruptedRunError"),
    "answers.records": ("ChatAnswer", "ChatChunk", "ToolCall", "tool_result"),
    "answers.tools": ("Tool",),
    "errors": (
        *("AudioError", "BusyError", "DeviceError", "ImageError", "ModelError", "OnnxTextgenError", "OptionError", "PackageError"),
        *("PromptError", "RuleError", "TemplateError", "TokenizerError"),
    ),
    "options.generation_config": ("GenerationConfig",),
    "api.loading": ("load",),
    "results": ("Alternative", "Choice", "Chunk", "Generation", "RankedDocument", "Score", "Segment", "Stats", "Transcription"),
    "api.model": ("Model",),
    "api.session": ("Session",),
}


def __getattr__(name: str) -> object:
    """Import one of the public names."""
    if name == "Conversation":  # version 0.2's name of a session
        import warnings  # noqa: PLC0415

        warnings.warn("onnx_textgen.Conversation is called Session now", DeprecationWarning, stacklevel=2)
        name = "Session"
    home = next((home for home, names in HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib  # noqa: PLC0415

    value = getattr(importlib.import_module(f".{home}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names, imported or not, without internal names."""
    return [*__all__, *(name for name in globals() if name.startswith("__"))]
