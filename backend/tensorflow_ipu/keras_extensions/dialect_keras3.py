"""Keras 3: the package `keras`."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable
from contextlib import nullcontext
from functools import cached_property
from importlib import import_module
from typing import Any, ClassVar

import tensorflow as tf

from tensorflow_ipu.keras_extensions.delegation import call_original, without_extensions
from tensorflow_ipu.keras_extensions.dialects import Dialect, expand_vectors, refuse_generator
from tensorflow_ipu.keras_extensions.stages import is_ipu_strategy


def _source(name: str) -> Any:
    return import_module(f"keras.src.{name}")


class Keras3(Dialect):
    """Keras 3 on its TensorFlow backend."""

    package: ClassVar[str] = "keras"

    @cached_property
    def model_class(self) -> Any:
        return _source("models.model").Model

    @cached_property
    def sequential_class(self) -> Any:
        return _source("models.sequential").Sequential

    @cached_property
    def functional_class(self) -> Any:
        return _source("models.functional").Functional

    @cached_property
    def layer_class(self) -> Any:
        return _source("layers.layer").Layer

    @cached_property
    def node_class(self) -> Any:
        return _source("ops.node").Node

    @cached_property
    def input_function(self) -> Any:
        return _source("layers.core.input_layer").Input

    @cached_property
    def callback_list_class(self) -> Any:
        return _source("callbacks.callback_list").CallbackList

    def optimizer_class(self, name: str) -> Any:
        return getattr(_source("optimizers"), name)

    def is_symbolic(self, value: Any) -> bool:
        return isinstance(value, _source("backend").KerasTensor)

    def make_adapter(self, x: Any, y: Any, options: dict[str, Any]) -> Any:
        adapters = _source("trainers.data_adapters")
        if isinstance(x, (types.GeneratorType, adapters.py_dataset_adapter.PyDataset)):
            refuse_generator(x, lambda _: False)
        adapter = adapters.get_data_adapter(
            x,
            y,
            sample_weight=options["sample_weight"],
            batch_size=options["batch_size"],
            steps_per_epoch=options["steps"],
            shuffle=options["shuffle"],
        )
        return _Adapter(adapter, isinstance(x, tf.data.Dataset))

    def steps_per_execution(self, model: Any) -> int:
        return int(model.steps_per_execution or 1)

    def flatten_metrics(self, model: Any, logs: dict[str, Any]) -> Any:
        return model._flatten_metrics_in_order(logs)

    def to_numbers(self, logs: Any) -> Any:
        return _source("utils.python_utils").pythonify_logs(logs)

    def prepare_evaluation(self, model: Any, element_spec: Any) -> None:
        batch = tf.nest.map_structure(
            lambda spec: types.SimpleNamespace(shape=tuple(spec.shape), dtype=spec.dtype),
            element_spec,
        )
        model._symbolic_build(data_batch=batch)

    def loss_and_metrics(
        self, model: Any, y: Any, y_pred: Any, sample_weight: Any
    ) -> dict[str, Any]:
        loss = model._compute_loss(
            x=None, y=y, y_pred=y_pred, sample_weight=sample_weight, training=False
        )
        rows = tf.shape(tf.nest.flatten(y_pred)[0])[0]
        model._loss_tracker.update_state(loss, sample_weight=rows)
        logs: dict[str, Any] = model.compute_metrics(None, y, y_pred, sample_weight=sample_weight)
        return logs

    def call_operation(self, operation: Any, args: Any, kwargs: Any, training: bool) -> Any:
        if getattr(operation, "_call_has_training_arg", False) and "training" not in kwargs:
            kwargs = {**kwargs, "training": training}
        return operation(*args, **kwargs)

    def inference_context(self, model: Any) -> Any:
        return nullcontext()

    def make_step(self, model: Any, name: str) -> Any:
        step = getattr(model, name)

        def run_step(data: Any) -> Any:
            return step(expand_vectors(data))

        return tf.autograph.experimental.do_not_convert(run_step)

    def check_compiled(self, model: Any, method: str) -> None:
        model._assert_compile_called(method)

    def unpack(self, data: Any) -> tuple[Any, Any, Any]:
        x, y, sample_weight = _source(
            "trainers.data_adapters.data_adapter_utils"
        ).unpack_x_y_sample_weight(data)
        return x, y, sample_weight

    def conform_inputs(self, network: Any, inputs: Any) -> list[Any]:
        return list(network._standardize_inputs(inputs))

    def pack_outputs(self, network: Any, outputs: list[Any]) -> Any:
        structure = _source("tree").pack_sequence_as(network._outputs_struct, outputs)
        return _source("models.functional").unpack_singleton(structure)

    def make_network(self, inputs: Any, outputs: Any, name: str) -> Any:
        with without_extensions():
            return self.functional_class(inputs, outputs, name=name)

    def sequential_network(self, model: Any) -> Any:
        return model._functional

    def build_sequential(self, model: Any, shape: Any, dtype: Any) -> None:
        if not model.built:
            model.build((None, *shape[1:]))

    def trace_network(self, model: Any, inputs: Any) -> Any:
        training = inspect.signature(model.call).parameters.get("training")
        kwargs = {} if training is None else {"training": False}
        try:
            outputs = model.call(inputs, **kwargs)
            network = self.make_network(inputs, outputs, f"{model.name}_network")
        except (TypeError, ValueError, AttributeError, NotImplementedError):
            # A `call` with operators of TensorFlow: Keras 3 has no graph of it.
            network = None
        if not all(layer.built for layer in model._flatten_layers(include_self=False)):
            _source("backend").compute_output_spec(model, inputs, training=False)
        model.built = True
        return network

    def adopt_network(self, model: Any, network: Any) -> None:
        """Do nothing: `inputs` and `outputs` are no attributes of a subclassed model."""

    saves_networks: ClassVar[bool] = False

    def subclassed_config(self, model: Any) -> dict[str, Any]:
        config: dict[str, Any] = call_original(model, "get_config")
        return config

    def is_input_layer(self, layer: Any) -> bool:
        return isinstance(layer, _source("layers.core.input_layer").InputLayer)

    def construct_subclassed(
        self, cls: Any, config: dict[str, Any], from_config: Callable[[], Any]
    ) -> Any:
        return from_config()

    def input_specs(self, model: Any) -> list[tf.TensorSpec] | None:
        network = model._ipu_network()
        if network is None:
            return None
        return [tf.TensorSpec(tensor.shape, tensor.dtype, tensor.name) for tensor in network.inputs]

    def install_strategy(self) -> None:
        """Let `argmax` and `argmin` be operators of the IPU, which has no casts of bits.

        Keras 3 tells zeros of both signs apart there, by their bits. TensorFlow and the IPU take
        the first of them.
        """
        operators = _source("backend.tensorflow.numpy")
        for name, function in (("argmax", tf.argmax), ("argmin", tf.argmin)):
            setattr(operators, name, _find_place_on_ipu(getattr(operators, name), function))

    def install_loader(self, restore: Callable[[Any, Any], None]) -> None:
        """Do nothing: Keras 3 loads models by `from_config`."""


def _find_place_on_ipu(original: Any, function: Any) -> Any:
    """Return Keras' own function, with TensorFlow's in place of it in an IPUStrategy."""

    @functools.wraps(original)
    def find_place(x: Any, axis: int | None = None, keepdims: bool = False) -> Any:
        if tf.executing_eagerly() or not is_ipu_strategy(tf.distribute.get_strategy()):
            return original(x, axis=axis, keepdims=keepdims)
        x = tf.convert_to_tensor(x)
        flat = tf.reshape(x, [-1]) if axis is None else x
        place = function(flat, axis=axis, output_type="int32")
        if not keepdims:
            return place
        return (
            tf.reshape(place, [1] * x.shape.rank) if axis is None else tf.expand_dims(place, axis)
        )

    return find_place


class _Adapter:
    """A data adapter of Keras 3 with the methods of one of tf_keras."""

    def __init__(self, adapter: Any, is_dataset: bool) -> None:
        self._adapter = adapter
        self._is_dataset = is_dataset

    def get_dataset(self) -> Any:
        return self._adapter.get_tf_dataset()

    def get_size(self) -> int | None:
        if self._is_dataset:
            return None
        size: int | None = self._adapter.num_batches
        return size

    def batch_size(self) -> int | None:
        if self._is_dataset:
            return None
        rows: int | None = self._adapter.batch_size
        return rows

    def has_partial_batch(self) -> bool:
        return not self._is_dataset and bool(self._adapter.has_partial_batch)

    def should_recreate_iterator(self) -> bool:
        return True

    def on_epoch_end(self) -> None:
        self._adapter.on_epoch_end()
