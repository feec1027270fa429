from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ElementType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    INVALID: _ClassVar[ElementType]
    PRED: _ClassVar[ElementType]
    S8: _ClassVar[ElementType]
    S16: _ClassVar[ElementType]
    S32: _ClassVar[ElementType]
    S64: _ClassVar[ElementType]
    U8: _ClassVar[ElementType]
    U16: _ClassVar[ElementType]
    U32: _ClassVar[ElementType]
    U64: _ClassVar[ElementType]
    F16: _ClassVar[ElementType]
    F32: _ClassVar[ElementType]
    F64: _ClassVar[ElementType]
    TUPLE: _ClassVar[ElementType]
INVALID: ElementType
PRED: ElementType
S8: ElementType
S16: ElementType
S32: ElementType
S64: ElementType
U8: ElementType
U16: ElementType
U32: ElementType
U64: ElementType
F16: ElementType
F32: ElementType
F64: ElementType
TUPLE: ElementType

class Shape(_message.Message):
    __slots__ = ("element_type", "dimensions", "tuple_shapes")
    ELEMENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
    TUPLE_SHAPES_FIELD_NUMBER: _ClassVar[int]
    element_type: ElementType
    dimensions: _containers.RepeatedScalarFieldContainer[int]
    tuple_shapes: _containers.RepeatedCompositeFieldContainer[Shape]
    def __init__(self, element_type: _Optional[_Union[ElementType, str]] = ..., dimensions: _Optional[_Iterable[int]] = ..., tuple_shapes: _Optional[_Iterable[_Union[Shape, _Mapping]]] = ...) -> None: ...

class FeedSettings(_message.Message):
    __slots__ = ("feed_id", "mode", "tf_data_types", "prefetch_depth", "reusable", "optimise_latency")
    class Mode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        GetAll: _ClassVar[FeedSettings.Mode]
        GetLast: _ClassVar[FeedSettings.Mode]
    GetAll: FeedSettings.Mode
    GetLast: FeedSettings.Mode
    FEED_ID_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    TF_DATA_TYPES_FIELD_NUMBER: _ClassVar[int]
    PREFETCH_DEPTH_FIELD_NUMBER: _ClassVar[int]
    REUSABLE_FIELD_NUMBER: _ClassVar[int]
    OPTIMISE_LATENCY_FIELD_NUMBER: _ClassVar[int]
    feed_id: str
    mode: FeedSettings.Mode
    tf_data_types: _containers.RepeatedScalarFieldContainer[int]
    prefetch_depth: int
    reusable: bool
    optimise_latency: bool
    def __init__(self, feed_id: _Optional[str] = ..., mode: _Optional[_Union[FeedSettings.Mode, str]] = ..., tf_data_types: _Optional[_Iterable[int]] = ..., prefetch_depth: _Optional[int] = ..., reusable: bool = ..., optimise_latency: bool = ...) -> None: ...

class FeedConfig(_message.Message):
    __slots__ = ("config", "shape")
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    config: FeedSettings
    shape: Shape
    def __init__(self, config: _Optional[_Union[FeedSettings, _Mapping]] = ..., shape: _Optional[_Union[Shape, _Mapping]] = ...) -> None: ...

