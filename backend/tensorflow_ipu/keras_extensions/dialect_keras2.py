"""Keras 2: the package `tf_keras`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Generator, Iterator
from functools import cached_property
from importlib import import_module
from typing import Any, ClassVar

import tensorflow as tf

from tensorflow_ipu.keras_extensions.delegation import kept_refusal, without_extensions
from tensorflow_ipu.keras_extensions.dialects import Dialect, expand_vectors, refuse_generator


def _engine(name: str) -> Any:
    return import_module(f"tf_keras.src.engine.{name}")


class Keras2(Dialect):
    """tf_keras, in which Graphcore's Keras of version 2.6 lives on."""

    package: ClassVar[str] = "tf_keras"

    @cached_property
    def model_class(self) -> Any:
        return _engine("training").Model

    @cached_property
    def sequential_class(self) -> Any:
        return _engine("sequential").Sequential

    @cached_property
    def functional_class(self) -> Any:
        return _engine("functional").Functional

    @cached_property
    def layer_class(self) -> Any:
        return _engine("base_layer").Layer

    @cached_property
    def node_class(self) -> Any:
        return _engine("node").Node

    @cached_property
    def input_function(self) -> Any:
        return _engine("input_layer").Input

    @cached_property
    def callback_list_class(self) -> Any:
        return import_module("tf_keras.src.callbacks").CallbackList

    def optimizer_class(self, name: str) -> Any:
        return getattr(import_module("tf_keras.src.optimizers"), name)

    def is_symbolic(self, value: Any) -> bool:
        return bool(_engine("node").is_keras_tensor(value))

    def make_adapter(self, x: Any, y: Any, options: dict[str, Any]) -> Any:
        adapters = _engine("data_adapter")
        adapter_class = adapters.select_data_adapter(x, y)
        if issubclass(adapter_class, adapters.GeneratorDataAdapter):
            refuse_generator(
                x, lambda data: isinstance(data, Iterator) and not isinstance(data, Generator)
            )
        return adapter_class(
            x,
            y,
            batch_size=options["batch_size"],
            steps=options["steps"],
            epochs=options["epochs"],
            sample_weights=options["sample_weight"],
            shuffle=options["shuffle"],
            max_queue_size=options["max_queue_size"],
            workers=options["workers"],
            use_multiprocessing=options["use_multiprocessing"],
            distribution_strategy=tf.distribute.get_strategy(),
            model=options["model"],
        )

    def casts_doubles(self) -> bool:
        return bool(_engine("base_layer_utils").v2_dtype_behavior_enabled())

    def steps_per_execution(self, model: Any) -> int:
        steps = model._steps_per_execution
        return 1 if steps is None else int(steps.numpy())

    def flatten_metrics(self, model: Any, logs: dict[str, Any]) -> Any:
        return _engine("training").flatten_metrics_in_order(logs, model.metrics_names)

    def to_numbers(self, logs: Any) -> Any:
        return import_module("tf_keras.src.utils.tf_utils").sync_to_numpy_or_python_type(logs)

    def prepare_evaluation(self, model: Any, element_spec: Any) -> None:
        """Do nothing: tf_keras makes these variables while it traces."""

    def loss_and_metrics(
        self, model: Any, y: Any, y_pred: Any, sample_weight: Any
    ) -> dict[str, Any]:
        model.compiled_loss(y, y_pred, sample_weight, regularization_losses=model.losses)
        model.compiled_metrics.update_state(y, y_pred, sample_weight)
        return {metric.name: metric.result() for metric in model.metrics}

    def call_operation(self, operation: Any, args: Any, kwargs: Any, training: bool) -> Any:
        return operation(*args, **kwargs)

    def inference_context(self, model: Any) -> Any:
        context = _engine("base_layer_utils").call_context()
        return context.enter(
            layer=model, inputs=[], build_graph=True, call_context_args={"training": False}
        )

    def make_step(self, model: Any, name: str) -> Any:
        step = getattr(model, name)

        def run_step(data: Any) -> Any:
            return step(expand_vectors(data))

        return run_step

    def check_compiled(self, model: Any, method: str) -> None:
        model._assert_compile_was_called()

    def unpack(self, data: Any) -> tuple[Any, Any, Any]:
        x, y, sample_weight = _engine("data_adapter").unpack_x_y_sample_weight(data)
        return x, y, sample_weight

    def conform_inputs(self, network: Any, inputs: Any) -> list[Any]:
        flat = network._flatten_to_reference_inputs(inputs)
        _engine("input_spec").assert_input_compatibility(network.input_spec, flat, network.name)
        return [
            network._conform_to_reference_input(value, ref_input=reference)
            for reference, value in zip(network.inputs, flat, strict=True)
        ]

    def pack_outputs(self, network: Any, outputs: list[Any]) -> Any:
        return tf.nest.pack_sequence_as(network._nested_outputs, outputs)

    def make_network(self, inputs: Any, outputs: Any, name: str) -> Any:
        with without_extensions():
            return self.functional_class(inputs, outputs, name=name)

    def sequential_network(self, model: Any) -> Any:
        if not model.built and model.inputs:
            model._init_graph_network(model.inputs, model.outputs)
        return model if model._graph_initialized else None

    def build_sequential(self, model: Any, shape: Any, dtype: Any) -> None:
        if not model._has_explicit_input_shape:
            model._build_graph_network_for_inferred_shape(shape, dtype)
        if not model.built:
            self.layer_class.build(model, shape)

    def trace_network(self, model: Any, inputs: Any) -> Any:
        outputs = self._trace_call(model, inputs)
        if model.save_spec() is None:
            # The names of the symbolic inputs depend on what was made before.
            names = _engine("compile_utils").create_pseudo_input_names(inputs)
            specs = [
                tf.TensorSpec(tensor.shape, tensor.dtype, name)
                for tensor, name in zip(tf.nest.flatten(inputs), names, strict=True)
            ]
            model._set_save_spec(tf.nest.pack_sequence_as(inputs, specs))
        if not all(map(self.is_symbolic, tf.nest.flatten(outputs))):
            return None
        return self.make_network(inputs, outputs, f"{model.name}_network")

    def _trace_call(self, model: Any, inputs: Any) -> Any:
        training = inspect.signature(model.call).parameters.get("training")
        required = training is not None and training.default is inspect.Parameter.empty
        kwargs = {"training": False} if required else {}
        context = _engine("base_layer_utils").call_context()
        with context.enter(layer=model, inputs=inputs, build_graph=True):
            if not model.built:
                model.build(tf.nest.map_structure(lambda tensor: tuple(tensor.shape), inputs))
            try:
                return model.call(inputs, **kwargs)
            except (tf.errors.InvalidArgumentError, TypeError) as error:
                raise ValueError(
                    "You cannot pass a plain shape to your model's `build` function if your layers "
                    "do not support float type inputs. You must pass a `keras.Input` object with "
                    "the required dtype, or `call` your model on real tensor data (of the correct "
                    "dtype)."
                ) from error

    def adopt_network(self, model: Any, network: Any) -> None:
        for name in ("inputs", "outputs"):
            object.__setattr__(model, name, getattr(network, name))

    saves_networks: ClassVar[bool] = True

    def subclassed_config(self, model: Any) -> dict[str, Any]:
        return {}

    def network_config(self, network: Any) -> dict[str, Any]:
        config: dict[str, Any] = _engine("functional").get_network_config(network)
        return config

    def restore_network(self, model: Any, config: Any) -> Any:
        functional = _engine("functional")
        own = {layer.name: layer for layer in model.layers}
        inputs, outputs, _ = functional.reconstruct_from_config(config, created_layers=own)
        return self.make_network(inputs, outputs, f"{model.name}_network")

    def is_calling(self) -> bool:
        return bool(_engine("base_layer_utils").call_context().in_call)

    def is_input_layer(self, layer: Any) -> bool:
        return isinstance(layer, _engine("input_layer").InputLayer)

    def construct_subclassed(
        self, cls: Any, config: dict[str, Any], from_config: Callable[[], Any]
    ) -> Any:
        for arguments in (config, {}):
            try:
                return cls(**arguments)
            except TypeError:
                continue
        raise NotImplementedError(
            f"Failed to construct subclassed model of type {cls.__name__} from config. Subclassed "
            "models which require parameters in their constructors must override the "
            "`from_config` function to be compatible with saving/loading."
        )

    def install_strategy(self) -> None:
        module: Any = import_module("tf_keras.src.mixed_precision.loss_scale_optimizer")
        original = module.strategy_supports_loss_scaling

        @functools.wraps(original)
        def supports_loss_scaling() -> bool:
            strategy = tf.distribute.get_strategy()
            return bool(getattr(strategy, "supports_loss_scaling", False) or original())

        module.strategy_supports_loss_scaling = supports_loss_scaling

    def install_loader(self, restore: Callable[[Any, Any], None]) -> None:
        loading = import_module("tf_keras.src.saving.legacy.saved_model.load")
        decode = import_module("tf_keras.src.saving.legacy.saved_model.json_utils").decode
        loader = loading.KerasObjectLoader
        finalize = loader.finalize_objects

        @functools.wraps(finalize)
        def finalize_objects(self: Any) -> None:
            finalize(self)
            for node_id, (node, _) in self.loaded_nodes.items():
                if isinstance(node, _engine("training").Model):
                    restore(node, decode(self._metadata[node_id].metadata)["config"])

        loader.finalize_objects = finalize_objects
        revive = loader._revive_layer_or_model_from_config

        @functools.wraps(revive)
        def revive_from_config(self: Any, metadata: Any, node_id: Any) -> Any:
            # The loader takes errors for signs that it must make a model without its class.
            with kept_refusal() as refusal:
                revived = revive(self, metadata, node_id)
            if revived is None and refusal:
                raise refusal[0]
            return revived

        loader._revive_layer_or_model_from_config = revive_from_config

    def input_specs(self, model: Any) -> list[tf.TensorSpec] | None:
        utilities = import_module("tf_keras.src.saving.legacy.saving_utils")
        arguments, _ = utilities.model_call_inputs(model, keep_original_batch_size=True)
        return None if arguments is None else list(tf.nest.flatten(arguments))
