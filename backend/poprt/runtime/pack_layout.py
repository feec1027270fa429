"""Layout of a model's tensors for a PackRunner: which have a sample's length, and which a row for
each sample. It puts samples into the arrays of a run and takes them out again. This module starts
no thread."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from model_runtime import DataDesc, ModelRuntimeError

from popef._tools.arrays import Array
from poprt.runtime.pack_algorithms import PACKINGS, FirstFit, PackAlgorithm, PackRunnerConfig

Arrays = Mapping[str, Array]
UNPACK_INFO = "unpack_info"
_log = logging.getLogger("poprt")


@dataclass(frozen=True, slots=True)
class Segment:
    """Inputs that share a sample's length: rows by places, and further dimensions of their own."""

    rows: int
    places: int
    names: tuple[str, ...]


@dataclass(slots=True, eq=False)
class PackedSample:
    """One request: its arrays of valid length by input, its result arrays, and its position."""

    inputs: dict[str, Array]
    lengths: tuple[int, ...]
    outputs: Arrays
    starts: tuple[int, ...] = ()
    number: int = 0


@dataclass(slots=True, eq=False)
class Group:
    """The samples of one run, in the order of their requests, and the arrays that hold them."""

    arrays: dict[str, Array]
    flat: dict[str, Array]
    """The arrays of dynamic inputs, with all rows concatenated."""
    places: list[FirstFit]
    samples: list[PackedSample] = field(default_factory=list)


