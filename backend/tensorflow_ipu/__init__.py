"""TensorFlow for the IPU, inference: what `tensorflow.python.ipu` does, on stock TensorFlow.

The public names are those of the real library; thin modules in `face/` hold them.
"""
