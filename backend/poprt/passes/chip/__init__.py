"""Passes that write operators in the forms that the chip's compiler supports."""
