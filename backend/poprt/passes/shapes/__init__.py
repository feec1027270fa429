"""Passes that fix the shapes of a model, its batch size among them."""

from poprt.passes.shapes import batches, inputs

__all__ = ["batches", "inputs"]
