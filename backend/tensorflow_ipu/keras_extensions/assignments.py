"""Pipeline stage assignments: which stage executes which call of a layer of a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorflow_ipu.keras_extensions.nodes import node_operation


class ModelLayerPipelineStageAssignment:
    """Stage of one call of a layer, in a subclassed model.

    A layer that is called several times, to share its weights, has one assignment for each call.

    Args:
        layer: The layer.
        node_index: Which of the layer's calls: 0 is the first.
        pipeline_stage: The stage, or None if it is not assigned yet.
    """

    is_nested_model = False

    def __init__(self, layer: Any, node_index: int, pipeline_stage: int | None = None) -> None:
        self._layer = layer
        self._node_index = node_index
        self.pipeline_stage = pipeline_stage

    @property
    def layer(self) -> Any:
        """The layer."""
        return self._layer

    @property
    def node_index(self) -> int:
        """Which of the layer's calls this is."""
        return self._node_index

    @property
    def inbound_layers(self) -> list[Any]:
        """The layers whose outputs this call takes. They tell the calls of a layer apart."""
        return _find_inbound_layers(self._layer, self._node_index)

    def __str__(self) -> str:
        return (
            f"Layer: {self.layer.name} (node index {self.node_index}) is assigned to pipeline "
            f"stage: {self.pipeline_stage}"
        )


class FunctionalLayerPipelineStageAssignment(ModelLayerPipelineStageAssignment):
    """Stage of one call of a layer, in a functional model."""


class SequentialLayerPipelineStageAssignment:
    """Stage of a layer of a sequential model.

    Args:
        layer: The layer.
        pipeline_stage: The stage, or None if it is not assigned yet.
    """

    is_nested_model = False

    def __init__(self, layer: Any, pipeline_stage: int | None = None) -> None:
        self._layer = layer
        self.pipeline_stage = pipeline_stage

    @property
    def layer(self) -> Any:
        """The layer."""
        return self._layer

    def __str__(self) -> str:
        return f"Layer: {self.layer.name} is assigned to pipeline stage: {self.pipeline_stage}"


class SequentialNestedModelPipelineStageAssignment:
    """Stages of the layers of a model inside a sequential model.

    The nested model's own assignments are the defaults; these are separate from them.

    Args:
        nested_model: The nested model.
        pipeline_stage_assignments: An assignment for each call of a layer of it.
    """

    is_nested_model = True

    def __init__(self, nested_model: Any, pipeline_stage_assignments: Sequence[Any]) -> None:
        self._nested_model = nested_model
        self._pipeline_stage_assignments = pipeline_stage_assignments

    @property
    def nested_model(self) -> Any:
        """The nested model."""
        return self._nested_model

    @property
    def pipeline_stage_assignments(self) -> list[Any]:
        """The assignments of its layers, in a new list."""
        return list(self._pipeline_stage_assignments)

    def __str__(self) -> str:
        lines = "".join(f"\n  {assignment}" for assignment in self.pipeline_stage_assignments)
        return (
            f"Model: {self.nested_model.name} has the following pipeline stage assignments:{lines}"
        )


class NestedModelPipelineStageAssignment(SequentialNestedModelPipelineStageAssignment):
    """Stages of the layers of a model inside a subclassed model.

    Args:
        nested_model: The nested model.
        node_index: Which of the nested model's calls: 0 is the first.
        pipeline_stage_assignments: An assignment for each call of a layer of it.
    """

    def __init__(
        self, nested_model: Any, node_index: int, pipeline_stage_assignments: Sequence[Any]
    ) -> None:
        super().__init__(nested_model, pipeline_stage_assignments)
        self._node_index = node_index

    @property
    def node_index(self) -> int:
        """Which of the nested model's calls this is."""
        return self._node_index

    @property
    def inbound_layers(self) -> list[Any]:
        """The layers whose outputs this call takes. They tell the calls of a model apart."""
        return _find_inbound_layers(self._nested_model, self._node_index)

    def __str__(self) -> str:
        lines = "".join(f"\n  {assignment}" for assignment in self.pipeline_stage_assignments)
        return (
            f"Model: {self.nested_model.name} (node index {self.node_index}) has the following "
            f"pipeline stage assignments:{lines}"
        )


class FunctionalNestedModelPipelineStageAssignment(NestedModelPipelineStageAssignment):
    """Stages of the layers of a model inside a functional model."""


def _find_inbound_layers(layer: Any, node_index: int) -> list[Any]:
    return [node_operation(node) for node in layer._inbound_nodes[node_index].parent_nodes]
