"""Passes that cut a product into pieces which are computed one after the other."""
