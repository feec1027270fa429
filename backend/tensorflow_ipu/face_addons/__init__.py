"""Layers for the IPU that are not part of TensorFlow."""
