"""Extensions of Keras classes, and methods that are delegated to them.

An extension is a mixin. A model that is made in the scope of an IPUStrategy gets a class of its own
name, derived from its class and the extension. A method `x` of Keras that is wrapped here calls the
extension's `_x_delegate` if `_x_supported` returns true, else Keras' own code. Overrides in user
code come first, and their `super().x()` arrives here.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import tensorflow as tf

from tensorflow_ipu.keras_extensions.stages import is_ipu_strategy

SWITCH: Final = "__extension_delegate"
"""Keyword argument that, if False, calls Keras' own code."""
ANY_SIGNATURE: Final = "_accepts_any_signature"


class KerasExtension:
    """Base class of all extensions."""


def accept_any_signature(delegate: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a delegate that serves methods of Keras 3 and of tf_keras, whose signatures differ."""
    setattr(delegate, ANY_SIGNATURE, True)
    return delegate


def extension_delegate(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that calls the extension's delegate where there is one.

    Args:
        function: Keras' method.

    Returns:
        The wrapper. Its `__original_func__` is Keras' method.
    """
    name = function.__name__

    @functools.wraps(function)
    def wrapper(instance: Any, *args: Any, **kwargs: Any) -> Any:
        delegate_allowed = kwargs.pop(SWITCH, True)
        if not isinstance(instance, KerasExtension) or _is_running(instance, name):
            return function(instance, *args, **kwargs)
        if delegate_allowed:
            supported, delegate = _find_delegate(name, instance)
            if (
                supported is not None
                and delegate is not None
                and _signatures_agree(function, delegate)
                and supported(instance, *args, **kwargs)
            ):
                return delegate(instance, *args, **kwargs)
        with _running(instance, name):
            return function(instance, *args, **kwargs)

    wrapper.__original_func__ = function  # type: ignore[attr-defined]
    return wrapper


def keep_signature(wrapper: Any, function: Callable[..., Any]) -> None:
    """Give a wrapper the signature of what it wraps: Keras compares those of constructors."""
    try:
        wrapper.__signature__ = inspect.signature(function)
    except (TypeError, ValueError):
        return


def call_original(instance: Any, name: str, *args: Any, **kwargs: Any) -> Any:
    """Call Keras' own method, which a wrapper of this module hides."""
    for cls in type(instance).__mro__:
        original = getattr(vars(cls).get(name), "__original_func__", None)
        if original is not None:
            with _running(instance, name):
                return original(instance, *args, **kwargs)
    raise AttributeError(f"{type(instance).__name__} has no wrapped method {name!r}")


def check_if_extension_delegate_exists(name: str, instance: Any) -> bool:
    """Return whether an instance is extended and the extension has a delegate of this name."""
    return isinstance(instance, KerasExtension) and None not in _find_delegate(name, instance)


def extension_delegate_if_exists(name: str, instance: Any, *args: Any, **kwargs: Any) -> Any:
    """Call the extension's delegate, if there is one that supports the arguments.

    Args:
        name: Name of the method.
        instance: Object that may be extended.
        args: Positional arguments.
        kwargs: Keyword arguments.

    Returns:
        What the delegate returns, or None.
    """
    if not isinstance(instance, KerasExtension):
        return None
    supported, delegate = _find_delegate(name, instance)
    if supported and delegate and supported(instance, *args, **kwargs):
        return delegate(instance, *args, **kwargs)
    return None


_state = threading.local()


@contextmanager
def _running(instance: Any, name: str) -> Iterator[None]:
    """Run Keras' own method: what it calls of its base classes is not delegated again."""
    running = vars(_state).setdefault("running", [])
    running.append((id(instance), name))
    try:
        yield
    finally:
        running.pop()


def _is_running(instance: Any, name: str) -> bool:
    return (id(instance), name) in getattr(_state, "running", ())


@contextmanager
def without_extensions() -> Iterator[None]:
    """Make models in this context that are not extended."""
    before = getattr(_state, "disabled", False)
    _state.disabled = True
    try:
        yield
    finally:
        _state.disabled = before


@contextmanager
def kept_refusal() -> Iterator[list[Exception]]:
    """Keep the error with which a saved model is refused, in the list that is returned."""
    before = getattr(_state, "refusals", None)
    refusals: list[Exception] = []
    _state.refusals = refusals
    try:
        yield refusals
    finally:
        _state.refusals = before


def keep_refusal(error: Exception) -> None:
    """Keep an error for the loader that will drop it."""
    if getattr(_state, "refusals", None) is not None:
        _state.refusals.append(error)


def extend(instance: Any) -> None:
    """Extend an instance that is made in the scope of an IPUStrategy."""
    if getattr(_state, "disabled", False):
        return
    strategy = tf.distribute.get_strategy()
    if is_ipu_strategy(strategy):
        strategy._patch_keras_extension(instance)


def _find_delegate(name: str, instance: Any) -> tuple[Any, Any]:
    prefix = "" if name.startswith("_") else "_"
    methods = (
        getattr(instance, f"{prefix}{name}_{part}", None) for part in ("supported", "delegate")
    )
    supported, delegate = (getattr(method, "__func__", method) for method in methods)
    return supported, delegate


def _signatures_agree(function: Callable[..., Any], delegate: Callable[..., Any]) -> bool:
    if getattr(delegate, ANY_SIGNATURE, False):
        return True
    return inspect.getfullargspec(function)[:6] == inspect.getfullargspec(delegate)[:6]
