"""Training of the two models that ship with the project: `python -m onnx_textgen_export.train story --corpora DIR --out DIR`."""
