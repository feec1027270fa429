"""Arguments of pipelines: what they may be, and how many iterations a schedule needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum, IntEnum
from typing import Any, Final

import numpy as np
import tensorflow as tf

from tensorflow_ipu.messages import backend_config_pb2, pipeline_config_pb2

_CONFIG: Final = backend_config_pb2.PoplarBackendConfig.CallConfig.PipelineConfig


class PipelineSchedule(IntEnum):
    """When the stages of a pipeline run.

    The values that a pipeline computes do not depend on it, but the number of iterations must be a
    multiple of the number of stages that run at once.

    * Grouped: all stages at once.
    * Interleaved: stages on different IPUs at once.
    * Sequential: one stage after the other.
    """

    Grouped = 0
    Interleaved = 1
    Sequential = 2


class RecomputationMode(Enum):
    """How pipelines that train compute activations again; without effect here."""

    Auto = _CONFIG.Auto
    RecomputeThenBackpropagate = _CONFIG.Recompute_then_backpropagate
    RecomputeAndBackpropagateInterleaved = _CONFIG.Recompute_and_backpropagate_interleaved


class PipelineStageOptions:
    """Poplar's options for the operators of a stage."""

    def __init__(
        self,
        convolution_options: dict[str, str] | None = None,
        matmul_options: dict[str, str] | None = None,
        slice_options: dict[str, str] | None = None,
    ) -> None:
        """Keep the options.

        Args:
            convolution_options: Options of convolutions.
            matmul_options: Options of matrix products.
            slice_options: Options of slices.

        Raises:
            TypeError: If one of them is no dictionary.
        """
        self._proto = pipeline_config_pb2.PipelineStagePoplarConfig()
        for name, options in (
            ("convolution_options", convolution_options),
            ("matmul_options", matmul_options),
            ("slice_options", slice_options),
        ):
            if options and not isinstance(options, dict):
                raise TypeError(f"PipelineStageOptions.{name} must be dictionary.")
            for option, value in (options or {}).items():
                getattr(self._proto, name).add(option=option, value=value)

    def get_proto(self) -> Any:
        """Return the options as a message."""
        return self._proto


def check_count(count: Any) -> None:
    """Check the number of iterations of a pipeline.

    Args:
        count: The number, or a tensor.

    Raises:
        ValueError: If it is missing or out of range.
    """
    if count is None:
        raise ValueError("gradient_accumulation_count must be specified.")
    if isinstance(count, int):
        if count < 0:
            raise ValueError("gradient_accumulation_count must be >= 0.")
        if count > np.iinfo(np.int32).max:
            raise ValueError("gradient_accumulation_count must be < max int32.")


def check_schedule(schedule: Any, recomputation_mode: Any, serialization: int) -> PipelineSchedule:
    """Return the schedule of a pipeline.

    Args:
        schedule: A PipelineSchedule, or None for the default.
        recomputation_mode: A RecomputationMode, or None for the default.
        serialization: Number of times that each stage runs for a batch.

    Returns:
        The schedule.

    Raises:
        TypeError: For other types.
        NotImplementedError: For a serialization with another schedule than Sequential.
    """
    if schedule is None:
        schedule = PipelineSchedule.Sequential if serialization > 1 else PipelineSchedule.Grouped
    if not isinstance(schedule, PipelineSchedule):
        raise TypeError(
            "The given pipeline_schedule is not a member of the PipelineSchedule enumeration."
        )
    if serialization > 1 and schedule != PipelineSchedule.Sequential:
        raise NotImplementedError(
            "Batch serialization is only supported with the `Sequential` schedule."
        )
    if recomputation_mode is not None and not isinstance(recomputation_mode, RecomputationMode):
        raise TypeError(
            "The given recomputation_mode is not a member of the RecomputationMode enumeration."
        )
    return schedule


def check_stages(stages: Any, device_mapping: Any, serialization: int) -> list[Any]:
    """Return the IPU of each stage, or its IPUs.

    Args:
        stages: The functions of the stages; a list of functions is a stage on several IPUs.
        device_mapping: The IPUs, or None for the default.
        serialization: Number of times that each stage runs for a batch.

    Returns:
        The IPUs.

    Raises:
        TypeError: For what is no list or tuple.
        ValueError: For fewer than two stages, or another number of IPUs.
        NotImplementedError: For a serialization over several IPUs.
    """
    if not isinstance(stages, (list, tuple)):
        raise TypeError("computational_stages argument needs to be a list or a tuple.")
    if device_mapping is None:
        device_mapping = [0] * len(stages) if serialization > 1 else list(range(len(stages)))
    if len(stages) < len(("first", "last")):
        raise ValueError("Pipeline requires at least two computational stages.")
    if not isinstance(device_mapping, (list, tuple)):
        raise TypeError("device_mapping argument needs to be a list or a tuple.")
    if len(device_mapping) != len(stages):
        raise ValueError(
            f"Each stage must be mapped to an IPU: {len(device_mapping)} mappings != "
            f"{len(stages)} stages"
        )
    if serialization > 1 and len(set(device_mapping)) != 1:
        raise NotImplementedError(
            "When using batch serialization, all the pipeline stages need to be mapped to a "
            "single IPU."
        )
    for stage, devices in zip(stages, device_mapping, strict=True):
        _check_parallel_stage(stage, devices)
    return list(device_mapping)


def _check_parallel_stage(stage: Any, devices: Any) -> None:
    if not isinstance(stage, list):
        return
    if not isinstance(devices, list):
        raise ValueError(
            "When the pipeline stage is a list of functions, the device mapping must also be a "
            "list of device IDs."
        )
    if len(stage) != len(devices):
        raise ValueError("Pipeline stage list and device_id list must be the same length.")
    if any(isinstance(function, list) for function in stage):
        raise NotImplementedError("Multiple nested levels of pipeline stages is not supported.")


