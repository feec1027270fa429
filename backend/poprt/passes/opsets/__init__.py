"""Passes that convert a model to another opset, and that settle what opsets leave open."""
