"""Entries of the operator table by what operators do: compute each element alone, multiply, reduce,
move, and others. Everything about an operator stands in its entry.
"""
