"""Pipelines of models: which calls of layers each stage executes, and their computation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import Any

import tensorflow as tf

from tensorflow_ipu.keras_extensions.dialects import Dialect, dialect_of, expand_vectors
from tensorflow_ipu.keras_extensions.nodes import (
    list_calls,
    node_arguments,
    node_operation,
    node_outputs,
)


@dataclass(eq=False, slots=True)
class Value:
    """A tensor of the pipeline, which has no value yet."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a layer in a stage. Its arguments have Values instead of tensors."""

    stage: int
    operation: Any
    args: Any
    kwargs: Any
    outputs: tuple[Value, ...]

    @property
    def inputs(self) -> list[Value]:
        """The values that the call takes."""
        leaves = tf.nest.flatten((self.args, self.kwargs))
        return [leaf for leaf in leaves if isinstance(leaf, Value)]


@dataclass(frozen=True, slots=True)
class Plan:
    """All calls of a model, in an order in which each stage can execute its own."""

    inputs: list[Value]
    outputs: list[Value]
    calls: list[Call] = field(default_factory=list)

    def stage(self, number: int) -> list[Call]:
        """Return the calls of a stage."""
        return [call for call in self.calls if call.stage == number]

    @property
    def num_stages(self) -> int:
        """Number of stages, with those in between that have no call."""
        return max(call.stage for call in self.calls) + 1

    def live_after(self, stage: int) -> list[Value]:
        """Return the values that later stages, or the model's outputs, take from this stage."""
        made = dict.fromkeys(self.inputs)
        made.update(
            dict.fromkeys(value for c in self.calls if c.stage <= stage for value in c.outputs)
        )
        needed = {value for c in self.calls if c.stage > stage for value in c.inputs}
        needed.update(self.outputs)
        return [value for value in made if value in needed]


def make_plan(model: Any, assignments: Any, inputs: Sequence[Value] | None = None) -> Plan:
    """Return the plan of a model, with the models inside it.

    Args:
        model: The extended model, which has a graph.
        assignments: An assignment for each call of a layer.
        inputs: Values of the inputs of a nested model.

    Returns:
        The plan.

    Raises:
        ValueError: The assignments do not fit the graph, or a stage takes values of a later one.
    """
    network = model._ipu_network()
    calls = list_calls(network)
    _check_number(assignments, len(calls))
    values = {id(tensor): Value() for tensor in network.inputs}
    if inputs is not None:
        values = dict(zip(values, inputs, strict=True))
    plan = Plan([values[id(tensor)] for tensor in network.inputs], [])
    for assignment, node in zip(assignments, calls, strict=True):
        operation = node_operation(node)
        args, kwargs = tf.nest.map_structure(
            lambda leaf: values.get(id(leaf), leaf), node_arguments(node)
        )
        model._check_assignment(assignment, node)
        if assignment.is_nested_model:
            leaves = [x for x in tf.nest.flatten((args, kwargs)) if isinstance(x, Value)]
            nested = make_plan(operation, assignment.pipeline_stage_assignments, leaves)
            plan.calls.extend(nested.calls)
            outputs = nested.outputs
        else:
            outputs = [Value() for _ in node_outputs(node)]
            plan.calls.append(
                Call(assignment.pipeline_stage, operation, args, kwargs, tuple(outputs))
            )
        values.update(zip(map(id, node_outputs(node)), outputs, strict=True))
    plan.outputs.extend(values[id(tensor)] for tensor in network.outputs)
    _check_order(plan)
    return plan


def _check_number(assignments: Any, num_calls: int) -> None:
    if not isinstance(assignments, list):
        raise ValueError("`pipeline_stage_assignment` needs to be a list.")
    if len(assignments) != num_calls:
        raise ValueError(
            f"The length of the provided `pipeline_stage_assignment` ({len(assignments)}) does not "
            f"match the number of layers in the graph ({num_calls}). Each layer needs to be "
            "assigned a pipeline stage (excluding input layers)."
        )


def _check_order(plan: Plan) -> None:
    computed = set(plan.inputs)
    for stage in range(plan.num_stages if plan.calls else 0):
        for call in plan.stage(stage):
            if not computed.issuperset(call.inputs):
                raise ValueError(
                    f"Layer {call.operation.name} in pipeline stage {stage} has a dependency from "
                    "a pipeline stage which has not yet been executed. Layers can only use outputs "
                    "from current or previous pipeline stages."
                )
            computed.update(call.outputs)


def check_stages(plan: Plan) -> None:
    """Raise an error if a stage has no call.

    Raises:
        RuntimeError: A stage in between has none.
    """
    present = {call.stage for call in plan.calls}
    missing = [stage for stage in range(plan.num_stages) if stage not in present]
    if missing:
        raise RuntimeError(
            "All stages in a pipeline must have at lease one layer assigned to them. The highest "
            f"stage with an assignment is stage {plan.num_stages - 1}, however the preceeding "
            f"stages {missing} had no assignments."
        )


