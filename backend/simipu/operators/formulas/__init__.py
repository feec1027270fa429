"""Cost formulas of operators: each gives the work of a node with known shapes. Products are planned
(`plan`). For all others the cost depends on the elements' layout on the tiles (`layout`) and the
vertices that process them (`vertices`).

The formulas are those of docs/ipu-performance.md, whose sections they name. No graph is walked
here, and the only value read is a constant exponent.
"""
