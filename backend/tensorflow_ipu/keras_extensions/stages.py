"""The scope `PipelineStage`, and the record of it in layers and nodes."""

from __future__ import annotations

from typing import Any, Final

import tensorflow as tf

STAGE: Final = "_pipeline_stage"
"""Attribute of a strategy in a stage's scope, and of layers and nodes that were made in one."""


class PipelineStage:
    """Scope whose layers, and whose calls of layers, belong to a pipeline stage.

    A layer that is made in the scope belongs to the stage with all of its calls; a call in the
    scope belongs to it too, and goes first.

    Args:
        stage: Number of the stage, 0 for the first.

    Example:
        >>> with strategy.scope():
        ...     inputs = keras.Input(2)
        ...     with keras.ipu.PipelineStage(0):
        ...         hidden = keras.layers.Dense(4)(inputs)
        ...     with keras.ipu.PipelineStage(1):
        ...         outputs = keras.layers.Dense(4)(hidden)
    """

    def __init__(self, stage: int) -> None:
        self._stage = stage

    def __enter__(self) -> PipelineStage:
        if self._stage < 0:
            raise ValueError(f"{self._stage} is not a valid pipeline stage.")
        strategy = tf.distribute.get_strategy()
        if not is_ipu_strategy(strategy):
            raise RuntimeError("PipelineStage may only be used from within an IPUStrategy context.")
        if hasattr(strategy, STAGE):
            raise RuntimeError("Pipeline stages must not be nested.")
        setattr(strategy, STAGE, self._stage)
        return self

    def __exit__(self, *_: object) -> None:
        delattr(tf.distribute.get_strategy(), STAGE)


def is_ipu_strategy(strategy: Any) -> bool:
    """Return whether a strategy is one for the IPU."""
    return hasattr(strategy, "_patch_keras_extension")


def record_stage(instance: Any) -> None:
    """Store the stage of the current scope, if there is one, in a layer or a node."""
    stage = getattr(tf.distribute.get_strategy(), STAGE, None)
    if stage is not None:
        object.__setattr__(instance, STAGE, stage)


def recorded_stage(node: Any, operation: Any) -> int | None:
    """Return the stage of a call: that of the node, else that of its layer, else None."""
    stage: int | None = getattr(node, STAGE, getattr(operation, STAGE, None))
    return stage
