"""Reads untrusted files within limits."""
