"""Passes that change types."""

from pass_cases.case import Case

CASES: dict[str, Case] = {}
