from tensorflow_ipu.messages import option_flag_pb2 as _option_flag_pb2
from tensorflow_ipu.messages import poplar_feed_config_pb2 as _poplar_feed_config_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ShapeProto(_message.Message):
    __slots__ = ("element_type", "dimensions", "tuple_shapes")
    ELEMENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
    TUPLE_SHAPES_FIELD_NUMBER: _ClassVar[int]
    element_type: int
    dimensions: _containers.RepeatedScalarFieldContainer[int]
    tuple_shapes: _containers.RepeatedCompositeFieldContainer[ShapeProto]
    def __init__(self, element_type: _Optional[int] = ..., dimensions: _Optional[_Iterable[int]] = ..., tuple_shapes: _Optional[_Iterable[_Union[ShapeProto, _Mapping]]] = ...) -> None: ...

class FeedConfig(_message.Message):
    __slots__ = ("config", "shape")
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    config: _poplar_feed_config_pb2.PoplarFeedConfig
    shape: ShapeProto
    def __init__(self, config: _Optional[_Union[_poplar_feed_config_pb2.PoplarFeedConfig, _Mapping]] = ..., shape: _Optional[_Union[ShapeProto, _Mapping]] = ...) -> None: ...

class SendRecvConfig(_message.Message):
    __slots__ = ("stream_handle", "rendezvous_key", "shape")
    STREAM_HANDLE_FIELD_NUMBER: _ClassVar[int]
    RENDEZVOUS_KEY_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    stream_handle: str
    rendezvous_key: str
    shape: ShapeProto
    def __init__(self, stream_handle: _Optional[str] = ..., rendezvous_key: _Optional[str] = ..., shape: _Optional[_Union[ShapeProto, _Mapping]] = ...) -> None: ...

class HostEmbeddingConfig(_message.Message):
    __slots__ = ("stream_handle", "embedding_id", "indices_shape", "activations_shape")
    STREAM_HANDLE_FIELD_NUMBER: _ClassVar[int]
    EMBEDDING_ID_FIELD_NUMBER: _ClassVar[int]
    INDICES_SHAPE_FIELD_NUMBER: _ClassVar[int]
    ACTIVATIONS_SHAPE_FIELD_NUMBER: _ClassVar[int]
    stream_handle: str
    embedding_id: str
    indices_shape: ShapeProto
    activations_shape: ShapeProto
    def __init__(self, stream_handle: _Optional[str] = ..., embedding_id: _Optional[str] = ..., indices_shape: _Optional[_Union[ShapeProto, _Mapping]] = ..., activations_shape: _Optional[_Union[ShapeProto, _Mapping]] = ...) -> None: ...

class CollectiveBalancedRefSlice(_message.Message):
    __slots__ = ("begin", "end")
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    begin: int
    end: int
    def __init__(self, begin: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class CollectiveBalancedHostRearrangement(_message.Message):
    __slots__ = ("id", "total_elements_per_replica", "replication_factor", "gathered_to_ref_slices", "element_map")
    ID_FIELD_NUMBER: _ClassVar[int]
    TOTAL_ELEMENTS_PER_REPLICA_FIELD_NUMBER: _ClassVar[int]
    REPLICATION_FACTOR_FIELD_NUMBER: _ClassVar[int]
    GATHERED_TO_REF_SLICES_FIELD_NUMBER: _ClassVar[int]
    ELEMENT_MAP_FIELD_NUMBER: _ClassVar[int]
    id: int
    total_elements_per_replica: int
    replication_factor: int
    gathered_to_ref_slices: _containers.RepeatedCompositeFieldContainer[CollectiveBalancedRefSlice]
    element_map: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, id: _Optional[int] = ..., total_elements_per_replica: _Optional[int] = ..., replication_factor: _Optional[int] = ..., gathered_to_ref_slices: _Optional[_Iterable[_Union[CollectiveBalancedRefSlice, _Mapping]]] = ..., element_map: _Optional[_Iterable[int]] = ...) -> None: ...

class RemoteParameterConfig(_message.Message):
    __slots__ = ("parameter_number", "is_replica_partitioned", "buffer_name", "buffer_offset", "num_merged", "merged_params", "host_rearrangement_id")
    PARAMETER_NUMBER_FIELD_NUMBER: _ClassVar[int]
    IS_REPLICA_PARTITIONED_FIELD_NUMBER: _ClassVar[int]
    BUFFER_NAME_FIELD_NUMBER: _ClassVar[int]
    BUFFER_OFFSET_FIELD_NUMBER: _ClassVar[int]
    NUM_MERGED_FIELD_NUMBER: _ClassVar[int]
    MERGED_PARAMS_FIELD_NUMBER: _ClassVar[int]
    HOST_REARRANGEMENT_ID_FIELD_NUMBER: _ClassVar[int]
    parameter_number: int
    is_replica_partitioned: bool
    buffer_name: str
    buffer_offset: int
    num_merged: int
    merged_params: _containers.RepeatedScalarFieldContainer[int]
    host_rearrangement_id: int
    def __init__(self, parameter_number: _Optional[int] = ..., is_replica_partitioned: bool = ..., buffer_name: _Optional[str] = ..., buffer_offset: _Optional[int] = ..., num_merged: _Optional[int] = ..., merged_params: _Optional[_Iterable[int]] = ..., host_rearrangement_id: _Optional[int] = ...) -> None: ...

