"""Registers of extensions, and the part of an IPUStrategy that extends Keras."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, Final

import tensorflow as tf

ORIGINAL_CLASS: Final = "_ipu_original_class"
"""Attribute of an extended class: the class without the extension."""
Key = tuple[type, type]
"""Keras' class, and the base class of its extensions."""


class ExtensionsManager:
    """Extensions that hold for all strategies, in the order in which they are tried."""

    def __init__(self) -> None:
        self._extensions: OrderedDict[Key, type] = OrderedDict()

    def _register_extension(self, class_type: type, extension_type: type, extension: type) -> None:
        self._extensions[class_type, extension_type] = extension

    def _delete_extension(self, class_type: type, extension_type: type) -> None:
        self._extensions.pop((class_type, extension_type), None)

    def _get_extension(self, class_type: type, extension_type: type) -> type | None:
        return self._extensions.get((class_type, extension_type))

    def __iter__(self) -> Iterator[tuple[Key, type]]:
        yield from self._extensions.items()


extensions_manager: Final = ExtensionsManager()


class KerasExtensions:
    """What a strategy has to extend Keras: a mixin of IPUStrategy.

    Args:
        enable_dataset_iterators: Whether `iter(dataset)` gives an iterator of the IPU.
        enable_keras_extensions: Whether models in the scope are extended.
    """

    _enable_legacy_iterators = True

    def __init__(
        self, enable_dataset_iterators: bool = True, enable_keras_extensions: bool = True
    ) -> None:
        self._enable_iterators = enable_dataset_iterators
        self._enable_keras_extensions = enable_keras_extensions
        self._keras_extensions: OrderedDict[Key, type] = OrderedDict()

    def _enable_dataset_iterators(self) -> bool:
        return bool(tf.executing_eagerly() and self._enable_iterators)

    def _create_dataset_iterator(self, dataset: Any) -> Any:
        from tensorflow_ipu.feeds import ipu_infeed_queue

        return ipu_infeed_queue.IPUOwnedIterator(dataset=dataset)

    def _register_keras_extension(
        self, class_type: type, extension_type: type, extension: type
    ) -> None:
        self._keras_extensions[class_type, extension_type] = extension

    def _get_keras_extension(self, class_type: type, extension_type: type) -> type | None:
        own = self._keras_extensions.get((class_type, extension_type))
        return own or extensions_manager._get_extension(class_type, extension_type)

    def _delete_keras_extension(self, class_type: type, extension_type: type) -> None:
        self._keras_extensions.pop((class_type, extension_type), None)

    def _patch_keras_extension(self, instance: Any) -> None:
        if not self._enable_keras_extensions:
            return
        for (class_type, extension_type), extension in self._iterate_keras_extensions():
            if isinstance(instance, class_type):
                _extend(instance, extension_type, extension)
                return

    def _iterate_keras_extensions(self) -> Iterator[tuple[Key, type]]:
        yield from self._keras_extensions.items()
        for key, extension in extensions_manager:
            if key not in self._keras_extensions:
                yield key, extension


def _extend(instance: Any, extension_type: type, extension: Any) -> None:
    """Give an instance the class that is derived from its own and the extension."""
    if isinstance(instance, extension_type):
        if not isinstance(instance, extension):
            raise RuntimeError(
                "KerasExtension patching failed - already patched with a different extension."
            )
        # The instance was made by a call of the derived class, such as in from_config.
        if "_ipu_extension_ready" not in vars(instance):
            extension.__init__(instance)
        return
    original = type(instance)
    names = {
        "__module__": original.__module__,
        "__qualname__": original.__qualname__,
        ORIGINAL_CLASS: original,
    }
    extended = type(original.__name__, (original, extension), names)
    object.__setattr__(instance, "__class__", extended)
    object.__setattr__(instance, "__original_class__", original)
    extension.__init__(instance)


__all__ = ["ExtensionsManager", "KerasExtensions", "extensions_manager"]