class OptionFlag(_message.Message):
    __slots__ = ("option", "value")
    OPTION_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    option: str
    value: str
    def __init__(self, option: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class Input(_message.Message):
    __slots__ = ("name", "handle", "argument", "tuple_index", "shape")
    NAME_FIELD_NUMBER: _ClassVar[int]
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    ARGUMENT_FIELD_NUMBER: _ClassVar[int]
    TUPLE_INDEX_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    name: str
    handle: str
    argument: int
    tuple_index: int
    shape: Shape
    def __init__(self, name: _Optional[str] = ..., handle: _Optional[str] = ..., argument: _Optional[int] = ..., tuple_index: _Optional[int] = ..., shape: _Optional[_Union[Shape, _Mapping]] = ...) -> None: ...

class Output(_message.Message):
    __slots__ = ("name", "handle", "tuple_index", "shape")
    NAME_FIELD_NUMBER: _ClassVar[int]
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    TUPLE_INDEX_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    name: str
    handle: str
    tuple_index: int
    shape: Shape
    def __init__(self, name: _Optional[str] = ..., handle: _Optional[str] = ..., tuple_index: _Optional[int] = ..., shape: _Optional[_Union[Shape, _Mapping]] = ...) -> None: ...

class Signature(_message.Message):
    __slots__ = ("inputs", "outputs", "streamed_inputs", "streamed_outputs")
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    STREAMED_INPUTS_FIELD_NUMBER: _ClassVar[int]
    STREAMED_OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    inputs: _containers.RepeatedCompositeFieldContainer[Input]
    outputs: _containers.RepeatedCompositeFieldContainer[Output]
    streamed_inputs: _containers.RepeatedCompositeFieldContainer[Input]
    streamed_outputs: _containers.RepeatedCompositeFieldContainer[Output]
    def __init__(self, inputs: _Optional[_Iterable[_Union[Input, _Mapping]]] = ..., outputs: _Optional[_Iterable[_Union[Output, _Mapping]]] = ..., streamed_inputs: _Optional[_Iterable[_Union[Input, _Mapping]]] = ..., streamed_outputs: _Optional[_Iterable[_Union[Output, _Mapping]]] = ...) -> None: ...

class EmbeddedRuntimeConfig(_message.Message):
    __slots__ = ("signature", "num_IPUs", "target_type", "target_arch", "gateway_mode", "supports_remote_buffers", "remote_memory_entry_params", "executable_can_stall")
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    NUM_IPUS_FIELD_NUMBER: _ClassVar[int]
    TARGET_TYPE_FIELD_NUMBER: _ClassVar[int]
    TARGET_ARCH_FIELD_NUMBER: _ClassVar[int]
    GATEWAY_MODE_FIELD_NUMBER: _ClassVar[int]
    SUPPORTS_REMOTE_BUFFERS_FIELD_NUMBER: _ClassVar[int]
    REMOTE_MEMORY_ENTRY_PARAMS_FIELD_NUMBER: _ClassVar[int]
    EXECUTABLE_CAN_STALL_FIELD_NUMBER: _ClassVar[int]
    signature: Signature
    num_IPUs: int
    target_type: str
    target_arch: str
    gateway_mode: bool
    supports_remote_buffers: bool
    remote_memory_entry_params: bool
    executable_can_stall: bool
    def __init__(self, signature: _Optional[_Union[Signature, _Mapping]] = ..., num_IPUs: _Optional[int] = ..., target_type: _Optional[str] = ..., target_arch: _Optional[str] = ..., gateway_mode: bool = ..., supports_remote_buffers: bool = ..., remote_memory_entry_params: bool = ..., executable_can_stall: bool = ...) -> None: ...

class PoplarExecutableProto(_message.Message):
    __slots__ = ("replication_factor", "infeeds", "outfeeds", "option_flags", "logging_cycle_count", "embedded_runtime_config", "tf_major_version", "tf_minor_version", "tf_git_version", "poplar_package_hash")
    REPLICATION_FACTOR_FIELD_NUMBER: _ClassVar[int]
    INFEEDS_FIELD_NUMBER: _ClassVar[int]
    OUTFEEDS_FIELD_NUMBER: _ClassVar[int]
    OPTION_FLAGS_FIELD_NUMBER: _ClassVar[int]
    LOGGING_CYCLE_COUNT_FIELD_NUMBER: _ClassVar[int]
    EMBEDDED_RUNTIME_CONFIG_FIELD_NUMBER: _ClassVar[int]
    TF_MAJOR_VERSION_FIELD_NUMBER: _ClassVar[int]
    TF_MINOR_VERSION_FIELD_NUMBER: _ClassVar[int]
    TF_GIT_VERSION_FIELD_NUMBER: _ClassVar[int]
    POPLAR_PACKAGE_HASH_FIELD_NUMBER: _ClassVar[int]
    replication_factor: int
    infeeds: _containers.RepeatedCompositeFieldContainer[FeedConfig]
    outfeeds: _containers.RepeatedCompositeFieldContainer[FeedConfig]
    option_flags: _containers.RepeatedCompositeFieldContainer[OptionFlag]
    logging_cycle_count: bool
    embedded_runtime_config: EmbeddedRuntimeConfig
    tf_major_version: int
    tf_minor_version: int
    tf_git_version: str
    poplar_package_hash: str
    def __init__(self, replication_factor: _Optional[int] = ..., infeeds: _Optional[_Iterable[_Union[FeedConfig, _Mapping]]] = ..., outfeeds: _Optional[_Iterable[_Union[FeedConfig, _Mapping]]] = ..., option_flags: _Optional[_Iterable[_Union[OptionFlag, _Mapping]]] = ..., logging_cycle_count: bool = ..., embedded_runtime_config: _Optional[_Union[EmbeddedRuntimeConfig, _Mapping]] = ..., tf_major_version: _Optional[int] = ..., tf_minor_version: _Optional[int] = ..., tf_git_version: _Optional[str] = ..., poplar_package_hash: _Optional[str] = ...) -> None: ...
