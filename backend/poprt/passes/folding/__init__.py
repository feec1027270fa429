"""Passes that compute constants, and remove what is not needed."""

from poprt.passes.folding import constants, duplicates, elimination, nops, periodic

__all__ = ["constants", "duplicates", "elimination", "nops", "periodic"]
