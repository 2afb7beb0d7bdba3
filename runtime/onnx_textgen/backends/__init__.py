"""The engines that run a graph: ONNX Runtime and OpenVINO."""
