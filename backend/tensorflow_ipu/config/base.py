"""Trees of typed attributes: the base class of IPUConfig and of its categories.

An attribute comes to be when the constructor assigns it. Its type is that of its type hint, or of
its value; its description is the text above the assignment. Afterwards values are checked, and no
attribute can be added.
"""

from __future__ import annotations

import ast
import builtins
import copy
import difflib
import functools
import inspect
import json
import os
import textwrap
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any, Final, NoReturn, TypeVar

from tensorflow.python.platform import tf_logging

from popef._tools.options import Kind, MismatchError
from tensorflow_ipu.config.hints import kind_of_hint, kind_of_value, resolve

_Class = TypeVar("_Class", bound=type)
_DEPRECATIONS: Final[dict[tuple[type, str], str]] = {}
"""Messages about deprecated attributes, by class and name."""
_NO_DESCRIPTION: Final = "No description provided."


def deprecate_config_attribute(name: str, msg: str) -> Callable[[_Class], _Class]:
    """Return a decorator of a category that deprecates one of its attributes.

    Args:
        name: Name of the attribute.
        msg: What a user reads who sets it.

    Returns:
        The decorator.
    """
    return deprecate_config_attributes({name: msg})


def deprecate_config_attributes(
    to_deprecate: Mapping[str, str] | Iterable[tuple[str, str]],
) -> Callable[[_Class], _Class]:
    """Return a decorator of a category that deprecates several of its attributes.

    Args:
        to_deprecate: Names and messages, as a dictionary or as pairs.

    Returns:
        The decorator.
    """

    def deprecate(category: _Class) -> _Class:
        _DEPRECATIONS.update({(category, name): text for name, text in dict(to_deprecate).items()})
        return category

    return deprecate


class AttributeMetadata:
    """Facts about an attribute or a category.

    Args:
        name: Full name, as "matmuls.poplar_options".
        doc: Description.
        depth: Number of names in the full name.
        default: Value at first; None for a category.
        deprecated_msg: What a user reads who sets it; None if it is not deprecated.
        attr_type: Class of the values; None for a category.
        attr_type_str: Type hint, as text; None for a category.
        check_type_fn: Returns whether a value has an allowed type.
    """

    def __init__(
        self,
        name: str,
        doc: str = "",
        depth: int = 0,
        default: Any = None,
        deprecated_msg: str | None = None,
        attr_type: type | None = None,
        attr_type_str: str | None = None,
        check_type_fn: Callable[[Any], bool] = lambda _: True,
    ) -> None:
        self.__doc__ = inspect.cleandoc(doc)
        self._name, self._depth, self._default = name, depth, default
        self._deprecated_msg = deprecated_msg
        self._actual_type, self._type = attr_type, attr_type_str
        self._check_type = check_type_fn

    @property
    def name(self) -> str:
        """Full name, from the root of the configuration."""
        return self._name

    @property
    def deprecated(self) -> bool:
        """Whether it is deprecated."""
        return self._deprecated_msg is not None

    @property
    def deprecated_msg(self) -> str | None:
        """What a user reads who sets it; None if it is not deprecated."""
        return self._deprecated_msg

    @property
    def type(self) -> str | None:
        """Type hint of its values, as text; None for a category."""
        return self._type

    @property
    def actual_type(self) -> builtins.type | None:
        """Class of its values, as far as there is one; None for a category."""
        return self._actual_type

    @property
    def default(self) -> Any:
        """Value at first; None for a category."""
        return self._default

    def check_type(self, value: Any) -> None:
        """Check that a value has an allowed type.

        Args:
            value: The value.

        Raises:
            TypeError: If it has another type.
        """
        if not self._check_type(value):
            raise TypeError(
                f"Trying to set {self.name} to {value}, but it must be of type {self.type}"
            )

    def warn_if_deprecated(self) -> None:
        """Log a warning if it is deprecated."""
        if self.deprecated:
            tf_logging.warn(f"{self.name} has been deprecated: {self.deprecated_msg}")

    def nest(self, category: str) -> None:
        """Note that it lies in a category."""
        self._name, self._depth = f"{category}.{self._name}", self._depth + 1

    def inherit_deprecation(self, category: AttributeMetadata | None) -> None:
        """Take over the deprecation of its category, unless it has one of its own."""
        if category is not None and not self.deprecated:
            self._deprecated_msg = category.deprecated_msg

    def describe(self, is_first: bool) -> str:
        """Return its entry in the reference, in reStructuredText.

        Args:
            is_first: Whether it is the first one of its category. Sphinx takes the first name of
                such an entry for a class, and leaves it out, so that it has to stand there twice.

        Returns:
            The entry.
        """
        top, *rest = self.name.rsplit(".", 2)
        shown = f"{top}.{self.name}" if is_first and rest[1:] else self.name
        lines = [f".. _{self.name}:", f".. py:attribute:: {shown}"]
        if self._type is not None:
            default = f'"{self.default}"' if isinstance(self.default, str) else self.default
            lines += [f"   :type: {self.type}", f"   :value: {default}"]
        lines.append("")
        if self.deprecated:
            lines += ["   .. note::\n", f"      DEPRECATED: {self.deprecated_msg}\n"]
        lines += ["   " + line for line in (self.__doc__ or "").split("\n")]
        indent = "   " * (self._depth + 1)
        return "\n".join(indent + line for line in lines) + "\n\n"


