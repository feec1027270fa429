"""The computations of `predict` and `evaluate`: loops of steps, or pipelines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import tensorflow as tf

from tensorflow_ipu.keras_extensions.dialects import dialect_of
from tensorflow_ipu.keras_extensions.metric_reduction import ReplicatedMetricReductionMethod
from tensorflow_ipu.keras_extensions.options import ExtensionOptions, set_untracked
from tensorflow_ipu.keras_extensions.pipelines import make_pipeline_function

_REMEDY: Final = (
    "Either remove the override from your model definition or set `enable_keras_extensions=False` "
    "when creating the IPUStrategy."
)


class StepFunctions(ExtensionOptions):
    """Functions that the strategy compiles and runs."""

    def _reset_ipu_extension(self) -> None:
        """Forget all computations and feeds, after an option has changed."""
        from tensorflow_ipu.keras_extensions.feed_managers import InfeedManager, OutfeedManager

        set_untracked(
            self,
            _ipu_train_function=None,
            _ipu_test_function=None,
            _ipu_predict_function=None,
            _ipu_call_function=None,
            _compiled_steps={},
            _replication_factor=None,
            _infeed_manager=InfeedManager(),
            _outfeed_manager=OutfeedManager(),
        )

    def _make_step_function(
        self, name: str, steps_per_execution: int, replication_factor: int
    ) -> Callable[[int, Any, Any], None]:
        """Return the computation of an execution, which is made again if it has changed.

        Args:
            name: `test` or `predict`.
            steps_per_execution: Number of steps. A pipeline is made for a number of them.
            replication_factor: Number of replicas.

        Returns:
            A function of the number of steps, an infeed iterator and an outfeed.

        Raises:
            RuntimeError: The model overrides a method which is not called on the IPU.
        """
        attribute = f"_ipu_{name}_function"
        function: Any = getattr(self, attribute)
        pipelined = self._is_pipelined()  # type: ignore[attr-defined]
        if function is not None and (
            not pipelined or self._compiled_steps.get(name) == steps_per_execution
        ):
            return function  # type: ignore[no-any-return]
        self._refuse_overrides(name, pipelined)
        if pipelined:
            function = make_pipeline_function(self, steps_per_execution, name == "test")
        else:
            function = self._make_loop_function(name, replication_factor)
        self._compiled_steps[name] = steps_per_execution
        set_untracked(self, **{attribute: function})
        return function  # type: ignore[no-any-return]

    def _refuse_overrides(self, name: str, pipelined: bool) -> None:
        if self._overrides(f"make_{name}_function"):
            raise RuntimeError(
                f"The function `make_{name}_function` for the model {self.name} has been "
                f"overridden. This is not supported when using Keras within an IPUStrategy. "
                f"{_REMEDY}"
            )
        self._validate_call_function()  # type: ignore[attr-defined]
        if pipelined and self._overrides(f"{name}_step"):
            raise RuntimeError(
                f"The function `{name}_step` for the model {self.name} has been overridden. This "
                "is not supported for pipelined Keras models."
            )

    def _overrides(self, method: str) -> bool:
        """Return whether the model's class, or the model, has its own version of a method."""
        base = getattr(dialect_of(self).model_class, method)
        return method in vars(self) or getattr(type(self), method) is not base

    def _make_loop_function(
        self, name: str, replication_factor: int
    ) -> Callable[[int, Any, Any], None]:
        dialect = dialect_of(self)
        step = dialect.make_step(self, f"{name}_step")

        def loop_function(steps_per_execution: int, iterator: Any, outfeed: Any) -> None:
            for _ in tf.range(steps_per_execution):
                outputs = step(next(iterator))
                outputs = tf.nest.map_structure(
                    lambda value: self._reduce_metric(value, replication_factor), outputs
                )
                outfeed.enqueue(outputs)

        return tf.function(loop_function, jit_compile=True)  # type: ignore[no-any-return]

    def _reduce_metric(self, value: Any, replication_factor: int) -> Any:
        """Return a result of each replica as the replication options say."""
        method = self._replicated_metric_reduction_method
        if replication_factor <= 1 or method is ReplicatedMetricReductionMethod.NONE:
            return value
        from tensorflow_ipu.operators import all_to_all_op, cross_replica_ops

        if method is ReplicatedMetricReductionMethod.LIST:
            return all_to_all_op.all_gather(value, replication_factor)
        if method is ReplicatedMetricReductionMethod.SUM:
            return cross_replica_ops.cross_replica_sum(value, replication_factor)
        return cross_replica_ops.cross_replica_mean(value, replication_factor)
