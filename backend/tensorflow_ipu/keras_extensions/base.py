"""What the extensions of functional, sequential and subclassed models have in common."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Final

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

from tensorflow_ipu.keras_extensions.delegation import accept_any_signature, call_original
from tensorflow_ipu.keras_extensions.dialects import dialect_of
from tensorflow_ipu.keras_extensions.execution import Execution
from tensorflow_ipu.keras_extensions.nodes import node_index, node_operation
from tensorflow_ipu.keras_extensions.options import set_untracked
from tensorflow_ipu.keras_extensions.pipelines import Plan, make_plan
from tensorflow_ipu.keras_extensions.stages import recorded_stage
from tensorflow_ipu.keras_extensions.summary import print_summary

_FUNCTIONS: Final = ("train", "test", "predict", "call")


class KerasExtensionBase(Execution):
    """Base class of the extensions of models."""

    layer_assignment: ClassVar[Callable[..., Any]]
    """Class of the assignments of layers."""
    nested_assignment: ClassVar[Callable[..., Any]]
    """Class of the assignments of nested models."""

    def __init__(self) -> None:
        self._set_default_options()
        set_untracked(
            self,
            _ipu_extension_ready=True,
            _pipeline_stage_assignment=[],
            _use_synthetic_data=_outfeeds_are_synthetic(),
        )
        self._reset_ipu_extension()

    def _is_pipelined(self) -> bool:
        return bool(self._pipeline_stage_assignment)

    def _ipu_network(self) -> Any:
        """Return the functional network of the model's graph."""
        raise NotImplementedError

    def _make_pipeline_plan(self) -> Plan:
        return make_plan(self, self._pipeline_stage_assignment)

    def set_pipeline_stage_assignment(self, pipeline_stage_assignment: list[Any]) -> None:
        """Set the stages of all calls of the model's layers; they make a pipeline of it.

        Args:
            pipeline_stage_assignment: An assignment for each call, as
                `get_pipeline_stage_assignment` returns them.

        Raises:
            ValueError: The assignments do not fit the model, or cannot be executed in order.
        """
        make_plan(self, pipeline_stage_assignment)
        self._set_assignment(pipeline_stage_assignment)

    def reset_pipeline_stage_assignment(self) -> None:
        """Remove all stages: the model is no longer a pipeline."""
        self._set_assignment([])

    def _set_assignment(self, assignment: list[Any]) -> None:
        set_untracked(self, _pipeline_stage_assignment=assignment, _pipeline_maximum_stage=None)
        self._reset_ipu_extension()

    def get_pipeline_stage_assignment(self) -> list[Any]:
        """Return the stages of the calls of the model's layers.

        Returns:
            A copy of the list that was set; else a list of assignments without stages, one for each
            call of a layer, in the order in which they are executed.
        """
        if self._pipeline_stage_assignment:
            return copy.copy(self._pipeline_stage_assignment)
        return [self._make_assignment(node) for node in self._ipu_calls()]

    def _ipu_calls(self) -> list[Any]:
        from tensorflow_ipu.keras_extensions.nodes import list_calls

        return list_calls(self._ipu_network())

    def _make_assignment(self, node: Any, stage: int | None = None) -> Any:
        operation = node_operation(node)
        if isinstance(operation, KerasExtensionBase):
            nested = operation.get_pipeline_stage_assignment()
            return type(self).nested_assignment(operation, node_index(node), nested)
        return type(self).layer_assignment(operation, node_index(node), stage)

    def _read_recorded_stages(self) -> list[Any]:
        """Return the assignments that scopes `PipelineStage` have made, or an empty list.

        Raises:
            ValueError: Some calls have a stage, and some do not.
        """
        nodes = self._ipu_calls()
        stages = [recorded_stage(node, node_operation(node)) for node in nodes]
        if all(stage is None for stage in stages):
            return []
        for node, stage in zip(nodes, stages, strict=True):
            operation = node_operation(node)
            if stage is None and not isinstance(operation, KerasExtensionBase):
                raise ValueError(
                    "All layers of a pipelined model must have an associated pipeline stage. "
                    f"However, {operation.name} has not been assigned to one. Pipeline stages can "
                    "be assigned when a layer is constructed, or each time a layer is called. "
                    "Different pipeline stages can assigned to each call."
                )
        return [
            self._make_assignment(node, stage) for node, stage in zip(nodes, stages, strict=True)
        ]

    def _check_assignment(self, assignment: Any, node: Any) -> None:
        """Raise an error if an assignment is not the one of a call.

        Raises:
            ValueError: It is of another class, or for another layer, or has no stage.
        """
        operation = node_operation(node)
        is_nested = isinstance(operation, KerasExtensionBase)
        expected: Any = type(self).nested_assignment if is_nested else type(self).layer_assignment
        if not isinstance(assignment, expected):
            kind = "nested model" if is_nested else "layer"
            raise ValueError(
                f"The pipeline stage assignment for {kind} {operation.name} in {self.name} must be "
                f"an instance of `{expected.__name__}`. Instead the assignment was of type "
                f"{type(assignment).__name__}."
            )
        assigned = assignment.nested_model if is_nested else assignment.layer
        if assigned is not operation:
            raise ValueError(
                "The order of `pipeline_stage_assignment` does not match the post-order generated "
                f"from the graph ({assigned.name} != {operation.name})."
            )
        if not is_nested and assignment.pipeline_stage is None:
            raise ValueError(self._text_without_stage(assignment))

    def _text_without_stage(self, assignment: Any) -> str:
        return (
            f"Layer {assignment.layer.name} with node_index {assignment.node_index} has not been "
            "assigned a pipeline stage in `pipeline_stage_assignment`."
        )

    def print_pipeline_stage_assignment_summary(
        self, line_length: int | None = None, print_fn: Callable[[str], None] | None = None
    ) -> None:
        """Print the stages of the calls of the model's layers.

        Args:
            line_length: Length of lines, in characters.
            print_fn: Called with each line; `print` by default.
        """
        print_summary(self, line_length, print_fn)

    def export_for_ipu_serving(self, export_dir: str, *args: Any, **kwargs: Any) -> Any:
        """Export the model as a SavedModel for TensorFlow Serving.

        Args:
            export_dir: Folder to write to.
            args: batch_size, output_names, preprocessing_step, preprocessing_step_signature,
                postprocessing_step, postprocessing_step_signature, purge_export_dir.
            kwargs: The same.

        Returns:
            The function that was exported.
        """
        from tensorflow_ipu.keras_extensions.serving_export import export_model

        return export_model(self, export_dir, *args, **kwargs)

    def _get_config_supported(self, *_: Any, **__: Any) -> bool:
        return True

    @accept_any_signature
    def _get_config_delegate(self) -> dict[str, Any]:
        config = {**call_original(self, "get_config"), **self._get_base_config()}
        layers = list(self.layers)
        config["pipeline_stage_assignment"] = [
            self._save_assignment(assignment, layers)
            for assignment in self._pipeline_stage_assignment
            if not assignment.is_nested_model
        ]
        return config

    def _save_assignment(self, assignment: Any, layers: list[Any]) -> Any:
        place = next(i for i, layer in enumerate(layers) if layer is assignment.layer)
        return place, assignment.node_index, assignment.pipeline_stage

    def _load_assignment(self, saved: Any, number: int) -> Any:
        place, index, stage = saved
        return type(self).layer_assignment(
            self.layers[place],
            index,
            stage,
        )

    def _deserialize_from_config_supported(self, config: Any) -> bool:
        del config
        return True

    def _deserialize_from_config_delegate(self, config: Any) -> None:
        self._from_base_config(config)
        saved = config.get("pipeline_stage_assignment", [])
        assignment = [self._load_assignment(item, number) for number, item in enumerate(saved)]
        set_untracked(self, _pipeline_stage_assignment=assignment)

    def _assert_weights_created_supported(self) -> bool:
        return True

    @accept_any_signature
    def _assert_weights_created_delegate(self) -> None:
        if not self.built:
            raise ValueError(
                f"Weights for model {self.name} have not yet been created. Weights are created "
                "when the Model is first called on inputs or `build()` is called with an "
                "`input_shape`."
            )

    def _reset_compile_cache_supported(self) -> bool:
        return True

    @accept_any_signature
    def _reset_compile_cache_delegate(self) -> Any:
        self._reset_ipu_extension()
        return call_original(self, "_reset_compile_cache")

    def _compile_supported(self, *_: Any, **__: Any) -> bool:
        return True

    @accept_any_signature
    def _compile_delegate(self, *args: Any, **kwargs: Any) -> Any:
        self._reset_ipu_extension()
        return call_original(self, "compile", *args, **kwargs)

    def _trackable_children_supported(self, *_: Any, **__: Any) -> bool:
        return True

    @accept_any_signature
    def _trackable_children_delegate(self, *args: Any, **kwargs: Any) -> Any:
        with self._hidden_functions():
            return call_original(self, "_trackable_children", *args, **kwargs)

    @contextmanager
    def _hidden_functions(self) -> Iterator[None]:
        """Hide the computations, which a SavedModel does not have."""
        names = [f"_ipu_{name}_function" for name in _FUNCTIONS]
        functions = {name: getattr(self, name) for name in names}
        set_untracked(self, **dict.fromkeys(names))
        try:
            yield
        finally:
            set_untracked(self, **functions)

    def _call_on_ipu(self, args: Any, kwargs: Any) -> Any:
        """Run a call of the model with tensors, in eager mode, as one computation."""
        args, kwargs = tf.nest.map_structure(_as_argument, (args, kwargs))
        if args and not self.built and all(map(tf.is_tensor, tf.nest.flatten(args[0]))):
            # A function that makes variables while it is traced has a program that begins them.
            shapes = tf.nest.map_structure(lambda tensor: tuple(tensor.shape), args[0])
            types = tf.nest.map_structure(lambda tensor: tensor.dtype, args[0])
            self._build_with_dtypes(shapes, types)
        if self._ipu_call_function is None:
            function = tf.function(
                lambda *a, **k: call_original(self, "__call__", *a, **k),
                jit_compile=True,
                autograph=False,
            )
            set_untracked(self, _ipu_call_function=function)
        return self.distribute_strategy.run(self._ipu_call_function, args, kwargs)


def _as_argument(value: Any) -> Any:
    """Return an array as a tensor, in 32 bits instead of 64, as Keras casts it."""
    if isinstance(value, np.ndarray):
        with tf.device("/device:CPU:0"):
            value = tf.convert_to_tensor(value)
    if tf.is_tensor(value) and value.dtype == tf.float64:
        with tf.device("/device:CPU:0"):
            return tf.cast(value, tf.float32)
    return value


def _outfeeds_are_synthetic() -> bool:
    from tensorflow_ipu.config import utils

    with context.eager_mode():
        return bool(utils.use_synthetic_data_for(utils.SyntheticDataCategory.Outfeed))


__all__ = ["KerasExtensionBase", "dialect_of"]
