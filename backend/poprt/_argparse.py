"""argparse, and the formatter of help texts, where the real tool's scripts import them from."""

import argparse

__all__ = ["PopHelpFormatter", "argparse"]


class PopHelpFormatter(argparse.ArgumentDefaultsHelpFormatter):
    """Help texts with the options' defaults."""
