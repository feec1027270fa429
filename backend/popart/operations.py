"""Operators that models can have: what `getSupportedOperations` and its relatives return."""

from __future__ import annotations

from dataclasses import dataclass, field

import onnx
from onnx.defs import OpSchema
from simipu.operators import CHIP_OPERATORS, find_operator

from popart import graphcore
from popart.builder.opsets import ONNX_DOMAIN, VERSIONS, find_schemas
from popart.enums import DataType
from popart.tensorinfo import from_onnx_type

_TENSOR_PREFIX = "tensor("


@dataclass(frozen=True)
class OperatorIdentifier:
    """Operator of a domain, and the opset that introduced its form."""

    domain: str
    type: str
    version: int


@dataclass(frozen=True)
class OperatorInput:
    """Input of an operator."""

    name: str
    supportedTensors: list[DataType]
    constant: bool = False


@dataclass(frozen=True)
class OperatorOutput:
    """Output of an operator."""

    name: str
    supportedTensors: list[DataType]


@dataclass(frozen=True)
class OperatorAttribute:
    """Attribute of an operator."""

    supportedValuesRegex: str = "*"


@dataclass(frozen=True)
class OpDefinition:
    """Inputs, outputs and attributes of an operator."""

    inputs: list[OperatorInput] = field(default_factory=list)
    outputs: list[OperatorOutput] = field(default_factory=list)
    attributes: dict[str, OperatorAttribute] = field(default_factory=dict)


def getSupportedOperations(includeInternal: bool) -> list[OperatorIdentifier]:
    """Return the operators that models can have.

    Args:
        includeInternal: Whether to return those, too, that only the compiler makes.

    Returns:
        Operators of ONNX's opsets 6 to 11, and PopART's own.
    """
    return list(_find_definitions(includeInternal))


def getUnsupportedOperations(opsetVersion: int) -> list[OperatorIdentifier]:
    """Return the operators of one of ONNX's opsets that models cannot have."""
    return [
        OperatorIdentifier(ONNX_DOMAIN, name, schema.since_version)
        for name, schema in find_schemas(opsetVersion).items()
        if not _is_supported(name)
    ]


def getSupportedOperationsDefinition(
    includeInternal: bool,
) -> dict[OperatorIdentifier, OpDefinition]:
    """Return the operators that models can have, with inputs, outputs and attributes.

    Args:
        includeInternal: Whether to return those, too, that only the compiler makes.

    Returns:
        Definitions by operator.
    """
    return _find_definitions(includeInternal)


def _is_supported(op_type: str) -> bool:
    """Return whether the compiler takes an operator as it is."""
    operator = find_operator(op_type)
    return not operator.refusal and operator.tensors_only


def _find_definitions(internal: bool) -> dict[OperatorIdentifier, OpDefinition]:
    definitions = {
        OperatorIdentifier(ONNX_DOMAIN, name, schema.since_version): _define(schema)
        for version in VERSIONS
        for name, schema in find_schemas(version).items()
        if _is_supported(name)
    }
    for method in graphcore.METHODS.values():
        attributes = {parameter.key: OperatorAttribute() for parameter in method.parameters}
        identifier = OperatorIdentifier(graphcore.DOMAIN, method.op_type, 1)
        definitions[identifier] = OpDefinition(attributes=attributes)
    if internal:
        for op_type in CHIP_OPERATORS:
            definitions.setdefault(OperatorIdentifier(graphcore.DOMAIN, op_type, 1), OpDefinition())
    return definitions


def _define(schema: OpSchema) -> OpDefinition:
    return OpDefinition(
        [OperatorInput(source.name, _list_types(source)) for source in schema.inputs],
        [OperatorOutput(result.name, _list_types(result)) for result in schema.outputs],
        {name: OperatorAttribute() for name in schema.attributes},
    )


def _list_types(value: OpSchema.FormalParameter) -> list[DataType]:
    names = [type_name for type_name in value.types if type_name.startswith(_TENSOR_PREFIX)]
    numbers = [_find_number(name[len(_TENSOR_PREFIX) : -1]) for name in names]
    return sorted(map(from_onnx_type, numbers), key=int)


def _find_number(name: str) -> int:
    """Return ONNX's number of a type that a schema names."""
    return onnx.TensorProto.DataType.Value(name.upper())
