"""Matrices in 2, 4 and 8 bits."""
