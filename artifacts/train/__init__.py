"""Training of the two models that ship with the project: `python -m artifacts.train story --corpora DIR --out DIR`."""
