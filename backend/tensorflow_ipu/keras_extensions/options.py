"""Options of extended models: the setters, their checks, and how they are saved."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Final

import tensorflow as tf
from tensorflow.python.platform import tf_logging as logging

from tensorflow_ipu.keras_extensions.delegation import KerasExtension
from tensorflow_ipu.keras_extensions.metric_reduction import ReplicatedMetricReductionMethod

_PIPELINE_ARGUMENTS: Final = {
    "gradient_accumulation_count": "gradient_accumulation_steps_per_replica",
    "device_mapping": "device_mapping",
    "accumulate_outfeed": "accumulate_outfeed",
}
"""Argument of a pipeline to the argument of set_pipelining_options that sets it."""
_AUTOMATIC_ARGUMENTS: Final = (
    "computational_stages",
    "repeat_count",
    "inputs",
    "infeed_queue",
    "outfeed_queue",
    "optimizer_function",
)
_INVALID_ARGUMENTS: Final = ("outfeed_loss", "outfeed_mask", "batch_serialization_iterations")
_SAVED_OPTIONS: Final[dict[str, tuple[str, Any]]] = {
    "gradient_accumulation_steps_per_replica": ("_gradient_accumulation_steps_per_replica", None),
    "pipelining_gradient_accumulation_steps_per_replica": (
        "_pipelining_gradient_accumulation_steps_per_replica",
        None,
    ),
    "pipelining_device_mapping": ("_pipelining_device_mapping", None),
    "pipelining_accumulate_outfeed": ("_pipelining_accumulate_outfeed", None),
    "asynchronous_callbacks": ("_asynchronous_callbacks", False),
    "infeed_kwargs": ("_infeed_kwargs", {}),
    "outfeed_kwargs": ("_outfeed_kwargs", {}),
}
"""Key in a saved configuration to the model's attribute and its default."""
_SAVED_ENUMS: Final = {
    "gradient_accumulation_reduction_method": "_gradient_accumulation_reduction_method",
    "replicated_metric_reduction_method": "_replicated_metric_reduction_method",
}
_OTHER_KEYS: Final = (
    "experimental_gradient_accumulation_normalize_gradients",
    "experimental_pipelining_normalize_gradients",
)


def set_untracked(instance: Any, **values: Any) -> None:
    """Set attributes without Keras' tracking, which would wrap lists and dictionaries."""
    for name, value in values.items():
        object.__setattr__(instance, name, value)


def read_sizes(shape: Any) -> Any:
    """Return a shape whose sizes may be tensors, with numbers."""
    if isinstance(shape, (list, tuple)) and any(map(tf.is_tensor, shape)):
        return tuple(int(size) if tf.is_tensor(size) else size for size in shape)
    return shape


