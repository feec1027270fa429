"""Pipelines: stages on several IPUs, each of which gets the results of the one before.

A pipeline is a loop here: an iteration computes all stages for one element. The schedule changes
times, never values. Only inference is supported.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import tensorflow as tf
from tensorflow.core.framework.attr_value_pb2 import AttrValue
from tensorflow.python.framework import func_graph as func_graph_module
from tensorflow.python.ops import control_flow_util_v2

from tensorflow_ipu import markers, placement
from tensorflow_ipu.feeds import loops
from tensorflow_ipu.feeds.arguments import split_element, to_list
from tensorflow_ipu.operators.internal_ops import count_up_to
from tensorflow_ipu.operators.pipeline_arguments import (
    PipelineSchedule,
    PipelineStageOptions,
    RecomputationMode,
    check_count,
    check_queues,
    check_schedule,
    check_stage_options,
    check_stages,
    check_training_options,
    count_overlapping,
    flatten_devices,
)
from tensorflow_ipu.training.gradient_accumulation import GradientAccumulationReductionMethod
from tensorflow_ipu.training.optimizer_outputs import OptimizerFunctionOutput
from tensorflow_ipu.training.refusals import refuse_training

__all__ = [
    "OptimizerFunctionOutput",
    "PipelineSchedule",
    "PipelineStageOptions",
    "RecomputationMode",
    "pipeline",
    "recomputation_checkpoint",
]
_SUM: Final = GradientAccumulationReductionMethod.SUM
_ALL_DEVICES: Final = -1
"""Number of a stage's IPU that means all of them."""


def pipeline(
    computational_stages: Sequence[Any],
    gradient_accumulation_count: Any = None,
    gradient_accumulation_dtype: Any = None,  # noqa: ARG001 - training
    gradient_accumulation_for_captured_grads: bool = True,  # noqa: ARG001 - training
    repeat_count: Any = 1,
    batch_serialization_iterations: int = 1,
    inputs: Any = None,
    infeed_queue: Any = None,
    outfeed_queue: Any = None,
    optimizer_function: Callable[..., Any] | None = None,
    device_mapping: Sequence[Any] | None = None,
    pipeline_schedule: PipelineSchedule | None = None,
    recomputation_mode: RecomputationMode | None = None,
    forward_propagation_stages_poplar_options: Any = None,
    backward_propagation_stages_poplar_options: Any = None,
    weight_update_poplar_options: Any = None,
    offload_weight_update_variables: bool | None = None,  # noqa: ARG001 - training
    replicated_optimizer_state_sharding: bool = False,  # noqa: ARG001 - training
    offload_activations: bool | None = None,  # noqa: ARG001 - training
    offload_gradient_accumulation_buffers: bool | None = None,  # noqa: ARG001 - training
    replicated_weight_sharding: bool | None = None,  # noqa: ARG001 - memory of the chip
    offload_weights: bool | None = None,  # noqa: ARG001 - memory of the chip
    continuous_weight_updates: bool = False,
    outfeed_loss: bool = False,
    accumulate_outfeed: bool = False,
    accumulate_outfeed_dtype: Any = None,
    outfeed_mask: Any = None,
    reduction_method: Any = _SUM,
    name: str | None = None,
) -> Any:
    """Compute stages for a number of elements.

    The first stage gets `inputs`, then the infeed's element; each further one gets the results of
    the one before. The results of the last one are enqueued.

    Args:
        computational_stages: Functions of tensors, at least two. A list of functions is one stage:
            each gets the same arguments, and their results follow each other.
        gradient_accumulation_count: Number of elements, an integer or a tensor.
        gradient_accumulation_dtype: Accepted: only training uses it.
        gradient_accumulation_for_captured_grads: Accepted: only training uses it.
        repeat_count: Number of times that the pipeline runs.
        batch_serialization_iterations: Number of times that each stage runs for an element of
            training: the number of elements is multiplied by it.
        inputs: Tensors that all iterations get.
        infeed_queue: IPUInfeedQueue with an element for each iteration.
        outfeed_queue: IPUOutfeedQueue for the results.
        optimizer_function: Must be None: it trains.
        device_mapping: The IPU of each stage; by default stage n is on IPU n.
        pipeline_schedule: PipelineSchedule, by default Grouped.
        recomputation_mode: Accepted: only training uses it.
        forward_propagation_stages_poplar_options: PipelineStageOptions of each stage.
        backward_propagation_stages_poplar_options: Accepted: only training uses it.
        weight_update_poplar_options: Accepted: only training uses it.
        offload_weight_update_variables: Accepted: only training uses it.
        replicated_optimizer_state_sharding: Accepted: only training uses it.
        offload_activations: Accepted: only training uses it.
        offload_gradient_accumulation_buffers: Accepted: only training uses it.
        replicated_weight_sharding: Accepted: it changes no value.
        offload_weights: Accepted: it changes no value.
        continuous_weight_updates: Must be False.
        outfeed_loss: Only with an optimizer function.
        accumulate_outfeed: Whether each run of the pipeline enqueues the sums of its results.
        accumulate_outfeed_dtype: Type of the sums, or a function of a tensor that returns one; by
            default that of the results.
        outfeed_mask: Only with an optimizer function.
        reduction_method: Accepted: only training uses it.
        name: Name of the pipeline.

    Returns:
        The operation that runs the pipeline.

    Raises:
        ValueError: For arguments that do not fit together, results without an outfeed, and stages
            that read tensors which are no arguments of theirs.
        TypeError: For arguments of other types.
        NotImplementedError: For combinations that the real library does not have, and for training.
    """
    name = name or "pipeline"
    check_count(gradient_accumulation_count)
    serialization = batch_serialization_iterations
    if optimizer_function is not None:
        reduction_method = GradientAccumulationReductionMethod.parse(reduction_method)
    if reduction_method != _SUM and serialization != 1:
        raise ValueError(
            "batch_serialization_iterations != 1 is only supported when reduction_method is "
            "GradientAccumulationReductionMethod.SUM"
        )
    if continuous_weight_updates:
        raise NotImplementedError("Continuous weight updates are currently not supported.")
    schedule = check_schedule(pipeline_schedule, recomputation_mode, serialization)
    devices = check_stages(computational_stages, device_mapping, serialization)
    num_stages = len(computational_stages)
    for options, argument in (
        (forward_propagation_stages_poplar_options, "forward_propagation_stages_poplar_options"),
        (backward_propagation_stages_poplar_options, "backward_propagation_stages_poplar_options"),
    ):
        if optimizer_function is not None or argument.startswith("forward"):
            check_stage_options(options, argument, num_stages)
    check_training_options(
        optimizer_function is not None, outfeed_mask, outfeed_loss, weight_update_poplar_options
    )
    check_queues(infeed_queue, outfeed_queue, accumulate_outfeed)
    if optimizer_function is not None:
        refuse_training("pipelining_ops.pipeline with an optimizer_function")
    stages = _Stages(computational_stages, devices, _take_values(inputs), name)
    with tf.name_scope(name):
        count = tf.cast(tf.convert_to_tensor(gradient_accumulation_count), tf.int32)
        _begin(count, count_overlapping(schedule, devices), 1 + max(flatten_devices(devices)))
        repeats = int(repeat_count) if isinstance(repeat_count, float) else repeat_count
        run = _Run(stages, infeed_queue, outfeed_queue, count * serialization, repeats)
        return run.accumulate(accumulate_outfeed_dtype) if accumulate_outfeed else run.enqueue()


