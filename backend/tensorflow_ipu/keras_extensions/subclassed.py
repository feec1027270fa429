"""Extension of subclassed models, whose graph is found by a trace of `call`."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.util import nest

from tensorflow_ipu.keras_extensions.assignments import (
    ModelLayerPipelineStageAssignment,
    NestedModelPipelineStageAssignment,
)
from tensorflow_ipu.keras_extensions.base import KerasExtensionBase
from tensorflow_ipu.keras_extensions.delegation import accept_any_signature
from tensorflow_ipu.keras_extensions.dialects import dialect_of
from tensorflow_ipu.keras_extensions.nodes import node_index, node_operation
from tensorflow_ipu.keras_extensions.options import read_sizes, set_untracked
from tensorflow_ipu.keras_extensions.pipelines import Plan, make_plan

_NAMES_OF_NETWORK = frozenset({"name", "layers", "input_layers", "output_layers", "trainable"})
_MARKS = frozenset(
    {"graph_network_initialized", "get_config_has_been_called", "pipeline_stage_assignment"}
)


class ModelExtension(KerasExtensionBase):
    """What subclassed models have in the scope of an IPUStrategy."""

    layer_assignment = ModelLayerPipelineStageAssignment
    nested_assignment = NestedModelPipelineStageAssignment
    __original_class__: type
    _graph_network: Any
    _graph_network_initialized: bool
    _saved_assignment: list[Any]

    def __init__(self) -> None:
        super().__init__()
        set_untracked(
            self, _graph_network_initialized=False, _graph_network=None, _saved_assignment=[]
        )

    def _is_pipelined(self) -> bool:
        assert self.built, (
            "`Model` subclasses cannot determine if they have pipeline stage assignments until "
            "they have been built."
        )
        return super()._is_pipelined()

    def _ipu_network(self) -> Any:
        return self._graph_network

    def _build_supported(self, *_: Any, **__: Any) -> bool:
        return True

    @accept_any_signature
    def _build_delegate(self, input_shape: Any) -> None:
        """Build the model for shapes, or for `keras.Input`s, and find its graph."""
        dialect = dialect_of(self)
        self._validate_call_function()
        _map_shapes(input_shape, self._check_shape)
        input_shape = _map_shapes(input_shape, read_sizes)
        shapes = _map_shapes(input_shape, lambda x: tuple(x.shape) if dialect.is_symbolic(x) else x)
        dialect.layer_class.build(self, shapes)
        if dialect.is_calling():
            return
        inputs = _map_shapes(
            input_shape,
            lambda x: x if dialect.is_symbolic(x) else dialect.input_function(batch_shape=x),
        )
        self._trace(inputs)

    def _check_shape(self, shape: Any) -> None:
        if not isinstance(shape, (tuple, list, tf.TensorShape, dict)) and not dialect_of(
            self
        ).is_symbolic(shape):
            raise ValueError(
                "Specified input shape is not one of the valid types. Please specify a batch input "
                "shape of type tuple, a list of input shapes, or a `keras.Input`. User provided "
                f"input type: {type(shape)}"
            )

    def _build_with_dtypes(self, input_shape: Any, input_dtype: Any) -> None:
        if self._graph_network_initialized:
            return
        self._validate_call_function()
        make_input = dialect_of(self).input_function
        flat_shapes = nest.flatten_up_to(input_dtype, input_shape)
        inputs = tf.nest.pack_sequence_as(
            input_dtype,
            [
                make_input(batch_shape=shape, dtype=dtype.name)
                for shape, dtype in zip(flat_shapes, tf.nest.flatten(input_dtype), strict=True)
            ],
        )
        self._trace(inputs)

    def _trace(self, inputs: Any) -> None:
        """Find the graph, with the stages that scopes in `call` give its calls."""
        dialect = dialect_of(self)
        for layer in self.layers:
            # Earlier traces would count as further calls of the layers.
            layer._inbound_nodes.clear()
            layer._outbound_nodes.clear()
        network = dialect.trace_network(self, inputs)
        if network is None:
            return
        self._set_network(network)
        self._restore_assignment(self._saved_assignment)
        set_untracked(self, _saved_assignment=[])
        if not self._pipeline_stage_assignment:
            assignment = self._read_recorded_stages()
            if assignment:
                self.set_pipeline_stage_assignment(assignment)

    def _set_network(self, network: Any) -> None:
        set_untracked(self, _graph_network=network, _graph_network_initialized=True)
        dialect_of(self).adopt_network(self, network)

    def get_pipeline_stage_assignment(self) -> list[Any]:
        """Return the stages of the calls of the model's layers, as for functional models.

        Raises:
            RuntimeError: The model is not built.
        """
        if not self._graph_network_initialized:
            raise RuntimeError(
                f"Cannot get pipeline stage assignments for model `{self.name}` which has not been "
                "built yet. Please call `model.build()` first."
            )
        return super().get_pipeline_stage_assignment()

    def set_pipeline_stage_assignment(self, pipeline_stage_assignment: list[Any]) -> None:
        """Set the stages of all calls of the model's layers, as for functional models.

        Raises:
            RuntimeError: The model is not built.
            ValueError: The assignments do not fit the model, or cannot be executed in order.
        """
        if not self._graph_network_initialized:
            raise RuntimeError(
                f"Cannot set pipeline stage assignments for model `{self.name}` which has not been "
                "built yet. Please call `model.build()` first, or assign pipeline stages in your "
                "graph definition using PipelineStage scopes."
            )
        super().set_pipeline_stage_assignment(pipeline_stage_assignment)

    def _check_assignment(self, assignment: Any, node: Any) -> None:
        super()._check_assignment(assignment, node)
        if assignment.is_nested_model:
            return
        num_calls = len(node_operation(node)._inbound_nodes)
        if num_calls <= assignment.node_index:
            raise ValueError(
                f"Layer {assignment.layer.name} has {num_calls} invocation(s) in the graph, but "
                "`pipeline_stage_assignment` contains an assignment for node_index "
                f"{assignment.node_index}."
            )
        if assignment.node_index != node_index(node):
            raise ValueError(
                "The order of `pipeline_stage_assignment` does not match the post-order generated "
                f"from the graph (missmatched nodes of layer {assignment.layer.name})."
            )

    def _make_pipeline_plan(self) -> Plan:
        try:
            return make_plan(self, self._pipeline_stage_assignment)
        except ValueError as error:
            raise RuntimeError(
                f"The pipeline stage assignments for model {self.name} are no longer valid: "
                f'"{error}" This can happen if the model is invoked with shapes or dtypes which '
                "are incompatible with those from the previous invocation, or those passed to "
                "`model.build`. Try calling `model.build` and specifying a less restrictive shape. "
                "You can specify dtypes to `model.build` by passing in `keras.Input` objects "
                "instead of plain shapes."
            ) from error

    @accept_any_signature
    def _assert_weights_created_delegate(self) -> None:
        # Without a `build` of its own a model may have made its weights in its constructor.
        if "build" in vars(self.__original_class__):
            super()._assert_weights_created_delegate()

    @accept_any_signature
    def _get_config_delegate(self) -> dict[str, Any]:
        dialect = dialect_of(self)
        config = {**dialect.subclassed_config(self), **self._get_base_config()}
        if self._graph_network_initialized and dialect.saves_networks:
            config["graph_network_initialized"] = True
            config.update(copy.deepcopy(dialect.network_config(self._graph_network)))
            config["name"] = self.name
        config["get_config_has_been_called"] = True
        config["pipeline_stage_assignment"] = [
            self._save_assignment(assignment, list(self.layers))
            for assignment in self._pipeline_stage_assignment
            if not assignment.is_nested_model
        ]
        return config

    @classmethod
    def _strip_config(cls, config: Any) -> dict[str, Any]:
        """Return a saved configuration without what this extension has added."""
        ours = set(_MARKS)
        if config.get("graph_network_initialized"):
            ours |= _NAMES_OF_NETWORK
        stripped = cls._strip_base_config(config)
        return {key: value for key, value in stripped.items() if key not in ours}

    def _deserialize_from_config_delegate(self, config: Any) -> None:
        self._from_base_config(config)
        dialect = dialect_of(self)
        if dialect.overrides_get_config(self) and not config.get("get_config_has_been_called"):
            raise RuntimeError(
                "get_config() has been overridden on a subclassed Model but IPU-specific "
                "properties have not been saved since the implementation does not call "
                "super().get_config(). In the get_config() override, add `config = "
                "super().get_config()` and merge your configuration with this config dict to "
                "ensure these options are saved along with the rest of your model."
            )
        if not config.get("graph_network_initialized"):
            set_untracked(self, _saved_assignment=config.get("pipeline_stage_assignment", []))
            return
        for layer in self.layers:
            if not dialect.is_input_layer(layer):
                layer._inbound_nodes.clear()
                layer._outbound_nodes.clear()
        self._set_network(dialect.restore_network(self, config))
        self._restore_assignment(config.get("pipeline_stage_assignment", []))

    def _restore_assignment(self, saved: Any) -> None:
        if saved:
            self.set_pipeline_stage_assignment(
                [self._load_assignment(item, number) for number, item in enumerate(saved)]
            )

    def _validate_call_function(self) -> None:
        if type(self).call is dialect_of(self).model_class.call:  # type: ignore[attr-defined]
            raise NotImplementedError(
                f"The function `call` for the model {self.name} has not been implemented. When "
                "subclassing the `Model` class you must implement the `call` function."
            )


def _map_shapes(shapes: Any, function: Callable[[Any], Any]) -> Any:
    """Apply a function to each shape in a structure; a shape is a list or tuple of numbers."""
    if isinstance(shapes, dict):
        return {key: function(shape) for key, shape in shapes.items()}
    if isinstance(shapes, (list, tuple)) and not all(map(_is_size, shapes)):
        return [function(shape) for shape in shapes]
    return function(shapes)


def _is_size(value: Any) -> bool:
    return (
        value is None
        or isinstance(value, (int, tf.compat.v1.Dimension))
        or (isinstance(value, tf.Tensor) and value.shape.rank == 0)
    )
