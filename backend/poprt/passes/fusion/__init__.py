"""Passes that merge nodes, from pairs of nodes to whole norms and attention layers."""
