"""Passes that find patterns, merge and serialise."""

from pass_cases.case import Case

CASES: dict[str, Case] = {}
