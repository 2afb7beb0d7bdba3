"""Recipes: small files by which a package is rebuilt, bit for bit, from the weights that it was exported from."""
