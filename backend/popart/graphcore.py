"""Table of the operators of PopART's own domain, ai.graphcore, as the builder offers them.

An entry says how the method is called, and what the node is that the method adds. The builder and
its type stubs make the methods of `aiGraphcore` from this table.

Source: graphcore/popart, python/popart/popart_core/popart.cpp (signatures, defaults),
willow/src/builder.cpp (attributes of the nodes), willow/include/popart/graphcoreoperators.hpp
(numbers of inputs and outputs).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

import onnx

from popart.tensorinfo import find_type, to_onnx_type

DOMAIN: Final = "ai.graphcore"
REQUIRED: Final = object()
"""Default of a parameter that has none."""
UNBOUNDED: Final = 2**31 - 1
"""Maximum number of inputs of an operator that takes any number."""

GROUP_SIZE: Final = 3
"""Number of inputs of a convolution of a MultiConv: data, weights, and a bias that may be ""."""

AttributeValue = (
    int | float | str | Sequence[int] | Sequence[float] | Sequence[str] | onnx.GraphProto
)


@dataclass(frozen=True, slots=True)
class Parameter:
    """Parameter of a method, after `args`."""

    name: str
    kind: str
    """Type of the values: bool, int, float, str, char (one character), ints, floats, strs, ints2
    (list of lists), graph (a builder), or the name of an enumeration or class of popart."""
    default: Any = REQUIRED
    """Default value; for an enumeration the name of its member."""
    attribute: str = ""
    """Name of the node's attribute, if it is not the parameter's."""
    omitted: Any = None
    """Value with which the node gets no attribute."""

    @property
    def key(self) -> str:
        """Return the name of the node's attribute."""
        return self.attribute or self.name


@dataclass(frozen=True, slots=True)
class Method:
    """Method of `aiGraphcore`."""

    name: str
    op_type: str
    min_inputs: int = 1
    max_inputs: int = 1
    parameters: tuple[Parameter, ...] = ()
    outputs: int | None = 1
    """Number of outputs; None: the method has the parameter `num_outputs` after `args`."""
    args: str = "ids"
    """Kind of the parameter `args`: ids (a list), optional (a list, by default empty), id (one
    name), groups (a list of lists of names), or none (the method has no such parameter)."""
    returns: str = "id"
    """Kind of the result: id, ids (a list), first (the first output's name), or none."""
    debug_name: str = "debugContext"
    """Name of the parameter for the debug context."""
    debug_place: int | None = None
    """Index of the debug context among `parameters`; None: after all."""
    optional: str = ""
    """Parameter that a second signature of the method lacks, so that positions behind it move."""
    always: Mapping[str, AttributeValue] = field(default_factory=dict)
    """Attributes that every node of it has."""


def _method(
    name: str, op_type: str, inputs: int | tuple[int, int] = 1, *parameters: Parameter, **more: Any
) -> Method:
    low, high = inputs if isinstance(inputs, tuple) else (inputs, inputs)
    if more.get("outputs", 1) != 1:
        more.setdefault("returns", "ids")
    return Method(name, op_type, low, high, parameters, **more)


_AXES_AND_SIZES = (Parameter("axes", "ints"), Parameter("sizes", "ints"))
_NO_OVERLAP = Parameter("noOverlap", "int", 0)
_REDUCTION = Parameter("reduction", "ReductionType", "Mean")
_COLLECTIVE = (
    Parameter("collectiveOperator", "CollectiveOperator", None, "__collectiveOperator"),
    Parameter("commGroup", "CommGroup", None, "__collectiveCommGroup"),
)
_SCATTER = (
    Parameter("axis_size", "int"),
    Parameter("axis", "int", -1),
    Parameter("reduction", "ScatterReduction", "Sum"),
)
_BROADCAST = Parameter("enable_index_broadcast", "int", 1)
_EPSILON = Parameter("epsilon", "float", 1e-5, omitted=1e-5)
_MULTICONV = (
    *(
        Parameter(name, "ints2", (), omitted=())
        for name in ("dilations", "inDilations", "pads", "outPads", "strides")
    ),
    Parameter("availableMemoryProportions", "floats", (), "__available_memory", omitted=()),
    Parameter("partialsTypes", "strs", (), "__partials_type", omitted=()),
    Parameter("planType", "str", None),
    Parameter("perConvReservedTiles", "int", None),
    Parameter("cycleBackOff", "float", None),
    Parameter("enableConvDithering", "ints", (), "__enable_conv_dithering", omitted=()),
)
_PRINTING = (
    Parameter("print_gradient", "int", 1),
    Parameter("title", "str", ""),
    Parameter("summariseThreshold", "int", 1000),
    Parameter("edgeItems", "int", 3),
    Parameter("maxLineWidth", "int", 75),
    Parameter("digits", "int", 8),
    Parameter("floatFormat", "int", 0),
    Parameter("separator", "char", " "),
    Parameter("openBracket", "char", "["),
    Parameter("closeBracket", "char", "]"),
)

