"""Passes that compute constants, and remove what is not needed."""
