"""Passes that change a model's own data: inputs and outputs, names, order, initializers, custom
operators."""
