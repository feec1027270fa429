"""The command `poplar-triton export`: a model of ours for Triton's stock backends, or as plain
ONNX."""
