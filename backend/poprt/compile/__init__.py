"""Compilation: the converter, which prepares a model, and the compiler, which makes an executable
of it."""
