from tensorflow_ipu.messages import option_flag_pb2 as _option_flag_pb2
from tensorflow_ipu.messages import threestate_pb2 as _threestate_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class IpuSelectionOrder(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    AUTO: _ClassVar[IpuSelectionOrder]
    ZIGZAG: _ClassVar[IpuSelectionOrder]
    SNAKE: _ClassVar[IpuSelectionOrder]
    HOOF: _ClassVar[IpuSelectionOrder]

class IpuDeviceConnectionType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ALWAYS: _ClassVar[IpuDeviceConnectionType]
    ON_DEMAND: _ClassVar[IpuDeviceConnectionType]
    NEVER: _ClassVar[IpuDeviceConnectionType]
    PRE_COMPILE: _ClassVar[IpuDeviceConnectionType]

class IpuOptionsCreator(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    INVALID: _ClassVar[IpuOptionsCreator]
    IPU_UTILS: _ClassVar[IpuOptionsCreator]

class IpuExecutionProfileType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NO_PROFILE: _ClassVar[IpuExecutionProfileType]
    DEVICE_PROFILE: _ClassVar[IpuExecutionProfileType]
    IPU_PROFILE: _ClassVar[IpuExecutionProfileType]
    TILE_PROFILE: _ClassVar[IpuExecutionProfileType]

class IpuSchedulingAlgorithm(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CHOOSE_BEST: _ClassVar[IpuSchedulingAlgorithm]
    CLUSTERING: _ClassVar[IpuSchedulingAlgorithm]
    POST_ORDER: _ClassVar[IpuSchedulingAlgorithm]
    LOOK_AHEAD: _ClassVar[IpuSchedulingAlgorithm]
    SHORTEST_PATH: _ClassVar[IpuSchedulingAlgorithm]

class SyntheticDataCategory(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    Seed: _ClassVar[SyntheticDataCategory]
    Infeed: _ClassVar[SyntheticDataCategory]
    Outfeed: _ClassVar[SyntheticDataCategory]
    HostEmbedding: _ClassVar[SyntheticDataCategory]
    Parameters: _ClassVar[SyntheticDataCategory]
    Unknown: _ClassVar[SyntheticDataCategory]

class StochasticRoundingBehaviour(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    StochasticRounding_Off: _ClassVar[StochasticRoundingBehaviour]
    StochasticRounding_On: _ClassVar[StochasticRoundingBehaviour]
    StochasticRounding_ReplicaIdenticalOnly: _ClassVar[StochasticRoundingBehaviour]
AUTO: IpuSelectionOrder
ZIGZAG: IpuSelectionOrder
SNAKE: IpuSelectionOrder
HOOF: IpuSelectionOrder
ALWAYS: IpuDeviceConnectionType
ON_DEMAND: IpuDeviceConnectionType
NEVER: IpuDeviceConnectionType
PRE_COMPILE: IpuDeviceConnectionType
INVALID: IpuOptionsCreator
IPU_UTILS: IpuOptionsCreator
NO_PROFILE: IpuExecutionProfileType
DEVICE_PROFILE: IpuExecutionProfileType
IPU_PROFILE: IpuExecutionProfileType
TILE_PROFILE: IpuExecutionProfileType
CHOOSE_BEST: IpuSchedulingAlgorithm
CLUSTERING: IpuSchedulingAlgorithm
POST_ORDER: IpuSchedulingAlgorithm
LOOK_AHEAD: IpuSchedulingAlgorithm
SHORTEST_PATH: IpuSchedulingAlgorithm
Seed: SyntheticDataCategory
Infeed: SyntheticDataCategory
Outfeed: SyntheticDataCategory
HostEmbedding: SyntheticDataCategory
Parameters: SyntheticDataCategory
Unknown: SyntheticDataCategory
StochasticRounding_Off: StochasticRoundingBehaviour
StochasticRounding_On: StochasticRoundingBehaviour
StochasticRounding_ReplicaIdenticalOnly: StochasticRoundingBehaviour

class IpuOptions(_message.Message):
    __slots__ = ("ipu_model_config", "profiling", "compilation_options", "device_config", "speed_size_config", "convolution_options", "matmul_options", "pooling_options", "clear_matmul_pass_type", "deprecated", "max_cross_replica_sum_buffer_size", "max_reduce_scatter_buffer_size", "floating_point_behaviour", "max_inter_ipu_copies_buffer_size", "max_send_recv_cluster_size", "max_scheduler_lookahead_depth", "max_scheduler_search_space_size", "prefetch_data_streams", "enable_multi_slice_combiner", "enable_matmul_combiner", "selection_order", "disable_gather_simplifier", "serialization_folder", "device_connection_type", "ipu_version", "creator_id", "use_stable_norm_statistics", "num_io_tiles", "gcl_options", "triangular_solve_expander_block_size", "enable_experimental_remote_buffer_embedding", "enable_fast_math", "multi_replica_process_count", "multi_replica_process_index", "minimum_remote_tensor_size", "place_ops_on_io_tiles", "enable_remote_buffers_without_device", "remote_buffer_merging_mode", "cholesky_block_size", "experimental_distributed_batch_norm_replica_group_size", "io_tile_available_memory_proportion", "slice_options", "max_reduce_many_buffer_size", "algebraic_simplifier_config", "enable_experimental_prng_stability", "max_all_gather_buffer_size", "enable_dynamic_slice_replacement")
    class IpuModelConfig(_message.Message):
        __slots__ = ("compile_ipu_code", "tiles_per_ipu", "ipu_model_version")
        COMPILE_IPU_CODE_FIELD_NUMBER: _ClassVar[int]
        TILES_PER_IPU_FIELD_NUMBER: _ClassVar[int]
        IPU_MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
        compile_ipu_code: bool
        tiles_per_ipu: int
        ipu_model_version: str
        def __init__(self, compile_ipu_code: bool = ..., tiles_per_ipu: _Optional[int] = ..., ipu_model_version: _Optional[str] = ...) -> None: ...
    class Profiling(_message.Message):
        __slots__ = ("enable_compilation_trace", "enable_poplar_reports_text", "enable_io_trace", "execution_trace_type", "report_every_nth_execution", "enable_ipu_trace_events", "enable_poplar_reports_cbor", "report_directory", "max_report_size", "graph_options", "enable_poplar_graph")
        ENABLE_COMPILATION_TRACE_FIELD_NUMBER: _ClassVar[int]
        ENABLE_POPLAR_REPORTS_TEXT_FIELD_NUMBER: _ClassVar[int]
        ENABLE_IO_TRACE_FIELD_NUMBER: _ClassVar[int]
        EXECUTION_TRACE_TYPE_FIELD_NUMBER: _ClassVar[int]
        REPORT_EVERY_NTH_EXECUTION_FIELD_NUMBER: _ClassVar[int]
        ENABLE_IPU_TRACE_EVENTS_FIELD_NUMBER: _ClassVar[int]
        ENABLE_POPLAR_REPORTS_CBOR_FIELD_NUMBER: _ClassVar[int]
        REPORT_DIRECTORY_FIELD_NUMBER: _ClassVar[int]
        MAX_REPORT_SIZE_FIELD_NUMBER: _ClassVar[int]
        GRAPH_OPTIONS_FIELD_NUMBER: _ClassVar[int]
        ENABLE_POPLAR_GRAPH_FIELD_NUMBER: _ClassVar[int]
        enable_compilation_trace: bool
        enable_poplar_reports_text: bool
        enable_io_trace: bool
        execution_trace_type: IpuExecutionProfileType
        report_every_nth_execution: int
        enable_ipu_trace_events: bool
        enable_poplar_reports_cbor: bool
        report_directory: str
        max_report_size: int
        graph_options: _containers.RepeatedCompositeFieldContainer[_option_flag_pb2.PoplarOptionFlag]
        enable_poplar_graph: bool
        def __init__(self, enable_compilation_trace: bool = ..., enable_poplar_reports_text: bool = ..., enable_io_trace: bool = ..., execution_trace_type: _Optional[_Union[IpuExecutionProfileType, str]] = ..., report_every_nth_execution: _Optional[int] = ..., enable_ipu_trace_events: bool = ..., enable_poplar_reports_cbor: bool = ..., report_directory: _Optional[str] = ..., max_report_size: _Optional[int] = ..., graph_options: _Optional[_Iterable[_Union[_option_flag_pb2.PoplarOptionFlag, _Mapping]]] = ..., enable_poplar_graph: bool = ...) -> None: ...
    class DeviceConfig(_message.Message):
        __slots__ = ("auto_count", "cfg_index")
        AUTO_COUNT_FIELD_NUMBER: _ClassVar[int]
        CFG_INDEX_FIELD_NUMBER: _ClassVar[int]
        auto_count: int
        cfg_index: int
        def __init__(self, auto_count: _Optional[int] = ..., cfg_index: _Optional[int] = ...) -> None: ...
    class SpeedSizeConfig(_message.Message):
        __slots__ = ("always_rearrange_copies_on_the_host", "disable_graph_outlining", "allow_recompute", "merge_infeed_io_copies", "scheduler_selection")
        ALWAYS_REARRANGE_COPIES_ON_THE_HOST_FIELD_NUMBER: _ClassVar[int]
        DISABLE_GRAPH_OUTLINING_FIELD_NUMBER: _ClassVar[int]
        ALLOW_RECOMPUTE_FIELD_NUMBER: _ClassVar[int]
        MERGE_INFEED_IO_COPIES_FIELD_NUMBER: _ClassVar[int]
        SCHEDULER_SELECTION_FIELD_NUMBER: _ClassVar[int]
        always_rearrange_copies_on_the_host: bool
        disable_graph_outlining: bool
        allow_recompute: bool
        merge_infeed_io_copies: bool
        scheduler_selection: IpuSchedulingAlgorithm
        def __init__(self, always_rearrange_copies_on_the_host: bool = ..., disable_graph_outlining: bool = ..., allow_recompute: bool = ..., merge_infeed_io_copies: bool = ..., scheduler_selection: _Optional[_Union[IpuSchedulingAlgorithm, str]] = ...) -> None: ...
    class FloatingPointBehaviour(_message.Message):
        __slots__ = ("inv", "div0", "oflo", "esr", "nanoo")
        INV_FIELD_NUMBER: _ClassVar[int]
        DIV0_FIELD_NUMBER: _ClassVar[int]
        OFLO_FIELD_NUMBER: _ClassVar[int]
        ESR_FIELD_NUMBER: _ClassVar[int]
        NANOO_FIELD_NUMBER: _ClassVar[int]
        inv: bool
        div0: bool
        oflo: bool
        esr: StochasticRoundingBehaviour
        nanoo: bool
        def __init__(self, inv: bool = ..., div0: bool = ..., oflo: bool = ..., esr: _Optional[_Union[StochasticRoundingBehaviour, str]] = ..., nanoo: bool = ...) -> None: ...
    class IpuAlgebraicSimplifierConfig(_message.Message):
        __slots__ = ("enable_fast_math", "enable_dot_strength")
        ENABLE_FAST_MATH_FIELD_NUMBER: _ClassVar[int]
        ENABLE_DOT_STRENGTH_FIELD_NUMBER: _ClassVar[int]
        enable_fast_math: bool
        enable_dot_strength: bool
        def __init__(self, enable_fast_math: bool = ..., enable_dot_strength: bool = ...) -> None: ...
    IPU_MODEL_CONFIG_FIELD_NUMBER: _ClassVar[int]
    PROFILING_FIELD_NUMBER: _ClassVar[int]
    COMPILATION_OPTIONS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_CONFIG_FIELD_NUMBER: _ClassVar[int]
    SPEED_SIZE_CONFIG_FIELD_NUMBER: _ClassVar[int]
    CONVOLUTION_OPTIONS_FIELD_NUMBER: _ClassVar[int]
    MATMUL_OPTIONS_FIELD_NUMBER: _ClassVar[int]
    POOLING_OPTIONS_FIELD_NUMBER: _ClassVar[int]
    CLEAR_MATMUL_PASS_TYPE_FIELD_NUMBER: _ClassVar[int]
    DEPRECATED_FIELD_NUMBER: _ClassVar[int]
    MAX_CROSS_REPLICA_SUM_BUFFER_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_REDUCE_SCATTER_BUFFER_SIZE_FIELD_NUMBER: _ClassVar[int]
    FLOATING_POINT_BEHAVIOUR_FIELD_NUMBER: _ClassVar[int]
    MAX_INTER_IPU_COPIES_BUFFER_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_SEND_RECV_CLUSTER_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_SCHEDULER_LOOKAHEAD_DEPTH_FIELD_NUMBER: _ClassVar[int]
    MAX_SCHEDULER_SEARCH_SPACE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PREFETCH_DATA_STREAMS_FIELD_NUMBER: _ClassVar[int]
    ENABLE_MULTI_SLICE_COMBINER_FIELD_NUMBER: _ClassVar[int]
    ENABLE_MATMUL_COMBINER_FIELD_NUMBER: _ClassVar[int]
    SELECTION_ORDER_FIELD_NUMBER: _ClassVar[int]
    DISABLE_GATHER_SIMPLIFIER_FIELD_NUMBER: _ClassVar[int]
    SERIALIZATION_FOLDER_FIELD_NUMBER: _ClassVar[int]
    DEVICE_CONNECTION_TYPE_FIELD_NUMBER: _ClassVar[int]
    IPU_VERSION_FIELD_NUMBER: _ClassVar[int]
    CREATOR_ID_FIELD_NUMBER: _ClassVar[int]
    USE_STABLE_NORM_STATISTICS_FIELD_NUMBER: _ClassVar[int]
    NUM_IO_TILES_FIELD_NUMBER: _ClassVar[int]
    GCL_OPTIONS_FIELD_NUMBER: _ClassVar[int]
    TRIANGULAR_SOLVE_EXPANDER_BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    ENABLE_EXPERIMENTAL_REMOTE_BUFFER_EMBEDDING_FIELD_NUMBER: _ClassVar[int]
    ENABLE_FAST_MATH_FIELD_NUMBER: _ClassVar[int]
    MULTI_REPLICA_PROCESS_COUNT_FIELD_NUMBER: _ClassVar[int]
    MULTI_REPLICA_PROCESS_INDEX_FIELD_NUMBER: _ClassVar[int]
    MINIMUM_REMOTE_TENSOR_SIZE_FIELD_NUMBER: _ClassVar[int]
    PLACE_OPS_ON_IO_TILES_FIELD_NUMBER: _ClassVar[int]
    ENABLE_REMOTE_BUFFERS_WITHOUT_DEVICE_FIELD_NUMBER: _ClassVar[int]
    REMOTE_BUFFER_MERGING_MODE_FIELD_NUMBER: _ClassVar[int]
    CHOLESKY_BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    EXPERIMENTAL_DISTRIBUTED_BATCH_NORM_REPLICA_GROUP_SIZE_FIELD_NUMBER: _ClassVar[int]
    IO_TILE_AVAILABLE_MEMORY_PROPORTION_FIELD_NUMBER: _ClassVar[int]
    SLICE_OPTIONS_FIELD_NUMBER: _ClassVar[int]
    MAX_REDUCE_MANY_BUFFER_SIZE_FIELD_NUMBER: _ClassVar[int]
    ALGEBRAIC_SIMPLIFIER_CONFIG_FIELD_NUMBER: _ClassVar[int]
    ENABLE_EXPERIMENTAL_PRNG_STABILITY_FIELD_NUMBER: _ClassVar[int]
    MAX_ALL_GATHER_BUFFER_SIZE_FIELD_NUMBER: _ClassVar[int]
    ENABLE_DYNAMIC_SLICE_REPLACEMENT_FIELD_NUMBER: _ClassVar[int]
    ipu_model_config: IpuOptions.IpuModelConfig
    profiling: IpuOptions.Profiling
    compilation_options: _containers.RepeatedCompositeFieldContainer[_option_flag_pb2.PoplarOptionFlag]
    device_config: _containers.RepeatedCompositeFieldContainer[IpuOptions.DeviceConfig]
    speed_size_config: IpuOptions.SpeedSizeConfig
    convolution_options: _containers.RepeatedCompositeFieldContainer[_option_flag_pb2.PoplarOptionFlag]
    matmul_options: _containers.RepeatedCompositeFieldContainer[_option_flag_pb2.PoplarOptionFlag]
    pooling_options: _containers.RepeatedCompositeFieldContainer[_option_flag_pb2.PoplarOptionFlag]
    clear_matmul_pass_type: bool
    deprecated: bool
    max_cross_replica_sum_buffer_size: int
    max_reduce_scatter_buffer_size: int
    floating_point_behaviour: IpuOptions.FloatingPointBehaviour
    max_inter_ipu_copies_buffer_size: int
    max_send_recv_cluster_size: int
    max_scheduler_lookahead_depth: int
    max_scheduler_search_space_size: int
    prefetch_data_streams: bool
    enable_multi_slice_combiner: bool
    enable_matmul_combiner: bool
    selection_order: IpuSelectionOrder
    disable_gather_simplifier: bool
    serialization_folder: str
    device_connection_type: IpuDeviceConnectionType
    ipu_version: str
    creator_id: IpuOptionsCreator
    use_stable_norm_statistics: bool
    num_io_tiles: int
    gcl_options: _containers.RepeatedCompositeFieldContainer[_option_flag_pb2.PoplarOptionFlag]
    triangular_solve_expander_block_size: int
    enable_experimental_remote_buffer_embedding: bool
    enable_fast_math: bool
    multi_replica_process_count: int
    multi_replica_process_index: int
    minimum_remote_tensor_size: int
    place_ops_on_io_tiles: bool
    enable_remote_buffers_without_device: bool
    remote_buffer_merging_mode: _threestate_pb2.ThreeState
    cholesky_block_size: int
    experimental_distributed_batch_norm_replica_group_size: int
    io_tile_available_memory_proportion: float
    slice_options: _containers.RepeatedCompositeFieldContainer[_option_flag_pb2.PoplarOptionFlag]
    max_reduce_many_buffer_size: int
    algebraic_simplifier_config: IpuOptions.IpuAlgebraicSimplifierConfig
    enable_experimental_prng_stability: bool
    max_all_gather_buffer_size: int
    enable_dynamic_slice_replacement: bool
    def __init__(self, ipu_model_config: _Optional[_Union[IpuOptions.IpuModelConfig, _Mapping]] = ..., profiling: _Optional[_Union[IpuOptions.Profiling, _Mapping]] = ..., compilation_options: _Optional[_Iterable[_Union[_option_flag_pb2.PoplarOptionFlag, _Mapping]]] = ..., device_config: _Optional[_Iterable[_Union[IpuOptions.DeviceConfig, _Mapping]]] = ..., speed_size_config: _Optional[_Union[IpuOptions.SpeedSizeConfig, _Mapping]] = ..., convolution_options: _Optional[_Iterable[_Union[_option_flag_pb2.PoplarOptionFlag, _Mapping]]] = ..., matmul_options: _Optional[_Iterable[_Union[_option_flag_pb2.PoplarOptionFlag, _Mapping]]] = ..., pooling_options: _Optional[_Iterable[_Union[_option_flag_pb2.PoplarOptionFlag, _Mapping]]] = ..., clear_matmul_pass_type: bool = ..., deprecated: bool = ..., max_cross_replica_sum_buffer_size: _Optional[int] = ..., max_reduce_scatter_buffer_size: _Optional[int] = ..., floating_point_behaviour: _Optional[_Union[IpuOptions.FloatingPointBehaviour, _Mapping]] = ..., max_inter_ipu_copies_buffer_size: _Optional[int] = ..., max_send_recv_cluster_size: _Optional[int] = ..., max_scheduler_lookahead_depth: _Optional[int] = ..., max_scheduler_search_space_size: _Optional[int] = ..., prefetch_data_streams: bool = ..., enable_multi_slice_combiner: bool = ..., enable_matmul_combiner: bool = ..., selection_order: _Optional[_Union[IpuSelectionOrder, str]] = ..., disable_gather_simplifier: bool = ..., serialization_folder: _Optional[str] = ..., device_connection_type: _Optional[_Union[IpuDeviceConnectionType, str]] = ..., ipu_version: _Optional[str] = ..., creator_id: _Optional[_Union[IpuOptionsCreator, str]] = ..., use_stable_norm_statistics: bool = ..., num_io_tiles: _Optional[int] = ..., gcl_options: _Optional[_Iterable[_Union[_option_flag_pb2.PoplarOptionFlag, _Mapping]]] = ..., triangular_solve_expander_block_size: _Optional[int] = ..., enable_experimental_remote_buffer_embedding: bool = ..., enable_fast_math: bool = ..., multi_replica_process_count: _Optional[int] = ..., multi_replica_process_index: _Optional[int] = ..., minimum_remote_tensor_size: _Optional[int] = ..., place_ops_on_io_tiles: bool = ..., enable_remote_buffers_without_device: bool = ..., remote_buffer_merging_mode: _Optional[_Union[_threestate_pb2.ThreeState, str]] = ..., cholesky_block_size: _Optional[int] = ..., experimental_distributed_batch_norm_replica_group_size: _Optional[int] = ..., io_tile_available_memory_proportion: _Optional[float] = ..., slice_options: _Optional[_Iterable[_Union[_option_flag_pb2.PoplarOptionFlag, _Mapping]]] = ..., max_reduce_many_buffer_size: _Optional[int] = ..., algebraic_simplifier_config: _Optional[_Union[IpuOptions.IpuAlgebraicSimplifierConfig, _Mapping]] = ..., enable_experimental_prng_stability: bool = ..., max_all_gather_buffer_size: _Optional[int] = ..., enable_dynamic_slice_replacement: bool = ...) -> None: ...
