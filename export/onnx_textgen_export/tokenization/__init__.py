"""Tokenizers and templates that go into a package, and the proof that they are the source's."""
