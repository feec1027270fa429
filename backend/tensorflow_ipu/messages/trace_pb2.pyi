from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class IpuTraceCompileBeginEvent(_message.Message):
    __slots__ = ("deprecated_1", "module_name")
    DEPRECATED_1_FIELD_NUMBER: _ClassVar[int]
    MODULE_NAME_FIELD_NUMBER: _ClassVar[int]
    deprecated_1: bytes
    module_name: bytes
    def __init__(self, deprecated_1: _Optional[bytes] = ..., module_name: _Optional[bytes] = ...) -> None: ...

class IpuTraceCompileEndEvent(_message.Message):
    __slots__ = ("duration", "module_name", "tensor_map", "instruction_info")
    DURATION_FIELD_NUMBER: _ClassVar[int]
    MODULE_NAME_FIELD_NUMBER: _ClassVar[int]
    TENSOR_MAP_FIELD_NUMBER: _ClassVar[int]
    INSTRUCTION_INFO_FIELD_NUMBER: _ClassVar[int]
    duration: int
    module_name: bytes
    tensor_map: bytes
    instruction_info: bytes
    def __init__(self, duration: _Optional[int] = ..., module_name: _Optional[bytes] = ..., tensor_map: _Optional[bytes] = ..., instruction_info: _Optional[bytes] = ...) -> None: ...

class IpuTraceDataTransferEvent(_message.Message):
    __slots__ = ("data_transfer",)
    DATA_TRANSFER_FIELD_NUMBER: _ClassVar[int]
    data_transfer: bytes
    def __init__(self, data_transfer: _Optional[bytes] = ...) -> None: ...

class IpuTraceLoadEngineEvent(_message.Message):
    __slots__ = ("module_name",)
    MODULE_NAME_FIELD_NUMBER: _ClassVar[int]
    module_name: bytes
    def __init__(self, module_name: _Optional[bytes] = ...) -> None: ...

class IpuTraceExecuteEvent(_message.Message):
    __slots__ = ("activity_trace", "module_name")
    ACTIVITY_TRACE_FIELD_NUMBER: _ClassVar[int]
    MODULE_NAME_FIELD_NUMBER: _ClassVar[int]
    activity_trace: bytes
    module_name: bytes
    def __init__(self, activity_trace: _Optional[bytes] = ..., module_name: _Optional[bytes] = ...) -> None: ...

class IpuTraceEvent(_message.Message):
    __slots__ = ("timestamp", "ordinal", "type", "compile_begin", "compile_end", "data_transfer", "load_engine", "execute")
    class Type(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        COMPILE_BEGIN: _ClassVar[IpuTraceEvent.Type]
        COMPILE_END: _ClassVar[IpuTraceEvent.Type]
        HOST_TO_DEVICE_TRANSFER: _ClassVar[IpuTraceEvent.Type]
        DEVICE_TO_HOST_TRANSFER: _ClassVar[IpuTraceEvent.Type]
        LOAD_ENGINE: _ClassVar[IpuTraceEvent.Type]
        EXECUTE: _ClassVar[IpuTraceEvent.Type]
    COMPILE_BEGIN: IpuTraceEvent.Type
    COMPILE_END: IpuTraceEvent.Type
    HOST_TO_DEVICE_TRANSFER: IpuTraceEvent.Type
    DEVICE_TO_HOST_TRANSFER: IpuTraceEvent.Type
    LOAD_ENGINE: IpuTraceEvent.Type
    EXECUTE: IpuTraceEvent.Type
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    ORDINAL_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    COMPILE_BEGIN_FIELD_NUMBER: _ClassVar[int]
    COMPILE_END_FIELD_NUMBER: _ClassVar[int]
    DATA_TRANSFER_FIELD_NUMBER: _ClassVar[int]
    LOAD_ENGINE_FIELD_NUMBER: _ClassVar[int]
    EXECUTE_FIELD_NUMBER: _ClassVar[int]
    timestamp: float
    ordinal: int
    type: IpuTraceEvent.Type
    compile_begin: IpuTraceCompileBeginEvent
    compile_end: IpuTraceCompileEndEvent
    data_transfer: IpuTraceDataTransferEvent
    load_engine: IpuTraceLoadEngineEvent
    execute: IpuTraceExecuteEvent
    def __init__(self, timestamp: _Optional[float] = ..., ordinal: _Optional[int] = ..., type: _Optional[_Union[IpuTraceEvent.Type, str]] = ..., compile_begin: _Optional[_Union[IpuTraceCompileBeginEvent, _Mapping]] = ..., compile_end: _Optional[_Union[IpuTraceCompileEndEvent, _Mapping]] = ..., data_transfer: _Optional[_Union[IpuTraceDataTransferEvent, _Mapping]] = ..., load_engine: _Optional[_Union[IpuTraceLoadEngineEvent, _Mapping]] = ..., execute: _Optional[_Union[IpuTraceExecuteEvent, _Mapping]] = ...) -> None: ...
