"""Passes that take one operator up into the constants of another."""
