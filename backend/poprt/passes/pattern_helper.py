"""Search for nodes by path strings, under the real tool's names."""

from poprt.rewrite.path_patterns import Found, PatternMatcher

__all__ = [
    "Found",
    "PatternMatcher",
]
