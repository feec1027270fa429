"""Passes that convert a model to another opset, and that settle what opsets leave open."""

from poprt.passes.opsets import conversion, legacy_opsets, settling

__all__ = ["conversion", "legacy_opsets", "settling"]
