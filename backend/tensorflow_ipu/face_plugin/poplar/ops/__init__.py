"""Wrappers of operators."""

from tensorflow_ipu.sessions import install

install()
