"""Devices that a separate package adds to ONNX Runtime: one file for each, over the record `plugin.Plugin`."""
