"""Passes that fold and eliminate."""

from pass_cases.case import Case

CASES: dict[str, Case] = {}
