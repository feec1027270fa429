from tensorflow_ipu.messages import option_flag_pb2 as _option_flag_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PipelineStagePoplarConfig(_message.Message):
    __slots__ = ("convolution_options", "matmul_options", "slice_options")
    CONVOLUTION_OPTIONS_FIELD_NUMBER: _ClassVar[int]
    MATMUL_OPTIONS_FIELD_NUMBER: _ClassVar[int]
    SLICE_OPTIONS_FIELD_NUMBER: _ClassVar[int]
    convolution_options: _containers.RepeatedCompositeFieldContainer[_option_flag_pb2.PoplarOptionFlag]
    matmul_options: _containers.RepeatedCompositeFieldContainer[_option_flag_pb2.PoplarOptionFlag]
    slice_options: _containers.RepeatedCompositeFieldContainer[_option_flag_pb2.PoplarOptionFlag]
    def __init__(self, convolution_options: _Optional[_Iterable[_Union[_option_flag_pb2.PoplarOptionFlag, _Mapping]]] = ..., matmul_options: _Optional[_Iterable[_Union[_option_flag_pb2.PoplarOptionFlag, _Mapping]]] = ..., slice_options: _Optional[_Iterable[_Union[_option_flag_pb2.PoplarOptionFlag, _Mapping]]] = ...) -> None: ...

class PipelinePoplarConfig(_message.Message):
    __slots__ = ("forward_stages", "backward_stages", "resource_update")
    FORWARD_STAGES_FIELD_NUMBER: _ClassVar[int]
    BACKWARD_STAGES_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_UPDATE_FIELD_NUMBER: _ClassVar[int]
    forward_stages: _containers.RepeatedCompositeFieldContainer[PipelineStagePoplarConfig]
    backward_stages: _containers.RepeatedCompositeFieldContainer[PipelineStagePoplarConfig]
    resource_update: PipelineStagePoplarConfig
    def __init__(self, forward_stages: _Optional[_Iterable[_Union[PipelineStagePoplarConfig, _Mapping]]] = ..., backward_stages: _Optional[_Iterable[_Union[PipelineStagePoplarConfig, _Mapping]]] = ..., resource_update: _Optional[_Union[PipelineStagePoplarConfig, _Mapping]] = ...) -> None: ...
