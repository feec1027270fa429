"""Estimates of a model's cost on the chip, without a chip: opening the model, the cost model's
results under many settings, and their display."""
