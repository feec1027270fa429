"""Sweep of PopTorch's supported operators: special values, types and shapes, beside PyTorch."""
