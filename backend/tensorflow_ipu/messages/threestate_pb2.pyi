from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from typing import ClassVar as _ClassVar

DESCRIPTOR: _descriptor.FileDescriptor

class ThreeState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    THREESTATE_OFF: _ClassVar[ThreeState]
    THREESTATE_ON: _ClassVar[ThreeState]
    THREESTATE_UNDEFINED: _ClassVar[ThreeState]
THREESTATE_OFF: ThreeState
THREESTATE_ON: ThreeState
THREESTATE_UNDEFINED: ThreeState
