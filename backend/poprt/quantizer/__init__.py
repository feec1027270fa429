"""Calibration of 8-bit models, under the real tool's names. For each operand of a product it finds
the format and scale of least loss, or adjusts weights to fixed ones.

`search` has the losses and finds the smallest, `gptq` adjusts weights, `activations` computes the
model on the user's data, `quantizer` combines the three and writes the log.
"""

from poprt.quantizer.quantizer import FP8Quantizer, quantize

__all__ = ["FP8Quantizer", "quantize"]
