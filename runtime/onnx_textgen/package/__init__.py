"""A model folder: its name or path, its manifest and its files."""
