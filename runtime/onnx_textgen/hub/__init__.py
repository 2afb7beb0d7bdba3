"""Models that are known by a name: on the Hugging Face hub, in the Python package index, and in the caches on this machine."""
