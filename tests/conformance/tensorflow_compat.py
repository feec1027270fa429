"""pytest plugin with which the tests of Graphcore's TensorFlow run on this project's.

    TENSORFLOW_CHECKOUT=... pytest -p case_results -p tensorflow_compat .../infeed_outfeed_test.py

It gives the tests the names of TensorFlow and Keras 2.6 (tensorflow_aliases.py), takes what they
assert about Poplar's reports out of them (report_stubs.py), and skips the cases that train: those
of which their source says so (training_scan.py). Another case counts as training as soon as it
takes a gradient or fits a model.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import multiprocessing
import os
import sys
import tempfile
import unittest
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, Final

import pytest
import tensorflow_aliases
from case_results import count_event, note_training
from report_stubs import NEUTRAL, ignore_report, shadow_builtins, watch_asserts
from training_scan import ScannedCase, scan_file

CHECKOUT: Final = "TENSORFLOW_CHECKOUT"
"""Environment variable with the checkout of graphcore/tensorflow."""
FLAGS: Final = ("--test_device=IPU", "--types=DT_FLOAT,DT_INT32")
"""Flags of xla_test in Graphcore's build."""
RUNS: Final = "runs"
"""Event: a run of a program on the simulated IPU."""
HELPERS: Final = ("test_session", "test_scope")
"""Methods of TensorFlow's test classes that pytest would take for tests."""
TRAINING_METHODS: Final[dict[str, dict[str, tuple[str, ...]]]] = {
    "tensorflow.python.ops.gradients_impl": {"": ("gradients",)},
    "tensorflow.python.eager.backprop": {"GradientTape": ("gradient", "jacobian")},
    "tensorflow.python.training.optimizer": {"Optimizer": ("minimize", "compute_gradients")},
    "tf_keras.src.engine.training": {"Model": ("fit", "train_on_batch")},
    "tf_keras.src.engine.training_v1": {"Model": ("fit", "train_on_batch")},
}
"""Functions that only training calls: of a module, or of its classes."""


class ReportHelper:
    """Stands for the helper that finds reports."""

    def __init__(self) -> None:
        self._directory = tempfile.gettempdir()

    def set_autoreport_options(self, *_: Any, **__: Any) -> None:
        """Write no reports."""

    def clear_reports(self) -> None:
        """Remove no reports."""

    def find_report(self) -> Any:
        """Return a stand-in for the path of a report."""
        return NEUTRAL

    find_reports = find_report


class ReportJSON:
    """Stands for a reader of the device's events."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return ignore_report if name.startswith("assert") else NEUTRAL


def make_stubs() -> dict[str, dict[str, Any]]:
    """Return the modules that take the place of others, by name."""
    utils = tensorflow_aliases.TEST_UTILS

    def enable_ipu_events(config: Any) -> None:
        del config

    return {
        "libpvti": {"TraceChannel": lambda *_: NEUTRAL, "Tracepoint": lambda *_: NEUTRAL},
        f"{utils}.report_helper": {
            "ReportHelper": ReportHelper,
            "ReportJSON": ReportJSON,
            "missing_whitelist_entries_in_names": ignore_report,
        },
        f"{utils}.test_case_extensions": {},  # add_test_case_methods has its asserts
        f"{utils}.events_utils": {
            "enable_ipu_events": enable_ipu_events,
            "extract_all_strings_from_event_trace": ignore_report,
            "extract_all_types_from_event_trace": ignore_report,
            "extract_all_events": ignore_report,
        },
    }


def pytest_configure(config: pytest.Config) -> None:
    """Prepare names, flags and asserts before a test file is imported."""
    del config
    checkout = Path(os.environ[CHECKOUT])
    tensorflow_aliases.install(checkout, make_stubs())
    importlib.import_module("tensorflow.python.ipu")  # Graphcore's TensorFlow has it at once
    replace_reports()
    multiprocessing.set_start_method("fork", force=True)  # the tests give it local functions
    add_test_case_methods(checkout)
    watch_training()
    importlib.import_module("tensorflow.compiler.tests.xla_test")
    # The tests compare texts of numbers as numpy 1 writes them.
    importlib.import_module("numpy").set_printoptions(legacy="1.25")
    flags: Any = importlib.import_module("absl.flags").FLAGS
    flags(["pytest", *FLAGS], known_only=True)


def replace_reports() -> None:
    """Let pva open a `Neutral` in place of the path of a report that was not written."""
    pva: Any = importlib.import_module("pva")
    open_report = pva.openReport
    pva.openReport = lambda path: NEUTRAL if path is NEUTRAL else open_report(path)


def add_test_case_methods(checkout: Path) -> None:
    """Give TensorFlow's test class the asserts about reports, which check nothing here."""
    test_util: Any = importlib.import_module("tensorflow.python.framework.test_util")
    absltest: Any = importlib.import_module("absl.testing.absltest")
    watch_asserts(unittest.TestCase, absltest.TestCase, test_util.TensorFlowTestCase)
    folder = checkout.joinpath(*tensorflow_aliases.TEST_UTILS.split("."))
    for name in list_assert_methods((folder / "test_case_extensions.py").read_text()):
        setattr(test_util.TensorFlowTestCase, name, ignore_report)