def _take_values(inputs: Any) -> list[tf.Tensor]:
    """Return the inputs as tensors; variables are passed by value."""
    values = [] if inputs is None else to_list(inputs)
    return [tf.convert_to_tensor(value) for value in values]


def _begin(count: tf.Tensor, overlapping: int, num_ipus: int) -> None:
    """Add the operation that checks the number of iterations when the pipeline runs."""
    facts = {"name": "pipeline", "overlapping": overlapping, "num_ipus": num_ipus}
    markers.add_operation(markers.CHECK, facts, [count], [], "check_iterations")


class _Stages:
    """The stages of a pipeline."""

    def __init__(
        self, stages: Sequence[Any], devices: Sequence[Any], inputs: list[tf.Tensor], name: str
    ) -> None:
        self._stages = stages
        self._devices = devices
        self._inputs = inputs
        self._name = name

    def call(self, infeed_queue: Any) -> Any:
        """Return what the last stage returns for the next element of an infeed."""
        outputs: Any = self._inputs
        earlier = _find_captures()
        for number, (stage, devices) in enumerate(zip(self._stages, self._devices, strict=True)):
            positional = to_list(outputs)
            named: dict[str, Any] = {}
            if number == 0 and infeed_queue is not None:
                element, named = split_element(infeed_queue._dequeue())  # noqa: SLF001
                positional = positional + element
            with tf.name_scope(f"{self._name}_stage_{number}"):
                outputs = self._call_stage(stage, devices, number, positional, named)
        self._refuse_captures(earlier)
        return outputs

    def _call_stage(
        self, stage: Any, devices: Any, number: int, values: list[Any], named: dict[str, Any]
    ) -> Any:
        if not isinstance(stage, list):
            with _place(devices, number):
                return _to_tensors(stage(*values, **named))
        outputs: list[Any] = []
        for function, device in zip(stage, devices, strict=True):
            with _place(device, number):
                outputs += to_list(_to_tensors(function(*values, **named)))
        return outputs

    def _refuse_captures(self, earlier: Sequence[Any]) -> None:
        """Raise ValueError if a stage reads a tensor that it did not get."""
        known = {id(tensor) for tensor in (*self._inputs, *earlier)}
        for outer in _find_captures():
            is_constant = hasattr(outer, "numpy") and not hasattr(outer, "graph")
            if outer.dtype != tf.resource and id(outer) not in known and not is_constant:
                raise ValueError(
                    f"Trying to capture the tensor {outer.name} which is not a resource. This "
                    "tensor needs to be passed as either part of the `input` or `infeed_queue` of "
                    "the pipeline."
                )