class ExtensionOptions(KerasExtension):
    """Options of an extended model. Those about gradients are kept and saved, not used."""

    # What a model has, and what an extension sets in it.
    name: str
    built: bool
    layers: Any
    distribute_strategy: Any
    _asynchronous_callbacks: bool
    _compiled_steps: dict[str, int]
    _infeed_manager: Any
    _ipu_call_function: Any
    _outfeed_manager: Any
    _pipeline_maximum_stage: int | None
    _pipeline_stage_assignment: list[Any]
    _pipelining_device_mapping: list[int] | None
    _pipelining_kwargs: dict[str, Any]
    _replicated_metric_reduction_method: ReplicatedMetricReductionMethod
    _replication_factor: int | None
    _use_synthetic_data: bool

    def _set_default_options(self) -> None:
        set_untracked(
            self,
            **{attribute: copy.copy(value) for attribute, value in _SAVED_OPTIONS.values()},
            _pipelining_kwargs={},
            _pipeline_maximum_stage=None,
            _gradient_accumulation_optimizer_kwargs={},
            _gradient_accumulation_reduction_method=_parse_gradient_reduction("sum"),
            _use_v2_gradient_accumulation_optimizer=False,
            _replicated_metric_reduction_method=ReplicatedMetricReductionMethod.NONE,
        )

    def _reset_ipu_extension(self) -> None:
        raise NotImplementedError

    def set_asynchronous_callbacks(self, asynchronous: bool = False) -> None:
        """Set when callbacks of `evaluate` and `predict` are called.

        They are called after each execution, thus once in `steps_per_execution` steps. Asynchronous
        callbacks are called for each step, from a thread, as soon as its results are there.

        Args:
            asynchronous: Whether callbacks are asynchronous. It is ignored by `evaluate` of a
                pipelined model with `accumulate_outfeed=True`.
        """
        set_untracked(self, _asynchronous_callbacks=asynchronous)

    def set_replication_options(
        self, replicated_metric_reduction_method: str | ReplicatedMetricReductionMethod = "NONE"
    ) -> None:
        """Set what happens to results that each replica has.

        Args:
            replicated_metric_reduction_method: A member of ReplicatedMetricReductionMethod or its
                name.

        Raises:
            ValueError: There is no such method.
        """
        method = ReplicatedMetricReductionMethod.parse(replicated_metric_reduction_method)
        set_untracked(self, _replicated_metric_reduction_method=method)

    def set_gradient_accumulation_options(
        self,
        gradient_accumulation_steps_per_replica: int | None = None,
        gradient_accumulation_reduction_method: Any = "sum",
        use_v2_gradient_accumulation_optimizer: bool = False,
        **gradient_accumulation_optimizer_kwargs: Any,
    ) -> None:
        """Set how gradients are accumulated. The values are saved; training is not supported.

        Args:
            gradient_accumulation_steps_per_replica: Number of steps, at least 1.
            gradient_accumulation_reduction_method: A GradientAccumulationReductionMethod or its
                name.
            use_v2_gradient_accumulation_optimizer: Which optimizer accumulates.
            gradient_accumulation_optimizer_kwargs: Further arguments of that optimizer.

        Raises:
            ValueError: A value is invalid, or an argument is set automatically.
        """
        method = _parse_gradient_reduction(gradient_accumulation_reduction_method)
        set_untracked(self, _gradient_accumulation_reduction_method=method)
        if gradient_accumulation_steps_per_replica is not None:
            _check_steps(gradient_accumulation_steps_per_replica)
            set_untracked(
                self,
                _gradient_accumulation_steps_per_replica=gradient_accumulation_steps_per_replica,
            )
        _check_optimizer_arguments(gradient_accumulation_optimizer_kwargs)
        set_untracked(
            self,
            _gradient_accumulation_optimizer_kwargs=gradient_accumulation_optimizer_kwargs,
            _use_v2_gradient_accumulation_optimizer=use_v2_gradient_accumulation_optimizer,
        )
        self._reset_ipu_extension()

    def set_pipelining_options(
        self,
        gradient_accumulation_steps_per_replica: int | None = None,
        device_mapping: list[int] | None = None,
        accumulate_outfeed: bool | None = None,
        gradient_accumulation_reduction_method: Any = "sum",
        **pipelining_kwargs: Any,
    ) -> None:
        """Set the options of the pipeline of a model that has pipeline stages.

        Args:
            gradient_accumulation_steps_per_replica: For training only.
            device_mapping: The IPU of each stage. By default stage i is on IPU i.
            accumulate_outfeed: Whether `evaluate` sums its metrics on the IPU and returns them
                once, divided by the number of steps.
            gradient_accumulation_reduction_method: For training only.
            pipelining_kwargs: Further arguments of `pipelining_ops.pipeline`. They are not saved.

        Raises:
            ValueError: A value is invalid, or an argument is not one that can be set here.
        """
        method = _parse_gradient_reduction(gradient_accumulation_reduction_method)
        set_untracked(self, _gradient_accumulation_reduction_method=method)
        if gradient_accumulation_steps_per_replica is not None:
            _check_steps(gradient_accumulation_steps_per_replica)
            set_untracked(
                self,
                _pipelining_gradient_accumulation_steps_per_replica=(
                    gradient_accumulation_steps_per_replica
                ),
            )
        if device_mapping is not None:
            if not isinstance(device_mapping, list) or not all(
                isinstance(ipu, int) for ipu in device_mapping
            ):
                raise ValueError("Expected `device_mapping` to be a list of integers.")
            set_untracked(self, _pipelining_device_mapping=device_mapping)
        if accumulate_outfeed is not None:
            set_untracked(self, _pipelining_accumulate_outfeed=accumulate_outfeed)
        _check_pipeline_arguments(pipelining_kwargs)
        pipelining_kwargs.setdefault("gradient_accumulation_for_captured_grads", False)
        set_untracked(self, _pipelining_kwargs=pipelining_kwargs)
        self._reset_ipu_extension()

    def set_infeed_queue_options(self, **kwargs: Any) -> None:
        """Set the options of the IPUInfeedQueue of each execution.

        Args:
            kwargs: Arguments of IPUInfeedQueue, such as `prefetch_depth`.

        Raises:
            ValueError: Keras sets this argument.
        """
        _refuse(kwargs, ("dataset", "infeed_spec", "element_spec"), "kwargs", _AUTOMATIC)
        _refuse(kwargs, ("_internal_id",), "kwargs", _INCOMPATIBLE)
        set_untracked(self, _infeed_kwargs=kwargs)
        self._reset_ipu_extension()

    def set_outfeed_queue_options(self, **kwargs: Any) -> None:
        """Set the options of the IPUOutfeedQueue of each execution.

        Args:
            kwargs: Arguments of IPUOutfeedQueue, such as `buffer_depth`.

        Raises:
            ValueError: Keras sets this argument.
        """
        _refuse(kwargs, ("outfeed_mode", "device_ordinal"), "kwargs", _INCOMPATIBLE)
        set_untracked(self, _outfeed_kwargs=kwargs)
        self._reset_ipu_extension()

    def _get_base_config(self) -> dict[str, Any]:
        """Return the options that a saved model keeps."""
        config = {key: getattr(self, name) for key, (name, _) in _SAVED_OPTIONS.items()}
        config.update({key: getattr(self, name).value for key, name in _SAVED_ENUMS.items()})
        if self._pipelining_kwargs:
            logging.info(
                f"Calling get_config() on {self.name} - `pipelining_kwargs` cannot be serialized "
                "and you will need to call `set_pipelining_options` again if the model is restored."
            )
        return config

    @staticmethod
    def _strip_base_config(config: Mapping[str, Any]) -> dict[str, Any]:
        ours = {*_SAVED_OPTIONS, *_SAVED_ENUMS, *_OTHER_KEYS}
        return {key: value for key, value in config.items() if key not in ours}

    def _from_base_config(self, config: Mapping[str, Any]) -> None:
        """Set the options that a saved configuration has."""
        for key, (name, default) in _SAVED_OPTIONS.items():
            value = config.get(key, copy.copy(default))
            set_untracked(self, **{name: _as_plain(value)})
        for key, name in _SAVED_ENUMS.items():
            method = getattr(self, name)
            set_untracked(self, **{name: type(method)(config.get(key, method.value))})


