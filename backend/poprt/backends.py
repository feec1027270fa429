"""Backends, under the real tool's names."""

from poprt.runtime.lazy_backends import Backend, ORTBackend

__all__ = [
    "Backend",
    "ORTBackend",
]
