"""Computes a graph for which ONNX Runtime lacks a kernel, operator by operator. Each operator runs
in ONNX Runtime if it has a kernel, else in the onnx reference implementation.

The reference is written for readability. It ignores some attributes, and some of its operators
deviate from the standard. A run that needs the answer of such an operator is rejected.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from onnx.reference.ops import load_op
from onnxgraph import STANDARD_DOMAINS, iter_bodies, iter_nodes
from onnxruntime.capi import onnxruntime_pybind11_state as ort_errors

from popef._tools.arrays import Array
from simipu.engines.computed import ORT_ERRORS, Lowered, inline_weights
from simipu.errors import LoadError, RunError
from simipu.operators import find_operator, operator_of

_TYPES = frozenset(
    "bool float16 float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64".split()
)
_SPELLED = _TYPES - {"float32", "float64"} | {"float", "double"}
"""Types that numpy has, as numpy and as ONNX Runtime call them."""

_NOTHING = np.empty(0, np.float32)
"""Placeholder for an unused result."""


class ReferenceGraph:
    """A graph that is computed operator by operator. It is slow, and its run can be ended only with
    its process."""

    kernels = "reference"
    reads_weights = False

    def __init__(self, lowered: Lowered) -> None:
        model = inline_weights(lowered)
        for node in iter_nodes(model.graph):
            if node.op_type == "Scan" or (node.op_type == "Loop" and _is_mistaken(node)):
                raise LoadError(
                    f"node {node.name or node.output[0]!r}: ONNX Runtime has no kernel for another "
                    f"operator of the graph, and the onnx reference computes {node.op_type} wrongly"
                )
        try:
            self._evaluator = ReferenceEvaluator(model, new_ops=_make_operators(model))
        except MemoryError:
            raise
        except Exception as error:  # of any type, as from its operators
            raise LoadError(f"the onnx reference: {type(error).__name__}: {error}") from error

    def run(self, names: Sequence[str], feeds: Mapping[str, Array]) -> list[Array]:
        """Compute the outputs called `names`, operator by operator."""
        try:
            results = self._evaluator.run(list(names), dict(feeds))
        except (MemoryError, RunError):
            raise
        except Exception as error:  # its operators raise numpy's exceptions
            raise RunError(f"the onnx reference: {type(error).__name__}: {error}") from error
        return list(results)

    def cancel(self) -> None:
        """Do nothing: the caller ends the process to cancel a run."""

    def end_run(self, is_unwanted: Callable[[], bool]) -> None:
        """Do nothing: the caller ends the process to end a run."""

    def close(self) -> None:
        """Do nothing: there is nothing to release."""


class _Operator(OpRun):
    """An operator that runs in ONNX Runtime or, if that has no kernel, in the reference."""

    op_domain = ""

    def __init__(
        self, onnx_node: onnx.NodeProto, run_params: dict[str, Any], schema: Any = None
    ) -> None:
        super().__init__(onnx_node, run_params, schema)
        self._opset = int(run_params["opsets"][""])
        self._sessions: dict[tuple[str, ...], onnxruntime.InferenceSession | None] = {}
        self._own: OpRun | None = None

    def _load_attributes(self) -> None:
        self.has_linked_attribute = False
        self.attributes_names_: set[str] = set()

    def _run(self, *values: Any, **_: Any) -> tuple[Any, ...]:
        # For an omitted input the evaluator passes the value that it was given last under the empty
        # name.
        pairs = zip(self.onnx_node.input, values, strict=False)
        values = tuple(value if name else None for name, value in pairs)
        arrays = [None if value is None else np.asarray(value) for value in values]
        if not any(isinstance(value, list) for value in values):
            session = self._find_session(arrays)
            if session is not None:
                named_values = enumerate(arrays)
                feeds = {f"i{place}": value for place, value in named_values if value is not None}
                results = iter(session.run(None, feeds))
                return tuple(next(results) if name else _NOTHING for name in self.onnx_node.output)
        return self._compute(values)

    def _find_session(self, given: Sequence[Array | None]) -> onnxruntime.InferenceSession | None:
        """Return a session of the node alone; None if there is no kernel for its types."""
        key = tuple("" if value is None else value.dtype.name for value in given)
        if not _TYPES.issuperset(name for name in key if name):
            return None
        if key not in self._sessions:
            try:
                session = self._open(given)
                types = [value.type for value in session.get_outputs()]
                results = {kind.removeprefix("tensor(").rstrip(")") for kind in types}
                self._sessions[key] = session if results <= _SPELLED else None
            except ort_errors.NotImplemented:
                self._sessions[key] = None
            except ORT_ERRORS as error:
                raise RunError(f"ONNX Runtime: {error}") from error
        return self._sessions[key]

    def _open(self, given: Sequence[Array | None]) -> onnxruntime.InferenceSession:
        node = onnx.NodeProto()
        node.CopyFrom(self.onnx_node)
        node.input[:] = ["" if value is None else f"i{place}" for place, value in enumerate(given)]
        node.output[:] = [f"o{place}" if name else "" for place, name in enumerate(node.output)]
        inputs = [
            helper.make_tensor_value_info(
                f"i{place}", helper.np_dtype_to_tensor_dtype(value.dtype), None
            )
            for place, value in enumerate(given)
            if value is not None
        ]
        outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
        graph = helper.make_graph([node], "operator", inputs, outputs)
        opset = min(self._opset, operator_of(node).last_opset or self._opset)
        opsets = [helper.make_opsetid("", opset)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 4
        # Otherwise ONNX Runtime pins its threads, which the sandbox forbids.
        options.intra_op_num_threads = len(os.sched_getaffinity(0))
        return onnxruntime.InferenceSession(
            model.SerializeToString(), options, ["CPUExecutionProvider"]
        )

    def _compute(self, values: Sequence[Any]) -> tuple[Any, ...]:
        op_type = self.onnx_node.op_type
        present = {entry.name for entry in self.onnx_node.attribute}
        operator = find_operator(op_type)
        ignored = sorted(present.intersection(operator.ignored_by_reference))
        if ignored or operator.wrong_in_reference:
            fault = f"ignores its attribute {ignored[0]!r}" if ignored else "computes it wrongly"
            raise RunError(
                f"node {self.onnx_node.name or self.onnx_node.output[0]!r}: ONNX Runtime has no "
                f"kernel for {op_type} of these types, and the onnx reference {fault}; cast its "
                "inputs to float"
            )
        if self._own is None:
            self._own = load_op("", op_type, self._opset)(self.onnx_node, self.run_params)
        results: tuple[Any, ...] = self._own.run(*values)
        return results


def _is_mistaken(loop: onnx.NodeProto) -> bool:
    """Return whether the reference computes a Loop wrongly. It takes an omitted condition for
    false, and joins collected results along the wrong axis."""
    states = len(loop.input) - 2
    return not loop.input[1] or any(len(body.output) - 1 > states for body in iter_bodies(loop))


def _make_operators(model: onnx.ModelProto) -> list[type[OpRun]]:
    """Return a class for each standard operator in a model."""
    op_types = {
        node.op_type
        for node in iter_nodes(model.graph)
        if node.domain in STANDARD_DOMAINS and not any(True for _ in iter_bodies(node))
    }
    return [type(op_type, (_Operator,), {}) for op_type in sorted(op_types - {"Constant"})]
