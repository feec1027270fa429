"""Passes that change a model's own data: inputs, outputs, names, order, domains, initializers."""
