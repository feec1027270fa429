"""The table of all attributes of IPUConfig.

An entry has everything about an attribute: name, values, default, its field in the message, and
what it changes here. The classes, the message, the reference and the documentation are made of it.
"""

from __future__ import annotations

import typing
from dataclasses import dataclass
from typing import Any, Final

from popef._tools.options import Option, make_table
from tensorflow_ipu.config.enums import (
    DeviceConnectionType,
    MergeRemoteBuffersBehaviour,
    SchedulingAlgorithm,
    SelectionOrder,
    StochasticRoundingBehaviour,
)
from tensorflow_ipu.config.hints import kind_of_hint, kind_of_value

_IPUS_HINT: Final = "typing.Union[int, typing.List[int], typing.Tuple[int, ...]]"
_IPUS: Final = kind_of_hint(
    typing.Union[int, list[int], tuple[int, ...]],  # noqa: UP007 # typing's own form is read
    _IPUS_HINT,
)


@dataclass(frozen=True, slots=True)
class Attribute(Option):
    """An attribute, by its full name."""

    field: str = ""
    """Path of its field in IpuOptions; "!" in front negates."""
    deprecated: str | None = None
    """What a user reads who sets it."""


def _attribute(
    name: str, default: Any, field: str, help: str, effect: str = "", **facts: Any
) -> Attribute:
    """Return an entry; its values are those of the default's class unless `kind` says otherwise."""
    facts.setdefault("kind", kind_of_value(default))
    return Attribute(name, help, default=default, effect=effect, field=field, **facts)


_POPLAR: Final = "options of Poplar's libraries, texts by name"

CATEGORIES: Final = {
    "convolutions": "Convolutions.",
    "device_connection": "When devices are attached.",
    "slices": "Slices and embeddings.",
    "experimental": "Experimental options.",
    "experimental.multi_replica_distribution": "Replicas in several processes.",
    "floating_point_behaviour": "Floating-point exceptions and rounding.",
    "io_tiles": "Tiles that only transfer.",
    "ipu_model": "The IPU Model, where TF_POPLAR_FLAGS turns it on.",
    "matmuls": "Matrix products.",
    "norms": "Normalizations.",
    "norms.experimental": "Experimental options of normalizations.",
    "optimizations": "Optimizations of the compiler.",
    "optimizations.math": "Simplification of arithmetic.",
    "pooling": "Pooling.",
    "scheduling": "Order of operators.",
}
"""Description of each category, by its full name."""

