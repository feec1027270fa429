"""The finder of modules that gives each Keras its `ipu`, and its extensions, once it is imported.

A script may import Keras before or after this package, and `tf.keras` loads it on first use.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final

PACKAGES: Final = (
    "keras",
    "keras._tf_keras.keras",
    "tensorflow.keras",
    "tf_keras",
    "tf_keras.api._v2.keras",
)
"""Packages that are a Keras, or the part of one that `tf.keras` shows."""
_IPU: Final = "tensorflow_ipu.keras_extensions.keras_ipu"


class _Finder(MetaPathFinder):
    """Finds packages as all other finders do, and says when they are loaded."""

    def __init__(self) -> None:
        self.listeners: list[Callable[[], None]] = []

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname in PACKAGES:
            return self._find_package(fullname, path, target)
        name = _find_alias(fullname)
        return None if name is None else ModuleSpec(fullname, _AliasLoader(name))

    def _find_package(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = _CallingLoader(spec.loader, self.notify)
                return spec
        return None

    def notify(self) -> None:
        """Give loaded packages their `ipu`, and call the listeners."""
        for package in PACKAGES:
            module = sys.modules.get(package)
            if module is not None and "ipu" not in vars(module):
                vars(module)["ipu"] = import_module(_IPU)
        for listener in self.listeners:
            listener()


class _CallingLoader(Loader):
    """Another loader, which calls a function after it has executed a module."""

    def __init__(self, loader: Any, function: Callable[[], None]) -> None:
        self._loader, self._function = loader, function

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        # Importlib says so only when the module is loaded, which it is.
        if module.__spec__ is not None:
            module.__spec__._initializing = False  # type: ignore[attr-defined]
            module.__spec__.loader = self._loader
        self._function()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class _AliasLoader(Loader):
    """Loads nothing: a module has a second name."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        del spec
        module = import_module(self._name)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # which the import system has replaced


def _find_alias(fullname: str) -> str | None:
    """Return the module that another Keras has under this name, or None."""
    package, _, rest = fullname.partition(".ipu")
    if package == "keras" or package not in PACKAGES or (rest and not rest.startswith(".")):
        return None
    return f"keras.ipu{rest}" if rest else _IPU


_finder: Final = _Finder()


def watch() -> None:
    """Give each Keras its `ipu`: those that are imported, and those that will be."""
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
        _finder.notify()


def call_when_imported(function: Callable[[], None]) -> None:
    """Call a function now if a Keras is imported, and after each import of one.

    Args:
        function: Called without arguments, several times.
    """
    _finder.listeners.append(function)
    watch()
    function()
