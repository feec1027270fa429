"""Calibration of 8-bit models; not there yet. Fixed formats and scales: Converter's `fp8_params`."""

from poprt._later import later

_INSTEAD = "Converter(precision='fp8', fp8_params=...) takes fixed formats and scales"
quantize = later("quantizer.quantize", _INSTEAD)
FP8Quantizer = later("quantizer.FP8Quantizer", _INSTEAD)
