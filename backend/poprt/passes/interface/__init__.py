"""Passes that change a model's own data: inputs and outputs, names, order, initializers, custom
operators."""

from poprt.passes.interface import custom_operators, initializers, surgery

__all__ = ["custom_operators", "initializers", "surgery"]
