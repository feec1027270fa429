"""Marks of inputs and outputs whose transfer may overlap computation.

Overlap changes no result, so a mark is a hint. PopTorch refuses marks that stand elsewhere than
directly at an input or an output of the model; `check` does so too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import onnx

from poptorch.arguments import iter_tensors, rebuild
from poptorch.enums import OverlapMode
from poptorch.errors import Error
from poptorch.operators.popart_nodes import HINTS
from poptorch.operators.tracing import isRunningOnIpu, leave_node

_INPUT: Final = "set_overlap_for_input"
_OUTPUT: Final = "set_overlap_for_output"


def set_overlap_for_input(input_tensors: Any, mode: OverlapMode) -> Any:
    """Return the tensors, whose transfer may overlap computation.

    Args:
        input_tensors: Inputs of the model, in tuples, lists or dicts. Nothing else may read them.
        mode: Part of the step that may overlap.

    Raises:
        ValueError: If the mode is no OverlapMode.
    """
    return _mark(_INPUT, input_tensors, mode)


def set_overlap_for_output(output_tensors: Any, mode: OverlapMode) -> Any:
    """Return the tensors, whose transfer may overlap computation.

    Args:
        output_tensors: Results of the model, in tuples, lists or dicts. Each is returned once.
        mode: Part of the step that may overlap.

    Raises:
        ValueError: If the mode is no OverlapMode.
    """
    return _mark(_OUTPUT, output_tensors, mode)


def _mark(kind: str, tensors: Any, mode: OverlapMode) -> Any:
    if not isinstance(mode, OverlapMode):
        raise ValueError(f"{kind}: expected a poptorch.OverlapMode, found {mode!r}")
    if not isRunningOnIpu():
        return tensors
    marked = [
        leave_node(HINTS, kind, [tensor], [tensor], {"mode": mode.value})[0]
        for _, tensor in iter_tensors(tensors)
    ]
    return rebuild(tensors, iter(marked))


def check(graph: onnx.GraphProto, num_results: int) -> None:
    """Check the places of the marks.

    Args:
        graph: A captured graph with its hints.
        num_results: Number of its first outputs, which are the model's results.

    Raises:
        Error: If a mark does not stand directly at an input or an output of the model.
    """
    marks = [node for node in graph.node if node.domain == HINTS]
    results = [value.name for value in graph.output][:num_results]
    readers = Counter(name for node in graph.node for name in node.input) + Counter(results)
    inputs = {
        value.name: f"input/{place}" if place else "input"
        for place, value in enumerate(graph.input)
    }
    _check_inputs(_select(marks, _INPUT), inputs, readers)
    _check_outputs(_select(marks, _OUTPUT), results)


def _select(marks: Iterable[onnx.NodeProto], kind: str) -> list[onnx.NodeProto]:
    return [node for node in marks if node.op_type == kind]


def _check_inputs(
    marks: Sequence[onnx.NodeProto], inputs: Mapping[str, str], readers: Counter[str]
) -> None:
    for mark in marks:
        (name,) = mark.input
        if name not in inputs:
            raise _refuse(
                f"poptorch.{_INPUT} applied on a node which is not a tensor input to the model."
            )
        if readers[name] > 1:
            raise _refuse(
                f"poptorch.{_INPUT} must be the only op applied to an input. This is not the case "
                f"for input {inputs[name]} to the model."
            )


def _check_outputs(marks: Sequence[onnx.NodeProto], results: Sequence[str]) -> None:
    sources = {mark.output[0]: mark.input[0] for mark in marks}
    returned = Counter(sources.get(name, name) for name in results)
    for result, source in sources.items():
        if result not in results:
            raise _refuse(
                f"poptorch.{_OUTPUT} applied on a node which is not a tensor output to the model."
            )
        if returned[source] > 1:
            raise _refuse(
                f"poptorch.{_OUTPUT} cannot be used with a tensor that is returned twice. Please "
                "check all returned tensors including those nested in tuples/lists."
            )


def _refuse(message: str) -> Error:
    return Error(message, type="poptorch_cpp_error")
