"""Module from which the real tool's scripts import argparse and the formatter of help texts."""

import argparse

__all__ = ["PopHelpFormatter", "argparse"]


class PopHelpFormatter(argparse.ArgumentDefaultsHelpFormatter):
    """Formatter of help texts that shows the options' defaults."""
