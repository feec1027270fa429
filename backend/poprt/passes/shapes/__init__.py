"""Passes that fix the shapes of a model, its batch size among them."""
