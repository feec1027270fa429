"""Hooks in the classes of a loaded Keras.

They change nothing for models that are made outside of an IPUStrategy's scope. They stay after the
scope, because a model that was made in it remains one of the IPU.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import tensorflow as tf

from tensorflow_ipu.keras_extensions.delegation import (
    KerasExtension,
    extend,
    extension_delegate,
    extension_delegate_if_exists,
    keep_refusal,
    keep_signature,
)
from tensorflow_ipu.keras_extensions.dialects import Dialect, loaded_dialects
from tensorflow_ipu.keras_extensions.functional import FunctionalExtension
from tensorflow_ipu.keras_extensions.registry import ORIGINAL_CLASS, extensions_manager
from tensorflow_ipu.keras_extensions.sequential import SequentialExtension
from tensorflow_ipu.keras_extensions.stages import is_ipu_strategy, record_stage
from tensorflow_ipu.keras_extensions.subclassed import ModelExtension

_MODEL_METHODS: Final = (
    "fit",
    "evaluate",
    "predict",
    "train_on_batch",
    "get_config",
    "build",
    "compile",
    "_assert_weights_created",
    "_reset_compile_cache",
    "_trackable_children",
)
_FUNCTIONAL_METHODS: Final = ("get_config", "_assert_weights_created", "_trackable_children")
_SEQUENTIAL_METHODS: Final = ("get_config", "add", "pop", "build", "_assert_weights_created")
_installed: Final[set[str]] = set()


def install() -> None:
    """Put the hooks into each loaded Keras that does not have them."""
    for dialect in loaded_dialects():
        if dialect.package not in _installed:
            _installed.add(dialect.package)
            _install(dialect)


def _install(dialect: Dialect) -> None:
    # A sequential model is a functional one in tf_keras: the order is that of the search.
    for model_class, extension in (
        (dialect.sequential_class, SequentialExtension),
        (dialect.functional_class, FunctionalExtension),
        (dialect.model_class, ModelExtension),
    ):
        extensions_manager._register_extension(model_class, KerasExtension, extension)
    _call_after_init(dialect.layer_class, _prepare_layer)
    _call_after_init(dialect.node_class, record_stage)
    _call_after_init(dialect.functional_class, _read_stages)
    for owner, names in (
        (dialect.model_class, _MODEL_METHODS),
        (dialect.functional_class, _FUNCTIONAL_METHODS),
        (dialect.sequential_class, _SEQUENTIAL_METHODS),
    ):
        for name in names:
            if name in vars(owner) or (owner is dialect.model_class and hasattr(owner, name)):
                setattr(owner, name, extension_delegate(getattr(owner, name)))
    _replace_call(dialect)
    for owner in (dialect.sequential_class, dialect.model_class):
        owner.from_config = _extend_from_config(owner, dialect)
    dialect.install_loader(_restore)
    dialect.install_strategy()


def _prepare_layer(layer: Any) -> None:
    extend(layer)
    record_stage(layer)


def _read_stages(model: Any) -> None:
    extension_delegate_if_exists("get_pipelining_from_nodes", model)


def _restore(model: Any, config: Any) -> None:
    extension_delegate_if_exists("deserialize_from_config", model, config)


def _call_after_init(owner: Any, function: Callable[[Any], None]) -> None:
    """Let a constructor call a function with what it has made."""
    original = owner.__init__

    @functools.wraps(original)
    def init(instance: Any, *args: Any, **kwargs: Any) -> None:
        skipped = kwargs.get("skip_init", False)  # tf_keras calls some constructors twice
        original(instance, *args, **kwargs)
        if not skipped:
            function(instance)

    keep_signature(init, original)
    owner.__init__ = init


def _replace_call(dialect: Dialect) -> None:
    """Let extended models that are called with tensors, in eager mode, run on the IPU."""
    original = dialect.model_class.__call__

    @functools.wraps(original)
    def call(model: Any, *args: Any, **kwargs: Any) -> Any:
        if (
            isinstance(model, KerasExtension)
            and tf.executing_eagerly()
            and is_ipu_strategy(tf.distribute.get_strategy())
            and not any(map(dialect.is_symbolic, tf.nest.flatten((args, kwargs))))
        ):
            return model._call_on_ipu(args, kwargs)  # type: ignore[attr-defined]
        return original(model, *args, **kwargs)

    keep_signature(call, original)
    call.__original_func__ = original  # type: ignore[attr-defined]
    dialect.model_class.__call__ = call


def _extend_from_config(owner: Any, dialect: Dialect) -> Any:
    """Return a `from_config` that restores what extensions have saved."""
    original = owner.from_config.__func__

    @functools.wraps(original)
    def from_config(cls: Any, config: Any, custom_objects: Any = None) -> Any:
        cls = vars(cls).get(ORIGINAL_CLASS, cls)
        if not isinstance(config, dict) or not is_ipu_strategy(tf.distribute.get_strategy()):
            return original(cls, config, custom_objects=custom_objects)
        if cls is dialect.model_class or issubclass(cls, dialect.functional_class):
            stripped = ModelExtension._strip_base_config(config)
            model = original(cls, stripped, custom_objects=custom_objects)
        elif issubclass(cls, dialect.sequential_class):
            model = original(cls, config, custom_objects=custom_objects)
        else:
            return _make_subclassed(original, cls, config, custom_objects, dialect)
        _restore(model, config)
        return model

    return classmethod(from_config)


def _make_subclassed(
    original: Any, cls: Any, config: Any, custom_objects: Any, dialect: Dialect
) -> Any:
    stripped = ModelExtension._strip_config(config)
    try:
        model = dialect.construct_subclassed(
            cls, stripped, lambda: original(cls, stripped, custom_objects=custom_objects)
        )
        _restore(model, config)
    except (NotImplementedError, RuntimeError) as error:
        keep_refusal(error)
        raise
    return model
