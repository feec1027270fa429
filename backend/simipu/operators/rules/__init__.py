"""Where the rows of a batch go through an operator: a rule gives their places in the results, or raises
`NotIndependent` with the reason.

An operator without a rule only costs speed, never correctness. No graph is walked here.
"""
