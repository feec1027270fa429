"""Passes that write an operator by others, which the chip has or which are cheaper there."""