def _find_captures() -> list[Any]:
    """Return the tensors that the current graph captures, as far as it is a function's."""
    graph = tf.compat.v1.get_default_graph()
    return [outer for outer, _ in getattr(graph, "captures", ())]


def _to_tensors(outputs: Any) -> Any:
    return tf.nest.map_structure(
        lambda value: (
            value
            if value is None or isinstance(value, tf.Operation)
            else tf.convert_to_tensor(value)
        ),
        outputs,
    )


@contextlib.contextmanager
def _place(device: Any, stage: int) -> Iterator[None]:
    """Place operators on an IPU, as part of a stage."""
    attributes = {placement.STAGE: AttrValue(s=str(stage).encode())}
    if device != _ALL_DEVICES:
        attributes[placement.SHARD] = AttrValue(s=str(device).encode())
    with tf.compat.v1.get_default_graph()._attr_scope(attributes):  # noqa: SLF001
        yield


class _Run:
    """Runs of a pipeline: loops over its iterations."""

    def __init__(
        self, stages: _Stages, infeed: Any, outfeed: Any, count: tf.Tensor, repeats: Any
    ) -> None:
        self._stages = stages
        self._infeed = infeed
        self._outfeed = outfeed
        self._count = count
        self._repeats = repeats

    def enqueue(self) -> tf.Operation:
        """Return the operation that computes all elements and enqueues each result."""

        def compute() -> tf.Operation:
            with count_up_to(self._count):
                outputs = self._stages.call(self._infeed)
            if outputs is None or isinstance(outputs, tf.Operation):
                return outputs
            if self._outfeed is None:
                self._refuse(outputs)
            return self._outfeed.enqueue(
                outputs if tf.is_tensor(outputs) or isinstance(outputs, dict) else to_list(outputs)
            )

        return loops.repeat(self._count * self._repeats, compute)

    def _refuse(self, outputs: Any) -> None:
        texts = ", ".join(map(str, to_list(outputs)))
        raise ValueError(
            f"The last computational stage has tensor outputs: {texts}, but no outfeed_queue has "
            "been provided."
        )

    def accumulate(self, dtype: Any) -> tf.Operation:
        """Return the operation that enqueues the sums of the results of each run."""
        graph = func_graph_module.func_graph_from_py_func(
            control_flow_util_v2.unique_fn_name("pipeline", "stages"),
            self._compute_sums,
            [],
            {},
            add_control_dependencies=True,
        )
        types = [dtype(tensor) if callable(dtype) else dtype for tensor in graph.outputs]
        zeros = [
            tf.zeros(tensor.shape, tensor.dtype if kind is None else kind)
            for tensor, kind in zip(graph.outputs, types, strict=True)
        ]

        def add(*sums: tf.Tensor) -> list[tf.Tensor]:
            values = tf.raw_ops.StatefulPartitionedCall(
                args=graph.external_captures,
                Tout=[tensor.dtype for tensor in graph.outputs],
                f=control_flow_util_v2.create_new_tf_function(graph),
            )
            for value, inner in zip(values, graph.outputs, strict=True):
                value.set_shape(inner.shape)
            return [s + tf.cast(value, s.dtype) for s, value in zip(sums, values, strict=True)]

        def compute() -> tf.Operation:
            sums = to_list(loops.repeat(self._count, add, zeros))
            return self._outfeed.enqueue(tf.nest.pack_sequence_as(self._structure, sums))

        return loops.repeat(self._repeats, compute)

    def _compute_sums(self) -> list[tf.Tensor]:
        outputs = self._stages.call(self._infeed)
        self._structure = outputs if isinstance(outputs, dict) else to_list(outputs)
        return list(tf.nest.flatten(outputs))


def recomputation_checkpoint(tensors: Any, name: str | None = None) -> Any:
    """Return tensors as they are: only training computes activations again.

    Args:
        tensors: A tensor, or a structure of them.
        name: Name of the operations.

    Returns:
        The same.
    """
    return tf.nest.map_structure(
        lambda tensor: tf.identity(tensor, name=name), tensors, expand_composites=True
    )
