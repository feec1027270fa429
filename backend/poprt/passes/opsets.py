"""The pass that writes a model in another opset: up by onnx, and down by rules of our own where onnx has
none."""
