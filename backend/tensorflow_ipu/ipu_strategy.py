"""IPUStrategy: TensorFlow 2's way to an IPU."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import tensorflow as tf
from tensorflow.python.distribute import distribute_lib, input_lib, reduce_util
from tensorflow.python.eager import context
from tensorflow.python.eager.polymorphic_function import (
    concrete_function,
    function_type_utils,
    polymorphic_function,
)
from tensorflow.python.trackable import base as trackable

from tensorflow_ipu import eager_operations, scope_hooks
from tensorflow_ipu.execution import Computation
from tensorflow_ipu.feeds import host_iterators
from tensorflow_ipu.keras_extensions import KerasExtensions
from tensorflow_ipu.launching import launch, make_computation, run_eagerly, trace

_UNSUPPORTED: Final = (tf.float64,)
_COMPILED: Final = (polymorphic_function.Function, concrete_function.ConcreteFunction)


class IPUStrategyV1(distribute_lib.StrategyV1, KerasExtensions):  # type: ignore[misc] # mypy sees no TensorFlow
    """Runs functions on an IPU; variables made in its scope lie there."""

    def __init__(
        self,
        ipu_device: str = "/device:IPU:0",
        cpu_device: str = "/device:CPU:0",
        enable_dataset_iterators: bool = True,
        enable_keras_extensions: bool = True,
    ) -> None:
        """Make a strategy.

        Args:
            ipu_device: Name of the IPU device.
            cpu_device: Name of the device that computes initial values.
            enable_dataset_iterators: Whether `iter(dataset)` within the scope feeds the IPU.
            enable_keras_extensions: Whether Keras models within the scope run on the IPU in loops.
        """
        super().__init__(_IPUExtendedV1(self, ipu_device, cpu_device))
        KerasExtensions.__init__(self, enable_dataset_iterators, enable_keras_extensions)
        self.enable_dataset_iterators = enable_dataset_iterators
        self.enable_keras_extensions = enable_keras_extensions

    @contextlib.contextmanager
    def scope(self) -> Iterator[Any]:
        """Enter the strategy's scope.

        Yields:
            The strategy.
        """
        with super().scope() as entered, scope_hooks.enter(self):
            yield entered

    def run(
        self, fn: Any, args: Sequence[Any] = (), kwargs: Any = None, options: Any = None
    ) -> Any:
        """Run a function on the IPU.

        Args:
            fn: A tf.function; within a graph any function.
            args: Its positional arguments: tensors, iterators and queues.
            kwargs: Its named arguments.
            options: Accepted.

        Returns:
            What the function returns.

        Raises:
            ValueError: For a Python function in eager mode.
            TypeError: For arguments or results in float64.
        """
        _validate_function(fn)
        if isinstance(fn, _COMPILED):
            # What the base class would do besides, entering the scope once more, is half a call.
            is_current = scope_hooks.current_strategy() is self
            with contextlib.nullcontext() if is_current else self.scope():
                return self.extended.run_on_replica(fn, tuple(args), kwargs or {})
        return super().run(fn, tuple(args), kwargs, options)

    def experimental_run_v2(self, *_: Any, **__: Any) -> Any:
        """Raise RuntimeError: the method is `run`."""
        raise RuntimeError("`experimental_run_v2` has been deleted. Use `run` instead.")

    @property
    def supports_loss_scaling(self) -> bool:
        """Whether losses can be scaled."""
        return True

    @property
    def _device_ordinal(self) -> int:
        spec = tf.DeviceSpec.from_string(self.extended.non_slot_devices(None))
        return int(spec.device_index or 0)


IPUStrategy = IPUStrategyV1


def _validate_function(fn: Any) -> None:
    if context.executing_eagerly() and not isinstance(fn, _COMPILED):
        raise ValueError(
            "IPUStrategyV1.run(fn, ...) does not support eager execution. Either convert `fn` into "
            "a tf.function or consider calling strategy.run inside a tf.function."
        )


def _validate_types(tensors: Sequence[Any], what: str) -> None:
    for tensor in tensors:
        if tensor.dtype in _UNSUPPORTED:
            raise TypeError(f"Unsupported data type for {what}: {tensor.dtype.name}")


class _IPUExtendedV1(distribute_lib.StrategyExtendedV1):  # type: ignore[misc]
    """What a strategy of one IPU device does with variables, data sets and reductions."""

    def __init__(self, container_strategy: Any, ipu_device: str, cpu_device: str) -> None:
        super().__init__(container_strategy)
        self._ipu_device, self._cpu_device = ipu_device, cpu_device
        self._input_workers = input_lib.InputWorkers([("", [cpu_device])])

    def _create_variable(self, next_creator: Callable[..., Any], **kwargs: Any) -> Any:
        initial = kwargs["initial_value"]

        def compute_initial() -> Any:
            with tf.device(self._cpu_device):
                value = initial() if callable(initial) else initial
                if isinstance(value, trackable.CheckpointInitialValue):
                    value = value.wrapped_value
                return tf.convert_to_tensor(value, dtype=kwargs.get("dtype"))

        # Where stock TensorFlow keeps a variable is the CPU; which IPU has it, a program says.
        with tf.device(self._cpu_device):
            return next_creator(**{**kwargs, "initial_value": compute_initial})

    def _call_for_each_replica(self, fn: Any, args: Any, kwargs: Any) -> Any:
        return self.run_on_replica(fn, args, kwargs or {})

    def run_on_replica(self, fn: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run a function on the strategy's device."""
        strategy = self._container_strategy()
        with (
            distribute_lib.ReplicaContext(strategy, replica_id_in_sync_group=0),
            tf.device(self._ipu_device),
            eager_operations.on_host(),
        ):
            return run_on_ipu(fn, args, kwargs, strategy._device_ordinal)  # noqa: SLF001

    def _local_results(self, distributed_value: Any) -> tuple[Any, ...]:
        return (distributed_value,)

    def value_container(self, value: Any) -> Any:
        return value

    def _reduce_to(self, reduce_op: Any, value: Any, destinations: Any, options: Any) -> Any:
        del destinations, options
        if tf.executing_eagerly() or not hasattr(value, "graph"):
            return value
        if reduce_op not in (reduce_util.ReduceOp.SUM, reduce_util.ReduceOp.MEAN):
            raise ValueError(f"Unsupported reduce op: {reduce_op}")
        from tensorflow_ipu.operators import cross_replica_ops

        if reduce_op == reduce_util.ReduceOp.MEAN:
            return cross_replica_ops.cross_replica_mean(value)
        return cross_replica_ops.cross_replica_sum(value)

    def _update(self, var: Any, fn: Any, args: Any, kwargs: Any, group: bool) -> Any:
        return self._update_non_slot(var, fn, (var, *args), kwargs, group)

    def _update_non_slot(
        self, colocate_with: Any, fn: Any, args: Any, kwargs: Any, group: bool
    ) -> Any:
        with distribute_lib.UpdateContext(colocate_with):
            result = fn(*args, **kwargs)
        return result if group else tf.nest.map_structure(self._local_results, result)

    @property
    def _num_replicas_in_sync(self) -> int:
        return 1

    def _in_multi_worker_mode(self) -> bool:
        return False

    @property
    def _global_batch_size(self) -> bool:
        return True

    def _make_input_fn_iterator(self, input_fn: Any, replication_mode: Any = None) -> Any:
        del replication_mode
        return input_lib.InputFunctionIterator(
            input_fn,
            self._input_workers,
            [distribute_lib.InputContext()],
            self._container_strategy(),
        )

    def _experimental_distribute_dataset(self, dataset: Any, options: Any) -> Any:
        del options
        return dataset

    def _distribute_datasets_from_function(self, dataset_fn: Any, options: Any) -> Any:
        del options
        return dataset_fn(distribute_lib.InputContext())

    def non_slot_devices(self, var_list: Any) -> str:
        del var_list
        return self._ipu_device

    def _get_local_replica_id(self, replica_id_in_sync_group: Any) -> Any:
        return replica_id_in_sync_group

    @property
    def worker_devices(self) -> tuple[str, ...]:
        return (self._ipu_device,)

    @property
    def parameter_devices(self) -> tuple[str, ...]:
        return (self._ipu_device,)

    @property
    def _support_per_replica_values(self) -> bool:
        return False


