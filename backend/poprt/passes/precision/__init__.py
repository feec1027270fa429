"""Passes that change the types of values, and that compare the results."""
