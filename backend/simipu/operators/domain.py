"""Domain of the chip's own operators."""

CHIP_DOMAIN = "ai.graphcore"
"""Domain name of PopART's opset."""
