"""Passes that make operators of the chip's own."""

from pass_cases.case import Case

CASES: dict[str, Case] = {}
