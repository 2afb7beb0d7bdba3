"""Checks of an installation and a model: doctor, benchmark, inspection of single steps."""
