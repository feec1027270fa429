"""Passes that make one node of two of a kind that follow each other."""