class KeyIdMapping(_message.Message):
    __slots__ = ("handle", "key", "start_id")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    START_ID_FIELD_NUMBER: _ClassVar[int]
    handle: str
    key: int
    start_id: int
    def __init__(self, handle: _Optional[str] = ..., key: _Optional[int] = ..., start_id: _Optional[int] = ...) -> None: ...

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
    shape: ShapeProto
    def __init__(self, name: _Optional[str] = ..., handle: _Optional[str] = ..., argument: _Optional[int] = ..., tuple_index: _Optional[int] = ..., shape: _Optional[_Union[ShapeProto, _Mapping]] = ...) -> None: ...

class Output(_message.Message):
    __slots__ = ("name", "handle", "tuple_index", "shape")
    NAME_FIELD_NUMBER: _ClassVar[int]
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    TUPLE_INDEX_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    name: str
    handle: str
    tuple_index: int
    shape: ShapeProto
    def __init__(self, name: _Optional[str] = ..., handle: _Optional[str] = ..., tuple_index: _Optional[int] = ..., shape: _Optional[_Union[ShapeProto, _Mapping]] = ...) -> None: ...

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
    __slots__ = ("replication_factor", "infeeds", "outfeeds", "option_flags", "sends", "recvs", "lookups", "updates", "notifications", "remote_parameters", "logging_cycle_count", "embedded_runtime_config", "tf_major_version", "tf_minor_version", "tf_git_version", "collective_balanced_host_rearrangements", "poplar_package_hash")
    REPLICATION_FACTOR_FIELD_NUMBER: _ClassVar[int]
    INFEEDS_FIELD_NUMBER: _ClassVar[int]
    OUTFEEDS_FIELD_NUMBER: _ClassVar[int]
    OPTION_FLAGS_FIELD_NUMBER: _ClassVar[int]
    SENDS_FIELD_NUMBER: _ClassVar[int]
    RECVS_FIELD_NUMBER: _ClassVar[int]
    LOOKUPS_FIELD_NUMBER: _ClassVar[int]
    UPDATES_FIELD_NUMBER: _ClassVar[int]
    NOTIFICATIONS_FIELD_NUMBER: _ClassVar[int]
    REMOTE_PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    LOGGING_CYCLE_COUNT_FIELD_NUMBER: _ClassVar[int]
    EMBEDDED_RUNTIME_CONFIG_FIELD_NUMBER: _ClassVar[int]
    TF_MAJOR_VERSION_FIELD_NUMBER: _ClassVar[int]
    TF_MINOR_VERSION_FIELD_NUMBER: _ClassVar[int]
    TF_GIT_VERSION_FIELD_NUMBER: _ClassVar[int]
    COLLECTIVE_BALANCED_HOST_REARRANGEMENTS_FIELD_NUMBER: _ClassVar[int]
    POPLAR_PACKAGE_HASH_FIELD_NUMBER: _ClassVar[int]
    replication_factor: int
    infeeds: _containers.RepeatedCompositeFieldContainer[FeedConfig]
    outfeeds: _containers.RepeatedCompositeFieldContainer[FeedConfig]
    option_flags: _containers.RepeatedCompositeFieldContainer[_option_flag_pb2.PoplarOptionFlag]
    sends: _containers.RepeatedCompositeFieldContainer[SendRecvConfig]
    recvs: _containers.RepeatedCompositeFieldContainer[SendRecvConfig]
    lookups: _containers.RepeatedCompositeFieldContainer[HostEmbeddingConfig]
    updates: _containers.RepeatedCompositeFieldContainer[HostEmbeddingConfig]
    notifications: _containers.RepeatedCompositeFieldContainer[HostEmbeddingConfig]
    remote_parameters: _containers.RepeatedCompositeFieldContainer[RemoteParameterConfig]
    logging_cycle_count: bool
    embedded_runtime_config: EmbeddedRuntimeConfig
    tf_major_version: int
    tf_minor_version: int
    tf_git_version: str
    collective_balanced_host_rearrangements: _containers.RepeatedCompositeFieldContainer[CollectiveBalancedHostRearrangement]
    poplar_package_hash: str
    def __init__(self, replication_factor: _Optional[int] = ..., infeeds: _Optional[_Iterable[_Union[FeedConfig, _Mapping]]] = ..., outfeeds: _Optional[_Iterable[_Union[FeedConfig, _Mapping]]] = ..., option_flags: _Optional[_Iterable[_Union[_option_flag_pb2.PoplarOptionFlag, _Mapping]]] = ..., sends: _Optional[_Iterable[_Union[SendRecvConfig, _Mapping]]] = ..., recvs: _Optional[_Iterable[_Union[SendRecvConfig, _Mapping]]] = ..., lookups: _Optional[_Iterable[_Union[HostEmbeddingConfig, _Mapping]]] = ..., updates: _Optional[_Iterable[_Union[HostEmbeddingConfig, _Mapping]]] = ..., notifications: _Optional[_Iterable[_Union[HostEmbeddingConfig, _Mapping]]] = ..., remote_parameters: _Optional[_Iterable[_Union[RemoteParameterConfig, _Mapping]]] = ..., logging_cycle_count: bool = ..., embedded_runtime_config: _Optional[_Union[EmbeddedRuntimeConfig, _Mapping]] = ..., tf_major_version: _Optional[int] = ..., tf_minor_version: _Optional[int] = ..., tf_git_version: _Optional[str] = ..., collective_balanced_host_rearrangements: _Optional[_Iterable[_Union[CollectiveBalancedHostRearrangement, _Mapping]]] = ..., poplar_package_hash: _Optional[str] = ...) -> None: ...