IPUExtendedV1 = _IPUExtendedV1
"""The name of the class in the real library."""

_computations: weakref.WeakKeyDictionary[Any, tuple[Computation, list[Any]]] = (
    weakref.WeakKeyDictionary()
)


_runtimes: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()


def run_on_ipu(fn: Any, args: Sequence[Any], kwargs: dict[str, Any], ordinal: int = 0) -> Any:
    """Compile a function for the IPU and run it; in a graph it becomes a node.

    Args:
        fn: A tf.function, or a concrete function; in a graph any function.
        args: Its positional arguments.
        kwargs: Its named arguments.
        ordinal: Number of the device.

    Returns:
        What the function returns.

    Raises:
        TypeError: For arguments or results in float64.
    """
    if isinstance(fn, polymorphic_function.Function):
        args = [host_iterators.adapt(value) for value in args]
        kwargs = {name: host_iterators.adapt(value) for name, value in kwargs.items()}
        with host_iterators.tracing_for_ipu():
            concrete = fn.get_concrete_function(*args, **kwargs)
    elif isinstance(fn, concrete_function.ConcreteFunction):
        concrete = fn
    else:
        return _run_python(fn, args, kwargs, ordinal)
    if _runs_executable(concrete.graph):
        # The embedded runtime has its own device; the host calls it.
        with tf.device("/device:CPU:0"):
            return fn(*args, **kwargs)
    _validate_types([t for t in concrete.inputs if t.dtype != tf.resource], "input")
    _validate_types(concrete.outputs, "output")
    graph = concrete.graph
    if graph not in _computations:
        _computations[graph] = make_computation(graph, ordinal)
    computation, captured = _computations[graph]
    bound = function_type_utils.canonicalize_function_inputs(
        args,
        kwargs,
        getattr(fn, "_function_type", concrete.function_type),
        getattr(fn, "_default_values", None),
    )
    # The concrete function has a parameter for each of `*args`, the bound arguments have one.
    bound = concrete.function_type.bind(*bound.args, **bound.kwargs)
    with tf.device("/device:CPU:0"):  # where arrays become tensors
        tensors = concrete.function_type.unpack_inputs(bound)
    run = run_eagerly if tf.executing_eagerly() else launch
    results = run(computation, tensors, captured)
    return concrete.function_type.pack_output(results[: len(concrete.outputs)])


