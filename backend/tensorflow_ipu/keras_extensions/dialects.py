"""The two Kerases: Keras 3 (`keras`) and Keras 2 (`tf_keras`), and where they differ.

Both can be loaded in one process. Nothing here imports one that is not loaded already.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any, ClassVar, Final

import tensorflow as tf


class Dialect(ABC):
    """One Keras."""

    package: ClassVar[str]
    """Name of the package, which is loaded."""

    @property
    @abstractmethod
    def model_class(self) -> Any:
        """The class Model."""

    @property
    @abstractmethod
    def sequential_class(self) -> Any:
        """The class Sequential."""

    @property
    @abstractmethod
    def functional_class(self) -> Any:
        """The class Functional."""

    @property
    @abstractmethod
    def layer_class(self) -> Any:
        """The class Layer."""

    @property
    @abstractmethod
    def node_class(self) -> Any:
        """The class of nodes."""

    @property
    @abstractmethod
    def input_function(self) -> Any:
        """The function Input."""

    @property
    @abstractmethod
    def callback_list_class(self) -> Any:
        """The class CallbackList."""

    @abstractmethod
    def optimizer_class(self, name: str) -> Any:
        """Return an optimizer's class."""

    @abstractmethod
    def is_symbolic(self, value: Any) -> bool:
        """Return whether a value is a symbolic tensor of a Keras graph."""

    @abstractmethod
    def make_adapter(self, x: Any, y: Any, options: dict[str, Any]) -> Any:
        """Return the adapter of data.

        Args:
            x: Inputs, or a data set.
            y: Targets.
            options: sample_weight, batch_size, steps, epochs, shuffle and class_weight.

        Returns:
            An object with the methods of tf_keras' data adapters.

        Raises:
            ValueError: The data are of a type whose shape is not known ahead of time.
        """

    @abstractmethod
    def steps_per_execution(self, model: Any) -> int:
        """Return a model's number of steps for each execution, 1 if it is not set."""

    @abstractmethod
    def flatten_metrics(self, model: Any, logs: dict[str, Any]) -> Any:
        """Return the results of `evaluate` in the order of the model's metrics."""

    @abstractmethod
    def to_numbers(self, logs: Any) -> Any:
        """Return tensors as numpy arrays or Python numbers."""

    @abstractmethod
    def prepare_evaluation(self, model: Any, element_spec: Any) -> None:
        """Make the variables of a model's metrics and losses."""

    @abstractmethod
    def loss_and_metrics(
        self, model: Any, y: Any, y_pred: Any, sample_weight: Any
    ) -> dict[str, Any]:
        """Update the losses and metrics of a model with a batch and return their results."""

    @abstractmethod
    def call_operation(self, operation: Any, args: Any, kwargs: Any, training: bool) -> Any:
        """Call a layer of a graph."""

    @abstractmethod
    def inference_context(self, model: Any) -> Any:
        """Return a context manager in which layers that are called know they do not train."""

    @abstractmethod
    def make_step(self, model: Any, name: str) -> Any:
        """Return a model's `test_step` or `predict_step`, as a function of a batch."""

    @abstractmethod
    def check_compiled(self, model: Any, method: str) -> None:
        """Raise an error if a model was not compiled."""

    @abstractmethod
    def unpack(self, data: Any) -> tuple[Any, Any, Any]:
        """Return inputs, targets and weights of an element of a data set."""

    def casts_doubles(self) -> bool:
        """Return whether 64-bit floating point data become 32-bit."""
        return True

    @abstractmethod
    def conform_inputs(self, network: Any, inputs: Any) -> list[Any]:
        """Return the inputs of a functional network as its graph has them: flat, of its ranks."""

    @abstractmethod
    def pack_outputs(self, network: Any, outputs: list[Any]) -> Any:
        """Return the outputs of a functional network in the structure that a call returns."""

    @abstractmethod
    def make_network(self, inputs: Any, outputs: Any, name: str) -> Any:
        """Return a functional model of symbolic tensors, which is not extended."""

    @abstractmethod
    def sequential_network(self, model: Any) -> Any:
        """Return the functional network of a sequential model, or None if it has none."""

    @abstractmethod
    def build_sequential(self, model: Any, shape: Any, dtype: Any) -> None:
        """Build a sequential model for inputs of a shape and a type."""

    @abstractmethod
    def trace_network(self, model: Any, inputs: Any) -> Any:
        """Call a subclassed model with symbolic tensors; return its network, or None."""

    @abstractmethod
    def adopt_network(self, model: Any, network: Any) -> None:
        """Give a subclassed model what it takes over from its network."""

    saves_networks: ClassVar[bool]
    """Whether saved subclassed models have their network."""

    @abstractmethod
    def subclassed_config(self, model: Any) -> dict[str, Any]:
        """Return Keras' own configuration of a subclassed model."""

    @abstractmethod
    def construct_subclassed(
        self, cls: Any, config: dict[str, Any], from_config: Callable[[], Any]
    ) -> Any:
        """Return a subclassed model of a saved configuration.

        Args:
            cls: The model's class.
            config: Its own configuration.
            from_config: Keras' own way to make it.
        """

    @abstractmethod
    def input_specs(self, model: Any) -> list[tf.TensorSpec] | None:
        """Return TensorSpecs of a model's inputs, or None if they are not known."""

    @abstractmethod
    def install_strategy(self) -> None:
        """Let policies of mixed precision accept strategies that support them."""

    @abstractmethod
    def install_loader(self, restore: Callable[[Any, Any], None]) -> None:
        """Let the loader of SavedModels restore what extensions have saved.

        Args:
            restore: Called with a model and its saved configuration.
        """

    @abstractmethod
    def is_input_layer(self, layer: Any) -> bool:
        """Return whether a layer is an input of a network."""

    def network_config(self, network: Any) -> dict[str, Any]:
        """Return the configuration of a network."""
        raise NotImplementedError

    def restore_network(self, model: Any, config: Any) -> Any:
        """Return the network of a saved configuration, of the model's own layers."""
        raise NotImplementedError

    def is_calling(self) -> bool:
        """Return whether a layer is being called."""
        return False

    def overrides_get_config(self, model: Any) -> bool:
        """Return whether a model's class has its own `get_config`."""
        return type(model).get_config is not self.model_class.get_config


