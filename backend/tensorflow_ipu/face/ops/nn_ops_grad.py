"""Gradients, which the real library registers here: training is not supported."""
