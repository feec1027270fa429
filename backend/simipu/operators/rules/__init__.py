"""Row rules of operators: a rule returns the places of a batch's rows in the results, or raises
`NotIndependent` with the reason.

An operator without a rule only costs speed, never correctness. No graph is walked here.
"""
