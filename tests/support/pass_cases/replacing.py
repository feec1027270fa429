"""Passes that replace one operator by others, workarounds, opsets."""

from pass_cases.case import Case

CASES: dict[str, Case] = {}
