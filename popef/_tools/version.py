"""The version of both distributions. popef/VERSION repeats it for the builds; a test compares
them."""

__version__ = "0.2.0"