class _ConfigBase:
    """Category of a configuration. A subclass assigns its attributes in its constructor."""

    _user_attributes: dict[str, AttributeMetadata]
    _nested_configs: list[str]

    def __new__(cls, *_: Any, **__: Any) -> Any:
        """Return a category without attributes, whose constructor may add some."""
        category = super().__new__(cls)
        vars(category).update(_user_attributes={}, _nested_configs=[], _num_constructors=0)
        return category

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Let the constructor of a subclass, and no one else, add attributes."""
        super().__init_subclass__(**kwargs)
        constructor = vars(cls).get("__init__")
        if constructor is None:
            return

        @functools.wraps(constructor)
        def construct(self: _ConfigBase, *args: Any, **kwargs: Any) -> None:
            vars(self)["_num_constructors"] += 1
            try:
                constructor(self, *args, **kwargs)
            finally:
                vars(self)["_num_constructors"] -= 1

        cls.__init__ = construct  # type: ignore[method-assign, assignment]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # protocols of Python ask for names that there may be
            raise AttributeError(name)
        return self._refuse(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._user_attributes:
            metadata = self._user_attributes[name]
            metadata.warn_if_deprecated()
            if name in self._nested_configs:
                raise Exception(f"{metadata.name} is a category and cannot be assigned to.")
            metadata.check_type(value)
            object.__setattr__(self, name, value)
        elif vars(self)["_num_constructors"]:
            declaration = _find_declarations(type(self)).get(  # type: ignore[arg-type]
                name, _Declaration()
            )
            self._add(name, value, declaration.make_kind(value), declaration.description)
        else:
            self._refuse(name)

    def _add(
        self, name: str, value: Any, kind: Kind, description: str, deprecated: str | None = None
    ) -> None:
        """Add an attribute, or a category, with its value at first."""
        deprecated = deprecated or _DEPRECATIONS.get((type(self), name))
        metadata = AttributeMetadata(name, description, 1, deprecated_msg=deprecated)
        if isinstance(value, _ConfigBase):
            self._nested_configs.append(name)
            value._nest(name)
        else:
            default = copy.copy(value)
            metadata = AttributeMetadata(
                name, description, 1, default, deprecated, kind.base, kind.name, _checker(kind)
            )
        self._user_attributes[name] = metadata
        object.__setattr__(self, name, value)

    def _nest(self, category: str) -> None:
        for name, metadata in self._user_attributes.items():
            metadata.nest(category)
            if name in self._nested_configs:
                getattr(self, name)._nest(category)

    def _refuse(self, name: str) -> NoReturn:
        near = difflib.get_close_matches(name, self._user_attributes)
        hint = f"Did you mean '{self._get_full_name(near[0])}'?" if near else ""
        raise ValueError(f"'{name}' is not a valid attribute of this config. {hint}")

    def _get_full_name(self, name: str) -> str:
        return self._user_attributes[name].name

    def _finalize_base_config(self) -> None:
        """Pass deprecations on to what lies in a category, and write the class's documentation."""
        type(self).__doc__ = "".join(self._describe(None))

    def _describe(self, category: AttributeMetadata | None) -> Iterable[str]:
        for number, (name, metadata) in enumerate(self._user_attributes.items()):
            metadata.inherit_deprecation(category)
            yield metadata.describe(number == 0)
            if name in self._nested_configs:
                yield from getattr(self, name)._describe(metadata)

    def _to_protobuf(self, pb: Any) -> None:
        """Write what the categories have into a message."""
        for name in self._nested_configs:
            getattr(self, name)._to_protobuf(pb)

    def to_dict(self) -> dict[str, Any]:
        """Return the values by full name; those of enumerations are numbers.

        Returns:
            The values.
        """
        values: dict[str, Any] = {}
        for name, metadata in self._user_attributes.items():
            value = getattr(self, name)
            if name in self._nested_configs:
                values |= value.to_dict()
            else:
                values[metadata.name] = value.value if isinstance(value, Enum) else value
        return values

    def from_dict(self, dct: Mapping[str, Any]) -> None:
        """Set the values that a dictionary has; others stay as they are, with a warning.

        Args:
            dct: Values by full name, as `to_dict` returns them.
        """
        for name, metadata in self._user_attributes.items():
            value = getattr(self, name)
            if name in self._nested_configs:
                value.from_dict(dct)
            elif metadata.name not in dct:
                tf_logging.warn(
                    f"{metadata.name} didn't have a value: the existing value will be retained"
                )
            else:
                new = dct[metadata.name]
                new = type(value)(new) if isinstance(value, Enum) else new
                if new != value:
                    setattr(self, name, new)

    def to_json(self) -> str:
        """Return the values as JSON.

        Returns:
            An object with the entries of `to_dict`.
        """
        return json.dumps(self.to_dict())

    def from_json(self, json_cfg: str) -> None:
        """Set the values that a text has, as `from_dict` does.

        Args:
            json_cfg: A JSON object, as `to_json` returns it.
        """
        self.from_dict(json.loads(json_cfg))

    def get_attribute_metadata(self, attr: str) -> AttributeMetadata:
        """Return the facts about an attribute or a category.

        Args:
            attr: Its name, relative to this category, as "matmuls.poplar_options".

        Returns:
            The facts.

        Raises:
            ValueError: If there is no such attribute.
        """
        *categories, name = attr.split(".")
        try:
            category = functools.reduce(getattr, categories, self)
            getattr(category, name)
            return category._user_attributes[name]
        except (ValueError, AttributeError, KeyError) as error:
            raise ValueError(f"Could not get attribute metadata for '{attr}': {error}") from error

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        clone = type(self).__new__(type(self))
        memo[id(self)] = clone
        vars(clone).update({name: copy.deepcopy(value, memo) for name, value in vars(self).items()})
        return clone

    def __str__(self) -> str:
        return os.linesep.join(
            str(value)
            if name in self._nested_configs
            else f"{metadata.name} = {value if isinstance(value, Enum) else repr(value)}"
            for name, metadata in self._user_attributes.items()
            for value in [getattr(self, name)]
        )

    def __repr__(self) -> str:
        lines = ["  " + line for line in str(self).split(os.linesep)]
        return os.linesep.join([f"{type(self).__name__}:", *lines])