def check_queues(infeed_queue: Any, outfeed_queue: Any, accumulates: bool) -> None:
    """Check the queues of a pipeline.

    Args:
        infeed_queue: An IPUInfeedQueue or None.
        outfeed_queue: An IPUOutfeedQueue or None.
        accumulates: Whether the outfeed gets sums.

    Raises:
        TypeError: For other types.
        ValueError: For sums without an outfeed that keeps all elements.
    """
    from tensorflow_ipu.feeds.ipu_infeed_queue import IPUInfeedQueue
    from tensorflow_ipu.feeds.ipu_outfeed_queue import IPUOutfeedMode, IPUOutfeedQueue

    if infeed_queue and not isinstance(infeed_queue, IPUInfeedQueue):
        raise TypeError("infeed_queue is not an instance of ipu_infeed_queue.IPUInfeedQueue")
    if outfeed_queue is not None and not isinstance(outfeed_queue, IPUOutfeedQueue):
        raise TypeError("outfeed_queue is not an instance of ipu_outfeed_queue.IPUOutfeedQueue")
    if not accumulates:
        return
    if outfeed_queue is None:
        raise ValueError("An outfeed_queue must be provided when accumulate_outfeed is True.")
    if outfeed_queue._outfeed_mode is not IPUOutfeedMode.ALL:  # noqa: SLF001
        raise ValueError("To accumulate the outfeed, it must be in IPUOutfeedMode ALL.")


def check_stage_options(options: Any, name: str, num_stages: int) -> None:
    """Check Poplar's options for stages.

    Args:
        options: A PipelineStageOptions for each stage, or None.
        name: Name of the argument.
        num_stages: Number of stages.

    Raises:
        TypeError: For other types.
        ValueError: For another number of options.
    """
    if options is None:
        return
    if not isinstance(options, (list, tuple)):
        raise TypeError(f"{name} must be a list or a tuple of PipelineStageOptions objects.")
    if len(options) != num_stages:
        raise ValueError(
            f"{name} must be a list or a tuple of PipelineStageOptions objects of length "
            f"{num_stages} (same number as the number of computational stages) but is "
            f"{len(options)}."
        )
    for option in options:
        if not isinstance(option, PipelineStageOptions):
            raise TypeError(
                f"Expected all elements of {name} to be of type PipelineStageOptions, but got "
                f"{option} instead."
            )


def check_training_options(
    has_optimizer: bool, outfeed_mask: Any, outfeed_loss: bool, weight_update_options: Any
) -> None:
    """Check options that only training has.

    Args:
        has_optimizer: Whether there is an optimizer function.
        outfeed_mask: Which outputs are not enqueued.
        outfeed_loss: Whether only the loss is enqueued.
        weight_update_options: Poplar's options for the update of weights.

    Raises:
        TypeError: For other types.
        ValueError: For options that exclude each other.
    """
    options = weight_update_options
    if has_optimizer and options is not None and not isinstance(options, PipelineStageOptions):
        raise TypeError(
            "weight_update_poplar_options to be of type PipelineStageOptions, but got "
            f"{options} instead."
        )
    if outfeed_mask and not has_optimizer:
        raise ValueError("An optimizer_function must be provided when outfeed_mask is set.")
    if outfeed_loss and not has_optimizer:
        raise ValueError("An optimizer_function must be provided when outfeed_loss is True.")
    if outfeed_loss and outfeed_mask:
        raise ValueError("Only one of `outfeed_loss` and `outfeed_mask` can be set.")


def flatten_devices(devices: Any) -> Iterator[Any]:
    """Yield the numbers of nested lists, tuples and ranges."""
    if isinstance(devices, (list, tuple, range)):
        for device in devices:
            yield from flatten_devices(device)
    else:
        yield devices


def count_overlapping(schedule: PipelineSchedule, device_mapping: Sequence[Any]) -> int:
    """Return the number of stages that run at once.

    In the interleaved schedule the order of the stages' IPUs, rotated by 0, is one row. Each
    further rotation that has at no place the same IPU as a row is a row, too:

        mapping 0 1 2 0 0 2 1 0
        row     0 1 2 0 0 2 1 0
        row     2 0 0 2 1 0 0 1

    Args:
        schedule: The schedule.
        device_mapping: The IPU of each stage.

    Returns:
        The number; iterations must be a multiple of it.
    """
    mapping = [tuple(flatten_devices(devices)) for devices in device_mapping]
    if schedule is PipelineSchedule.Sequential:
        return 1
    if schedule is PipelineSchedule.Grouped:
        return len(mapping)
    rows = [mapping]
    for offset in range(1, len(mapping)):
        rotated = mapping[offset:] + mapping[:offset]
        if all(a != b for row in rows for a, b in zip(row, rotated, strict=True)):
            rows.append(rotated)
    return len(rows)


def check_iterations(iterations: int, overlapping: int) -> None:
    """Check the number of iterations of a pipeline that runs.

    Args:
        iterations: The number.
        overlapping: Number of stages that run at once.

    Raises:
        tensorflow.errors.FailedPreconditionError: If the number does not suit.
    """
    if iterations % overlapping:
        rule = "a multiple of"
    elif iterations < overlapping:
        rule = "at least"
    else:
        return
    raise tf.errors.FailedPreconditionError(
        None,
        None,
        f"The number of iterations of the pipeline must be {rule} {overlapping}, but it is "
        f"{iterations}. This number might be called `gradient_accumulation_count`, "
        "`gradient_accumulation_steps_per_replica` or `steps_per_execution` depending on the API "
        "used.",
    )