def list_assert_methods(text: str) -> list[str]:
    """Return the names of the assert methods that a program defines."""
    words = [line.split() for line in text.splitlines()]
    names = [line[1].partition("(")[0] for line in words if line[:1] == ["def"]]
    return [name for name in names if name.startswith("assert")]


def watch_training() -> None:
    """Let functions that only training calls note that the present test trains."""
    for module_name, owners in TRAINING_METHODS.items():
        module = importlib.import_module(module_name)
        for owner_name, names in owners.items():
            owner = getattr(module, owner_name) if owner_name else module
            for name in names:
                setattr(owner, name, _noting(getattr(owner, name)))


def _noting(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        note_training()
        return function(*args, **named)

    return call


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out helpers and functions outside classes, and prepare the modules of the tests."""
    tests = [item for item in items if item.getparent(pytest.Class) and item.name not in HELPERS]
    helpers = [item for item in items if item not in tests]
    items[:] = tests
    config.hook.pytest_deselected(items=helpers)
    for module in {item.getparent(pytest.Module) for item in items}:
        if module is not None:
            shadow_builtins(module.obj)
            run_main_block(module.path, vars(module.obj))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Forget the configuration of the case before, as Graphcore's test class does."""
    importlib.import_module("tensorflow_ipu.config").reset_ipu_configuration()
    module = item.getparent(pytest.Module)
    if module is not None:
        run_main_block(module.path, vars(module.obj))


def run_main_block(path: Path, names: dict[str, Any]) -> None:
    """Run what a file of tests does when it is run as a program, without the tests themselves.

    Args:
        path: The file.
        names: Names of its module.
    """
    for block in ast.parse(path.read_text()).body:
        if isinstance(block, ast.If) and "__main__" in ast.unparse(block.test):
            body = [node for node in block.body if not ast.unparse(node).endswith(".main()")]
            exec(compile(ast.Module(body, []), str(path), "exec"), names)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Skip a case of which its source says that it trains; count programs that another one runs.

    Yields:
        Nothing: the case runs.
    """
    if reason := find_training_reason(item):
        note_training()
        pytest.skip(f"trains: {reason}")
    before = count_runs()
    try:
        yield
    finally:
        count_event(RUNS, count_runs() - before)


def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    """Note that a case trains if something refused to: its source does not show that."""
    del item
    if call.excinfo is not None and "raining is not supported" in str(call.excinfo.value):
        note_training()


def count_runs() -> int:
    """Return how often programs of the simulated IPU ran in this process."""
    execution: Any = sys.modules.get("tensorflow_ipu.execution")
    return execution.counters.runs if execution else 0


_scanned: dict[Path, list[ScannedCase]] = {}


def find_training_reason(item: pytest.Item) -> str:
    """Return why a case trains: the longest function name with which its own begins decides."""
    if item.path not in _scanned:
        _scanned[item.path] = scan_file(item.path)
    parent = item.getparent(pytest.Class)
    owners = [kind.__name__ for kind in inspect.getmro(parent.obj)] if parent else [""]
    cases = [
        case
        for case in _scanned[item.path]
        if case.owner in owners and item.name.startswith(case.name)
    ]
    return max(cases, key=lambda case: len(case.name)).reason if cases else ""
