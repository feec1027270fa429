"""Passes that change the types of values, and that compare the results."""

from poprt.passes.precision import borders, comparison, eight_bits, floats, integers, overflowing

__all__ = ["borders", "comparison", "eight_bits", "floats", "integers", "overflowing"]
