"""The errors of the commands; all of them end in one line of text and status 1."""

from __future__ import annotations

from collections.abc import Sequence


class CommandError(Exception):
    """Something that a command needs is missing or wrong: the message says what, and what to do.

    `output_lines` are the last that a program wrote which the command had started, where nobody has seen
    them yet.
    """

    def __init__(self, message: str, output_lines: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.output_lines = tuple(output_lines)


class ServerError(CommandError):
    """The embedded server cannot be started or installed into."""


class RecipeError(CommandError):
    """A recipe is wrong, or its model cannot be fetched or compiled."""
