"""Extension of sequential models."""

from __future__ import annotations

import copy
from typing import Any

from tensorflow.python.platform import tf_logging as logging

from tensorflow_ipu.keras_extensions.assignments import (
    SequentialLayerPipelineStageAssignment,
    SequentialNestedModelPipelineStageAssignment,
)
from tensorflow_ipu.keras_extensions.base import KerasExtensionBase
from tensorflow_ipu.keras_extensions.delegation import accept_any_signature, call_original
from tensorflow_ipu.keras_extensions.dialects import dialect_of
from tensorflow_ipu.keras_extensions.options import read_sizes, set_untracked
from tensorflow_ipu.keras_extensions.pipelines import make_plan


class SequentialExtension(KerasExtensionBase):
    """What sequential models have in the scope of an IPUStrategy."""

    layer_assignment = SequentialLayerPipelineStageAssignment
    nested_assignment = SequentialNestedModelPipelineStageAssignment
    _pipeline_stage_assignment_valid: bool

    def __init__(self) -> None:
        super().__init__()
        set_untracked(self, _pipeline_stage_assignment_valid=False)

    def _ipu_network(self) -> Any:
        network = dialect_of(self).sequential_network(self)
        if network is None:
            raise RuntimeError(
                f"The Sequential model {self.name} cannot be represented as a graph network, this "
                "could be because:\n * A layer in your model failed to evaluate.\n * The layer is "
                "dynamic and therefore not graph compatible."
            )
        return network

    def _build_with_dtypes(self, input_shape: Any, input_dtype: Any) -> None:
        if not isinstance(input_shape, tuple) or not all(
            size is None or isinstance(size, int) for size in input_shape
        ):
            raise RuntimeError(
                "Layers in a Sequential model should only have a single input, but we received a "
                f"{type(input_shape)}: {input_shape}. Consider rewriting this model with the "
                "Functional API."
            )
        dialect_of(self).build_sequential(self, input_shape, input_dtype)

    def _build_supported(self, *_: Any, **__: Any) -> bool:
        return True

    @accept_any_signature
    def _build_delegate(self, input_shape: Any = None) -> Any:
        return call_original(self, "build", read_sizes(input_shape))

    def get_pipeline_stage_assignment(self) -> list[Any]:
        """Return the stages of the model's layers.

        Returns:
            A copy of the list that was set; else a list of assignments without stages, one for each
            layer or nested model.
        """
        if not self._pipeline_stage_assignment:
            return [self._make_layer_assignment(layer) for layer in self.layers]
        if not self._pipeline_stage_assignment_valid:
            logging.info(
                "Calling `get_pipeline_stage_assignment()` on a model which has had layers "
                "added/removed since the last `set_pipeline_stage_assignment()` call which means "
                "that the current assignment is not valid."
            )
        return copy.copy(self._pipeline_stage_assignment)

    def _make_layer_assignment(self, layer: Any) -> Any:
        if isinstance(layer, KerasExtensionBase):
            return SequentialNestedModelPipelineStageAssignment(
                layer, layer.get_pipeline_stage_assignment()
            )
        return SequentialLayerPipelineStageAssignment(layer)

    def set_pipeline_stage_assignment(self, pipeline_stage_assignment: list[Any]) -> None:
        """Set the stages of all layers; they make a pipeline of the model.

        Args:
            pipeline_stage_assignment: For each layer its stage, as an integer or an assignment.
                Stages begin with 0; each is that of the layer before or the next one.

        Raises:
            ValueError: The assignments do not fit the model.
        """
        if not isinstance(pipeline_stage_assignment, list):
            raise ValueError("`pipeline_stage_assignment` needs to be a list.")
        if len(pipeline_stage_assignment) != len(self.layers):
            raise ValueError(
                "The length of the provided `pipeline_stage_assignment` "
                f"({len(pipeline_stage_assignment)}) does not match the number of layers in the "
                f"graph ({len(self.layers)}). Each layer needs to be assigned a pipeline stage "
                "(excluding input layers)."
            )
        pipeline_stage_assignment[:] = [
            SequentialLayerPipelineStageAssignment(layer, item) if isinstance(item, int) else item
            for layer, item in zip(self.layers, pipeline_stage_assignment, strict=True)
        ]
        if not all(
            isinstance(item, (self.layer_assignment, self.nested_assignment))
            for item in pipeline_stage_assignment
        ):
            raise ValueError(
                "All elements of `pipeline_stage_assignment` must be instances of "
                "`SequentialLayerPipelineStageAssignment` for layers or  "
                "`SequentialNestedModelPipelineStageAssignment` for nested models."
            )
        if any(isinstance(layer, KerasExtensionBase) for layer in self.layers):
            make_plan(self, pipeline_stage_assignment)
        else:
            self._check_increasing(pipeline_stage_assignment)
        self._set_assignment(pipeline_stage_assignment)
        set_untracked(self, _pipeline_stage_assignment_valid=True)

    def reset_pipeline_stage_assignment(self) -> None:
        """Remove all stages: the model is no longer a pipeline."""
        super().reset_pipeline_stage_assignment()
        set_untracked(self, _pipeline_stage_assignment_valid=False)

    def _check_increasing(self, assignments: list[Any]) -> None:
        previous = 0
        for number, (assignment, layer) in enumerate(zip(assignments, self.layers, strict=True)):
            name, stage = assignment.layer.name, assignment.pipeline_stage
            if stage is None:
                raise ValueError(f"Layer {name} has not been assigned a pipeline stage.")
            if assignment.layer is not layer:
                raise ValueError(
                    f"The provided assignment at index {number} `pipeline_stage_assignment` is for "
                    f"layer {name}, but the layer in the Sequential model at index {number} is "
                    f"{layer.name}."
                )
            if number == 0 and stage != 0:
                raise ValueError(
                    "The first layer in a pipelined sequential model needs to be assigned to the "
                    f"0th pipeline stage, however it was assigned to {stage}."
                )
            if stage not in (previous, previous + 1):
                raise ValueError(
                    f"Layer {name} has been assigned to pipeline stage {stage}, however the "
                    "previous layer in the Sequential model was assigned to pipeline stage "
                    f"{previous}. A layer in a Sequential model can only be assigned to the same "
                    "pipeline stage as the previous layer or to the next pipeline stage."
                )
            previous = stage

    def _text_without_stage(self, assignment: Any) -> str:
        return (
            f"Layer {assignment.layer.name} has not been assigned a pipeline stage in "
            "`pipeline_stage_assignment`."
        )

    @accept_any_signature
    def _get_config_delegate(self) -> dict[str, Any]:
        config = super()._get_config_delegate()
        config["pipeline_stage_assignment_valid"] = self._pipeline_stage_assignment_valid
        return config  # type: ignore[no-any-return]

    def _save_assignment(self, assignment: Any, layers: list[Any]) -> Any:
        return assignment.pipeline_stage

    def _load_assignment(self, saved: Any, number: int) -> Any:
        return SequentialLayerPipelineStageAssignment(self.layers[number], saved)

    def _deserialize_from_config_delegate(self, config: Any) -> None:
        super()._deserialize_from_config_delegate(config)
        valid = config.get("pipeline_stage_assignment_valid", False)
        set_untracked(self, _pipeline_stage_assignment_valid=valid)

    def _add_supported(self, *_: Any, **__: Any) -> bool:
        return True

    @accept_any_signature
    def _add_delegate(self, *args: Any, **kwargs: Any) -> Any:
        self._invalidate("Adding a layer to")
        return call_original(self, "add", *args, **kwargs)

    def _pop_supported(self, *_: Any, **__: Any) -> bool:
        return True

    @accept_any_signature
    def _pop_delegate(self, *args: Any, **kwargs: Any) -> Any:
        self._invalidate("Removing a layer from")
        return call_original(self, "pop", *args, **kwargs)

    def _invalidate(self, what: str) -> None:
        if self._is_pipelined():
            set_untracked(self, _pipeline_stage_assignment_valid=False)
            logging.info(
                f"{what} a pipelined Sequential model has invalidated the pipeline stage "
                "assignment. You need to call `set_pipeline_stage_assignment()` before executing "
                "again."
            )

    def _validate_call_function(self) -> None:
        model: Any = self
        overridden = type(model).call is not dialect_of(model).sequential_class.call
        if overridden and self._is_pipelined():
            raise RuntimeError(
                f"The function `call` for the model {self.name} has been overridden. This is not "
                "supported for pipelined Keras Sequential models."
            )
