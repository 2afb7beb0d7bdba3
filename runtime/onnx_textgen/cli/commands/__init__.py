"""The commands of `onnx-textgen`, one module each."""
