"""Operators that only TensorFlow for the IPU has, one family a module."""
