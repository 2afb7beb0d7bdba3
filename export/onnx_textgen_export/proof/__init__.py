"""Comparison of an export with PyTorch, and its limits."""
