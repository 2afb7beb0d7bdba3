"""`python -m onnx_textgen.cli` is `onnx-textgen`."""

from . import main

main()
