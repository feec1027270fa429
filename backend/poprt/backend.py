"""Sessions of the real tool's first releases, under its names."""

from poprt.runtime.sessions import Session, get_session

__all__ = [
    "Session",
    "get_session",
]
