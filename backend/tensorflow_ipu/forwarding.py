"""Modules of the face: their names are those of modules of this room, looked up on first use.

The face has the real library's module names. A module of it imports nothing before one of its names
is used, so `from tensorflow.python import ipu` stays cheap.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any


def forward(face: str, *rooms: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the `__getattr__` and the `__dir__` of a module of the face.

    Args:
        face: Name of the module of the face, its `__name__`.
        rooms: Modules that have its names; the first one that has a name provides it.

    Returns:
        Both functions. The first raises AttributeError for a name that no module has.
    """

    def get(name: str) -> Any:
        if name == "__all__":
            return _find_public_names(rooms)
        hint = ""
        if not name.startswith("__"):
            modules = _import_present(rooms)
            for module in modules:
                if hasattr(module, name):
                    return getattr(module, name)
            hint = "" if modules else ": nothing of this module is supported here"
        raise AttributeError(f"module {face!r} has no attribute {name!r}{hint}")

    return get, lambda: sorted({*vars(sys.modules[face]), *_find_public_names(rooms)})


def forward_modules(
    package: str, modules: dict[str, str], names: dict[str, str] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the `__getattr__` and the `__dir__` of a package of the face.

    Args:
        package: Name of the package.
        modules: Name in the package to the module that it is, relative to the package.
        names: Further names to the module that has them, relative to the package.

    Returns:
        Both functions.
    """
    names = names or {}

    def get(name: str) -> Any:
        if name in modules:
            value = import_module(modules[name], package)
        elif name in names:
            value = getattr(import_module(names[name], package), name)
        else:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        vars(sys.modules[package])[name] = value
        return value

    return get, lambda: sorted({*vars(sys.modules[package]), *modules, *names})


def _import_present(rooms: tuple[str, ...]) -> list[Any]:
    """Import the modules, without those that do not exist."""
    modules = []
    for room in rooms:
        try:
            modules.append(import_module(room))
        except ModuleNotFoundError as error:
            if error.name is None or not f"{room}.".startswith(f"{error.name}."):
                raise
    return modules


def _find_public_names(rooms: tuple[str, ...]) -> list[str]:
    """Return what a star import imports: `__all__`, or the names without a leading underscore."""
    names: dict[str, None] = {}
    for module in _import_present(rooms):
        public = getattr(module, "__all__", None)
        if public is None:
            public = [name for name in dir(module) if not name.startswith("_")]
        names.update(dict.fromkeys(public))
    return list(names)
