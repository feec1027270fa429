"""Passes that fuse."""

from pass_cases.case import Case

CASES: dict[str, Case] = {}
