"""Keras for the IPU as an attribute of the package: `keras.ipu`, and TensorFlow 1's layers."""

from typing import Any

from tensorflow_ipu.forwarding import forward, forward_modules

_get_module, _list_modules = forward_modules(__name__, {"layers": ".layers"})
_get_name, _list_names = forward(__name__, "tensorflow_ipu.keras_extensions.keras_ipu")


def __getattr__(name: str) -> Any:
    return _get_module(name) if name == "layers" else _get_name(name)


def __dir__() -> list[str]:
    return sorted({*_list_modules(), *_list_names()})
