"""Passes that reject models, warn of them or describe them. They change nothing."""

from poprt.passes.admission import checks, refused, reports, type_checks

__all__ = ["checks", "refused", "reports", "type_checks"]
