"""Passes that find the norms and activations which exporters write out, and give them the chip's
operators."""
