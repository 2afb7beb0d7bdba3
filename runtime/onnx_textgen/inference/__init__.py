"""One graph and its cache: prefill, decode, score."""