def _checker(kind: Kind) -> Callable[[Any], bool]:
    """Return a function that returns whether a value is of a kind."""

    def is_of_kind(value: Any) -> bool:
        try:
            kind.read(value)
        except MismatchError:
            return False
        return True

    return is_of_kind


class _Declaration:
    """The type hint and the description of an assignment in a constructor's source."""

    def __init__(
        self,
        hint: ast.expr | None = None,
        names: Mapping[str, Any] | None = None,
        description: str = _NO_DESCRIPTION,
    ) -> None:
        self._hint, self._names, self.description = hint, names or {}, description

    def make_kind(self, value: object) -> Kind:
        """Return the kind of the attribute, whose value at first is given."""
        if self._hint is None:
            return kind_of_value(value)
        return kind_of_hint(resolve(self._hint, self._names), ast.unparse(self._hint))


@functools.cache
def _find_declarations(category: type) -> dict[str, _Declaration]:
    """Return what the constructors of a class and of its bases declare, by name."""
    declarations: dict[str, _Declaration] = {}
    for base in reversed(category.__mro__):
        constructor = vars(base).get("__init__")
        if constructor is not None and base not in (object, _ConfigBase):
            declarations |= _read_declarations(inspect.unwrap(constructor))
    return declarations


def _read_declarations(constructor: Callable[..., None]) -> dict[str, _Declaration]:
    """Return what a constructor declares; nothing where its source is not there."""
    try:
        source = textwrap.dedent(inspect.getsource(constructor))
        function = ast.parse(source).body[0]
    except (OSError, SyntaxError):
        return {}
    assert isinstance(function, ast.FunctionDef)
    names = getattr(constructor, "__globals__", {})
    declarations, description = {}, _NO_DESCRIPTION
    for statement in function.body:
        match statement:
            case ast.Expr(ast.Constant(str(text))):
                description = text
                continue
            case ast.AnnAssign(ast.Attribute(attr=name), hint):
                declarations[name] = _Declaration(hint, names, description)
            case ast.Assign([ast.Attribute(attr=name)]):
                declarations[name] = _Declaration(None, names, description)
        description = _NO_DESCRIPTION
    return declarations
