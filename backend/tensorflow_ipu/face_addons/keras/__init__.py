"""Keras layers."""