class PackLayout:
    """Layout of samples in the inputs and outputs of one model.

    Raises ModelRuntimeError if the configuration names a tensor that the model lacks, or if a
    tensor neither has a sample's length nor a row for each sample.
    """

    def __init__(
        self, inputs: Sequence[DataDesc], outputs: Sequence[DataDesc], config: PackRunnerConfig
    ) -> None:
        config.check()
        self._inputs = {source.name: (source.shape, source.numpy_data_type()) for source in inputs}
        self._outputs = {
            result.name: (result.shape, result.numpy_data_type()) for result in outputs
        }
        self._mask, self._unpads = config.mask_name, config.enable_padding_remove
        self._delimiter = config.delimiter_num
        self._unpack_info = self._find_unpack_info(config.unpack_info_input_name)
        self._numbers_mask = config.disable_data_across_rows
        self.most = self._find_most(config.max_valid_num)
        """Maximum number of samples of a run, whatever their lengths."""
        self._segments = self._find_segments(config)
        self._segment_of = {
            name: i for i, segment in enumerate(self._segments) for name in segment.names
        }
        self._rests = self._find_rests()
        self._by_sample = self._find_by_sample()
        self._algorithm = self._choose_algorithm(config)
        self._is_whole = {name: self._is_taken_whole(name) for name in self._outputs}
        self._sizes = {name: math.prod(self._result_shape(name, 1)) for name in self._outputs}
        self._missing: set[str] = set()
        self._check_mask()

    def read(self, inputs: Arrays, outputs: Arrays | None) -> PackedSample:
        """Return the sample of a request, with new output arrays if `outputs` is None.

        Raises ModelRuntimeError, naming the tensor, for data that do not fit into a run.
        """
        for name in inputs:
            _check_name("input", name, self._inputs)
        positions = self._find_kept(inputs) if self._unpads else None
        arrays: dict[str, Array] = {}
        lengths = [0] * len(self._segments)
        for name, index in self._segment_of.items():
            if name not in inputs:
                self._miss(name)
                continue
            array = arrays[name] = self._read_dynamic(name, inputs[name], positions)
            if not lengths[index]:
                lengths[index] = len(array)
            elif len(array) != lengths[index]:
                raise ModelRuntimeError(
                    f"input {name!r} has length {len(array)}, those before it {lengths[index]}"
                )
        for name in self._by_sample:
            arrays[name] = self._read_row(name, inputs)
        self._check_lengths(lengths)
        if outputs is None:
            outputs = {
                name: np.zeros(self._result_shape(name, lengths[0]), self._outputs[name][1])
                for name in self._outputs
            }
        self._check_outputs(outputs, lengths[0])
        return PackedSample(arrays, tuple(lengths), outputs)

    def open(self) -> Group:
        """Return an empty group for the samples of a run; its arrays are zeros."""
        arrays = {name: np.zeros(shape, dtype) for name, (shape, dtype) in self._inputs.items()}
        flat = {
            name: arrays[name].reshape(segment.rows * segment.places, *self._rests[name])
            for segment in self._segments
            for name in segment.names
        }
        packing = PACKINGS[self._algorithm]
        places: list[FirstFit] = [
            packing(segment.rows, segment.places, self._delimiter) for segment in self._segments
        ]
        return Group(arrays, flat, places)

    def put(self, group: Group, sample: PackedSample) -> bool:
        """Put a sample into a group if it fits; return whether it does."""
        if len(group.samples) >= self.most:
            return False
        starts = tuple(
            places.find(length) for places, length in zip(group.places, sample.lengths, strict=True)
        )
        if min(starts) < 0:
            return False
        numbers = [
            places.take(start, length)
            for places, start, length in zip(group.places, starts, sample.lengths, strict=True)
        ]
        flat, segment_of = group.flat, self._segment_of
        numbered = self._mask if self._numbers_mask else None
        for name, array in sample.inputs.items():
            index = segment_of.get(name)
            if index is None:
                continue
            start = starts[index]
            place = flat[name][start : start + len(array)]
            place[:] = array
            if name == numbered:
                # A mask may have any values except 0: the sample's number replaces them.
                np.not_equal(place, 0, out=place, casting="unsafe")
                if numbers[index] > 1:
                    place *= numbers[index]
        sample.starts = starts
        group.samples.append(sample)
        return True

    def seal(self, group: Group) -> None:
        """Number the samples by position, and fill in the inputs that describe each sample."""
        # First-fit may put a later sample before an earlier one. The model sees positions only: row
        # i of unpack_info, and of tensors with a row for each sample, is the i-th sample by place.
        ordered = sorted(group.samples, key=lambda sample: sample.starts)
        for number, sample in enumerate(ordered):
            sample.number = number
            for name in self._by_sample:
                group.arrays[name][number] = sample.inputs[name]
        if self._unpack_info:
            info = group.arrays[self._unpack_info]
            for column, places in enumerate(group.places):
                starts = [sample.starts[column] for sample in ordered]
                lengths = [sample.lengths[column] for sample in ordered]
                info[: len(ordered), column] = places.lengths(starts, lengths)

    def give(self, sample: PackedSample, results: Arrays) -> None:
        """Copy a sample's results to the arrays of its request."""
        # An output with a row for each sample gives row `number`. Another has the inputs' places,
        # with all rows concatenated, and gives those of the sample.
        start, length = sample.starts[0], sample.lengths[0]
        for name, place in sample.outputs.items():
            if self._is_whole[name]:
                rows = results[name][sample.number]
            else:
                rows = results[name].reshape(-1, *self._rests[name])[start : start + length]
            if place.ndim == rows.ndim == 1:
                place[: len(rows)] = rows
            else:
                place.flat[: rows.size] = rows.ravel()

    def _find_rests(self) -> dict[str, tuple[int, ...]]:
        """Return the dimensions of each shape after rows and places."""
        rests = {}
        for name, (shape, _) in {**self._outputs, **self._inputs}.items():
            segment = self._segments[self._segment_of.get(name, 0)]
            rests[name] = shape[2 if shape[:2] == (segment.rows, segment.places) else 1 :]
        return rests

    def _find_unpack_info(self, given: str) -> str:
        name = given or (UNPACK_INFO if UNPACK_INFO in self._inputs else "")
        if not name:
            return ""
        _check_name("unpack_info", name, self._inputs)
        shape, dtype = self._inputs[name]
        if len(shape) != 2 or dtype != np.int32:  # noqa: PLR2004 - samples by segments
            raise ModelRuntimeError(
                f"unpack_info {name!r}: expected int32 of (max_valid_num, segments), found {dtype} "
                f"of {shape}"
            )
        return name

    def _find_most(self, given: int) -> int:
        if not self._unpack_info:
            return given or 2**31
        room: int = self._inputs[self._unpack_info][0][0]
        if given > room:
            raise ModelRuntimeError(
                f"max_valid_num {given}: input {self._unpack_info!r} was compiled for {room} "
                "samples"
            )
        return given or room

    def _check_mask(self) -> None:
        if not self._mask:
            if self._numbers_mask or self._unpads:
                raise ModelRuntimeError("single-row mode and the removal of padding need mask_name")
            return
        _check_name("mask", self._mask, self._segment_of)
        dtype, places = self._inputs[self._mask][1], self._segments[0].places
        if self._numbers_mask and np.ones((), dtype) * dtype.type(min(places, 2)) != min(places, 2):
            raise ModelRuntimeError(
                f"mask {self._mask!r} is {dtype}, which cannot number the samples of a row: 1, 2, 3"
            )

    def _find_segments(self, config: PackRunnerConfig) -> list[Segment]:
        groups = [
            [group] if isinstance(group, str) else list(group) for group in config.dynamic_group
        ]
        if all(isinstance(group, str) for group in config.dynamic_group):
            groups = [[name for group in groups for name in group]]
        if len(groups) == 1:
            # All inputs of one shape belong together, whether or not their padding is removed.
            first = config.dynamic_input_name or next(iter([*groups[0], config.mask_name]), "")
            first = first or next(iter(self._candidates()), "")
            shape = self._known(first)
            groups[0] = [
                name for name in self._candidates() if self._inputs[name][0][:2] == shape[:2]
            ]
            groups[0].sort(key=lambda name: name != first)
        if self._unpack_info and len(groups) != self._inputs[self._unpack_info][0][1]:
            raise ModelRuntimeError(
                f"input {self._unpack_info!r} has {self._inputs[self._unpack_info][0][1]} "
                f"segments, dynamic_group {len(groups)}: give a list of inputs for each"
            )
        return [self._make_segment(names, config.compile_batch_size) for names in groups]

    def _candidates(self) -> list[str]:
        return [
            name for name, (shape, _) in self._inputs.items() if shape and name != self._unpack_info
        ]

    def _known(self, name: str) -> tuple[int, ...]:
        _check_name("dynamic input", name, self._inputs)
        return self._inputs[name][0]

    def _make_segment(self, names: Sequence[str], batch_size: int) -> Segment:
        shape = self._known(names[0])
        # [8, 128] has rows and places. [1024] or [1024, 16] with a batch of 8 is 8 rows of 128
        # places whose rows were concatenated when it was compiled.
        if batch_size > 0 and shape[0] != batch_size and not shape[0] % batch_size:
            rows, places = batch_size, shape[0] // batch_size
        else:
            rows, places = shape[:2] if len(shape) > 1 else (1, shape[0])
        different = [name for name in names if self._known(name)[:2] != shape[:2]]
        if different:
            raise ModelRuntimeError(
                f"dynamic inputs {names[0]!r} and {different[0]!r} share a sample's length, but "
                f"have shapes {shape} and {self._inputs[different[0]][0]}"
            )
        return Segment(rows, places, tuple(names))

    def _find_by_sample(self) -> list[str]:
        rest = [
            name
            for name in self._inputs
            if name not in self._segment_of and name != self._unpack_info
        ]
        for name in rest:
            shape = self._inputs[name][0]
            if not self._unpack_info or shape[:1] != self._inputs[self._unpack_info][0][:1]:
                raise ModelRuntimeError(
                    f"input {name!r} of shape {shape} has neither rows and places as "
                    f"{self._segments[0].names[0]!r} nor a row for each sample; such a model "
                    "cannot be packed"
                )
        return rest

    def _choose_algorithm(self, config: PackRunnerConfig) -> PackAlgorithm:
        crosses = bool(self._unpack_info) and not config.disable_data_across_rows
        return PackAlgorithm.end_to_end if crosses else PackAlgorithm(config.algorithm)

    def _is_taken_whole(self, name: str) -> bool:
        """Return whether an output has a row for each sample.

        Otherwise it has the dynamic inputs' places.
        """
        shape, segment = self._outputs[name][0], self._segments[0]
        if self._unpack_info and shape[:1] == self._inputs[self._unpack_info][0][:1]:
            return True
        rows, places = segment.rows, segment.places
        if shape[:2] == (rows, places) or shape[:1] == (rows * places,):
            return False
        raise ModelRuntimeError(
            f"output {name!r} of shape {shape} has neither {rows} rows of {places} "
            "places nor a row for each sample, so the results of the samples cannot be told apart; "
            "such a model cannot be packed"
        )

    def _miss(self, name: str) -> None:
        """Log a warning for a missing input, or raise ModelRuntimeError if it is required.

        A published script omits an input and gets zeros.
        """
        if name in (self._mask, self._segments[0].names[0]):
            raise ModelRuntimeError(
                f"input {name!r} is not given; a sample has {', '.join(self._segment_of)}"
            )
        if name not in self._missing:
            self._missing.add(name)
            _log.warning("input %r is not given: its samples are zeros", name)

    def _find_kept(self, inputs: Arrays) -> tuple[int, Array | slice]:
        """Return the length of a padded sample, and which of its places hold data."""
        if self._mask not in inputs:
            raise ModelRuntimeError(
                f"input {self._mask!r} is not given, by which padding is removed"
            )
        # Data at the beginning only are a slice, which copies nothing; else the places are listed.
        mask = np.asarray(inputs[self._mask]).reshape(-1)
        valid = np.flatnonzero(mask)
        count = len(valid)
        return len(mask), slice(count) if not count or valid[-1] == count - 1 else valid

    def _read_dynamic(
        self, name: str, given: Array, kept: tuple[int, Array | slice] | None
    ) -> Array:
        shape, dtype = self._inputs[name]
        rest = self._rests[name]
        array = np.asarray(given)
        dims = array.shape
        if len(dims) == len(rest) + 2 and dims[0] == 1:
            array, dims = array[0], dims[1:]
        if array.dtype != dtype or dims[1:] != rest or not dims:
            sizes = ", ".join(["length", *map(str, rest)])
            raise ModelRuntimeError(
                f"input {name!r}: expected {dtype} of one sample, shape ({sizes}) for the compiled "
                f"{shape}, found {array.dtype} of {np.shape(given)}"
            )
        if kept is not None and len(array) == kept[0]:
            array = array[kept[1]]
        return array

    def _read_row(self, name: str, inputs: Arrays) -> Array:
        shape, dtype = self._inputs[name]
        if name not in inputs:
            raise ModelRuntimeError(f"input {name!r} is not given")
        array = np.asarray(inputs[name])
        if array.dtype != dtype or array.shape not in (shape[1:], (1, *shape[1:])):
            raise ModelRuntimeError(
                f"input {name!r}: expected {dtype} of shape {shape[1:]}, found {array.dtype} of "
                f"{array.shape}"
            )
        return array.reshape(shape[1:])

    def _check_lengths(self, lengths: Sequence[int]) -> None:
        for length, segment in zip(lengths, self._segments, strict=True):
            most = segment.places
            if not 1 <= length <= most:
                raise ModelRuntimeError(
                    f"input {segment.names[0]!r}: expected a sample of length 1 to {most}, found "
                    f"{length}" + ("" if length else "; its mask is all zeros, or it is empty")
                )

    def _result_shape(self, name: str, length: int) -> tuple[int, ...]:
        """Return the shape of an output for one sample of that length."""
        return self._outputs[name][0][1:] if self._is_whole[name] else (length, *self._rests[name])

    def _check_outputs(self, outputs: Arrays, length: int) -> None:
        for name, array in outputs.items():
            _check_name("output", name, self._outputs)
            dtype, size = self._outputs[name][1], self._sizes[name]
            if not self._is_whole[name]:
                size *= length
            if array.dtype != dtype or array.size < size or not array.flags.writeable:
                kind = "writable" if array.flags.writeable else "read-only"
                raise ModelRuntimeError(
                    f"output {name!r}: expected {dtype}, writable, with room for {size} elements, "
                    f"found {array.dtype} of shape {array.shape}, {kind}"
                )


def _check_name(kind: str, name: str, known: Collection[str]) -> None:
    if name not in known:
        raise ModelRuntimeError(f"{kind} {name!r}: expected one of {', '.join(known)}")
