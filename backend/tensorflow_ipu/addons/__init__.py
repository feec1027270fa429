"""Layers of ipu_tensorflow_addons, the library beside Graphcore's TensorFlow."""
