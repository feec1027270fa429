"""Functions of the real module that raise each of its exceptions, for tests of error handlers."""

from __future__ import annotations

from functools import partial
from typing import NoReturn

from popart import errors


def _throw(kind: type[Exception], msg: str) -> NoReturn:
    raise kind(msg)


_throw_popart_error = partial(_throw, errors.popart_exception)
_throw_popart_internal_error = partial(_throw, errors.popart_internal_exception)
_throw_popart_runtime_error = partial(_throw, errors.popart_runtime_error)
_throw_poplibs_error = partial(_throw, errors.poplibs_exception)
_throw_poplar_error = partial(_throw, errors.poplar_exception)
_throw_poplar_runtime_error = partial(_throw, errors.poplar_runtime_error)
_throw_application_runtime_error = partial(_throw, errors.poplar_application_runtime_error)
_throw_system_runtime_error = partial(_throw, errors.poplar_system_runtime_error)
_throw_recoverable_runtime_error = partial(_throw, errors.poplar_recoverable_runtime_error)
_throw_unrecoverable_runtime_error = partial(_throw, errors.poplar_unrecoverable_runtime_error)
_throw_unknown_runtime_error = partial(_throw, errors.poplar_unknown_runtime_error)
