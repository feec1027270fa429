from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PoplarFeedConfig(_message.Message):
    __slots__ = ("feed_id", "mode", "tf_data_types", "prefetch_depth", "reusable", "optimise_latency")
    class Mode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        GetAll: _ClassVar[PoplarFeedConfig.Mode]
        GetLast: _ClassVar[PoplarFeedConfig.Mode]
    GetAll: PoplarFeedConfig.Mode
    GetLast: PoplarFeedConfig.Mode
    FEED_ID_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    TF_DATA_TYPES_FIELD_NUMBER: _ClassVar[int]
    PREFETCH_DEPTH_FIELD_NUMBER: _ClassVar[int]
    REUSABLE_FIELD_NUMBER: _ClassVar[int]
    OPTIMISE_LATENCY_FIELD_NUMBER: _ClassVar[int]
    feed_id: str
    mode: PoplarFeedConfig.Mode
    tf_data_types: _containers.RepeatedScalarFieldContainer[int]
    prefetch_depth: int
    reusable: bool
    optimise_latency: bool
    def __init__(self, feed_id: _Optional[str] = ..., mode: _Optional[_Union[PoplarFeedConfig.Mode, str]] = ..., tf_data_types: _Optional[_Iterable[int]] = ..., prefetch_depth: _Optional[int] = ..., reusable: bool = ..., optimise_latency: bool = ...) -> None: ...