ATTRIBUTES: Final = make_table(
    _attribute(
        "allow_recompute",
        False,
        "speed_size_config.allow_recompute",
        "Whether training recomputes activations instead of keeping them.",
    ),
    _attribute(
        "selection_order",
        SelectionOrder.AUTO,
        "selection_order",
        "Order in which a device's IPUs are given to shards and pipeline stages.",
    ),
    _attribute(
        "serialization_output_folder",
        "",
        "serialization_folder",
        "Folder that compiled programs are written to; empty: they are not written.",
        "programs are written there, not under the IPU Model",
    ),
    _attribute(
        "compilation_poplar_options",
        {},
        "compilation_options",
        "Options of Poplar's engine, texts by name.",
        "debug.floatPointOpException, debug.nanOverflowException, debug.allowOutOfMemory, "
        "autoReport.* and similar; all are recorded in PopEF files",
    ),
    _attribute(
        "gcl_poplar_options",
        {},
        "gcl_options",
        "Options of the communication library, texts by name.",
    ),
    _attribute(
        "auto_select_ipus",
        [],
        "",
        "Configure the IPUs to be used by the number of IPUs of each device. One number makes the "
        "device /device:IPU:0; several make /device:IPU:0, /device:IPU:1 and so on.",
        "devices are made of free IPUs of the simulated machine, which has 64",
        kind=_IPUS,
    ),
    _attribute(
        "select_ipus",
        [],
        "",
        "Configure the IPUs to be used by the id of each device's set of IPUs, as the machine "
        "lists them. Not for the IPU Model.",
        "ids count single IPUs first, then sets of 2, 4, 8, ... IPUs",
        kind=_IPUS,
    ),
    _attribute(
        "convolutions.poplar_options",
        {},
        "convolution_options",
        f"Convolutions: {_POPLAR}.",
        "partialsType: half or float",
    ),
    _attribute(
        "device_connection.type",
        DeviceConnectionType.ALWAYS,
        "device_connection_type",
        "When the IPUs of a device are attached.",
        "as in the real library; NEVER and PRE_COMPILE require a version",
    ),
    _attribute(
        "device_connection.version",
        "",
        "ipu_version",
        "Chip that programs are compiled for: ipu1, ipu2 or ipu21; empty: that of the machine.",
        "the chip",
    ),
    _attribute(
        "device_connection.enable_remote_buffers",
        False,
        "enable_remote_buffers_without_device",
        "Whether the machine that will run the programs has remote buffers, where no device is "
        "attached when they are compiled.",
    ),
    _attribute(
        "slices.poplar_options",
        {},
        "slice_options",
        f"Slices and embeddings: {_POPLAR}.",
    ),
    _attribute(
        "experimental.always_rearrange_copies_on_the_host",
        False,
        "speed_size_config.always_rearrange_copies_on_the_host",
        "Whether the host rearranges all data that is streamed.",
    ),
    _attribute(
        "experimental.enable_remote_buffer_embedding",
        False,
        "enable_experimental_remote_buffer_embedding",
        "Whether host embeddings use remote buffers.",
    ),
    _attribute(
        "experimental.enable_prng_stability",
        False,
        "enable_experimental_prng_stability",
        "Whether replicas draw the same random numbers for stochastic rounding.",
    ),
    _attribute(
        "experimental.multi_replica_distribution.process_index",
        0,
        "multi_replica_process_index",
        "Number of this process.",
        "checked",
    ),
    _attribute(
        "experimental.multi_replica_distribution.process_count",
        0,
        "multi_replica_process_count",
        "Number of processes; 0: replicas are in one process.",
        "checked; more than one process is not supported",
    ),
    _attribute(
        "floating_point_behaviour.inv",
        False,
        "floating_point_behaviour.inv",
        "Whether an invalid operation ends the run with an error.",
        "the first result that is not a number, or too large for its type, ends the run",
    ),
    _attribute(
        "floating_point_behaviour.div0",
        False,
        "floating_point_behaviour.div0",
        "Whether a division by zero ends the run with an error.",
        "as inv",
    ),
    _attribute(
        "floating_point_behaviour.oflo",
        False,
        "floating_point_behaviour.oflo",
        "Whether an overflow ends the run with an error.",
        "as inv",
    ),
    _attribute(
        "floating_point_behaviour.esr",
        StochasticRoundingBehaviour.OFF,
        "floating_point_behaviour.esr",
        "Stochastic rounding.",
    ),
    _attribute(
        "floating_point_behaviour.nanoo",
        False,
        "floating_point_behaviour.nanoo",
        "Whether a result too large for half is NaN instead of the largest half.",
        "as in the real library",
    ),
    _attribute(
        "floating_point_behaviour.set_all",
        False,
        "",
        "Whether all options of this category are on.",
        "turns inv, div0, oflo, esr and nanoo on",
    ),
    _attribute(
        "io_tiles.num_io_tiles",
        0,
        "num_io_tiles",
        "Number of tiles that only transfer.",
        "the modelled time",
    ),
    _attribute(
        "io_tiles.place_ops_on_io_tiles",
        False,
        "place_ops_on_io_tiles",
        "Whether operators that transfer are placed on these tiles.",
        "checked: requires num_io_tiles",
    ),
    _attribute(
        "io_tiles.available_memory_proportion",
        0.9,
        "io_tile_available_memory_proportion",
        "Share of these tiles' memory that data may take.",
    ),
    _attribute(
        "ipu_model.compile_ipu_code",
        True,
        "ipu_model_config.compile_ipu_code",
        "Whether the code of the tiles is compiled.",
    ),
    _attribute(
        "ipu_model.tiles_per_ipu",
        0,
        "ipu_model_config.tiles_per_ipu",
        "Number of tiles of an IPU; 0: all of the chip.",
        "the number that reports show; memory and time are those of the whole chip",
    ),
    _attribute(
        "ipu_model.version",
        "ipu2",
        "ipu_model_config.ipu_model_version",
        "Specify the IPU version to be used by the IPU Model: ipu1 or ipu2.",
        "the chip",
    ),
    _attribute(
        "matmuls.clear_pass_type",
        False,
        "clear_matmul_pass_type",
        "Whether products are planned without regard to the pass of training that they are in.",
    ),
    _attribute(
        "matmuls.poplar_options",
        {},
        "matmul_options",
        f"Matrix products: {_POPLAR}.",
        "partialsType: half or float",
    ),
    _attribute(
        "norms.use_stable_statistics",
        False,
        "use_stable_norm_statistics",
        "Whether the mean is subtracted before the variance is computed.",
        "none: it always is",
    ),
    _attribute(
        "norms.experimental.distributed_batch_norm_replica_group_size",
        1,
        "experimental_distributed_batch_norm_replica_group_size",
        "Number of replicas that share the statistics of batch normalizations, in training.",
        "checked",
    ),
    _attribute(
        "optimizations.prefetch_data_streams",
        True,
        "prefetch_data_streams",
        "Whether the host fetches data while the IPUs compute.",
    ),
    _attribute(
        "optimizations.combine_embedding_lookups",
        False,
        "enable_multi_slice_combiner",
        "Whether lookups in the same table are combined.",
    ),
    _attribute(
        "optimizations.combine_matmuls",
        False,
        "enable_matmul_combiner",
        "Whether products with the same operand are combined.",
    ),
    _attribute(
        "optimizations.enable_graph_outlining",
        True,
        "!speed_size_config.disable_graph_outlining",
        "Whether equal parts of a graph share their code.",
        "the modelled memory",
    ),
    _attribute(
        "optimizations.merge_infeed_io_copies",
        True,
        "speed_size_config.merge_infeed_io_copies",
        "Whether the copies of an infeed's tensors are merged.",
    ),
    _attribute(
        "optimizations.maximum_cross_replica_sum_buffer_size",
        0,
        "max_cross_replica_sum_buffer_size",
        "Number of bytes that may wait before sums across replicas are scheduled.",
    ),
    _attribute(
        "optimizations.maximum_reduce_scatter_buffer_size",
        0,
        "max_reduce_scatter_buffer_size",
        "Number of bytes that may wait before scattered reductions are scheduled.",
    ),
    _attribute(
        "optimizations.maximum_inter_ipu_copies_buffer_size",
        0,
        "max_inter_ipu_copies_buffer_size",
        "Number of bytes that may wait before copies between IPUs are scheduled.",
    ),
    _attribute(
        "optimizations.maximum_send_recv_cluster_size",
        0,
        "max_send_recv_cluster_size",
        "Number of bytes that may wait before exchanges with the host are scheduled.",
    ),
    _attribute(
        "optimizations.maximum_reduce_many_buffer_size",
        0,
        "max_reduce_many_buffer_size",
        "Number of bytes that may wait before reductions are scheduled together.",
    ),
    _attribute(
        "optimizations.maximum_all_gather_buffer_size",
        0,
        "max_all_gather_buffer_size",
        "Number of bytes that may wait before gathers across replicas are scheduled.",
    ),
    _attribute(
        "optimizations.minimum_remote_tensor_size",
        128,
        "minimum_remote_tensor_size",
        "Number of bytes from which on a tensor may be kept in remote memory.",
    ),
    _attribute(
        "optimizations.merge_remote_buffers",
        MergeRemoteBuffersBehaviour.IF_BENEFICIAL,
        "remote_buffer_merging_mode",
        "Whether remote buffers are merged.",
    ),
    _attribute(
        "optimizations.enable_gather_simplifier",
        True,
        "!disable_gather_simplifier",
        "Whether lookups are simplified.",
    ),
    _attribute(
        "optimizations.triangular_solve_expander_block_size",
        0,
        "triangular_solve_expander_block_size",
        "Size of the blocks of triangular systems; 0: the compiler's choice.",
    ),
    _attribute(
        "optimizations.cholesky_block_size",
        0,
        "cholesky_block_size",
        "Size of the blocks of Cholesky factors; 0: the compiler's choice.",
    ),
    _attribute(
        "optimizations.enable_fast_math",
        False,
        "enable_fast_math",
        "Whether arithmetic may be reordered without regard to accuracy.",
        deprecated="'enable_fast_math' has been moved to 'optimizations.math.fast'. It will be "
        "removed from this location in a future release.",
    ),
    _attribute(
        "optimizations.enable_dynamic_slice_replacement",
        True,
        "enable_dynamic_slice_replacement",
        "Whether dynamic slices become lookups.",
    ),
    _attribute(
        "optimizations.math.fast",
        False,
        "algebraic_simplifier_config.enable_fast_math",
        "Whether arithmetic may be reordered without regard to accuracy.",
    ),
    _attribute(
        "optimizations.math.dot_strength",
        True,
        "algebraic_simplifier_config.enable_dot_strength",
        "Whether products with vectors become elementwise products.",
    ),
    _attribute(
        "pooling.poplar_options",
        {},
        "pooling_options",
        f"Pooling: {_POPLAR}.",
    ),
    _attribute(
        "scheduling.algorithm",
        SchedulingAlgorithm.CHOOSE_BEST,
        "speed_size_config.scheduler_selection",
        "How operators are ordered.",
    ),
    _attribute(
        "scheduling.maximum_scheduler_lookahead_depth",
        5,
        "max_scheduler_lookahead_depth",
        "How far the algorithm LOOK_AHEAD looks.",
    ),
    _attribute(
        "scheduling.maximum_scheduler_search_space_size",
        64,
        "max_scheduler_search_space_size",
        "Number of orders that the algorithm LOOK_AHEAD compares.",
    ),
)
"""Entries by full name, in the order of the reference."""
