"""Rewriting of graphs: base classes and registry of passes, views of graphs, and searches for
patterns.

The passes themselves are in `poprt.passes`."""
