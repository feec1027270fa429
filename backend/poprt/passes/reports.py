"""Passes that change nothing and say what is in a model."""
