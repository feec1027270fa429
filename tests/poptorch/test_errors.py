"""Tests of PopTorch's exceptions and logger."""

import pickle

import pytest

torch = pytest.importorskip("torch")

import poptorch  # noqa: E402
from poptorch import _logging, poptorch_core  # noqa: E402


@pytest.fixture(autouse=True)
def level():
    yield
    poptorch.setLogLevel("WARN")
    _logging.setPopartLogLevel("WARN")


def test_the_text_of_an_error_has_its_parts():
    error = poptorch.Error("wrong", "popart_exception", "here")
    assert str(error) == "In here: 'popart_exception': wrong"
    assert str(poptorch.Error("wrong")) == "'poptorch_py_error': wrong"
    assert isinstance(error, RuntimeError)
    assert poptorch_core.Error is poptorch.Error


@pytest.mark.parametrize(
    "error",
    [
        poptorch.Error("a", "b", "c"),
        poptorch.RecoverableError("a", recovery_action="LINK_RESET"),
        poptorch.UnrecoverableError("a", location="c"),
    ],
)
def test_errors_survive_pickling(error):
    made = pickle.loads(pickle.dumps(error))
    assert (type(made), str(made), vars(made)) == (type(error), str(error), vars(error))


@pytest.mark.parametrize("kind", poptorch_core.TestErrorType)
def test_each_kind_of_error_can_be_raised(kind):
    with pytest.raises(poptorch.Error, match="throwTestError::bottomLevel") as caught:
        poptorch_core._throwTestError(kind)
    assert "throwTestError" not in caught.value.message


def test_levels_are_names_or_numbers():
    for level in ("TRACE", "DEBUG", "INFO", "WARN", "ERR", "OFF", "TRACE_ALL", 0, 1, 2, 3, 4, 6):
        poptorch.setLogLevel(level)
    with pytest.raises(ValueError, match="Invalid log level integer 5"):
        poptorch.setLogLevel(5)
    with pytest.raises(ValueError, match=r"Unknown log level: x\. Valid values are DEBUG, ERR, "):
        poptorch.setLogLevel("x")
    with pytest.raises(ValueError, match="Level must be one of TRACE"):
        _logging.setPopartLogLevel("x")


def test_lines_have_the_format_of_the_real_module(capsys):
    poptorch.setLogLevel("INFO")
    _logging.logger.info("a %d", 1)
    _logging.logger.debug("b")
    found = capsys.readouterr().err
    assert found[0] == "["
    assert found[13:] == "] [poptorch::python] [info] a 1\n"


def test_the_simulated_machine_has_ipus():
    assert poptorch.ipuHardwareIsAvailable(64)
    assert not poptorch.ipuHardwareIsAvailable(3)
    assert poptorch.ipuHardwareVersion() in (2, 21)
    assert poptorch.ipuHardwareVersion(128) == 0
