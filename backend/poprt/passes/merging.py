"""Passes that make one node of several side by side: products, slices, Ifs."""
