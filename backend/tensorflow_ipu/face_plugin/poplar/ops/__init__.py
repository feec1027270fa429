"""Wrappers of operators."""
