"""Makes the plan of a traced graph: emits its operators again, into the graphs of segments.

Calls of functions are inlined, variables become values, and constants are copied to where they are
used. Loops and conditionals without side effects stay operators of a segment. Those that exchange
values with the host become items of the plan, which end the current segment.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import tensorflow as tf

from popef._tools.arrays import Array
from tensorflow_ipu import markers, placement, variable_operators
from tensorflow_ipu.constant_folding import compute_operation
from tensorflow_ipu.control_flow import emit_choice, emit_loop
from tensorflow_ipu.errors import IpuError
from tensorflow_ipu.graphs import find_assertions, function_graph, needed_operations
from tensorflow_ipu.plan import (
    Assertion,
    Check,
    Dequeue,
    Enqueue,
    HostStep,
    Item,
    Plan,
    Segment,
    Slot,
    Source,
    VariableKey,
)
from tensorflow_ipu.values import (
    COUNTER_TYPES,
    Bound,
    Value,
    Variable,
    constant_array,
    copy_operation,
    fold_shape,
    is_scalar_constant,
)

_CALLS: Final = frozenset(("PartitionedCall", "StatefulPartitionedCall"))
_LOOPS: Final = frozenset(("While", "StatelessWhile"))
_CHOICES: Final = frozenset(("If", "StatelessIf", "Case", "StatelessCase"))
_ORDER_ONLY: Final = frozenset(("NoOp", "Assert", "CheckNumerics", "PrintV2", "Print"))


@dataclass(slots=True, eq=False)
class _Shared:
    """What the plans of one computation have in common."""

    slots: int = 0
    variables: dict[str, VariableKey] = field(default_factory=dict)
    written: set[str] = field(default_factory=set)
    """Names of variables that have been changed so far, or will be in a loop that is entered."""
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


class Flattener:
    """Makes one plan; loops and branches that stay on the host have Flatteners of their own."""

    def __init__(self, shared: _Shared) -> None:
        self._shared = shared
        self._plan = Plan()
        self._segment: Segment | None = None
        self._counting: Segment | None = None
        self._after: list[Enqueue | Check | Assertion] = []
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
        self.close()
        return self._plan

    # Values and graphs

    def new_slot(self, dtype: tf.DType, shape: Any, constant: Array | None = None) -> Slot:
        """Return a slot of a number of its own."""
        self._shared.slots += 1
        return Slot(self._shared.slots - 1, dtype, tf.TensorShape(shape), constant)

    def slot_of(self, value: Bound) -> Slot:
        """Return the slot of a value; its segment fills it."""
        if isinstance(value, Variable):
            raise IpuError(f"variable {value.key.name!r} is used as a tensor")
        if value.slot is None:
            if value.constant is not None:
                array = constant_array(value.constant)
                dtype = tf.as_dtype(array.dtype)
                value.slot = self.new_slot(dtype, array.shape, array)
            else:
                assert value.tensor is not None
                assert value.segment is not None
                if value.tensor.dtype in (tf.variant, tf.resource, tf.string):
                    raise IpuError(
                        f"{value.tensor.op.name} ({value.tensor.op.type}) makes a value of type "
                        f"{value.tensor.dtype.name}, which the host cannot exchange with an IPU"
                    )
                value.slot = self.new_slot(value.tensor.dtype, value.tensor.shape)
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
                tensor = copy_operation(graph, value.constant, []).outputs[0]
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
    def in_graph(self) -> Iterator[None]:
        """Make the current graph the default one, unless an inner graph is."""
        if self._depth:
            yield
        else:
            with self._target().graph.as_default():
                yield

    def close(self) -> None:
        """End the current segment: what follows needs its results."""
        for name, key in self._written.items():
            value = self._current[name]
            with self.in_graph():
                self._target().outputs.append((key, self.use(value)))
        self._written, self._current = {}, {}
        for segment in (self._counting, self._segment):
            if segment is not None:
                self._plan.items.append(segment)
        self._plan.items.extend(self._after)
        self._segment, self._counting, self._after = None, None, []

    @contextlib.contextmanager
    def in_inner_graphs(self) -> Iterator[None]:
        """Emit into the graphs that TensorFlow makes for bodies and branches."""
        self._target()
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    def wrap(self, tensor: tf.Tensor) -> Value:
        """Return a tensor of the current segment as a value."""
        return Value(tensor, self._target())

    def note_written(self, names: Iterable[str]) -> None:
        """Note variables that a loop changes, before its first iteration reads them."""
        self._shared.written.update(names)

    def make_inner(self) -> Flattener:
        """Return a flattening for a plan within this one."""
        return Flattener(self._shared)

    def add_item(self, item: Item) -> None:
        """Add an item to the plan, after the segments that are closed."""
        self._plan.items.append(item)

    # Variables

    def read(self, variable: Variable) -> Value:
        """Return the value of a variable at this place."""
        name = variable.key.name
        if name not in self._current:
            if variable.constant is not None and name not in self._shared.written:
                return Value(constant=variable.constant)
            segment = self._target()
            self._current[name] = Value(self._feed(segment, variable.key), segment)
        return self._current[name]

    def write(self, variable: Variable, value: Value) -> None:
        """Let a variable have a value from this place on."""
        self._current[variable.key.name] = value
        self._written[variable.key.name] = variable.key
        self._shared.written.add(variable.key.name)

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
        assertions = {} if self._depth else find_assertions(graph)
        for operation in needed_operations(graph, assertions.values()):
            if operation.type == "Placeholder" and f"{operation.name}:0" in bound:
                continue
            values = [bound[tensor.name] for tensor in operation.inputs if tensor.name in bound]
            if len(values) < len(operation.inputs):
                continue  # it depends on an operation that only orders others
            for tensor, value in zip(
                operation.outputs, self._emit(graph, operation, values), strict=False
            ):
                bound[tensor.name] = value
        self._after.extend(
            Assertion(self.slot_of(bound[condition.name]), name)
            for name, condition in assertions.items()
            if condition.name in bound
        )
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
            return emit_loop(self, graph, operation, values)
        if kind in _CHOICES:
            return emit_choice(self, graph, operation, values)
        if kind in _ORDER_ONLY and placement.OUTSIDE not in operation.node_def.attr:
            return values[:1] if kind in ("CheckNumerics", "Print") else []
        if (marker := markers.kind_of(operation)) is not None:
            return self._emit_marker(marker, operation, values)
        if kind == "VarHandleOp":
            return [self._handle(operation)]
        rule = variable_operators.RULES.get(kind)
        if rule is not None:
            with self.in_graph():
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
            self.close()
            self._segment = Segment(tf.Graph(), on_host=on_host)

    def _handle(self, operation: tf.Operation) -> Variable:
        name = operation.get_attr("shared_name").decode() or operation.name
        dtype, shape = operation.get_attr("dtype"), operation.get_attr("shape")
        return Variable(VariableKey(name, dtype, tf.TensorShape(shape)))

    def _emit_operator(self, operation: tf.Operation, values: list[Bound]) -> list[Bound]:
        constant = fold_shape(operation, values)
        if constant is not None:
            return [Value(constant=constant)]
        if self._counts(operation, values):
            constants = [value.constant for value in values if isinstance(value, Value)]
            if all(constant is not None for constant in constants):
                arrays = [constant_array(constant) for constant in constants]
                return [Value(constant=array) for array in compute_operation(operation, arrays)]
            return self._count(operation, values)
        with self.in_graph():
            graph = tf.compat.v1.get_default_graph()
            copy = copy_operation(graph, operation, [self.use(value) for value in values])
            for tensor, source in zip(copy.outputs, operation.outputs, strict=True):
                if tensor.shape.rank is None:  # of a Python function, say
                    tensor.set_shape(source.shape)
            segment = self._target()
            return [Value(tensor, segment) for tensor in copy.outputs]

    def emit(self, function: Callable[..., tf.Tensor], *values: Bound) -> Value:
        """Emit what a function of tensors adds to the current graph."""
        with self.in_graph():
            return Value(function(*(self.use(value) for value in values)), self._target())

    def _counts(self, operation: tf.Operation, values: Sequence[Bound]) -> bool:
        """Return whether an operator has only single whole numbers that the host has."""
        if self._depth or operation.op_def.is_stateful or not values:
            return False
        return all(
            isinstance(value, Value) and (value.counts or is_scalar_constant(value))
            for value in values
        ) and all(
            tensor.shape.rank == 0 and tensor.dtype in COUNTER_TYPES for tensor in operation.outputs
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
            copy = copy_operation(segment.graph, operation, tensors)
        return [Value(tensor, segment, counts=True) for tensor in copy.outputs]

    # Markers

    def _emit_step(
        self, operation: tf.Operation, facts: Mapping[str, Any], values: list[Bound]
    ) -> list[Bound]:
        """End the segment, whose results the host needs, and emit what the host does."""
        self.refuse_inner(operation)
        inputs = [self.slot_of(value) for value in values]
        outputs = [self.new_slot(tensor.dtype, tensor.shape) for tensor in operation.outputs]
        if inputs:
            self.close()
        self._plan.items.append(HostStep(facts["name"], facts["attributes"], inputs, outputs))
        return [Value(slot=slot) for slot in outputs]

    def _emit_marker(
        self, kind: str, operation: tf.Operation, values: list[Bound]
    ) -> Sequence[Bound]:
        facts = markers.facts_of(operation)
        if kind == markers.DEQUEUE:
            self.refuse_inner(operation)
            slots = [self.new_slot(tensor.dtype, tensor.shape) for tensor in operation.outputs]
            self._plan.items.append(Dequeue(facts["queue"], slots))
            return [Value(slot=slot) for slot in slots]
        if kind == markers.ENQUEUE:
            self.refuse_inner(operation)
            self._after.append(Enqueue(facts["queue"], [self.slot_of(value) for value in values]))
            return []
        if kind == markers.STEP:
            return self._emit_step(operation, facts, values)
        if kind == markers.CHECK and "refusal" in facts:
            raise tf.errors.FailedPreconditionError(None, None, facts["refusal"])
        if kind == markers.CHECK:
            self._after.append(
                Check(self.slot_of(values[0]), facts["overlapping"], facts["num_ipus"])
            )
            return []
        with self.in_graph():
            graph = tf.compat.v1.get_default_graph()
            copy = copy_operation(
                graph, operation, [self.use(value) for value in values], keep=True
            )
            for tensor, source in zip(copy.outputs, operation.outputs, strict=True):
                tensor.set_shape(source.shape)
            segment = self._target()
            return [Value(tensor, segment) for tensor in copy.outputs]

    def refuse_inner(self, operation: tf.Operation) -> None:
        """Raise IpuError for what the host has to do within an operator's own graph."""
        if self._depth:
            raise IpuError(f"{operation.name}: feeds within this control flow are not supported")
