"""On how many IPUs a model runs, and how often."""

from __future__ import annotations

from typing import Any

from tensorflow.python.framework import device as tf_device

from tensorflow_ipu.keras_extensions.options import ExtensionOptions, set_untracked


class Placement(ExtensionOptions):
    """Number of IPUs and of replicas of a model."""

    def _is_pipelined(self) -> bool:
        raise NotImplementedError

    def _is_pipelined_or_unknown(self) -> bool:
        """Return whether the model is pipelined; it is not before it is built."""
        return bool(self._pipeline_stage_assignment)

    def _get_shard_count(self) -> int:
        """Return the number of IPUs of a replica."""
        if not self._is_pipelined():
            return 1
        if self._pipelining_device_mapping:
            return int(max(self._pipelining_device_mapping)) + 1
        return self._get_pipeline_maximum_pipeline_stage() + 1

    def _get_num_ipus(self) -> int:
        """Return the number of IPUs of the strategy's device."""
        from tensorflow_ipu.config import utils

        device = self.distribute_strategy.extended.non_slot_devices(None)
        if tf_device.DeviceSpec.from_string(device).device_type != "IPU":
            raise ValueError(f"{type(self).__name__} can only be used on an IPU device.")
        return int(utils.get_num_of_ipus_in_device(device))

    def _get_replication_factor(self) -> int:
        """Return the number of replicas.

        Raises:
            ValueError: The model needs more IPUs than the device has.
        """
        if self._replication_factor is None:
            num_ipus, shards = self._get_num_ipus(), self._get_shard_count()
            needed = 1 << (shards - 1).bit_length()  # devices have powers of two of IPUs
            if shards > num_ipus:
                raise ValueError(
                    f"Current device has {num_ipus} IPUs attached, however the current model "
                    f"requires a multiple of {needed} IPUs."
                )
            set_untracked(self, _replication_factor=num_ipus // needed)
        assert self._replication_factor is not None
        return self._replication_factor

    def _get_pipeline_maximum_pipeline_stage(self) -> int:
        """Return the number of the last stage."""
        if self._pipeline_maximum_stage is None:
            set_untracked(self, _pipeline_maximum_stage=_find_last(self._pipeline_stage_assignment))
        assert self._pipeline_maximum_stage is not None
        return self._pipeline_maximum_stage


def _find_last(assignments: Any) -> int:
    return max(
        _find_last(assignment.pipeline_stage_assignments)
        if assignment.is_nested_model
        else assignment.pipeline_stage
        for assignment in assignments
    )
