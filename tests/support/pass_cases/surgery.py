"""Passes on shapes, borders, names and initializers, checks and reports."""

from pass_cases.case import Case

CASES: dict[str, Case] = {}
