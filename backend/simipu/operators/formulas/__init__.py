"""What operators cost: each formula gives the work of a node whose shapes are known. Products are planned
(`plan`), everything else is its elements where they lie on the tiles (`layout`), by the vertices that work on
them (`vertices`).

The formulas are those of docs/ipu-performance.md, whose sections they name. No graph is walked here, and of
values only a constant exponent is looked at.
"""
