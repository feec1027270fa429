"""TensorFlow's TensorProto, made at run time from its public field numbers, as protobuf itself
encodes it."""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

FIELDS = {
    "DT_FLOAT": ("float_val", 5, "float"),
    "DT_DOUBLE": ("double_val", 6, "double"),
    "DT_INT32": ("int_val", 7, "int32"),
    "DT_INT64": ("int64_val", 10, "int64"),
    "DT_BOOL": ("bool_val", 11, "bool"),
    "DT_HALF": ("half_val", 13, "int32"),
    "DT_UINT32": ("uint32_val", 16, "uint32"),
    "DT_UINT64": ("uint64_val", 17, "uint64"),
    "DT_STRING": ("string_val", 8, "bytes"),
}
"""Field of a type's values: its name, number and type."""
NUMBERS = {
    "DT_FLOAT": 1,
    "DT_DOUBLE": 2,
    "DT_INT32": 3,
    "DT_UINT8": 4,
    "DT_INT16": 5,
    "DT_INT8": 6,
    "DT_STRING": 7,
    "DT_INT64": 9,
    "DT_BOOL": 10,
    "DT_UINT16": 17,
    "DT_HALF": 19,
    "DT_UINT32": 22,
    "DT_UINT64": 23,
}
"""tensorflow/core/framework/types.proto."""
FIELDS |= dict.fromkeys(("DT_UINT8", "DT_INT16", "DT_INT8", "DT_UINT16"), FIELDS["DT_INT32"])

_Field = descriptor_pb2.FieldDescriptorProto


def make_tensor_proto(*, packed: bool) -> Any:
    """Return the class of the message.

    Its lists are written packed, as TensorFlow's are, or one value at a time.
    """
    package = "packed" if packed else "unpacked"
    file = descriptor_pb2.FileDescriptorProto(
        name=f"{package}.proto", package=package, syntax="proto2"
    )
    shape = file.message_type.add(name="Shape")
    dim = shape.nested_type.add(name="Dim")
    _add(dim, "size", 1, "int64")
    _add(dim, "name", 2, "string")
    _add(shape, "dim", 2, f".{package}.Shape.Dim", repeated=True)
    _add(shape, "unknown_rank", 3, "bool")
    tensor = file.message_type.add(name="TensorProto")
    _add(tensor, "dtype", 1, "int32")
    _add(tensor, "tensor_shape", 2, f".{package}.Shape")
    _add(tensor, "version_number", 3, "int32")
    _add(tensor, "tensor_content", 4, "bytes")
    for name, number, kind in dict.fromkeys(FIELDS.values()):
        field = _add(tensor, name, number, kind, repeated=True)
        if kind != "bytes":
            field.options.packed = packed
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.TensorProto"))


def _add(message: Any, name: str, number: int, kind: str, *, repeated: bool = False) -> Any:
    label = _Field.LABEL_REPEATED if repeated else _Field.LABEL_OPTIONAL
    field = message.field.add(name=name, number=number, label=label)
    if kind.startswith("."):
        field.type, field.type_name = _Field.TYPE_MESSAGE, kind
    else:
        field.type = getattr(_Field, f"TYPE_{kind.upper()}")
    return field
