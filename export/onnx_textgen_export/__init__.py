"""Export any PyTorch decoder with its key/value cache to ONNX, and prove the export right."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .errors import ExportError
    from .exporting.exporter import Exported, export
    from .exporting.options import ExportOptions
    from .sources.attention import KeyValueCache, LayerCache, cached_attention
    from .sources.tiny_transformer import DecoderConfig, TinyTransformer

__all__ = [
    "DecoderConfig",
    "ExportError",
    "ExportOptions",
    "Exported",
    "KeyValueCache",
    "LayerCache",
    "TinyTransformer",
    "cached_attention",
    "export",
]

# Imported at first use: so the commands of this package can explain themselves at once, and without PyTorch.
HOMES = {
    "errors": ("ExportError",),
    "exporting.exporter": ("Exported", "export"),
    "exporting.options": ("ExportOptions",),
    "sources.attention": ("KeyValueCache", "LayerCache", "cached_attention"),
    "sources.tiny_transformer": ("DecoderConfig", "TinyTransformer"),
}


def __getattr__(name: str) -> object:
    """Import one of the public names."""
    home = next((home for home, names in HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib  # noqa: PLC0415

    return getattr(importlib.import_module(f".{home}", __name__), name)
