"""A session's options and patterns, and their checks."""

from popart.options.session_options import SessionOptions as SessionOptions
