"""Makes the plan of a traced graph: emits its operators again, into the graphs of segments.

Calls of functions are inlined, variables become values, and constants are copied to where they are
used. Loops and conditionals without side effects stay operators of a segment. Those that exchange
values with the host become items of the plan, which end the current segment.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import cond_v2, while_v2

from popef._tools.arrays import Array
from tensorflow_ipu import markers, placement, variable_operators
from tensorflow_ipu.errors import IpuError
from tensorflow_ipu.graphs import find_effects, function_graph, needed_operations, passed_through
from tensorflow_ipu.plan import (
    Branch,
    Dequeue,
    Enqueue,
    Loop,
    Plan,
    Segment,
    Slot,
    Source,
    VariableKey,
)

_CALLS: Final = frozenset(("PartitionedCall", "StatefulPartitionedCall"))
_LOOPS: Final = frozenset(("While", "StatelessWhile"))
_CHOICES: Final = frozenset(("If", "StatelessIf", "Case", "StatelessCase"))
_ORDER_ONLY: Final = frozenset(("NoOp", "Assert", "CheckNumerics", "PrintV2", "Print"))
_COUNTER_TYPES: Final = (tf.int32, tf.int64, tf.bool)
_DROPPED_ATTRIBUTES: Final = ("_class", "_XlaMustCompile", "_xla_inferred_shapes", "_output_shapes")


@dataclass(slots=True, eq=False)
class Value:
    """A tensor of the traced graph, as far as the plan has it."""

    tensor: tf.Tensor | None = None
    """The tensor in the graph of `segment`, or in one of its inner graphs."""
    segment: Segment | None = None
    slot: Slot | None = None
    constant: tf.Operation | Array | None = None
    """Operation Const, or an array, that can be copied into any graph."""
    counts: bool = False
    """Whether it is a whole number that only loops and other such numbers made."""


class Variable:
    """A resource of the traced graph."""

    def __init__(self, key: VariableKey) -> None:
        self.key = key


Bound = Value | Variable


@dataclass(slots=True, eq=False)
class _Shared:
    """What the plans of one computation have in common."""

    slots: int = 0
    variables: dict[str, VariableKey] = field(default_factory=dict)
    constants: dict[tuple[int, int], tf.Tensor] = field(default_factory=dict)
    kept: list[Any] = field(default_factory=list)
    """Objects whose ids are keys of `constants`."""


def make_plan(graph: Any, inputs: Sequence[Value | Variable]) -> Plan:
    """Return the plan of a traced graph.

    Args:
        graph: A FuncGraph.
        inputs: What its inputs are bound to, in order: `input_value` for tensors, `Variable` for
            resources, Value(constant=array) for values that are compiled into the program.

    Returns:
        The plan, whose inputs are the slots of the bound values.

    Raises:
        IpuError: For a graph that cannot be compiled.
    """
    return Flattener(_Shared(slots=len(inputs))).flatten(graph, inputs)


def input_value(number: int, dtype: tf.DType, shape: Any) -> Value:
    """Return the value of an input of a computation, of a known type and shape."""
    slot = Slot(number, dtype, tf.TensorShape(shape))
    return Value(slot=slot, counts=_is_counter(slot))


def _is_counter(slot: Slot) -> bool:
    return slot.dtype in _COUNTER_TYPES and slot.shape.rank == 0


class Flattener:
    """Makes one plan; loops and branches that stay on the host have Flatteners of their own."""

    def __init__(self, shared: _Shared) -> None:
        self._shared = shared
        self._plan = Plan()
        self._segment: Segment | None = None
        self._counting: Segment | None = None
        self._after: list[Enqueue] = []
        self._depth = 0
        self._current: dict[str, Value] = {}
        """Values of variables in the current segment."""
        self._written: dict[str, VariableKey] = {}

    def flatten(
        self, graph: Any, inputs: Sequence[Bound], wanted: Sequence[int] | None = None
    ) -> Plan:
        """Return the plan of a graph whose inputs are bound.

        Args:
            graph: The FuncGraph.
            inputs: What its inputs are bound to.
            wanted: Numbers of the outputs that the plan has; None means all.

        Returns:
            The plan.
        """
        self._plan.inputs = [
            value.slot for value in inputs if isinstance(value, Value) and value.slot is not None
        ]
        outputs = self.inline(graph, inputs)
        if wanted is not None:
            outputs = [outputs[number] for number in wanted]
        self._plan.outputs = [self.slot_of(value) for value in outputs]
        self._close()
        return self._plan

    # Values and graphs

    def _new_slot(self, dtype: tf.DType, shape: Any, constant: Array | None = None) -> Slot:
        self._shared.slots += 1
        return Slot(self._shared.slots - 1, dtype, tf.TensorShape(shape), constant)

    def slot_of(self, value: Bound) -> Slot:
        """Return the slot of a value; its segment fills it."""
        if isinstance(value, Variable):
            raise IpuError(f"variable {value.key.name!r} is used as a tensor")
        if value.slot is None:
            if value.constant is not None:
                array = _constant_array(value.constant)
                dtype = tf.as_dtype(array.dtype)
                value.slot = self._new_slot(dtype, array.shape, array)
            else:
                assert value.tensor is not None
                assert value.segment is not None
                if value.tensor.dtype in (tf.variant, tf.resource, tf.string):
                    raise IpuError(
                        f"{value.tensor.op.name} ({value.tensor.op.type}) makes a value of type "
                        f"{value.tensor.dtype.name}, which the host cannot exchange with an IPU"
                    )
                value.slot = self._new_slot(value.tensor.dtype, value.tensor.shape)
                value.segment.outputs.append((value.slot, value.tensor))
        return value.slot

    def use(self, value: Bound) -> tf.Tensor:
        """Return a value as a tensor that operators of the current graph can read."""
        if isinstance(value, Variable):
            raise IpuError(f"variable {value.key.name!r} is used as a tensor")
        if value.constant is not None:
            return self._copy_constant(value)
        segment = self._target()
        if value.segment is segment and value.tensor is not None:
            return value.tensor
        return self._feed(segment, self.slot_of(value))

    def _feed(self, segment: Segment, source: Source) -> tf.Tensor:
        for known, tensor in segment.inputs:
            if known is source:
                return tensor
        with segment.graph.as_default(), tf.control_dependencies(None):
            tensor = tf.compat.v1.placeholder(source.dtype, source.shape)
        segment.inputs.append((source, tensor))
        return tensor

    def _copy_constant(self, value: Value) -> tf.Tensor:
        graph = tf.compat.v1.get_default_graph()
        key = (id(graph), id(value))
        if key not in self._shared.constants:
            self._shared.kept.extend((graph, value))
            if isinstance(value.constant, tf.Operation):
                tensor = _copy(graph, value.constant, []).outputs[0]
            else:
                tensor = tf.constant(value.constant)
            self._shared.constants[key] = tensor
        return self._shared.constants[key]

    def _target(self) -> Segment:
        """Return the segment that operators are added to."""
        if self._segment is None:
            self._segment = Segment(tf.Graph())
        return self._segment

    @contextlib.contextmanager
    def _in_graph(self) -> Iterator[None]:
        """Make the current graph the default one, unless an inner graph is."""
        if self._depth:
            yield
        else:
            with self._target().graph.as_default():
                yield

    def _close(self) -> None:
        """End the current segment: what follows needs its results."""
        for name, key in self._written.items():
            value = self._current[name]
            with self._in_graph():
                self._target().outputs.append((key, self.use(value)))
        self._written, self._current = {}, {}
        for segment in (self._counting, self._segment):
            if segment is not None:
                self._plan.items.append(segment)
        self._plan.items.extend(self._after)
        self._segment, self._counting, self._after = None, None, []

    # Variables

    def read(self, variable: Variable) -> Value:
        """Return the value of a variable at this place."""
        name = variable.key.name
        if name not in self._current:
            segment = self._target()
            self._current[name] = Value(self._feed(segment, variable.key), segment)
        return self._current[name]

    def write(self, variable: Variable, value: Value) -> None:
        """Let a variable have a value from this place on."""
        self._current[variable.key.name] = value
        self._written[variable.key.name] = variable.key

    # Operations

    def inline(self, graph: Any, inputs: Sequence[Bound]) -> list[Bound]:
        """Emit the operations of a graph.

        Args:
            graph: A FuncGraph.
            inputs: What its inputs are bound to.

        Returns:
            Its outputs.
        """
        bound: dict[str, Bound] = {
            tensor.name: value for tensor, value in zip(graph.inputs, inputs, strict=True)
        }
        for operation in needed_operations(graph):
            if operation.type == "Placeholder" and f"{operation.name}:0" in bound:
                continue
            values = [bound[tensor.name] for tensor in operation.inputs if tensor.name in bound]
            if len(values) < len(operation.inputs):
                continue  # it depends on an operation that only orders others
            for tensor, value in zip(
                operation.outputs, self._emit(graph, operation, values), strict=False
            ):
                bound[tensor.name] = value
        try:
            return [bound[tensor.name] for tensor in graph.outputs]
        except KeyError as error:
            raise IpuError(f"tensor {error.args[0]!r} cannot be computed on an IPU") from error

    def _emit(self, graph: Any, operation: tf.Operation, values: list[Bound]) -> Sequence[Bound]:
        kind = operation.type
        if kind in ("Identity", "StopGradient", "PreventGradient", "IdentityN", "Snapshot"):
            return values
        if kind == "Const":
            return [Value(constant=operation)]
        self._choose_side(operation)
        if kind in _CALLS:
            return self.inline(function_graph(graph, operation, "f"), values)
        if kind in _LOOPS:
            return self._emit_loop(graph, operation, values)
        if kind in _CHOICES:
            return self._emit_choice(graph, operation, values)
        if kind in _ORDER_ONLY:
            return values[:1] if kind in ("CheckNumerics", "Print") else []
        if (marker := markers.kind_of(operation)) is not None:
            return self._emit_marker(marker, operation, values)
        if kind == "VarHandleOp":
            return [self._handle(operation)]
        rule = variable_operators.RULES.get(kind)
        if rule is not None:
            with self._in_graph():
                return list(rule(self, operation, values))
        return self._emit_operator(operation, values)

    def _choose_side(self, operation: tf.Operation) -> None:
        """End the segment if the host computes the operation and not the segment, or the other
        way round."""
        if self._depth:
            return
        on_host = placement.OUTSIDE in operation.node_def.attr
        if on_host and self._segment is None:
            self._segment = Segment(tf.Graph(), on_host=True)
        elif self._segment is not None and self._segment.on_host != on_host:
            self._close()
            self._segment = Segment(tf.Graph(), on_host=on_host)

    def _handle(self, operation: tf.Operation) -> Variable:
        name = operation.get_attr("shared_name").decode() or operation.name
        dtype, shape = operation.get_attr("dtype"), operation.get_attr("shape")
        return Variable(VariableKey(name, dtype, tf.TensorShape(shape)))

    def _emit_operator(self, operation: tf.Operation, values: list[Bound]) -> list[Bound]:
        constant = _fold_shape(operation, values)
        if constant is not None:
            return [Value(constant=constant)]
        if self._counts(operation, values):
            constants = [value.constant for value in values if isinstance(value, Value)]
            if all(constant is not None for constant in constants):
                arrays = [_constant_array(constant) for constant in constants]
                return [Value(constant=array) for array in _compute(operation, arrays)]
            return self._count(operation, values)
        with self._in_graph():
            graph = tf.compat.v1.get_default_graph()
            copy = _copy(graph, operation, [self.use(value) for value in values])
            for tensor, source in zip(copy.outputs, operation.outputs, strict=True):
                if tensor.shape.rank is None:  # of a Python function, say
                    tensor.set_shape(source.shape)
            segment = self._target()
            return [Value(tensor, segment) for tensor in copy.outputs]

    def emit(self, function: Callable[..., tf.Tensor], *values: Bound) -> Value:
        """Emit what a function of tensors adds to the current graph."""
        with self._in_graph():
            return Value(function(*(self.use(value) for value in values)), self._target())

    def _counts(self, operation: tf.Operation, values: Sequence[Bound]) -> bool:
        """Return whether an operator has only single whole numbers that the host has."""
        if self._depth or operation.op_def.is_stateful or not values:
            return False
        return all(
            isinstance(value, Value) and (value.counts or _is_scalar_constant(value))
            for value in values
        ) and all(
            tensor.shape.rank == 0 and tensor.dtype in _COUNTER_TYPES
            for tensor in operation.outputs
        )

    def _count(self, operation: tf.Operation, values: Sequence[Bound]) -> list[Bound]:
        """Emit an operator into the segment that the host computes."""
        if self._counting is None:
            self._counting = Segment(tf.Graph(), on_host=True)
        segment = self._counting
        with segment.graph.as_default():
            tensors = []
            for value in values:
                assert isinstance(value, Value)
                if value.constant is not None:
                    tensors.append(self._copy_constant(value))
                elif value.segment is segment and value.tensor is not None:
                    tensors.append(value.tensor)
                else:
                    tensors.append(self._feed(segment, self.slot_of(value)))
            copy = _copy(segment.graph, operation, tensors)
        return [Value(tensor, segment, counts=True) for tensor in copy.outputs]

    # Markers

    def _emit_marker(
        self, kind: str, operation: tf.Operation, values: list[Bound]
    ) -> Sequence[Bound]:
        facts = markers.facts_of(operation)
        if kind == markers.DEQUEUE:
            self._refuse_inner(operation)
            slots = [self._new_slot(tensor.dtype, tensor.shape) for tensor in operation.outputs]
            self._plan.items.append(Dequeue(facts["queue"], slots))
            return [Value(slot=slot) for slot in slots]
        if kind == markers.ENQUEUE:
            self._refuse_inner(operation)
            self._after.append(Enqueue(facts["queue"], [self.slot_of(value) for value in values]))
            return []
        with self._in_graph():
            graph = tf.compat.v1.get_default_graph()
            copy = _copy(graph, operation, [self.use(value) for value in values], keep=True)
            tensors = [
                tf.raw_ops.EnsureShape(input=tensor, shape=source.shape)
                for tensor, source in zip(copy.outputs, operation.outputs, strict=True)
            ]
            segment = self._target()
            return [Value(tensor, segment) for tensor in tensors]

    def _refuse_inner(self, operation: tf.Operation) -> None:
        if self._depth:
            raise IpuError(f"{operation.name}: feeds within this control flow are not supported")

    # Control flow

    def _emit_loop(
        self, graph: Any, operation: tf.Operation, values: list[Bound]
    ) -> Sequence[Bound]:
        condition = function_graph(graph, operation, "cond")
        body = function_graph(graph, operation, "body")
        carried = [
            number
            for number in range(len(values))
            if not (isinstance(values[number], Variable) or passed_through(body, number))
        ]
        if find_effects(body):
            return self._emit_host_loop(operation, condition, body, values, carried)

        def bind(tensors: Sequence[tf.Tensor]) -> list[Bound]:
            bound = list(values)
            for number, tensor in zip(carried, tensors, strict=True):
                bound[number] = Value(tensor, self._target())
            return bound

        def compute_condition(*tensors: tf.Tensor) -> tf.Tensor:
            return self.use(self.inline(condition, bind(tensors))[0])

        def compute_body(*tensors: tf.Tensor) -> list[tf.Tensor]:
            outputs = self.inline(body, bind(tensors))
            return [self.use(outputs[number]) for number in carried]

        with self._in_graph(), self._inner():
            results = while_v2.while_loop(
                compute_condition,
                compute_body,
                [self.use(values[number]) for number in carried],
                shape_invariants=[operation.outputs[number].shape for number in carried],
                return_same_structure=False,
            )
        return self._replace(values, carried, _as_list(results))

    def _replace(
        self, values: Sequence[Bound], numbers: Sequence[int], tensors: Sequence[tf.Tensor]
    ) -> list[Bound]:
        bound = list(values)
        for number, tensor in zip(numbers, tensors, strict=True):
            bound[number] = Value(tensor, self._target())
        return bound

    @contextlib.contextmanager
    def _inner(self) -> Iterator[None]:
        self._target()
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    def _emit_host_loop(
        self,
        operation: tf.Operation,
        condition: Any,
        body: Any,
        values: list[Bound],
        carried: list[int],
    ) -> list[Bound]:
        self._refuse_inner(operation)
        initial = [self.slot_of(values[number]) for number in carried]
        for value in values:
            if isinstance(value, Value) and value.constant is None:
                self.slot_of(value)
        self._close()
        slots = [
            self._new_slot(slot.dtype, operation.outputs[number].shape.merge_with(slot.shape))
            for number, slot in zip(carried, initial, strict=True)
        ]
        bound = list(values)
        for number, slot in zip(carried, slots, strict=True):
            bound[number] = Value(slot=slot, counts=_is_counter(slot))
        test = Flattener(self._shared).flatten(condition, bound)
        iteration = Flattener(self._shared).flatten(body, bound, carried)
        self._plan.items.append(Loop(test, iteration, initial, slots))
        for number, slot in zip(carried, slots, strict=True):
            bound[number] = Value(slot=slot)
        return bound

    def _emit_choice(
        self, graph: Any, operation: tf.Operation, values: list[Bound]
    ) -> Sequence[Bound]:
        index, *arguments = values
        if operation.type in ("If", "StatelessIf"):
            names = ("else_branch", "then_branch")
            branches = [function_graph(graph, operation, name) for name in names]
        else:
            count = len(operation.get_attr("branches"))
            branches = [function_graph(graph, operation, "branches", n) for n in range(count)]
        if any(map(find_effects, branches)):
            return self._emit_host_choice(operation, index, branches, arguments)

        def compute(branch: Any) -> Callable[[], list[tf.Tensor]]:
            return lambda: [self.use(value) for value in self.inline(branch, arguments)]

        functions = [compute(branch) for branch in branches]
        with self._in_graph(), self._inner():
            selector = self.use(index)
            if len(branches) == len(("else", "then")) and operation.type.endswith("If"):
                results = cond_v2.cond_v2(selector, functions[1], functions[0], name="cond")
            else:
                results = cond_v2.indexed_case(selector, functions)
            segment = self._target()
            return [Value(tensor, segment) for tensor in _as_list(results)]

    def _emit_host_choice(
        self, operation: tf.Operation, index: Bound, branches: list[Any], arguments: list[Bound]
    ) -> list[Bound]:
        self._refuse_inner(operation)
        selector = self.slot_of(index)
        for value in arguments:
            if isinstance(value, Value) and value.constant is None:
                self.slot_of(value)
        self._close()
        plans = [Flattener(self._shared).flatten(branch, arguments) for branch in branches]
        results = [self._new_slot(tensor.dtype, tensor.shape) for tensor in operation.outputs]
        self._plan.items.append(Branch(selector, plans, results))
        return [Value(slot=slot) for slot in results]


def _as_list(results: Any) -> list[tf.Tensor]:
    if isinstance(results, tf.Operation) or results is None:
        return []
    return list(results) if isinstance(results, (list, tuple)) else [results]


def _copy(
    graph: tf.Graph, operation: tf.Operation, inputs: Sequence[tf.Tensor], keep: bool = False
) -> tf.Operation:
    """Add a copy of an operation to a graph."""
    attributes: Mapping[str, Any] = operation.node_def.attr
    return graph.create_op(
        operation.type,
        list(inputs),
        [tensor.dtype for tensor in operation.outputs],
        name=operation.name.rsplit("/", 1)[-1] if keep else operation.name,
        attrs={
            name: value for name, value in attributes.items() if name not in _DROPPED_ATTRIBUTES
        },
    )


def _fold_shape(operation: tf.Operation, values: Sequence[Bound]) -> Array | None:
    """Return the value of an operator that asks for a known shape, or None."""
    if operation.type not in ("Shape", "Rank", "Size"):
        return None
    value = values[0]
    assert isinstance(value, Value)
    if value.constant is not None:
        shape = tf.TensorShape(_constant_array(value.constant).shape)
    elif value.slot is not None:
        shape = value.slot.shape
    else:
        assert value.tensor is not None
        shape = value.tensor.shape
    dtype = operation.outputs[0].dtype.as_numpy_dtype
    if operation.type == "Rank":
        return None if shape.rank is None else np.array(shape.rank, dtype)
    if not shape.is_fully_defined():
        return None
    if operation.type == "Size":
        return np.array(shape.num_elements(), dtype)
    return np.array(shape.as_list(), dtype)


def _compute(operation: tf.Operation, arrays: Sequence[Array]) -> list[Array]:
    """Return the results of an operator of constants, computed by TensorFlow on the host."""
    graph = tf.Graph()
    with graph.as_default(), tf.device(None):
        copy = _copy(graph, operation, [tf.constant(array) for array in arrays])
    copy._set_device("")  # noqa: SLF001
    with tf.compat.v1.Session(graph=graph) as session:
        return list(session.run(list(copy.outputs)))


def _is_scalar_constant(value: Value) -> bool:
    if isinstance(value.constant, tf.Operation):
        tensor = value.constant.outputs[0]
        return tensor.shape.rank == 0 and tensor.dtype in _COUNTER_TYPES
    return value.constant is not None and value.constant.ndim == 0


def _constant_array(constant: tf.Operation | Array) -> Array:
    if isinstance(constant, tf.Operation):
        return np.asarray(tf.make_ndarray(constant.get_attr("value")))
    return constant
