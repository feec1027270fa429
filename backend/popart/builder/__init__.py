"""The builder of models: its methods, the checks of their calls, and the ONNX model it writes."""

from popart.builder.builder import Builder as Builder
