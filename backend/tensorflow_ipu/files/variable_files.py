"""PopEF files with the values of variables.

A file has one tensor for each variable, under the name of its resource handle, such as
`scope/name`. That is the name of the variable's anchor in the PopEF file of an executable, so both
files together are a model that a server can load.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

import popef
from popef._tools.arrays import Array
from popef._tools.staging import Staging

AnyPath = str | os.PathLike[str]


def clean_name(name: str) -> str:
    """Return a tensor's name without the `:0` that TensorFlow adds."""
    return name.removesuffix(":0")


def write_variables(
    values: Mapping[str, Array], file: AnyPath, metadata_file: AnyPath | None = None
) -> None:
    """Write values of variables atomically.

    Args:
        values: Value of each variable by name.
        file: Path of the PopEF file; its folder must exist.
        metadata_file: PopEF file of an executable whose anchors the variables must match in name,
            shape and type; None checks nothing.

    Raises:
        ValueError: If a variable does not match the metadata, or its type has no place in PopEF.
        OSError: If the file cannot be written.
    """
    infos = {name: _describe(name, value) for name, value in values.items()}
    if metadata_file is not None:
        _check_anchors(infos.values(), metadata_file)
    with Staging() as staging, popef.Writer(staging.open(file)) as writer:
        for name, info in infos.items():
            with writer.createTensorData(info) as blob:
                blob.write(np.ascontiguousarray(values[name]).data)


def read_variables(files: Iterable[AnyPath]) -> dict[str, Array]:
    """Read the tensors of PopEF files.

    Args:
        files: Paths of the files.

    Returns:
        Each tensor by name.

    Raises:
        ValueError: If a file is missing or damaged.
    """
    try:
        with popef.Reader() as reader:
            for file in files:
                reader.parseFile(file)
            return {str(tensor.info.name): tensor.data() for tensor in reader.tensors()}
    except (popef.PopefError, OSError) as error:
        raise ValueError(str(error)) from error


def select_variables(
    stored: Mapping[str, Array],
    expected: Mapping[str, tuple[Sequence[int | None], np.dtype[Any]]],
    *,
    strict: bool = False,
) -> dict[str, Array]:
    """Return the stored values of variables.

    Args:
        stored: Values by name, as `read_variables` returns them.
        expected: Shape and type of each variable, by name.
        strict: Whether the names must be the same on both sides.

    Returns:
        The value of each variable that has one.

    Raises:
        ValueError: If a value has another shape or type, or if names are missing and `strict`.
    """
    if strict:
        _check_names(stored, expected)
    selected = {name: stored[name] for name in expected if name in stored}
    for name, value in selected.items():
        shape, dtype = expected[name]
        if value.dtype != dtype or not _fits(value.shape, shape):
            raise ValueError(
                f"For tensor {name} the tensorflow info {dtype.name} {list(shape)} doesn't match "
                f"the one from the file: {value.dtype.name} {list(value.shape)}"
            )
    return selected


def write_feed(
    names: Sequence[str],
    specs: Sequence[tuple[Sequence[int], np.dtype[Any]]],
    num_elements: int,
    file: AnyPath,
) -> FeedFile:
    """Begin a PopEF file with feeds.

    Args:
        names: Name of each feed, such as `infeed.0`.
        specs: Shape and type of one tensor of each feed.
        num_elements: Number of elements that will be written.
        file: Path of the file.

    Returns:
        The file to write elements to.

    Raises:
        ValueError: If a type has no place in PopEF.
        OSError: If the file cannot be written.
    """
    infos = [
        popef.FeedDataInfo(
            name=name, tensorInfo=_tensor_info(name, shape, dtype), numTensors=num_elements
        )
        for name, (shape, dtype) in zip(names, specs, strict=True)
    ]
    return FeedFile(infos, num_elements, file)


class FeedFile:
    """A PopEF file with feeds that is being written; it appears when its last element is there."""

    def __init__(
        self, infos: Sequence[popef.FeedDataInfo], num_elements: int, file: AnyPath
    ) -> None:
        self._num_elements, self._count = num_elements, 0
        self._open = ExitStack()
        staging = self._open.enter_context(Staging())
        writer = self._open.enter_context(popef.Writer(staging.open(file)))
        self._feeds = self._open.enter_context(writer.createMultiFeedData(infos))

    def append(self, *tensors: Array) -> None:
        """Write one element: a tensor for each feed."""
        self._feeds.write(*map(np.ascontiguousarray, tensors))
        self._count += 1

    def close(self) -> None:
        """End the file.

        Raises:
            EOFError: If elements are missing; the file is not written then.
        """
        with self._open:
            if self._count < self._num_elements:
                raise EOFError("The dataset iterator has reached the end of the dataset.")


def make_folder(file: AnyPath) -> None:
    """Make the folder of a file, if it is missing."""
    Path(file).parent.mkdir(parents=True, exist_ok=True)


def _describe(name: str, value: Array) -> popef.TensorDataInfo:
    return popef.TensorDataInfo(name=name, tensorInfo=_tensor_info(name, value.shape, value.dtype))


def _tensor_info(name: str, shape: Sequence[int], dtype: np.dtype[Any]) -> popef.TensorInfo:
    try:
        return popef.TensorInfo(shape=tuple(shape), dataType=popef.numpyDTypeToPopefType(dtype))
    except (popef.PopefError, TypeError) as error:
        raise ValueError(f"{name}: Unsupported PrimitiveType: {error}") from error


def _check_anchors(infos: Iterable[popef.TensorDataInfo], metadata_file: AnyPath) -> None:
    try:
        with popef.Reader() as reader:
            reader.parseFile(metadata_file)
            metadata = reader.metadata()
            anchors = {
                str(anchor.name()): anchor.tensorInfo()
                for anchor in (metadata[0].anchors() if metadata else ())
            }
    except (popef.PopefError, OSError) as error:
        raise ValueError(str(error)) from error
    for info in infos:
        name = str(info.name)
        if name not in anchors:
            raise ValueError(f"Didn't find anchor in metadata for {name}")
        if anchors[name] != info.tensorInfo:
            raise ValueError(
                f"Mismatch in type/shape between the metadata and the graph tensor for {name}: "
                f"expected {anchors[name]}, found {info.tensorInfo}"
            )


def _check_names(stored: Iterable[str], expected: Iterable[str]) -> None:
    missing, surplus = sorted(set(expected) - set(stored)), sorted(set(stored) - set(expected))
    text = ""
    if missing:
        text += (
            " The binaries provided didn't contain any data for the following tensors: "
            + ",".join(missing)
        )
    if surplus:
        text += (
            " The binaries provided contain data for the following tensors which cannot be found "
            "in the graph: " + ",".join(surplus)
        )
    if text:
        raise ValueError(text)


def _fits(shape: Sequence[int], expected: Sequence[int | None]) -> bool:
    return len(shape) == len(expected) and all(
        size in (None, found) for found, size in zip(shape, expected, strict=True)
    )
