from tensorflow_ipu.messages import option_flag_pb2 as _option_flag_pb2
from tensorflow_ipu.messages import threestate_pb2 as _threestate_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FrontendAttributeId(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STOCHASTIC_ROUNDING: _ClassVar[FrontendAttributeId]
    CALL_CONFIG_TYPE: _ClassVar[FrontendAttributeId]
    PARTIALS_TYPE: _ClassVar[FrontendAttributeId]
    GRADIENT_ACCUMULATION_COUNT: _ClassVar[FrontendAttributeId]
    PIPELINE_STAGE_ID: _ClassVar[FrontendAttributeId]
    PIPELINE_REPEAT_COUNT: _ClassVar[FrontendAttributeId]
    PIPELINE_SCHEDULE: _ClassVar[FrontendAttributeId]
    PIPELINE_POPLAR_CONFIG: _ClassVar[FrontendAttributeId]
    OFFLOAD_WEIGHT_UPDATE_VARIABLES: _ClassVar[FrontendAttributeId]
    NUM_BATCHES_TO_ACCUMULATE: _ClassVar[FrontendAttributeId]
    ML_TYPE: _ClassVar[FrontendAttributeId]
    OPTION_FLAGS: _ClassVar[FrontendAttributeId]
    PIPELINE_BATCH_SERIALIZATION_ITERATIONS: _ClassVar[FrontendAttributeId]
    PARTITION_OFFLOADED_WEIGHT_UPDATE_VARIABLES: _ClassVar[FrontendAttributeId]
    OFFLOAD_ACTIVATIONS: _ClassVar[FrontendAttributeId]
    OFFLOAD_GRADIENT_ACCUMULATION_BUFFERS: _ClassVar[FrontendAttributeId]
    PARTITION_VARIABLES: _ClassVar[FrontendAttributeId]
    OFFLOAD_VARIABLES: _ClassVar[FrontendAttributeId]
    RECOMPUTATION_MODE: _ClassVar[FrontendAttributeId]
    UNIQUE_SHARDING: _ClassVar[FrontendAttributeId]
    KEEP_INPUT_LAYOUTS: _ClassVar[FrontendAttributeId]

class MLType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NONE: _ClassVar[MLType]
    INFERENCE_FWD: _ClassVar[MLType]
    TRAINING_FWD: _ClassVar[MLType]
    TRAINING_BWD: _ClassVar[MLType]
    TRAINING_WU: _ClassVar[MLType]

class CollectiveOperator(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    COLLECTIVE_OP_ADD: _ClassVar[CollectiveOperator]
    COLLECTIVE_OP_MUL: _ClassVar[CollectiveOperator]
    COLLECTIVE_OP_MIN: _ClassVar[CollectiveOperator]
    COLLECTIVE_OP_MAX: _ClassVar[CollectiveOperator]
    COLLECTIVE_OP_LOGICAL_AND: _ClassVar[CollectiveOperator]
    COLLECTIVE_OP_LOGICAL_OR: _ClassVar[CollectiveOperator]
    COLLECTIVE_OP_SQUARE_ADD: _ClassVar[CollectiveOperator]
    COLLECTIVE_OP_LOCAL: _ClassVar[CollectiveOperator]
    COLLECTIVE_OP_MEAN: _ClassVar[CollectiveOperator]

class Tileset(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TILESET_COMPUTE_TILES: _ClassVar[Tileset]
    TILESET_IO_TILES: _ClassVar[Tileset]

class StochasticRoundingMethod(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    StochasticRoundingMethod_Undefined: _ClassVar[StochasticRoundingMethod]
    StochasticRoundingMethod_DifferingSeeds: _ClassVar[StochasticRoundingMethod]
    StochasticRoundingMethod_IdenticalSeeds: _ClassVar[StochasticRoundingMethod]
    StochasticRoundingMethod_Any: _ClassVar[StochasticRoundingMethod]
    StochasticRoundingMethod_None: _ClassVar[StochasticRoundingMethod]
STOCHASTIC_ROUNDING: FrontendAttributeId
CALL_CONFIG_TYPE: FrontendAttributeId
PARTIALS_TYPE: FrontendAttributeId
GRADIENT_ACCUMULATION_COUNT: FrontendAttributeId
PIPELINE_STAGE_ID: FrontendAttributeId
PIPELINE_REPEAT_COUNT: FrontendAttributeId
PIPELINE_SCHEDULE: FrontendAttributeId
PIPELINE_POPLAR_CONFIG: FrontendAttributeId
OFFLOAD_WEIGHT_UPDATE_VARIABLES: FrontendAttributeId
NUM_BATCHES_TO_ACCUMULATE: FrontendAttributeId
ML_TYPE: FrontendAttributeId
OPTION_FLAGS: FrontendAttributeId
PIPELINE_BATCH_SERIALIZATION_ITERATIONS: FrontendAttributeId
PARTITION_OFFLOADED_WEIGHT_UPDATE_VARIABLES: FrontendAttributeId
OFFLOAD_ACTIVATIONS: FrontendAttributeId
OFFLOAD_GRADIENT_ACCUMULATION_BUFFERS: FrontendAttributeId
PARTITION_VARIABLES: FrontendAttributeId
OFFLOAD_VARIABLES: FrontendAttributeId
RECOMPUTATION_MODE: FrontendAttributeId
UNIQUE_SHARDING: FrontendAttributeId
KEEP_INPUT_LAYOUTS: FrontendAttributeId
NONE: MLType
INFERENCE_FWD: MLType
TRAINING_FWD: MLType
TRAINING_BWD: MLType
TRAINING_WU: MLType
COLLECTIVE_OP_ADD: CollectiveOperator
COLLECTIVE_OP_MUL: CollectiveOperator
COLLECTIVE_OP_MIN: CollectiveOperator
COLLECTIVE_OP_MAX: CollectiveOperator
COLLECTIVE_OP_LOGICAL_AND: CollectiveOperator
COLLECTIVE_OP_LOGICAL_OR: CollectiveOperator
COLLECTIVE_OP_SQUARE_ADD: CollectiveOperator
COLLECTIVE_OP_LOCAL: CollectiveOperator
COLLECTIVE_OP_MEAN: CollectiveOperator
TILESET_COMPUTE_TILES: Tileset
TILESET_IO_TILES: Tileset
StochasticRoundingMethod_Undefined: StochasticRoundingMethod
StochasticRoundingMethod_DifferingSeeds: StochasticRoundingMethod
StochasticRoundingMethod_IdenticalSeeds: StochasticRoundingMethod
StochasticRoundingMethod_Any: StochasticRoundingMethod
StochasticRoundingMethod_None: StochasticRoundingMethod

class PoplarBackendConfig(_message.Message):
    __slots__ = ("call_config", "is_inplace", "hash_of_custom_attributes", "stochastic_rounding", "ml_type", "partials_type", "convolution_options", "matmul_options", "slice_options", "tileset", "is_replica_identical", "stochastic_rounding_method")
    class CallConfig(_message.Message):
        __slots__ = ("type", "call_config", "repeat_config", "pipeline_stage_config", "pipeline_config", "function_config", "resource_update_config")
        class Type(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
            __slots__ = ()
            Call: _ClassVar[PoplarBackendConfig.CallConfig.Type]
            RepeatLoop: _ClassVar[PoplarBackendConfig.CallConfig.Type]
            PipelineStage: _ClassVar[PoplarBackendConfig.CallConfig.Type]
            PipelineStageBackward: _ClassVar[PoplarBackendConfig.CallConfig.Type]
            Pipeline: _ClassVar[PoplarBackendConfig.CallConfig.Type]
            PipelineStageRecomputation: _ClassVar[PoplarBackendConfig.CallConfig.Type]
            ResourceUpdate: _ClassVar[PoplarBackendConfig.CallConfig.Type]
            Function: _ClassVar[PoplarBackendConfig.CallConfig.Type]
            MultiConv: _ClassVar[PoplarBackendConfig.CallConfig.Type]
        Call: PoplarBackendConfig.CallConfig.Type
        RepeatLoop: PoplarBackendConfig.CallConfig.Type
        PipelineStage: PoplarBackendConfig.CallConfig.Type
        PipelineStageBackward: PoplarBackendConfig.CallConfig.Type
        Pipeline: PoplarBackendConfig.CallConfig.Type
        PipelineStageRecomputation: PoplarBackendConfig.CallConfig.Type
        ResourceUpdate: PoplarBackendConfig.CallConfig.Type
        Function: PoplarBackendConfig.CallConfig.Type
        MultiConv: PoplarBackendConfig.CallConfig.Type
        class RepeatConfig(_message.Message):
            __slots__ = ("repeat_count", "allow_finer_alias_analysis")
            REPEAT_COUNT_FIELD_NUMBER: _ClassVar[int]
            ALLOW_FINER_ALIAS_ANALYSIS_FIELD_NUMBER: _ClassVar[int]
            repeat_count: int
            allow_finer_alias_analysis: bool
            def __init__(self, repeat_count: _Optional[int] = ..., allow_finer_alias_analysis: bool = ...) -> None: ...
        class PipelineStageConfig(_message.Message):
            __slots__ = ("stage_id",)
            STAGE_ID_FIELD_NUMBER: _ClassVar[int]
            stage_id: int
            def __init__(self, stage_id: _Optional[int] = ...) -> None: ...
        class PipelineConfig(_message.Message):
            __slots__ = ("batch_serialization_iterations", "repeat_count", "schedule", "offload_activations", "offload_gradient_accumulation_buffers", "partition_variables", "offload_variables", "recomputation_mode", "gradient_accumulation_index")
            class Schedule(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
                __slots__ = ()
                Grouped: _ClassVar[PoplarBackendConfig.CallConfig.PipelineConfig.Schedule]
                Interleaved: _ClassVar[PoplarBackendConfig.CallConfig.PipelineConfig.Schedule]
                Sequential: _ClassVar[PoplarBackendConfig.CallConfig.PipelineConfig.Schedule]
            Grouped: PoplarBackendConfig.CallConfig.PipelineConfig.Schedule
            Interleaved: PoplarBackendConfig.CallConfig.PipelineConfig.Schedule
            Sequential: PoplarBackendConfig.CallConfig.PipelineConfig.Schedule
            class RecomputationMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
                __slots__ = ()
                Auto: _ClassVar[PoplarBackendConfig.CallConfig.PipelineConfig.RecomputationMode]
                Recompute_then_backpropagate: _ClassVar[PoplarBackendConfig.CallConfig.PipelineConfig.RecomputationMode]
                Recompute_and_backpropagate_interleaved: _ClassVar[PoplarBackendConfig.CallConfig.PipelineConfig.RecomputationMode]
            Auto: PoplarBackendConfig.CallConfig.PipelineConfig.RecomputationMode
            Recompute_then_backpropagate: PoplarBackendConfig.CallConfig.PipelineConfig.RecomputationMode
            Recompute_and_backpropagate_interleaved: PoplarBackendConfig.CallConfig.PipelineConfig.RecomputationMode
            BATCH_SERIALIZATION_ITERATIONS_FIELD_NUMBER: _ClassVar[int]
            REPEAT_COUNT_FIELD_NUMBER: _ClassVar[int]
            SCHEDULE_FIELD_NUMBER: _ClassVar[int]
            OFFLOAD_ACTIVATIONS_FIELD_NUMBER: _ClassVar[int]
            OFFLOAD_GRADIENT_ACCUMULATION_BUFFERS_FIELD_NUMBER: _ClassVar[int]
            PARTITION_VARIABLES_FIELD_NUMBER: _ClassVar[int]
            OFFLOAD_VARIABLES_FIELD_NUMBER: _ClassVar[int]
            RECOMPUTATION_MODE_FIELD_NUMBER: _ClassVar[int]
            GRADIENT_ACCUMULATION_INDEX_FIELD_NUMBER: _ClassVar[int]
            batch_serialization_iterations: int
            repeat_count: int
            schedule: PoplarBackendConfig.CallConfig.PipelineConfig.Schedule
            offload_activations: _threestate_pb2.ThreeState
            offload_gradient_accumulation_buffers: _threestate_pb2.ThreeState
            partition_variables: _threestate_pb2.ThreeState
            offload_variables: _threestate_pb2.ThreeState
            recomputation_mode: PoplarBackendConfig.CallConfig.PipelineConfig.RecomputationMode
            gradient_accumulation_index: int
            def __init__(self, batch_serialization_iterations: _Optional[int] = ..., repeat_count: _Optional[int] = ..., schedule: _Optional[_Union[PoplarBackendConfig.CallConfig.PipelineConfig.Schedule, str]] = ..., offload_activations: _Optional[_Union[_threestate_pb2.ThreeState, str]] = ..., offload_gradient_accumulation_buffers: _Optional[_Union[_threestate_pb2.ThreeState, str]] = ..., partition_variables: _Optional[_Union[_threestate_pb2.ThreeState, str]] = ..., offload_variables: _Optional[_Union[_threestate_pb2.ThreeState, str]] = ..., recomputation_mode: _Optional[_Union[PoplarBackendConfig.CallConfig.PipelineConfig.RecomputationMode, str]] = ..., gradient_accumulation_index: _Optional[int] = ...) -> None: ...
        class CallConfig(_message.Message):
            __slots__ = ()
            def __init__(self) -> None: ...
        class FunctionConfig(_message.Message):
            __slots__ = ("keep_input_layouts", "unique_sharding", "num_modified_remote_buffer_inputs", "num_unmodified_remote_buffer_inputs", "partitioned_elementwise_cluster")
            KEEP_INPUT_LAYOUTS_FIELD_NUMBER: _ClassVar[int]
            UNIQUE_SHARDING_FIELD_NUMBER: _ClassVar[int]
            NUM_MODIFIED_REMOTE_BUFFER_INPUTS_FIELD_NUMBER: _ClassVar[int]
            NUM_UNMODIFIED_REMOTE_BUFFER_INPUTS_FIELD_NUMBER: _ClassVar[int]
            PARTITIONED_ELEMENTWISE_CLUSTER_FIELD_NUMBER: _ClassVar[int]
            keep_input_layouts: bool
            unique_sharding: bool
            num_modified_remote_buffer_inputs: int
            num_unmodified_remote_buffer_inputs: int
            partitioned_elementwise_cluster: bool
            def __init__(self, keep_input_layouts: bool = ..., unique_sharding: bool = ..., num_modified_remote_buffer_inputs: _Optional[int] = ..., num_unmodified_remote_buffer_inputs: _Optional[int] = ..., partitioned_elementwise_cluster: bool = ...) -> None: ...
        class ResourceUpdateConfig(_message.Message):
            __slots__ = ("offload_variables", "partition_offloaded_variables")
            OFFLOAD_VARIABLES_FIELD_NUMBER: _ClassVar[int]
            PARTITION_OFFLOADED_VARIABLES_FIELD_NUMBER: _ClassVar[int]
            offload_variables: _threestate_pb2.ThreeState
            partition_offloaded_variables: _threestate_pb2.ThreeState
            def __init__(self, offload_variables: _Optional[_Union[_threestate_pb2.ThreeState, str]] = ..., partition_offloaded_variables: _Optional[_Union[_threestate_pb2.ThreeState, str]] = ...) -> None: ...
        TYPE_FIELD_NUMBER: _ClassVar[int]
        CALL_CONFIG_FIELD_NUMBER: _ClassVar[int]
        REPEAT_CONFIG_FIELD_NUMBER: _ClassVar[int]
        PIPELINE_STAGE_CONFIG_FIELD_NUMBER: _ClassVar[int]
        PIPELINE_CONFIG_FIELD_NUMBER: _ClassVar[int]
        FUNCTION_CONFIG_FIELD_NUMBER: _ClassVar[int]
        RESOURCE_UPDATE_CONFIG_FIELD_NUMBER: _ClassVar[int]
        type: PoplarBackendConfig.CallConfig.Type
        call_config: PoplarBackendConfig.CallConfig.CallConfig
        repeat_config: PoplarBackendConfig.CallConfig.RepeatConfig
        pipeline_stage_config: PoplarBackendConfig.CallConfig.PipelineStageConfig
        pipeline_config: PoplarBackendConfig.CallConfig.PipelineConfig
        function_config: PoplarBackendConfig.CallConfig.FunctionConfig
        resource_update_config: PoplarBackendConfig.CallConfig.ResourceUpdateConfig
        def __init__(self, type: _Optional[_Union[PoplarBackendConfig.CallConfig.Type, str]] = ..., call_config: _Optional[_Union[PoplarBackendConfig.CallConfig.CallConfig, _Mapping]] = ..., repeat_config: _Optional[_Union[PoplarBackendConfig.CallConfig.RepeatConfig, _Mapping]] = ..., pipeline_stage_config: _Optional[_Union[PoplarBackendConfig.CallConfig.PipelineStageConfig, _Mapping]] = ..., pipeline_config: _Optional[_Union[PoplarBackendConfig.CallConfig.PipelineConfig, _Mapping]] = ..., function_config: _Optional[_Union[PoplarBackendConfig.CallConfig.FunctionConfig, _Mapping]] = ..., resource_update_config: _Optional[_Union[PoplarBackendConfig.CallConfig.ResourceUpdateConfig, _Mapping]] = ...) -> None: ...
    CALL_CONFIG_FIELD_NUMBER: _ClassVar[int]
    IS_INPLACE_FIELD_NUMBER: _ClassVar[int]
    HASH_OF_CUSTOM_ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    STOCHASTIC_ROUNDING_FIELD_NUMBER: _ClassVar[int]
    ML_TYPE_FIELD_NUMBER: _ClassVar[int]
    PARTIALS_TYPE_FIELD_NUMBER: _ClassVar[int]
    CONVOLUTION_OPTIONS_FIELD_NUMBER: _ClassVar[int]
    MATMUL_OPTIONS_FIELD_NUMBER: _ClassVar[int]
    SLICE_OPTIONS_FIELD_NUMBER: _ClassVar[int]
    TILESET_FIELD_NUMBER: _ClassVar[int]
    IS_REPLICA_IDENTICAL_FIELD_NUMBER: _ClassVar[int]
    STOCHASTIC_ROUNDING_METHOD_FIELD_NUMBER: _ClassVar[int]
    call_config: PoplarBackendConfig.CallConfig
    is_inplace: bool
    hash_of_custom_attributes: int
    stochastic_rounding: _threestate_pb2.ThreeState
    ml_type: MLType
    partials_type: int
    convolution_options: _containers.RepeatedCompositeFieldContainer[_option_flag_pb2.PoplarOptionFlag]
    matmul_options: _containers.RepeatedCompositeFieldContainer[_option_flag_pb2.PoplarOptionFlag]
    slice_options: _containers.RepeatedCompositeFieldContainer[_option_flag_pb2.PoplarOptionFlag]
    tileset: Tileset
    is_replica_identical: bool
    stochastic_rounding_method: StochasticRoundingMethod
    def __init__(self, call_config: _Optional[_Union[PoplarBackendConfig.CallConfig, _Mapping]] = ..., is_inplace: bool = ..., hash_of_custom_attributes: _Optional[int] = ..., stochastic_rounding: _Optional[_Union[_threestate_pb2.ThreeState, str]] = ..., ml_type: _Optional[_Union[MLType, str]] = ..., partials_type: _Optional[int] = ..., convolution_options: _Optional[_Iterable[_Union[_option_flag_pb2.PoplarOptionFlag, _Mapping]]] = ..., matmul_options: _Optional[_Iterable[_Union[_option_flag_pb2.PoplarOptionFlag, _Mapping]]] = ..., slice_options: _Optional[_Iterable[_Union[_option_flag_pb2.PoplarOptionFlag, _Mapping]]] = ..., tileset: _Optional[_Union[Tileset, str]] = ..., is_replica_identical: bool = ..., stochastic_rounding_method: _Optional[_Union[StochasticRoundingMethod, str]] = ...) -> None: ...
