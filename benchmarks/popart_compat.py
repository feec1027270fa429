"""pytest plugin with which PopART's own tests of 2023 run beside today's libraries.

    pytest -p popart_compat -p no:hypothesispytest [--case-results FILE] .../atan2_test.py

It restores what numpy and onnx removed since then, records whether a test makes a TrainingSession,
which is out of scope here, and writes a line of JSON for each test as soon as it ends, so that a
process that is killed loses no result. One process runs one file: some files replace functions of
numpy when they are imported.
"""

from __future__ import annotations

import importlib
import inspect
import json
import sys
import types
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

NUMPY_NAMES: dict[str, Any] = {
    "bool": bool,
    "int": int,
    "float": float,
    "object": object,
    "str": str,
    "float_": np.float64,
    "product": np.prod,
    "cumproduct": np.cumprod,
    "alltrue": np.all,
    "sometrue": np.any,
    "in1d": np.isin,
}
"""Names that numpy 1.20 had and later versions removed."""
CASE_RESULTS = "--case-results"
_trained: list[bool] = []
"""Holds an entry as soon as the present test makes a TrainingSession."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option for the file of results."""
    parser.addoption(CASE_RESULTS, help="append a line of JSON for each test to this file")


def pytest_configure(config: pytest.Config) -> None:
    """Restore removed names before a test file is imported."""
    del config
    for name, value in NUMPY_NAMES.items():
        if name not in vars(np):
            setattr(np, name, value)
    restore_arrays()
    restore_mapping()
    restore_interpolation()
    watch_training()


def restore_arrays() -> None:
    """Let arrays of unsigned integers take negative numbers, and linspace count in double, as
    before numpy 2."""
    array, linspace = np.array, np.linspace

    def make_array(*args: Any, **named: Any) -> Any:
        try:
            return array(*args, **named)
        except OverflowError:
            return array(args[0]).astype(named.pop("dtype"))

    def make_line(start: Any, stop: Any, *args: Any, **named: Any) -> Any:
        return linspace(np.float64(start), np.float64(stop), *args, **named)

    setattr(np, "array", make_array)  # noqa: B010  a type checker knows another type
    setattr(np, "linspace", make_line)  # noqa: B010


def restore_mapping() -> None:
    """Restore onnx.mapping, which onnx 1.19 removed."""
    if hasattr(onnx, "mapping"):
        return
    numbers = [each for each in onnx.TensorProto.DataType.values() if each]
    to_numpy = {each: onnx.helper.tensor_dtype_to_np_dtype(each) for each in numbers}
    module: Any = types.ModuleType("onnx.mapping")
    module.TENSOR_TYPE_TO_NP_TYPE = to_numpy
    # The standard's own types come first: later ones of the same numpy type do not replace them.
    module.NP_TYPE_TO_TENSOR_TYPE = {to_numpy[each]: each for each in reversed(numbers)}
    sys.modules["onnx.mapping"] = module
    setattr(onnx, "mapping", module)  # noqa: B010  unknown to a type checker


def restore_interpolation() -> None:
    """Let onnx's reference of Resize call functions of the ratio alone, as it did up to 1.12."""
    resize: Any = importlib.import_module("onnx.backend.test.case.node.resize")
    interpolate = resize.interpolate_nd

    def interpolate_nd(data: Any, get_coeffs: Callable[..., Any], *args: Any, **named: Any) -> Any:
        if "scale" in inspect.signature(get_coeffs).parameters:
            return interpolate(data, get_coeffs, *args, **named)
        return interpolate(data, lambda ratio, _scale: get_coeffs(ratio), *args, **named)

    resize.interpolate_nd = interpolate_nd


def watch_training() -> None:
    """Replace popart.TrainingSession with one that records that it was made."""
    popart: Any = importlib.import_module("popart")
    session: Any = popart.TrainingSession

    class TrainingSession(session):  # type: ignore[misc]
        def __init__(self, *args: Any, **named: Any) -> None:
            _trained.append(True)
            super().__init__(*args, **named)

    popart.TrainingSession = TrainingSession


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
        case = {"name": name, "outcome": outcome, "error": error, "training": bool(_trained)}
        with Path(path).open("a") as file:
            file.write(json.dumps(case) + "\n")
