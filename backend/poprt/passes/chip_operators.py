"""Passes that put operators of the chip's own compiler, domain ai.graphcore, in the place of standard
ones."""
