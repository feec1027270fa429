"""Extension of functional models."""

from __future__ import annotations

from typing import Any

from tensorflow_ipu.keras_extensions.assignments import (
    FunctionalLayerPipelineStageAssignment,
    FunctionalNestedModelPipelineStageAssignment,
)
from tensorflow_ipu.keras_extensions.base import KerasExtensionBase
from tensorflow_ipu.keras_extensions.dialects import dialect_of
from tensorflow_ipu.keras_extensions.options import set_untracked


class FunctionalExtension(KerasExtensionBase):
    """What functional models have in the scope of an IPUStrategy."""

    layer_assignment = FunctionalLayerPipelineStageAssignment
    nested_assignment = FunctionalNestedModelPipelineStageAssignment

    def _ipu_network(self) -> Any:
        return self

    def _build_with_dtypes(self, input_shape: Any, input_dtype: Any) -> None:
        model: Any = self
        if not model.built:
            model.build(input_shape)

    def _get_pipelining_from_nodes_supported(self) -> bool:
        return True

    def _get_pipelining_from_nodes_delegate(self) -> None:
        """Take the stages from scopes `PipelineStage` in which layers were called."""
        assignment = self._read_recorded_stages()
        if assignment:
            self._check_recorded(assignment)
            set_untracked(self, _pipeline_stage_assignment=assignment)

    def _check_recorded(self, assignment: list[Any]) -> None:
        from tensorflow_ipu.keras_extensions.pipelines import make_plan

        make_plan(self, assignment)

    def _validate_call_function(self) -> None:
        model: Any = self
        overridden = type(model).call is not dialect_of(model).functional_class.call
        if overridden and self._is_pipelined():
            raise RuntimeError(
                f"The function `call` for the model {self.name} has been overridden. This is not "
                "supported for pipelined Keras Functional models."
            )