def _runs_executable(graph: Any) -> bool:
    """Return whether a graph calls the embedded runtime, as exported SavedModels do."""
    if graph not in _runtimes:
        definition = graph.as_graph_def()
        nodes = [definition.node, *(function.node_def for function in definition.library.function)]
        _runtimes[graph] = any(node.op == "ApplicationCall" for group in nodes for node in group)
    return _runtimes[graph]


def _run_python(fn: Any, args: Sequence[Any], kwargs: dict[str, Any], ordinal: int) -> Any:
    """Run a Python function as a node of the graph that is being made."""
    flat = tf.nest.flatten([args, kwargs])
    tensors = [value for value in flat if tf.is_tensor(value)]
    structure: list[Any] = []

    def compute(*values: Any) -> list[tf.Tensor]:
        remaining = iter(values)
        given = [next(remaining) if tf.is_tensor(value) else value for value in flat]
        positional, named = tf.nest.pack_sequence_as([args, kwargs], given)
        structure.append(fn(*positional, **named))
        return [
            tf.convert_to_tensor(value)
            for value in tf.nest.flatten(structure[0])
            if value is not None and not isinstance(value, tf.Operation)
        ]

    graph = trace(compute, tensors, getattr(fn, "__name__", "computation"))
    computation, captured = make_computation(graph, ordinal)
    results = iter(launch(computation, tensors, captured))
    return tf.nest.map_structure(
        lambda value: None if value is None or isinstance(value, tf.Operation) else next(results),
        structure[0],
    )
