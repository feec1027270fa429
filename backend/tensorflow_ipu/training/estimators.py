"""Estimators, which are not supported: TensorFlow has none since 2.16.

The specifications are records, because `ipu_compiler.compile` has an error of its own about them.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from tensorflow_ipu.training.refusals import make_refusing_class

_ADVICE: Final = (
    "TensorFlow has no estimators since 2.16; call the model within ipu_compiler.compile or "
    "IPUStrategy.run"
)


class IPUEstimatorSpec(NamedTuple):
    """What an estimator's model function returns."""

    mode: str
    predictions: Any = None
    loss: Any = None
    train_op: Any = None
    eval_metric_ops: Any = None
    eval_metrics: Any = None
    host_call: Any = None
    training_hooks: Any = None
    evaluation_hooks: Any = None
    prediction_hooks: Any = None


class IPUPipelineEstimatorSpec(NamedTuple):
    """What the model function of an estimator of pipelines returns."""

    mode: str
    computational_stages: Any
    gradient_accumulation_count: Any = None
    eval_metrics_fn: Any = None
    optimizer_function: Any = None
    device_mapping: Any = None
    loss_accumulator_dtype: Any = None
    training_hooks: Any = None
    evaluation_hooks: Any = None
    prediction_hooks: Any = None
    reduction_method: Any = None
    pipeline_op_kwargs: Any = None


IPUEstimator = make_refusing_class("IPUEstimator", _ADVICE)
IPUPipelineEstimator = make_refusing_class("IPUPipelineEstimator", _ADVICE)
IPURunConfig = make_refusing_class("IPURunConfig", _ADVICE)
RunConfig = make_refusing_class("RunConfig", _ADVICE)
