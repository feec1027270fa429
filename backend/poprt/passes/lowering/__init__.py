"""Passes from the converted graph to the placed one, and the assignment of nodes to IPUs."""
