"""Layers of TensorFlow 1."""
