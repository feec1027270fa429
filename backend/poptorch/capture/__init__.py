"""From a module and its inputs to an ONNX model: torch.export, control flow, names, places."""
