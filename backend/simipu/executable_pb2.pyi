from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Target(_message.Message):
    __slots__ = ("name", "num_ipus")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NUM_IPUS_FIELD_NUMBER: _ClassVar[int]
    name: str
    num_ipus: int
    def __init__(self, name: _Optional[str] = ..., num_ipus: _Optional[int] = ...) -> None: ...

class Stream(_message.Message):
    __slots__ = ("handle", "tensor", "direction", "dtype", "shape", "batch_axis")
    class Direction(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        HOST_TO_DEVICE: _ClassVar[Stream.Direction]
        DEVICE_TO_HOST: _ClassVar[Stream.Direction]
    HOST_TO_DEVICE: Stream.Direction
    DEVICE_TO_HOST: Stream.Direction
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    DIRECTION_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    BATCH_AXIS_FIELD_NUMBER: _ClassVar[int]
    handle: str
    tensor: str
    direction: Stream.Direction
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    batch_axis: int
    def __init__(self, handle: _Optional[str] = ..., tensor: _Optional[str] = ..., direction: _Optional[_Union[Stream.Direction, str]] = ..., dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., batch_axis: _Optional[int] = ...) -> None: ...

class Program(_message.Message):
    __slots__ = ("index", "name", "kind", "streams", "graph", "row_independent", "row_dependence", "cycles", "interval_cycles", "overlapped", "branches", "selector")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        LOAD: _ClassVar[Program.Kind]
        MAIN: _ClassVar[Program.Kind]
        SAVE: _ClassVar[Program.Kind]
    LOAD: Program.Kind
    MAIN: Program.Kind
    SAVE: Program.Kind
    INDEX_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    ROW_INDEPENDENT_FIELD_NUMBER: _ClassVar[int]
    ROW_DEPENDENCE_FIELD_NUMBER: _ClassVar[int]
    CYCLES_FIELD_NUMBER: _ClassVar[int]
    INTERVAL_CYCLES_FIELD_NUMBER: _ClassVar[int]
    OVERLAPPED_FIELD_NUMBER: _ClassVar[int]
    BRANCHES_FIELD_NUMBER: _ClassVar[int]
    SELECTOR_FIELD_NUMBER: _ClassVar[int]
    index: int
    name: str
    kind: Program.Kind
    streams: _containers.RepeatedCompositeFieldContainer[Stream]
    graph: bytes
    row_independent: bool
    row_dependence: str
    cycles: int
    interval_cycles: int
    overlapped: bool
    branches: _containers.RepeatedCompositeFieldContainer[Program]
    selector: str
    def __init__(self, index: _Optional[int] = ..., name: _Optional[str] = ..., kind: _Optional[_Union[Program.Kind, str]] = ..., streams: _Optional[_Iterable[_Union[Stream, _Mapping]]] = ..., graph: _Optional[bytes] = ..., row_independent: bool = ..., row_dependence: _Optional[str] = ..., cycles: _Optional[int] = ..., interval_cycles: _Optional[int] = ..., overlapped: bool = ..., branches: _Optional[_Iterable[_Union[Program, _Mapping]]] = ..., selector: _Optional[str] = ...) -> None: ...

class Executable(_message.Message):
    __slots__ = ("package_hash", "name", "target", "programs", "compile_options", "constants", "numerics")
    PACKAGE_HASH_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    PROGRAMS_FIELD_NUMBER: _ClassVar[int]
    COMPILE_OPTIONS_FIELD_NUMBER: _ClassVar[int]
    CONSTANTS_FIELD_NUMBER: _ClassVar[int]
    NUMERICS_FIELD_NUMBER: _ClassVar[int]
    package_hash: str
    name: str
    target: Target
    programs: _containers.RepeatedCompositeFieldContainer[Program]
    compile_options: _containers.RepeatedCompositeFieldContainer[Option]
    constants: _containers.RepeatedCompositeFieldContainer[Constant]
    numerics: Numerics
    def __init__(self, package_hash: _Optional[str] = ..., name: _Optional[str] = ..., target: _Optional[_Union[Target, _Mapping]] = ..., programs: _Optional[_Iterable[_Union[Program, _Mapping]]] = ..., compile_options: _Optional[_Iterable[_Union[Option, _Mapping]]] = ..., constants: _Optional[_Iterable[_Union[Constant, _Mapping]]] = ..., numerics: _Optional[_Union[Numerics, _Mapping]] = ...) -> None: ...

class Numerics(_message.Message):
    __slots__ = ("half_partials", "nan_on_overflow", "raises")
    HALF_PARTIALS_FIELD_NUMBER: _ClassVar[int]
    NAN_ON_OVERFLOW_FIELD_NUMBER: _ClassVar[int]
    RAISES_FIELD_NUMBER: _ClassVar[int]
    half_partials: bool
    nan_on_overflow: bool
    raises: bool
    def __init__(self, half_partials: bool = ..., nan_on_overflow: bool = ..., raises: bool = ...) -> None: ...

class Constant(_message.Message):
    __slots__ = ("name", "dtype", "shape", "offset")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    name: str
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    offset: int
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., offset: _Optional[int] = ...) -> None: ...

class Option(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: str
    def __init__(self, name: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
