"""User-defined Python files that register passes or shape functions when they are imported."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path

from simipu import CompileError


def load_extensions(option: str, files: Iterable[str]) -> None:
    """Import `files`, given by `option`. They may import modules from their own folders.

    The user's code runs with the user's rights. Raises CompileError for a file that is missing or
    fails.
    """
    for file in files:
        path = Path(file).absolute()
        if not path.is_file():
            raise CompileError(f"{option} {file}: no such file")
        if str(path.parent) not in sys.path:
            sys.path.insert(0, str(path.parent))
        loaded = sys.modules.get(path.stem)
        if loaded is not None and getattr(loaded, "__file__", None) == str(path):
            continue
        spec = importlib.util.spec_from_file_location(path.stem, path)
        if spec is None or spec.loader is None:
            raise CompileError(f"{option} {file}: expected a Python file, NAME.py")
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        try:
            spec.loader.exec_module(module)
        except Exception as error:  # a user's file may raise anything; the message names the file
            del sys.modules[path.stem]
            text = " ".join(str(error).split())
            raise CompileError(f"{option} {file}: {type(error).__name__}: {text}") from error