_ALL = (
    _method("copyvarupdate", "CopyVarUpdate", 2),
    _method(
        "batchnormalization",
        "BatchNormalization",
        5,
        _EPSILON,
        Parameter("momentum", "float", 0.9, omitted=0.9),
        outputs=None,
        always=MappingProxyType({"unbiased_variance": 0}),
    ),
    _method(
        "groupnormalization",
        "GroupNormalization",
        3,
        Parameter("num_groups", "int"),
        _EPSILON,
        outputs=3,
    ),
    _method("printtensor", "PrintTensor", 1, *_PRINTING, debug_place=1),
    _method("nop", "Nop"),
    _method("normalize_image", "NormalizeImage", 3, Parameter("scale", "float", 1.0)),
    _method("scale", "Scale", 1, Parameter("scale", "float")),
    _method(
        "scaledadd",
        "ScaledAdd",
        (2, 4),
        Parameter("scale0", "float", 1.0),
        Parameter("scale1", "float", 1.0),
    ),
    _method(
        "lstm",
        "LSTM",
        (3, 4),
        Parameter("outputFullSequence", "int", 1, "output_full_sequence"),
        outputs=2,
    ),
    _method("subsample", "Subsample", 1, Parameter("strides", "ints")),
    _method("gelu", "Gelu"),
    _method("geluerf", "GeluErf"),
    _method("detach", "Detach"),
    _method("round", "Round"),
    _method("nearbyint", "NearbyInt"),
    _method(
        "depthtospace",
        "DepthToSpace",
        1,
        Parameter("blocksize", "int"),
        Parameter("mode", "str", omitted="DCR"),
    ),
    _method(
        "init",
        "Init",
        0,
        Parameter("shape", "ints"),
        Parameter("data_type", "int"),
        Parameter("init_type", "int"),
        Parameter("batch_axis", "int", -1),
        args="none",
        optional="batch_axis",
        always=MappingProxyType({"tensor_type": 0}),
    ),
    _method("dynamicslice", "DynamicSlice", (2, 3), *_AXES_AND_SIZES, _NO_OVERLAP),
    _method("dynamicupdate", "DynamicUpdate", 3, *_AXES_AND_SIZES, _NO_OVERLAP),
    _method("dynamiczero", "DynamicZero", 2, *_AXES_AND_SIZES),
    _method("dynamicadd", "DynamicAdd", 3, *_AXES_AND_SIZES),
    _method("sequenceslice", "SequenceSlice", 5, Parameter("zeroUnused", "int", 0)),
    _method(
        "packedDataBlock",
        "PackedDataBlock",
        (0, UNBOUNDED),
        Parameter("maxSequenceLengths", "ints"),
        Parameter("resultSize", "int"),
        Parameter("callbackBatchSize", "int"),
        Parameter("callback", "graph"),
        debug_name="debugName",
    ),
    _method(
        "call",
        "Call",
        (0, UNBOUNDED),
        Parameter("callee", "graph"),
        outputs=None,
        debug_name="debugName",
    ),
    _method("fmod", "Fmod", 2),
    _method("replicatedallreduce", "ReplicatedAllReduce", 1, *_COLLECTIVE),
    _method("replicatedreducescatter", "ReplicatedReduceScatter", (1, 2), *_COLLECTIVE),
    _method("l1loss", "L1", 1, Parameter("lambda", "float"), _REDUCTION),
    _method(
        "nllloss",
        "Nll",
        2,
        _REDUCTION,
        Parameter("ignoreIndex", "int", None),
        Parameter("inputIsLogProbability", "bool", default=False),
    ),
    _method("identityloss", "IdentityLoss", 1, _REDUCTION),
    _method(
        "ctcloss",
        "Ctc",
        4,
        _REDUCTION,
        Parameter("blank", "int", 0),
        Parameter("outDataType", "DataTypeName", "UNDEFINED"),
        Parameter("zeroInfinity", "bool", default=False),
        outputs=2,
        returns="first",
    ),
    _method(
        "multiconv",
        "MultiConv",
        (2, UNBOUNDED),
        *_MULTICONV,
        args="groups",
        outputs=None,
    ),
    _method(
        "shapeddropout",
        "ShapedDropout",
        1,
        Parameter("shape", "ints"),
        Parameter("ratio", "float", 0.5),
    ),
    _method("atan2", "Atan2", 2),
    _method("expm1", "Expm1"),
    _method("log1p", "Log1p"),
    _method("reshape", "Reshape", 1, Parameter("shape", "ints"), args="id"),
    _method("remainder", "Remainder", 2),
    _method("reverse", "Reverse", 1, Parameter("dimensions", "ints")),
    _method(
        "slice",
        "Slice",
        1,
        Parameter("ends", "ints"),
        Parameter("starts", "ints"),
        Parameter("axes", "ints", omitted=()),
    ),
    _method("abort", "Abort", (0, 1), args="optional", outputs=0, returns="none"),
    *(
        _method(f"bitwise{name}", f"Bitwise{name.title()}", inputs, args="optional")
        for name, inputs in (("and", 2), ("not", 1), ("or", 2), ("xor", 2), ("xnor", 2))
    ),
    _method("bucketize", "Bucketize", 2, Parameter("right", "int", 0), args="optional"),
    _method(
        "sort",
        "Sort",
        1,
        Parameter("axis", "int", -1),
        Parameter("descending", "int", 0),
        Parameter("stable", "int", 0),
        args="optional",
        outputs=2,
    ),
    _method(
        "reducemedian",
        "ReduceMedian",
        1,
        Parameter("axes", "ints", None),
        Parameter("keepdims", "int", 1),
        outputs=2,
    ),
    _method(
        "scatterreduce",
        "ScatterReduce",
        (2, 3),
        *_SCATTER,
        _BROADCAST,
        args="optional",
        always=MappingProxyType({"group_size": 1}),
    ),
    _method(
        "groupedscatterreduce",
        "ScatterReduce",
        (2, 3),
        *_SCATTER,
        Parameter("group_size", "int", 1),
        _BROADCAST,
        args="optional",
    ),
    _method(
        "groupedgather",
        "GroupedGather",
        2,
        Parameter("axis", "int", 0),
        Parameter("group_size", "int", 1),
        args="optional",
    ),
    _method(
        "ctcbeamsearchdecoder",
        "CtcBeamSearchDecoder",
        2,
        Parameter("blank", "int", 0),
        Parameter("beam_width", "int", 100),
        Parameter("top_paths", "int", 1),
        outputs=3,
        debug_name="debug_context",
    ),
    _method("swish", "Swish", args="optional"),
    _method(
        "incrementmod",
        "IncrementMod",
        1,
        Parameter("increment", "float"),
        Parameter("modulus", "float"),
        args="optional",
    ),
    _method(
        "tensorremap",
        "TensorRemap",
        (1, 2),
        Parameter("remap_type", "int", 0),
        debug_name="debugPrefix",
    ),
    _method(
        "splinebasis", "SplineBasis", 3, Parameter("degree", "int"), args="optional", outputs=2
    ),
    _method("splineweighting", "SplineWeighting", 4, args="optional"),
)

