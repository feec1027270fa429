"""A report: what `openReport` returns."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Final, NoReturn

from popef._tools.version import __version__ as own_version
from pva.compilation import CompilationReport
from pva.document import VERSION, Document, parse_document, read_document
from pva.errors import NotModelledError
from pva.execution import ExecutionReport
from pva.facade import Facade

_NUMBER: Final = (3, 4, 0)
"""Version of the SDK whose pva this follows."""
__version__: Final = f"{'.'.join(map(str, _NUMBER))}+sim.{own_version}"


class PoplarVersion(Facade):
    """Version of the SDK that the simulated IPU follows."""

    def __init__(self) -> None:
        self.major, self.minor, self.point = _NUMBER
        self.string = f"{'.'.join(map(str, _NUMBER))} (poplar-triton {own_version})"


class ReportVersion(Facade):
    """Version of the profile's format; it is not that of the SDK's profiles."""

    def __init__(self) -> None:
        self.major, self.minor, self.point = VERSION, 0, 0
        self.isUnstableFormat = False


class Report(Facade):
    """A profile. All its figures are modelled, none is measured.

    Args:
        document: The checked content of a profile; `openReport` reads it from a file.
    """

    def __init__(self, document: Document) -> None:
        self._document = document
        self.version = ReportVersion()
        self.poplarVersion = PoplarVersion()

    @classmethod
    def from_profile(cls, profile: dict[str, Any], runs: Sequence[str]) -> Report:
        """Return the report of a profile that is no file yet.

        Args:
            profile: The JSON object that `poplar-triton profile --tiles` writes.
            runs: Names of the runs that took place.

        Returns:
            The report.

        Raises:
            Error: If the profile is not valid.
        """
        return cls(replace(parse_document(profile, "profile"), runs=tuple(runs)))

    @cached_property
    def compilation(self) -> CompilationReport:
        """The compiled program: the chip, memory, liveness and programs."""
        return CompilationReport(self._document)

    @cached_property
    def execution(self) -> ExecutionReport:
        """The runs."""
        return ExecutionReport(self._document, self.compilation.programs)


def openReport(
    profile: str | os.PathLike[str],
    debug: str | os.PathLike[str] = "",  # noqa: ARG001
) -> Report:
    """Open a profile that `poplar-triton profile MODEL --tiles profile.pop` wrote.

    Args:
        profile: The file.
        debug: No effect: the SDK's `debug.cbor`. A profile of the simulated IPU names its nodes.

    Returns:
        The report.

    Raises:
        Error: If the file cannot be read or is not valid. The error of a profile of the SDK says
            what reads it.

    Example:
        >>> import pva
        >>> report = pva.openReport("profile.pop")  # doctest: +SKIP
        >>> report.compilation.target.numTiles  # doctest: +SKIP
        1472
    """
    return Report(read_document(profile))


class OperationAnalysis:
    """Analysis of operations, which needs the debug information of Poplar.

    Args:
        report: The report.

    Raises:
        NotModelledError: Always.
    """

    def __init__(self, report: Report) -> None:  # noqa: ARG002
        raise NotModelledError(
            "OperationAnalysis is not available: it joins programs by the debug information of "
            "Poplar's compiler, of which a profile of the simulated IPU has the nodes' names only"
        )


def openTrace(trace: str | os.PathLike[str]) -> NoReturn:
    """Raise an error: model_runtime and poptorch write their tracepoints as a Chrome trace.

    Args:
        trace: The file.

    Raises:
        NotModelledError: Always.
    """
    raise NotModelledError(
        f"{os.fspath(trace)} is not opened: traces of the simulated IPU are JSON files of Chrome's "
        "trace format. Open them with https://ui.perfetto.dev or json.load"
    )
