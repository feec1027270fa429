"""Passes over the attention of transformers."""
