"""Rewriting of graphs: base classes and registry of passes, and searches for patterns.

The passes themselves are in `poprt.passes`, views and editors of graphs in `onnxgraph`.
"""