def make_pipeline_function(
    model: Any, steps_per_execution: int, evaluates: bool
) -> Callable[[int, Any, Any], None]:
    """Return the computation of an execution of a pipelined model.

    Args:
        model: The extended model.
        steps_per_execution: Number of batches that pass through the pipeline.
        evaluates: Whether the last stage returns metrics, instead of the model's outputs.

    Returns:
        A function of the number of steps, an infeed iterator and an outfeed.
    """

    def pipeline_function(_steps_per_execution: int, iterator: Any, outfeed: Any) -> None:
        pipelining_ops = import_module("tensorflow_ipu.operators.pipelining_ops")
        accumulates = bool(model._pipelining_accumulate_outfeed and evaluates)
        stages = make_stages(
            model, iterator.element_spec, evaluates, steps_per_execution if accumulates else 1
        )
        dialect = dialect_of(model)
        with dialect.inference_context(model):
            pipelining_ops.pipeline(
                stages,
                gradient_accumulation_count=steps_per_execution,
                repeat_count=1,
                device_mapping=model._pipelining_device_mapping,
                accumulate_outfeed=accumulates,
                inputs=[],
                infeed_queue=iterator._infeed_queue,
                outfeed_queue=outfeed,
                reduction_method=model._gradient_accumulation_reduction_method,
                **model._pipelining_kwargs,
            )

    compiled: Callable[[int, Any, Any], None] = tf.function(
        pipeline_function, jit_compile=True, autograph=False
    )
    return compiled


def make_stages(
    model: Any, element_spec: Any, evaluates: bool, divisor: int = 1
) -> list[Callable[..., Any]]:
    """Return a function for each stage: of an element of the data, or of the stage before.

    Args:
        model: The extended model.
        element_spec: Shapes and types of an element.
        evaluates: Whether the last stage returns metrics.
        divisor: What metrics are divided by, because they are summed up later.
    """
    plan = model._make_pipeline_plan()
    check_stages(plan)
    stages = _Stages(model, plan, element_spec, evaluates, divisor)
    return [partial(stages.run, stage) for stage in range(plan.num_stages)]


class _Stages:
    """The stages of a pipeline. Each gives the next one the tensors that later ones take."""

    def __init__(
        self, model: Any, plan: Plan, element_spec: Any, evaluates: bool, divisor: int
    ) -> None:
        self._model, self._plan, self._evaluates = model, plan, evaluates
        self._divisor = divisor
        self._dialect: Dialect = dialect_of(model)
        _, *self._labels_spec = self._dialect.unpack(element_spec)

    def run(self, stage: int, *args: Any, **kwargs: Any) -> Any:
        """Execute a stage."""
        labels, tensors = self._take_arguments(stage, args or kwargs)
        for call in self._plan.stage(stage):
            call_args, call_kwargs = tf.nest.map_structure(
                lambda leaf: tensors[leaf] if isinstance(leaf, Value) else leaf,
                (call.args, call.kwargs),
            )
            outputs = self._dialect.call_operation(call.operation, call_args, call_kwargs, False)
            tensors.update(zip(call.outputs, tf.nest.flatten(outputs), strict=True))
        if stage == self._plan.num_stages - 1:
            return self._finish(tensors, labels)
        return [*(tensors[value] for value in self._plan.live_after(stage)), *labels]

    def _take_arguments(self, stage: int, data: Any) -> tuple[list[Any], dict[Value, Any]]:
        if stage > 0:
            live = self._plan.live_after(stage - 1)
            return list(data[len(live) :]), dict(zip(live, data, strict=False))
        x, *labels = self._dialect.unpack(expand_vectors(data))
        inputs = self._dialect.conform_inputs(self._model._ipu_network(), x)
        flat_labels = _without_nones(labels) if self._evaluates else []
        return flat_labels, dict(zip(self._plan.inputs, inputs, strict=True))

    def _finish(self, tensors: dict[Value, Any], labels: list[Any]) -> Any:
        outputs = [tensors[value] for value in self._plan.outputs]
        predictions = self._dialect.pack_outputs(self._model._ipu_network(), outputs)
        if not self._evaluates:
            return predictions
        remaining = iter(labels)
        y, sample_weight = tf.nest.map_structure(
            lambda leaf: None if leaf is None else next(remaining), tuple(self._labels_spec)
        )
        logs = self._dialect.loss_and_metrics(self._model, y, predictions, sample_weight)
        if self._divisor == 1:
            return logs
        return tf.nest.map_structure(lambda value: value / self._divisor, logs)


def _without_nones(structure: Any) -> list[Any]:
    return [leaf for leaf in tf.nest.flatten(structure) if leaf is not None]
