"""Weights of a source, read one tensor at a time."""
