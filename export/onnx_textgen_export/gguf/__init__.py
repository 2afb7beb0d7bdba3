"""GGUF files as sources: their settings, tensors and adapters."""