def loaded_dialects() -> Iterator[Dialect]:
    """Return the Kerases that are loaded completely."""
    from tensorflow_ipu.keras_extensions.dialect_keras2 import Keras2
    from tensorflow_ipu.keras_extensions.dialect_keras3 import Keras3

    for dialect in (Keras3(), Keras2()):
        if is_loaded(dialect.package):
            yield dialect


def is_loaded(package: str) -> bool:
    """Return whether a package is imported, to its end."""
    spec = getattr(sys.modules.get(package), "__spec__", None)
    if package == "keras" and not str(getattr(sys.modules.get(package), "__version__", "3")) >= "3":
        return False
    return spec is not None and not getattr(spec, "_initializing", False)


def dialect_of(instance: Any) -> Dialect:
    """Return the Keras of a model or layer.

    Raises:
        TypeError: It is none of a loaded Keras.
    """
    for dialect in loaded_dialects():
        if isinstance(instance, dialect.layer_class):
            return dialect
    raise TypeError(f"expected a model of keras or tf_keras, found {type(instance).__name__}")


def default_dialect() -> Dialect:
    """Return the Keras that `tf.keras` is, and load it."""
    model_class = tf.keras.Model
    package = "tf_keras" if model_class.__module__.startswith("tf_keras") else "keras"
    import_module(package)
    return next(dialect for dialect in loaded_dialects() if dialect.package == package)


def expand_vectors(data: Any) -> Any:
    """Return data whose tensors of shape [rows] have the shape [rows, 1]."""
    return tf.nest.map_structure(
        lambda tensor: (
            tf.expand_dims(tensor, -1)
            if hasattr(tensor, "shape") and tensor.shape.rank == 1
            else tensor
        ),
        data,
    )


GENERATOR_HINT: Final = "use `tf.data.Dataset.from_generator()` to specify the shape of your data."


def refuse_generator(x: Any, is_plain_iterator: Callable[[Any], bool]) -> None:
    """Raise the error for data whose shapes are not known before it is produced."""
    hint = GENERATOR_HINT
    if is_plain_iterator(x):
        hint = (
            "wrap your iterator inside a generator like so:\n\ndef generator:\n    while True:\n"
            "        yield next(iterator)\n\nand " + hint
        )
    raise ValueError(
        f"The provided set of data is of type `{type(x).__name__}` which is not compatible with "
        f"the IPU's requirement to know the data shape ahead of time. Please {hint}"
    )
