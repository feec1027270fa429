"""Passes that reject models, warn of them or describe them. They change nothing."""
