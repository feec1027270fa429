"""Names of what operators stand in: modules, `NameScope`, and what hooks of user code push.

While `forward` is captured, each module's last name is pushed when it is entered. A hook of the
user's that pushes, as Graphcore's examples have it, comes first, because it was there first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

MARK: Final = "poptorch_scope"
"""Key of an operator's scope among the notes of torch.export."""
_stack: list[str] = []


def push(name: str) -> None:
    """Enter a scope.

    Args:
        name: Its name.
    """
    _stack.append(name)


def pop() -> None:
    """Leave the scope that was entered last, if there is one."""
    if _stack:
        _stack.pop()


def current() -> str:
    """Return the scopes that are entered, as `layer1/0/`."""
    return "".join(f"{name}/" for name in _stack)


@contextmanager
def follow(modules: Mapping[str, Any]) -> Iterator[None]:
    """Enter each module's scope while it is called.

    Args:
        modules: The modules by their full names. The root, which has none, is no scope.

    Yields:
        Nothing.
    """
    _stack.clear()
    handles = []
    for path, module in modules.items():
        if path:
            name = path.rpartition(".")[2]
            handles += [
                module.register_forward_pre_hook(lambda *_, name=name: push(name)),
                module.register_forward_hook(lambda *_: pop()),
            ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        _stack.clear()
