"""Methods of `aiOnnx...` and `aiGraphcore`, generated from tables.

ONNX's schemas are the table of the standard operators; what PopART's methods have otherwise stands
in `_EXCEPTIONS`. `graphcore.METHODS` is the table of PopART's own operators.
"""

from __future__ import annotations

import inspect
import keyword
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx.defs import OpSchema

from popart import graphcore
from popart.builder.call_checks import check_call
from popart.builder.calls import bind_any
from popart.graphcore import REQUIRED, Method, Parameter

if TYPE_CHECKING:
    from popart.builder.graphs import GraphBuilder

VERSIONS = range(6, 12)
"""Opsets of the standard that a builder offers."""
DEFAULT_VERSION = 10
ONNX_DOMAIN = "ai.onnx"
_NOT_OFFERED = frozenset(
    {
        "auto_pad",
        *(f"value_{kind}" for kind in ("float", "floats", "int", "ints", "string", "strings")),
        "sparse_value",
    }
)
"""Attributes that no method has a parameter for."""
_VALUE = Parameter("value", "tensor")
_EXCEPTIONS: Mapping[str, tuple[Parameter, ...]] = MappingProxyType(
    {
        "Cast": (Parameter("to", "TypeName"),),
        "Constant": (_VALUE,),
        "ConstantOfShape": (_VALUE,),
    }
)
"""Parameters of methods that are not made from the attributes."""
_KINDS: Mapping[OpSchema.AttrType, tuple[str, Callable[[Any], Any]]] = {
    OpSchema.AttrType.INT: ("int", lambda value: value.i),
    OpSchema.AttrType.FLOAT: ("float", lambda value: float(str(np.float32(value.f)))),
    OpSchema.AttrType.STRING: ("str", lambda value: value.s.decode()),
    OpSchema.AttrType.INTS: ("ints", lambda value: tuple(value.ints)),
    OpSchema.AttrType.FLOATS: ("floats", lambda value: tuple(value.floats)),
    OpSchema.AttrType.STRINGS: ("strs", lambda value: tuple(s.decode() for s in value.strings)),
    OpSchema.AttrType.TENSOR: ("tensor", lambda value: value.t),
    OpSchema.AttrType.GRAPH: ("graph", lambda value: value.g),
}
"""Kind of parameter, and reader of the default, for each type of attribute."""


@cache
def find_schemas(version: int) -> Mapping[str, OpSchema]:
    """Return the standard's operators of an opset by type, in the order of their methods."""
    schemas: dict[str, OpSchema] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain or schema.since_version > version or not _is_offered(schema):
            continue
        newest = schemas.get(schema.name)
        if newest is None or newest.since_version < schema.since_version:
            schemas[schema.name] = schema
    return {name: schemas[name] for name in sorted(schemas)}


def _is_offered(schema: OpSchema) -> bool:
    """Return whether PopART has a method; where ONNX deprecates an operator, it keeps the last."""
    common = schema.support_level == OpSchema.SupportType.COMMON or schema.name == "Upsample"
    return common and not schema.deprecated


@cache
def find_methods(version: int) -> Mapping[str, Method]:
    """Return the methods of `aiOnnxOpset` with a version by name."""
    methods = [_make_method(schema, version) for schema in find_schemas(version).values()]
    return MappingProxyType({method.name: method for method in methods})


def _make_method(schema: OpSchema, version: int) -> Method:
    name = schema.name.lower()
    counted = _is_counted(schema)
    # `xor` is a word of C++, where the methods come from, as `and`, `or`, `not` and `if` are.
    is_word = keyword.iskeyword(name) or name == "xor"
    return Method(
        f"logical_{name}" if is_word else name,
        schema.name,
        schema.min_input,
        schema.max_input,
        _make_parameters(schema, version),
        None if counted else schema.max_output,
        "none" if schema.max_input == 0 else "ids",
        "ids" if counted or schema.max_output > 1 else "id",
        "name" if schema.name == "If" else "debugContext",
    )


def _is_counted(schema: OpSchema) -> bool:
    """Return whether the caller says how many outputs there are."""
    return schema.min_output != schema.max_output


def _make_parameters(schema: OpSchema, version: int) -> tuple[Parameter, ...]:
    if schema.name in _EXCEPTIONS:
        exception = _EXCEPTIONS[schema.name]
        if schema.name == "Constant" and version >= 11:  # noqa: PLR2004
            exception = (
                *exception,
                Parameter("is_value_sparse", "dense", default=False, omitted=False),
            )
        return exception
    attributes = [
        schema.attributes[name] for name in sorted(schema.attributes) if name not in _NOT_OFFERED
    ]
    parameters = [_make_parameter(attribute) for attribute in attributes if attribute.required]
    parameters += [_make_parameter(attribute) for attribute in attributes if not attribute.required]
    if schema.name.startswith("Reduce"):
        # No axes is another reduction than an empty list of axes, which is written.
        return tuple(
            replace(parameter, default=None, omitted=None)
            if parameter.name == "axes"
            else parameter
            for parameter in parameters
        )
    return tuple(parameters)


