"""A model folder: its manifest, its files, where it is found."""
