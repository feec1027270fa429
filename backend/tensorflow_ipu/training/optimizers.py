"""Optimizers: they can be made, and keep their options. What trains raises an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import tensorflow as tf

from tensorflow_ipu.training.gradient_accumulation import GradientAccumulationReductionMethod
from tensorflow_ipu.training.refusals import refuse_training

__all__ = [
    "CrossReplicaGradientAccumulationOptimizer",
    "CrossReplicaGradientAccumulationOptimizerV2",
    "CrossReplicaOptimizer",
    "GradientAccumulationOptimizer",
    "GradientAccumulationOptimizerV2",
    "GradientAccumulationReductionMethod",
    "IpuOptimizer",
    "MapGradientOptimizer",
    "ShardedOptimizer",
]


class IpuOptimizer(tf.compat.v1.train.Optimizer):  # type: ignore[misc]
    """An optimizer that wraps another one.

    Args:
        opt: The other one.
        name: Its name; that of its class if None.

    Raises:
        ValueError: If `opt` is no optimizer.
    """

    def __init__(self, opt: Any, name: str | None = None) -> None:
        name = name or type(self).__name__
        if not isinstance(opt, tf.compat.v1.train.Optimizer):
            raise ValueError(f"{name}: opt: expected an optimizer, found {type(opt).__name__}")
        super().__init__(False, name)
        self._opt = opt

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        """Return a slot of the other optimizer."""
        return self._opt.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> Any:
        """Return the names of the other optimizer's slots."""
        return self._opt.get_slot_names(*args, **kwargs)

    def variables(self) -> Any:
        """Return the other optimizer's variables."""
        return self._opt.variables()

    def minimize(self, *_: Any, **__: Any) -> NoReturn:
        """Raise TrainingError."""
        refuse_training(f"{type(self).__name__}.minimize")

    def compute_gradients(self, *_: Any, **__: Any) -> NoReturn:
        """Raise TrainingError."""
        refuse_training(f"{type(self).__name__}.compute_gradients")

    def apply_gradients(self, *_: Any, **__: Any) -> NoReturn:
        """Raise TrainingError."""
        refuse_training(f"{type(self).__name__}.apply_gradients")


class CrossReplicaOptimizer(IpuOptimizer):
    """An optimizer that averages gradients across replicas."""

    def __init__(self, opt: Any, name: str = "CrossReplicaOptimizer") -> None:
        super().__init__(opt, name)


class ShardedOptimizer(IpuOptimizer):
    """An optimizer of variables on several IPUs."""

    def __init__(self, optimizer: Any) -> None:
        super().__init__(optimizer, "ShardedOptimizer")


class MapGradientOptimizer(IpuOptimizer):
    """An optimizer that maps gradients."""

    def __init__(
        self,
        wrapped_optimizer: Any,
        gradient_mapping_function: Callable[[Any, Any], Any],
        name: str = "MapGradientOptimizer",
    ) -> None:
        super().__init__(wrapped_optimizer, name)
        self._gradient_mapping_function = gradient_mapping_function


class _MapGradientOptimizerInvertedChaining(MapGradientOptimizer):
    """An optimizer that maps gradients, in the other order of nested optimizers."""


class GradientAccumulationOptimizerV2(IpuOptimizer):
    """An optimizer that accumulates the gradients of several batches.

    Args:
        opt: The other optimizer.
        num_mini_batches: Number of batches, at least 1.
        offload_weight_update_variables: Whether its variables are kept in remote memory.
        replicated_optimizer_state_sharding: Whether replicas share them.
        dtype: Type of the accumulators: that of the variable if None.
        reduction_method: How gradients are reduced.
        name: Its name.

    Raises:
        ValueError: For a number below 1, or an unknown method.
    """

    def __init__(
        self,
        opt: Any,
        num_mini_batches: int,
        offload_weight_update_variables: bool | None = None,
        replicated_optimizer_state_sharding: bool = False,
        dtype: Any = None,
        reduction_method: Any = GradientAccumulationReductionMethod.SUM,
        name: str | None = None,
    ) -> None:
        super().__init__(opt, name)
        if num_mini_batches < 1:
            raise ValueError("num_mini_batches must be a positive number.")
        self._num_mini_batches = num_mini_batches
        self._offload_weight_update_variables = offload_weight_update_variables
        self._replicated_optimizer_state_sharding = replicated_optimizer_state_sharding
        self._dtype = dtype
        self._reduction_method = GradientAccumulationReductionMethod.parse(reduction_method)


class CrossReplicaGradientAccumulationOptimizerV2(GradientAccumulationOptimizerV2):
    """An optimizer that accumulates gradients, and then averages them across replicas."""


class GradientAccumulationOptimizer(IpuOptimizer):
    """An older optimizer that accumulates gradients.

    Args:
        opt: The other optimizer: gradient descent or momentum.
        num_mini_batches: Number of batches, at least 1.
        verify_usage: Whether its use is checked.
        name: Its name.

    Raises:
        ValueError: For another optimizer, or a number below 1.
    """

    def __init__(
        self, opt: Any, num_mini_batches: int, verify_usage: bool = True, name: str | None = None
    ) -> None:
        train = tf.compat.v1.train
        if not isinstance(opt, (train.GradientDescentOptimizer, train.MomentumOptimizer)):
            raise ValueError(
                "Only tf.train.GradientDescentOptimizer and tf.train.MomentumOptimizer are "
                f"supported, found {type(opt).__name__}"
            )
        super().__init__(opt, name)
        if num_mini_batches < 1:
            raise ValueError("num_mini_batches must be a positive number.")
        self._num_mini_batches, self._verify_usage = num_mini_batches, verify_usage


class CrossReplicaGradientAccumulationOptimizer(GradientAccumulationOptimizer):
    """An older optimizer that accumulates gradients, and then averages them across replicas."""
