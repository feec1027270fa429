"""Keras for the IPU: what models have that are made in the scope of an IPUStrategy.

It serves Keras 3 (`keras`) and Keras 2 (`tf_keras`), whichever the script imports, and when.
Nothing of Keras is imported here.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from tensorflow_ipu.keras_extensions.registry import (
    ExtensionsManager as _ExtensionsManager,
)
from tensorflow_ipu.keras_extensions.registry import KerasExtensions
from tensorflow_ipu.keras_extensions.registry import (
    extensions_manager as _extensions_manager,
)

__all__ = ["KerasExtensions", "_ExtensionsManager", "_extensions_manager", "enter", "leave"]


def enter(strategy: Any) -> None:
    """Extend the models of each Keras that is loaded, or that will be.

    Args:
        strategy: The strategy whose scope is entered.
    """
    if strategy._enable_keras_extensions:
        _install_hook()


def leave(strategy: Any) -> None:
    """Do nothing: a model that was made in the scope remains one of the IPU after it.

    Args:
        strategy: The strategy whose scope is left.
    """


@cache
def _install_hook() -> None:
    from tensorflow_ipu.keras_extensions.import_hook import call_when_imported

    call_when_imported(_install)


def _install() -> None:
    from tensorflow_ipu.keras_extensions.installation import install

    install()
