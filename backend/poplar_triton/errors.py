"""Errors of the commands; each ends in one line of text and status 1."""

from __future__ import annotations

from collections.abc import Sequence


class CommandError(Exception):
    """Error of something that a command needs and that is missing or wrong. The message says what,
    and what to do.

    `output_lines` are the last lines of a program that the command started, if they have not been
    shown yet.
    """

    def __init__(self, message: str, output_lines: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.output_lines = tuple(output_lines)


class ServerError(CommandError):
    """Error of an embedded server that cannot be started or installed into."""


class LostServerError(ServerError):
    """Error of a server that ended or hung before it was ready, without a reason of its own:
    another start may succeed."""


class RecipeError(CommandError):
    """Error of a recipe that is wrong, or whose model cannot be fetched or compiled."""


class MigrationError(CommandError):
    """Error of a repository that cannot be read as a whole, or of a place that it cannot be written
    to."""


class ExportError(CommandError):
    """Error of a model that cannot be exported, or of a place that it cannot be written to."""
