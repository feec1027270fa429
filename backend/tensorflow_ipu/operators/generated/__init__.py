"""Operators under the names and with the arguments of TensorFlow's generated wrappers."""
