"""Nodes that ONNX Runtime computes as one operator."""