_AUTOMATIC: Final = "This argument is automatically set by Keras."
_INCOMPATIBLE: Final = "This argument is not compatible with Keras."


def _as_plain(value: Any) -> Any:
    """Return a list or dictionary of a loaded file as Python's own."""
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, (list, tuple)) else value


def _parse_gradient_reduction(value: Any) -> Any:
    from tensorflow_ipu.training.gradient_accumulation import GradientAccumulationReductionMethod

    return GradientAccumulationReductionMethod.parse(value)


def _check_steps(steps: Any) -> None:
    if not isinstance(steps, int) or steps < 1:
        raise ValueError(
            "Expected `gradient_accumulation_steps_per_replica` to be a positive integer, but got "
            f"{steps} instead."
        )


def _refuse(arguments: Mapping[str, Any], keys: tuple[str, ...], where: str, text: str) -> None:
    for key in keys:
        if key in arguments:
            raise ValueError(f"Found `{key}` key in `{where}`. {text}")


def _check_optimizer_arguments(arguments: Mapping[str, Any]) -> None:
    where = "gradient_accumulation_optimizer_kwargs"
    _refuse(
        arguments,
        ("opt",),
        where,
        "This is not supported as the optimizer which the model has been compiled with is "
        "automatically wrapped.",
    )
    _refuse(
        arguments,
        ("num_mini_batches",),
        where,
        "Set the `gradient_accumulation_steps_per_replica` argument to "
        "`set_gradient_accumulation_options` instead.",
    )
    _refuse_normalization(arguments, "set_gradient_accumulation_options")


def _check_pipeline_arguments(arguments: Mapping[str, Any]) -> None:
    where = "pipelining_kwargs"
    for key, alternative in _PIPELINE_ARGUMENTS.items():
        text = f"Set the `{alternative}` argument to `set_pipelining_options` instead."
        _refuse(arguments, (key,), where, text)
    _refuse(arguments, _AUTOMATIC_ARGUMENTS, where, _AUTOMATIC)
    _refuse(arguments, _INVALID_ARGUMENTS, where, _INCOMPATIBLE)
    _refuse_normalization(arguments, "set_pipelining_options")


def _refuse_normalization(arguments: Mapping[str, Any], setter: str) -> None:
    if "experimental_normalize_gradients" in arguments:
        raise ValueError(
            f"Found `experimental_normalize_gradients` argument to `{setter}`. This argument has "
            "now been removed, use `gradient_accumulation_reduction_method` instead."
        )
