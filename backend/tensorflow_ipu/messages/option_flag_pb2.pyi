from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PoplarOptionFlag(_message.Message):
    __slots__ = ("option", "value")
    OPTION_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    option: str
    value: str
    def __init__(self, option: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class PoplarOptionFlags(_message.Message):
    __slots__ = ("flags",)
    FLAGS_FIELD_NUMBER: _ClassVar[int]
    flags: _containers.RepeatedCompositeFieldContainer[PoplarOptionFlag]
    def __init__(self, flags: _Optional[_Iterable[_Union[PoplarOptionFlag, _Mapping]]] = ...) -> None: ...