def _make_parameter(attribute: OpSchema.Attribute) -> Parameter:
    kind, read = _KINDS[attribute.type]
    parameter = Parameter(attribute.name, kind)
    if attribute.required:
        return parameter
    if kind in ("ints", "floats", "strs"):
        return replace(parameter, default=(), omitted=())
    if not attribute.default_value.name:
        return replace(parameter, default=None)
    default = read(attribute.default_value)
    # PopART writes ints that equal the default, too: inference of shapes needs some of them.
    return replace(parameter, default=default, omitted=None if kind == "int" else default)


def list_parameters(method: Method) -> tuple[Parameter, ...]:
    """Return all parameters of a method, `args` and the debug context included."""
    first = {
        "ids": (Parameter("args", "ids"),),
        "optional": (Parameter("args", "ids", ()),),
        "id": (Parameter("args", "id"),),
        "groups": (Parameter("args", "groups"),),
        "none": (),
    }[method.args]
    if method.outputs is None and method.args != "groups":
        first = (*first, Parameter("num_outputs", "count"))
    own = list(method.parameters)
    place = len(own) if method.debug_place is None else method.debug_place
    own.insert(place, Parameter(method.debug_name, "debug", ""))
    return (*first, *own)


class Opset:
    """Methods that add nodes of one domain to a builder's graph."""

    domain = ONNX_DOMAIN

    def __init__(self, graph: GraphBuilder, version: int) -> None:
        self._graph = graph
        self.version = version

    def __str__(self) -> str:
        return f"AiOnnx{self.version}"

    def _add(self, method: Method, given: dict[str, Any]) -> Any:
        """Add a method's node; `given` has the values of all its parameters."""
        args, name = given.pop("args", ()), given.pop(method.debug_name)
        inputs = _flatten(method, args)
        num_outputs = given.get("num_outputs", method.outputs)
        if num_outputs is None:
            num_outputs = len(args)
        if self.domain == graphcore.DOMAIN:
            check_call(method, args, given, name, self._graph)
        outputs = self._graph.add_operator(
            self.domain,
            self.version,
            method.op_type,
            inputs,
            num_outputs,
            graphcore.make_attributes(method, given, num_outputs),
            name,
            (method.min_inputs, method.max_inputs),
        )
        return {"ids": outputs, "none": None}.get(method.returns, outputs[0] if outputs else None)


def _flatten(method: Method, args: Any) -> Sequence[str]:
    if method.args == "groups":
        # Each group takes as many inputs as the longest may have, so that a reader can count.
        return [name for group in args for name in (*group, "", "", "")[: graphcore.GROUP_SIZE]]
    return [args] if method.args == "id" else args


def _make_function(method: Method, doc: str) -> Callable[..., Any]:
    parameters = list_parameters(method)
    signatures: list[Sequence[Parameter]] = [parameters]
    if method.optional:
        # C++ has a second signature without that parameter.
        signatures.append(
            [parameter for parameter in parameters if parameter.name != method.optional]
        )
    left_out = {
        parameter.name: parameter.default
        for parameter in parameters
        if parameter.name == method.optional
    }

    def add(self: Opset, *args: Any, **kwargs: Any) -> Any:
        _, arguments = bind_any(method.name, signatures, args, kwargs)
        return self._add(method, {**left_out, **arguments})

    add.__name__ = method.name
    add.__qualname__ = method.name
    add.__doc__ = doc
    add.__signature__ = _make_signature(parameters)  # type: ignore[attr-defined]
    return add


def _make_signature(parameters: Sequence[Parameter]) -> inspect.Signature:
    entries, required = [], False
    for parameter in reversed(parameters):
        # C++ allows a parameter without a default behind one with a default.
        required = required or parameter.default is REQUIRED
        default = inspect.Parameter.empty if required else parameter.default
        # A parameter that is called `lambda` can be given by position, or in a dict.
        name = f"{parameter.name}_" if keyword.iskeyword(parameter.name) else parameter.name
        entries.append(
            inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default)
        )
    entries.append(inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD))
    return inspect.Signature(entries[::-1])


def make_class(
    name: str, doc: str, methods: Mapping[str, Method], **attributes: Any
) -> type[Opset]:
    """Return a class with a method for each entry."""
    functions = {
        key: _make_function(method, f"Add a node of the operator {method.op_type}.")
        for key, method in methods.items()
    }
    return type(name, (Opset,), {"__doc__": doc, "__module__": "popart", **attributes, **functions})


@cache
def find_class(version: int) -> type[Opset]:
    """Return the class of `aiOnnxOpset` with a version."""
    return make_class(
        f"AiOnnxOpset{version}", f"Operators of ONNX's opset {version}.", find_methods(version)
    )


@cache
def find_graphcore_class() -> type[Opset]:
    """Return the class of `aiGraphcore`."""
    return make_class(
        "AiGraphcoreOpset1",
        "Operators of PopART's own domain.",
        graphcore.METHODS,
        domain=graphcore.DOMAIN,
        __str__=lambda self: f"AiGraphcore{self.version}",
    )
