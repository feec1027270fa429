"""The `poprt` command; `python -m poprt.cli` runs it, too."""

from poprt.cli.command import main

__all__ = ["main"]
