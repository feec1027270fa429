"""Conversion of captured TensorFlow graphs to ONNX."""