METHODS: Mapping[str, Method] = MappingProxyType({method.name: method for method in _ALL})
"""Methods of `aiGraphcore` by name."""

_REDUCTIONS = MappingProxyType(
    {"Sum": "sum", "Max": "max", "Min": "min", "Mul": "mul", "NoReduction": "none"}
)
"""Attribute of a ScatterReduction, by the name of its member."""
_LOSS_REDUCTIONS = MappingProxyType({"Sum": "Sum", "Mean": "Mean", "NoReduction": "None"})
"""Attribute of a ReductionType, by the name of its member."""


def make_attributes(
    method: Method, given: Mapping[str, Any], num_outputs: int = 1
) -> dict[str, AttributeValue]:
    """Return the attributes of the node that a call of a method adds.

    Args:
        method: the method.
        given: the arguments by parameter, defaults too; a graph is given as its GraphProto, an
            enumeration as its member or its name.
        num_outputs: number of outputs that the caller asked for.

    Returns:
        The attributes by name.
    """
    attributes: dict[str, AttributeValue] = dict(method.always)
    for parameter in method.parameters:
        value = given[parameter.name]
        if value is None or _is_omitted(parameter, value):
            continue
        reader: Callable[[Any], Any] = _READERS.get(parameter.kind, _read_plain)
        attributes[parameter.key] = reader(value)
    if method.op_type in ("Call", "MultiConv"):
        attributes["num_outputs" if method.op_type == "Call" else "numConvs"] = num_outputs
    return attributes


def _is_omitted(parameter: Parameter, value: Any) -> bool:
    left_out = parameter.omitted
    return left_out is not None and (list(value) if left_out == () else value) == (
        list(left_out) if left_out == () else left_out
    )


def _read_plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _name_of(value: Any) -> str:
    return str(getattr(value, "name", value))


_READERS: Mapping[str, Callable[[Any], Any]] = MappingProxyType(
    {
        "bool": int,
        "char": ord,
        "ints2": lambda lists: [int(each) for listed in lists for each in listed],
        "ReductionType": lambda value: _LOSS_REDUCTIONS[_name_of(value)],
        "ScatterReduction": lambda value: _REDUCTIONS[_name_of(value)],
        "CollectiveOperator": int,
        "CommGroup": lambda group: [int(group.type), int(group.replicaGroupSize)],
        "DataTypeName": lambda name: to_onnx_type(find_type(name)),
    }
)
"""Functions from an argument to the attribute, by the parameter's kind."""
