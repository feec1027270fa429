"""Lazy packages: their public names are imported on first use.

A program that needs one small module of a package does not import the rest, such as numpy and ONNX
Runtime. An example is a supervisor that runs for months and needs a parser and an escape function.
Another is a server process that loads a graph which is prepared already, and needs no compiler.
"""

from __future__ import annotations

import gc
import os
import sys
from _thread import RLock
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module, util
from types import ModuleType

TYPE_CHECKING = False  # see popef/__init__.py
if TYPE_CHECKING:
    from typing import Any

PUBLIC = "public"
"""Name of the module that imports the public names of a package and lists them in `__all__`."""

_UNUSED_OF_PROTOBUF = (
    "google.protobuf.internal.python_message",
    "google.protobuf.json_format",
    "google.protobuf.text_format",
    "calendar",
)
"""Modules that protobuf or onnx imports for protobuf's messages, and that few programs use:
protobuf's implementation in Python, messages as text, and times."""

_IMPORT = r"^from (\S+) import (?:\(\n    )?(\w+) as \2(?:,\n\))?$"


@contextmanager
def importing() -> Iterator[None]:
    """Import modules within this context without garbage collection.

    Modules are never garbage. To search them again and again takes a twentieth of their import.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


class _StandIn(ModuleType):
    """Module that is executed when a name that it does not have is used.

    The standard library's LazyLoader executes a module when any name is used, also the one that
    the stub takes from asyncio.
    """

    def __getattr__(self, name: str) -> Any:
        with _EXECUTING:  # it uses its own names meanwhile, in the same thread
            spec = self.__spec__
            if "_is_begun" not in vars(self) and spec is not None and spec.loader is not None:
                self._is_begun = True
                try:
                    spec.loader.exec_module(self)
                    self.__class__ = ModuleType  # type: ignore[assignment]
                finally:  # a module that it imports may use it before that one is complete
                    del self._is_begun
        return ModuleType.__getattribute__(self, name)


_EXECUTING = RLock()


def stand_in(name: str, **sources: str) -> None:
    """Import a module when it is first used: not when another module imports it.

    A module that has been imported stays as it is.

    Args:
        name: the module.
        sources: names of the module whose use does not count, and the modules that define them.
    """
    spec = None if name in sys.modules else util.find_spec(name)
    if spec is not None:
        module = sys.modules[name] = util.module_from_spec(spec)
        module.__class__ = _StandIn
        for attribute, source in sources.items():
            vars(module)[attribute] = getattr(import_module(source), attribute)


def leave_out_protobuf() -> None:
    """Import what few programs use of protobuf, or by it, when it is used."""
    for name in _UNUSED_OF_PROTOBUF:
        stand_in(name)


def make_lazy(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the `__getattr__` and the `__dir__` of a package that has such a module."""

    def get(name: str) -> Any:
        if name != "__all__":
            if name.startswith("__"):
                raise AttributeError(f"module {package!r} has no attribute {name!r}")
            if util.find_spec(f"{package}.{name}") is not None:
                return import_module(f"{package}.{name}")
            if name in (modules := _find_modules(package)):
                value = getattr(import_module(modules[name], package), name)
                vars(sys.modules[package])[name] = value
                return value
        names = _import_names(package)
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return names[name]

    return get, lambda: sorted({*vars(sys.modules[package]), *_import_names(package)})


@cache
def _find_modules(package: str) -> dict[str, str]:
    """Return the modules of public names, by lines `from MODULE import NAME as NAME` in `public`.

    To parse the file would take ten times as long, milliseconds for all packages of a program.
    """
    import re  # here, because programs that use no public name do without it

    (folder,) = sys.modules[package].__path__
    with open(os.path.join(folder, f"{PUBLIC}.py"), "rb") as file:
        text = file.read().decode()
    return {name: module for module, name in re.findall(_IMPORT, text, re.MULTILINE)}


def _import_names(package: str) -> dict[str, Any]:
    """Return the public names and store them in the package."""
    public = import_module(f"{package}.{PUBLIC}")
    names = {name: getattr(public, name) for name in public.__all__}
    names["__all__"] = public.__all__
    vars(sys.modules[package]).update(names)
    return names
