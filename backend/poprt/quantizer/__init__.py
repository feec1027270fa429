"""Calibration of 8-bit models, by the real tool's names: for each operand of a product the format and scale
of least loss, or weights adjusted to fixed ones.

`search` has the losses and finds the least, `gptq` adjusts weights, `activations` computes the model on the
user's data, `quantizer` puts the three together and writes the log.
"""

from poprt.quantizer.quantizer import FP8Quantizer, quantize

__all__ = ["FP8Quantizer", "quantize"]
