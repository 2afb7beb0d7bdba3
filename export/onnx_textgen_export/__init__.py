"""Export any PyTorch decoder with its key/value cache to ONNX, and prove the export right."""

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
