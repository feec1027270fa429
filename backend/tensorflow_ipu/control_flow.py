"""Loops and choices of a traced graph: operators of a segment, or items of the plan.

Those without side effects stay operators. Those that exchange values with the host, by feeds or
variables that they change, end the current segment and are run by the host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf
from tensorflow.python.ops import cond_v2, while_v2

from tensorflow_ipu.graphs import find_effects, function_graph, passed_through, written_inputs
from tensorflow_ipu.plan import Branch, Loop
from tensorflow_ipu.values import Bound, Value, Variable, is_counter

if TYPE_CHECKING:
    from tensorflow_ipu.flattening import Flattener


def emit_loop(
    flattener: Flattener, graph: Any, operation: tf.Operation, values: list[Bound]
) -> list[Bound]:
    """Emit a loop.

    Args:
        flattener: The flattening.
        graph: The graph of the operation.
        operation: While or StatelessWhile.
        values: Its inputs.

    Returns:
        Its outputs.
    """
    condition = function_graph(graph, operation, "cond")
    body = function_graph(graph, operation, "body")
    carried = [
        number
        for number in range(len(values))
        if not (isinstance(values[number], Variable) or passed_through(body, number))
    ]
    if find_effects(body):
        return _emit_host_loop(flattener, operation, (condition, body), values, carried)

    def bind(tensors: Sequence[tf.Tensor]) -> list[Bound]:
        bound = list(values)
        for number, tensor in zip(carried, tensors, strict=True):
            bound[number] = flattener.wrap(tensor)
        return bound

    def compute_condition(*tensors: tf.Tensor) -> tf.Tensor:
        return flattener.use(flattener.inline(condition, bind(tensors))[0])

    def compute_body(*tensors: tf.Tensor) -> list[tf.Tensor]:
        outputs = flattener.inline(body, bind(tensors))
        return [flattener.use(outputs[number]) for number in carried]

    with flattener.in_graph(), flattener.in_inner_graphs():
        results = while_v2.while_loop(
            compute_condition,
            compute_body,
            [flattener.use(values[number]) for number in carried],
            shape_invariants=[operation.outputs[number].shape for number in carried],
            return_same_structure=False,
        )
    return bind(_as_list(results))


def _emit_host_loop(
    flattener: Flattener,
    operation: tf.Operation,
    graphs: tuple[Any, Any],
    values: list[Bound],
    carried: list[int],
) -> list[Bound]:
    flattener.refuse_inner(operation)
    initial = [flattener.slot_of(values[number]) for number in carried]
    _fill_slots(flattener, values)
    flattener.close()
    slots = [
        flattener.new_slot(slot.dtype, operation.outputs[number].shape.merge_with(slot.shape))
        for number, slot in zip(carried, initial, strict=True)
    ]
    bound = list(values)
    for number, slot in zip(carried, slots, strict=True):
        bound[number] = Value(slot=slot, counts=is_counter(slot))
    changed = [values[number] for number in written_inputs(graphs[1])]
    flattener.note_written(
        variable.key.name for variable in changed if isinstance(variable, Variable)
    )
    condition = flattener.make_inner().flatten(graphs[0], bound)
    body = flattener.make_inner().flatten(graphs[1], bound, carried)
    flattener.add_item(Loop(condition, body, initial, slots))
    for number, slot in zip(carried, slots, strict=True):
        bound[number] = Value(slot=slot)
    return bound


def emit_choice(
    flattener: Flattener, graph: Any, operation: tf.Operation, values: list[Bound]
) -> list[Bound]:
    """Emit a conditional.

    Args:
        flattener: The flattening.
        graph: The graph of the operation.
        operation: If, Case, or their stateless forms.
        values: Its inputs.

    Returns:
        Its outputs.
    """
    index, *arguments = values
    is_if = operation.type.endswith("If")
    if is_if:
        names = ("else_branch", "then_branch")
        branches = [function_graph(graph, operation, name) for name in names]
    else:
        count = len(operation.get_attr("branches"))
        branches = [function_graph(graph, operation, "branches", n) for n in range(count)]
    if any(map(find_effects, branches)):
        return _emit_host_choice(flattener, operation, index, branches, arguments)

    def compute(branch: Any) -> Callable[[], list[tf.Tensor]]:
        return lambda: [flattener.use(value) for value in flattener.inline(branch, arguments)]

    functions = [compute(branch) for branch in branches]
    with flattener.in_graph(), flattener.in_inner_graphs():
        selector = flattener.use(index)
        if is_if:
            results = cond_v2.cond_v2(selector, functions[1], functions[0], name="cond")
        else:
            results = cond_v2.indexed_case(selector, functions)
        return [flattener.wrap(tensor) for tensor in _as_list(results)]


def _emit_host_choice(
    flattener: Flattener,
    operation: tf.Operation,
    index: Bound,
    branches: list[Any],
    arguments: list[Bound],
) -> list[Bound]:
    flattener.refuse_inner(operation)
    selector = flattener.slot_of(index)
    _fill_slots(flattener, arguments)
    flattener.close()
    plans = [flattener.make_inner().flatten(branch, arguments) for branch in branches]
    results = [flattener.new_slot(tensor.dtype, tensor.shape) for tensor in operation.outputs]
    flattener.add_item(Branch(selector, plans, results))
    return [Value(slot=slot) for slot in results]


def _fill_slots(flattener: Flattener, values: Sequence[Bound]) -> None:
    """Let the current segment fill the slots of values that plans within read."""
    for value in values:
        if isinstance(value, Value) and value.constant is None:
            flattener.slot_of(value)


def _as_list(results: Any) -> list[tf.Tensor]:
    if isinstance(results, tf.Operation) or results is None:
        return []
    return list(results) if isinstance(results, (list, tuple)) else [results]
