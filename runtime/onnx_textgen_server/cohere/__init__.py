"""Cohere's and Jina's API: ranking documents."""
