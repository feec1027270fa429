"""pytest plugin that writes a line of JSON for each test as soon as it ends.

    pytest -p case_results [--case-results FILE] some_test.py

A process that is killed loses no result. Another plugin calls `note_training` when a test begins to
train, which is out of scope here.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

CASE_RESULTS = "--case-results"
_trained: list[bool] = []
"""Holds an entry as soon as the present test trains."""
_events: Counter[str] = Counter()
"""Number of events of the present test, by name."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option for the file of results."""
    parser.addoption(CASE_RESULTS, help="append a line of JSON for each test to this file")


def note_training() -> None:
    """Note that the present test trains."""
    _trained.append(True)


def count_event(name: str, count: int = 1) -> None:
    """Count events of the present test; their number is written beside the outcome."""
    _events[name] += count


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Write the outcome of a test: of its call, or of the first step before it that did not pass.

    Yields:
        Nothing: the report of the other hooks comes back.
    """
    report = yield
    if call.when == "setup":
        _trained.clear()
        _events.clear()
    if call.when == "call" or (call.when == "setup" and not report.passed):
        error = describe_error(call) if report.failed else ""
        write_case(item.config, item.name, report.outcome, error)
    return report


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Keep the reason for which a file cannot be collected."""
    if report.failed:
        _collection_errors.append(str(report.longrepr).strip().rpartition("\n")[2])


_collection_errors: list[str] = []


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write why a file was not collected."""
    for error in _collection_errors:
        write_case(session.config, "", "not collected", error)


def describe_error(call: pytest.CallInfo[None]) -> str:
    """Return the type of the exception and the first line of its message."""
    if call.excinfo is None:
        return ""
    lines = [line for line in str(call.excinfo.value).splitlines() if line.strip()]
    return f"{call.excinfo.typename}: {lines[0] if lines else ''}"


def write_case(config: pytest.Config, name: str, outcome: str, error: str) -> None:
    """Append one result."""
    if path := config.getoption(CASE_RESULTS):
        case: dict[str, Any] = {"name": name, "outcome": outcome, "error": error}
        case |= {"training": bool(_trained), **_events}
        with Path(path).open("a") as file:
            file.write(json.dumps(case) + "\n")
