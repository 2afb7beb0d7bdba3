"""Attention and its rotary embedding, as one operator."""
