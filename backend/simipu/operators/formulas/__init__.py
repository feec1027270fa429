"""What operators cost: each formula gives the work of a node whose shapes are known. Products are planned
(`plan`), everything else is its elements spread over the tiles.

The formulas are those of docs/ipu-performance.md, whose sections they name. No graph is walked here and no
value looked at.
"""
