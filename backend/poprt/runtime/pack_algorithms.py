"""Placement of samples of different lengths in a compiled input of rows by places: the packing
algorithms, and the configuration of a PackRunner. This module has no arrays and no threads.

The rows of an input are concatenated: places are counted through all rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from enum import IntEnum
from itertools import pairwise
from typing import ClassVar

from model_runtime import ModelRunnerConfig, ModelRuntimeError

from poprt.runtime.config import HIDDEN, DeviceWaitConfig, RunnerType, describe

NO_PLACE = -1


class PackAlgorithm(IntEnum):
    """Algorithm that packs samples.

    The numbers are ours, except the default, which is the first.
    """

    next_fit = 0
    """Place a sample in the row of the last sample, else in the next row."""
    first_fit = 1
    """Place a sample in the first row with enough space."""
    end_to_end = 2
    """Concatenate samples across rows; the model separates them by its input unpack_info."""


@dataclass(repr=False)
class PackRunnerConfig:
    """Configuration of how requests of different lengths are packed into runs. Defaults are the
    real class's.

    Scripts set additional attributes, some of them misspelt (`algorithom`). The real class allows
    this; they change nothing.

    Args:
        timeout_microseconds: how long the first sample of a run waits for others; 0 means that it
            does not wait.
        max_valid_num: maximum number of samples of a run; 0 means as many as unpack_info has space
            for, or as fit.
        dynamic_input_name: the input whose length is the sample's; "" means the mask, else the
            first input.
        unpack_info_input_name: the int32 input that takes the samples' lengths; "" means the input
            called unpack_info, if there is one.
        compile_batch_size: number of rows, if the inputs were compiled without a dimension for
            them; -1 means that they have one.
        mask_name: the input that says which places hold data.
        dynamic_group: the inputs that have the sample's length, or lists of them, one for each
            column of unpack_info; empty means all of the shape of dynamic_input_name.
        algorithm: see PackAlgorithm; end_to_end is always used if the model has unpack_info and
            single-row mode is off.
        delimiter_num: number of zeros between two samples of a row.
        disable_data_across_rows: whether each sample stays in one row (single-row mode).
        enable_padding_remove: whether to drop the places whose mask is 0.
        enable_prefetch_datastreams: no effect.
        device_wait_config: how long to wait for a device.
        index_check: what happens to indices out of range, see RuntimeConfig (ours).
    """

    timeout_microseconds: int = 0
    max_valid_num: int = 0
    dynamic_input_name: str = ""
    unpack_info_input_name: str = ""
    compile_batch_size: int = -1
    mask_name: str = ""
    dynamic_group: Sequence[str] | Sequence[Sequence[str]] = ()
    algorithm: PackAlgorithm = PackAlgorithm.next_fit
    delimiter_num: int = 0
    disable_data_across_rows: bool = False
    enable_padding_remove: bool = False
    enable_prefetch_datastreams: bool = True
    device_wait_config: DeviceWaitConfig = field(default_factory=DeviceWaitConfig)
    index_check: str = "clamp"
    """Ours: as in RuntimeConfig."""
    runner_type: ClassVar[RunnerType] = RunnerType.PackRunner

    def __repr__(self) -> str:
        """Return JSON, as for RuntimeConfig."""
        names = [entry.name for entry in fields(self) if entry.name not in HIDDEN]
        return describe(self, names, self.device_wait_config)

    def enable_input_single_row_mode(
        self, mask_name: str, unpack_info_name: str = "", delimiter_num: int = 0
    ) -> None:
        """Keep each sample in one row, and number the samples of a row 1, 2, 3 in the mask."""
        self.disable_data_across_rows = True
        self.mask_name, self.delimiter_num = mask_name, delimiter_num
        self.unpack_info_input_name = unpack_info_name or self.unpack_info_input_name

    enableSingleRowMode = enable_input_single_row_mode
    """Alias with the spelling of the C++ class."""

    def enable_padding_remove_mode(self, mask_name: str, group: Sequence[str] = ()) -> None:
        """Drop the places whose mask is 0, from the mask and from the inputs in `group`."""
        self.enable_padding_remove = True
        self.mask_name, self.dynamic_group = mask_name, list(group)

    enablePaddingRemovePattern = enable_padding_remove_mode
    """Alias with the spelling of the C++ class."""

    def for_model_runner(self) -> ModelRunnerConfig:
        """Return the configuration of the underlying runner, which does not wait for requests."""
        wait = self.device_wait_config.for_model_runner()
        return ModelRunnerConfig(
            device_wait_config=wait, timeout_ns=1, index_check=self.index_check
        )

    def check(self) -> None:
        """Raise ModelRuntimeError for a configuration with which no model could be run."""
        for name in ("timeout_microseconds", "max_valid_num", "delimiter_num"):
            if getattr(self, name) < 0:
                raise ModelRuntimeError(
                    f"PackRunnerConfig.{name}: expected 0 or more, found {getattr(self, name)}"
                )
        try:
            crosses = PackAlgorithm(self.algorithm) is PackAlgorithm.end_to_end
        except ValueError as error:
            listed = ", ".join(algorithm.name for algorithm in PackAlgorithm)
            raise ModelRuntimeError(
                f"PackRunnerConfig.algorithm: expected one of {listed}, found {self.algorithm!r}"
            ) from error
        if crosses and self.disable_data_across_rows:
            raise ModelRuntimeError(
                "PackRunnerConfig.algorithm end_to_end crosses rows, which single-row mode "
                "forbids: use first_fit or next_fit, or leave the mode out"
            )


class FirstFit:
    """Free places of one run: places a sample in the first row with enough space.

    A run takes at least as many of the same samples as NextFit's, and a stream of them at most as
    many runs. Proof by induction: FirstFit is never in a later row than NextFit, nor farther in the
    same one. NextFit's rows are consecutive pieces of the stream, so it gets no less far if it
    starts later.
    """

    def __init__(self, rows: int, places: int, delimiter: int = 0) -> None:
        self._places, self._delimiter = places, delimiter
        self._ends = [0] * rows
        self._samples = [0] * rows
        self._first = 0

    def find(self, length: int) -> int:
        """Return where a sample of that length would begin; NO_PLACE if it does not fit.

        Nothing changes: the place is free until the next `take`.
        """
        # Only a row that already holds a sample needs the delimiter before the next.
        delimiter, room = self._delimiter, self._places - length
        for row in range(self._first, len(self._ends)):
            end = self._ends[row]
            start = end + delimiter if end else 0
            if start <= room:
                return row * self._places + start
        return NO_PLACE

    def take(self, start: int, length: int) -> int:
        """Put a sample there; return its number among the samples of its row, from 1."""
        row, column = divmod(start, self._places)
        self._ends[row] = column + length
        self._samples[row] += 1
        self._skip(row)
        return self._samples[row]

    def lengths(
        self,
        starts: Sequence[int],
        lengths: Sequence[int],  # noqa: ARG002
    ) -> list[int]:
        """Return the values of unpack_info for samples in the order of their places.

        Their running sum is where each sample begins. The last sample gets all remaining places of
        its row.
        """
        # | a a a . b b | c c . . . . |  gives 4, 2, 6: a sample ends where the next begins, and the
        # last one at the end of its row.
        ends = [start // self._places * self._places + self._places for start in starts[-1:]]
        return [end - start for start, end in pairwise([*starts, *ends])]

    def _skip(self, _row: int) -> None:
        """Skip rows in which not even a sample of one place fits."""
        while (
            self._first < len(self._ends)
            and self._ends[self._first] + self._delimiter >= self._places
        ):
            self._first += 1


class NextFit(FirstFit):
    """Places a sample in the row of the last sample, else in the next row."""

    def _skip(self, row: int) -> None:
        self._first = row


class EndToEnd(FirstFit):
    """Concatenates samples across rows, with `delimiter` zeros between them: a single long row."""

    # Samples of 3, 2 and 5 places in 2 rows of 6, delimiter 1: starts 0, 4, 7.
    #     | a a a . b b | . c c c c c |
    def __init__(self, rows: int, places: int, delimiter: int = 0) -> None:
        super().__init__(1, rows * places, delimiter)

    def lengths(self, starts: Sequence[int], lengths: Sequence[int]) -> list[int]:
        """Return the values of unpack_info; the last sample gets its own length only."""
        # The model sums these up to find where a sample begins: 4, 3, 5 for the picture above. A
        # delimiter therefore belongs to the sample before it.
        return [*super().lengths(starts, lengths)[:-1], *lengths[-1:]]


PACKINGS = {
    PackAlgorithm.next_fit: NextFit,
    PackAlgorithm.first_fit: FirstFit,
    PackAlgorithm.end_to_end: EndToEnd,
}
