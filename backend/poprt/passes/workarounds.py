"""Passes that bring operands into the form which the chip's compiler wants."""
