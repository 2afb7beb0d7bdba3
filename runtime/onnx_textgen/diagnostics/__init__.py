"""Checks of an installation and a model: doctor, benchmark, golden runs, inspection of single steps."""
