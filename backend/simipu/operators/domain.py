"""The domain of the chip's own operators."""

CHIP_DOMAIN = "ai.graphcore"
"""As PopART names its opset."""
