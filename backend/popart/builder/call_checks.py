"""Checks of calls of `aiGraphcore`'s methods: what PopART's builder refuses of one method alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

import onnx

from popart.errors import popart_exception
from popart.graphcore import GROUP_SIZE, METHODS, Method
from popart.windows import check_windows


class KnownTensors(Protocol):
    """What a builder knows of its tensors."""

    def is_initializer(self, name: str) -> bool:
        """Return whether a tensor is an initializer."""

    def find_shape(self, name: str) -> list[int] | None:
        """Return the shape of a tensor; None if it is unknown."""


def check_call(
    method: Method,
    args: Sequence[Any],
    given: Mapping[str, Any],
    debug_name: str,
    graph: KnownTensors,
) -> None:
    """Raise popart_exception for arguments that PopART's builder refuses of one method.

    The numbers of inputs and outputs, and whether the names exist, are checked for all operators
    alike, and not here.

    Args:
        method: the method.
        args: the argument `args`.
        given: the other arguments by parameter.
        debug_name: path name of the debug context.
        graph: what is known of the tensors.
    """
    check = _CHECKS.get(method.name)
    if check is not None:
        check(args, given, debug_name, graph)


def _check_subsample(_args: Any, given: Mapping[str, Any], *_: Any) -> None:
    for index, stride in enumerate(given["strides"]):
        if stride == 0:
            raise popart_exception(f"Strides invalid. 0 stride at index {index}")


def _check_update(args: Sequence[str], _given: Any, _name: str, graph: KnownTensors) -> None:
    if len(args) != 2:  # noqa: PLR2004
        raise popart_exception("copyvarupdate should have two args.")
    if not graph.is_initializer(args[0]):
        raise popart_exception("The first arg of copyvarupdate should be an initalised tensor.")


def _check_counts(args: Sequence[str], given: Mapping[str, Any], name: str, *_: Any) -> None:
    callee: onnx.GraphProto = given["callee"]
    counts = (
        ("input", len(args), len(callee.input)),
        ("output", given.get("num_outputs", len(callee.output)), len(callee.output)),
    )
    for what, count, expected in counts:
        if count != expected:
            raise popart_exception(
                f"For CallOp '{name}', number of {what}s ({count}) does not match that of the "
                f"callee subgraph ({expected})"
            )


def _check_multiconv(
    args: Sequence[Sequence[str]],
    given: Mapping[str, Any],
    name: str,
    graph: KnownTensors,
) -> None:
    if not args:
        raise popart_exception(
            f"MultiConvOp '{name}' has no input tensors. Provide at least one set of inputs"
        )
    for group in args:
        if len(group) < 2:  # noqa: PLR2004
            raise popart_exception(
                f"Each convolution of MultiConvOp '{name}' must have at least two inputs - data "
                "and weights"
            )
        if len(group) > GROUP_SIZE:
            raise popart_exception(
                f"Each convolution of MultiConvOp '{name}' can have at most three inputs - data, "
                "weights, and bias"
            )
    for parameter in METHODS["multiconv"].parameters:
        sets = len(given[parameter.name] or ()) if parameter.omitted == () else 0
        if sets not in (0, len(args)):
            raise popart_exception(
                f"For MultiConvOp '{name}', number of {parameter.name} parameter sets ({sets}) "
                f"does not match the number of input sets ({len(args)})"
            )
    for place, group in enumerate(args):
        windows = {key: given[key][place] for key in _WINDOWS if given[key]}
        check_windows("MultiConv", group, windows, graph.find_shape)


_WINDOWS = tuple(each.name for each in METHODS["multiconv"].parameters if each.kind == "ints2")
"""Parameters of a multiconv that have a list for each convolution."""
_CHECKS: Mapping[str, Callable[..., None]] = MappingProxyType(
    {
        "subsample": _check_subsample,
        "copyvarupdate": _check_update,
        "call": _check_counts,
        "multiconv": _check_multiconv,
    }
)
