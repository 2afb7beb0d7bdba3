"""The checks of the project; `python -m tests` runs them all (this file keeps any other package of that name out of the way)."""
