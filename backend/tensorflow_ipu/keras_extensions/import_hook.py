"""A hook that is called when a Keras has been imported, however much later that is."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final

PACKAGES: Final = ("keras", "tf_keras")


class _Finder(MetaPathFinder):
    """Finds packages as all other finders do, and calls a function once they are loaded."""

    def __init__(self, function: Callable[[], None]) -> None:
        self._function = function

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in PACKAGES:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = _CallingLoader(spec.loader, self._function)
                return spec
        return None


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


def call_when_imported(function: Callable[[], None]) -> None:
    """Call a function now if a Keras is imported, and after each import of one.

    Args:
        function: Called without arguments. It is called more than once.
    """
    if not all(package in sys.modules for package in PACKAGES):
        sys.meta_path.insert(0, _Finder(function))
    if any(package in sys.modules for package in PACKAGES):
        function()
