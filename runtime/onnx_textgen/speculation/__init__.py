"""Drafts: guessed tokens, and their verification in one run."""
