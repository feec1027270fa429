"""The host's copy of a model's weights: read, replaced, and saved."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from popart.errors import popart_exception, popart_runtime_error
from popart.models import save_initializers_externally
from popef._tools.arrays import Array


class HostWeights:
    """Weights of a model by name, as the host has them."""

    def __init__(self, model: onnx.ModelProto, dtypes: Mapping[str, np.dtype[Any]]) -> None:
        """Take the weights of a model.

        Args:
            model: The model, as the user gave it.
            dtypes: Types on the device of the weights that it has, by name.
        """
        self._model = model
        self._dtypes = dtypes
        self._values: dict[str, Array] = {}
        self._initializers = {tensor.name: tensor for tensor in model.graph.initializer}

    def _get(self, name: str) -> Array:
        """Return a weight; those that were never replaced are read from the model."""
        if name not in self._values:
            self._values[name] = read_initializer(self._initializers[name])
        return self._values[name]

    def device_values(self, names: Iterable[str]) -> dict[str, Array]:
        """Return some of the device's weights, in its types."""
        return {
            name: self._get(name).astype(self._dtypes[name], copy=False)
            for name in names
            if name in self._initializers
        }

    def take(self, weights: Mapping[str, Array]) -> None:
        """Replace the host's weights by the device's."""
        for name, value in weights.items():
            if name in self._initializers:
                self._values[name] = value.astype(self._get(name).dtype, copy=False)

    def read_into(self, arrays: Mapping[str, Array]) -> None:
        """Write weights into the caller's arrays; raises popart_runtime_error if they differ in
        size, and for unknown weights."""
        for name, target in arrays.items():
            value = self._find(name, target)
            target.reshape(-1)[...] = value.reshape(-1)

    def write_from(self, arrays: Mapping[str, Array]) -> None:
        """Replace weights by the caller's arrays; raises popart_runtime_error if they differ in
        size or type, and for unknown weights."""
        for name, array in arrays.items():
            value = self._find(name, array)
            if array.dtype != value.dtype:
                raise popart_runtime_error(
                    f"writeWeights: weight {name} has the type {value.dtype.name}, found "
                    f"{array.dtype.name}"
                )
            self._values[name] = array.reshape(value.shape).copy()

    def _find(self, name: str, array: Array) -> Array:
        if name not in self._initializers:
            names = ", ".join(self._initializers) or "none"
            raise popart_runtime_error(
                f"There is no weight '{name}' in this session; its weights are: {names}"
            )
        value = self._get(name)
        if array.size != value.size:
            raise popart_runtime_error(
                f"Weight {name} has {value.size} elements (shape {list(value.shape)}), but the "
                f"array provided has {array.size}"
            )
        return value

    def reset(self, model: onnx.ModelProto, ignore_unknown: bool) -> None:
        """Replace weights by those of another model; raises popart_runtime_error for weights that
        differ in type or shape, and for unknown ones."""
        for tensor in model.graph.initializer:
            name = tensor.name
            if name not in self._initializers:
                if ignore_unknown:
                    continue
                raise popart_runtime_error(f"resetWeights, no tensor '{name}' in tensors")
            mine = self._initializers[name]
            if (mine.data_type, list(mine.dims)) != (tensor.data_type, list(tensor.dims)):
                raise popart_runtime_error(
                    "Trying to reset weights using tensor with non matching tensor info. Tensor "
                    f"ID: {name}"
                )
            self._values[name] = read_initializer(tensor)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model with these weights; those in files of their own are written there."""
        saved = onnx.ModelProto()
        saved.CopyFrom(self._model)
        for tensor in saved.graph.initializer:
            if tensor.data_location == TensorProto.EXTERNAL:
                _write_external(tensor, self._get(tensor.name))
            elif tensor.name in self._values:
                tensor.CopyFrom(numpy_helper.from_array(self._values[tensor.name], tensor.name))
        Path(path).write_bytes(saved.SerializeToString())

    def move(self, source: str, target: str) -> None:
        """Move weights from one file to a new one; raises popart_runtime_error if that exists."""
        start = f"Updating externally saved tensor location from file '{source}' to file"
        if Path(target).exists():
            raise popart_runtime_error(f"{start} '{target}', but file '{target}' already exists")
        if not Path(source).exists():
            raise popart_runtime_error(f"{start} '{target}', but file '{source}' does not exist")
        names = [
            tensor.name
            for tensor in self._model.graph.initializer
            if tensor.data_location == TensorProto.EXTERNAL
            and read_place(tensor)["location"] == source
        ]
        if not names:
            raise popart_runtime_error(
                f"No ONNX model initializers have external location set to '{source}'"
            )
        for name in names:
            tensor = self._initializers[name]
            tensor.CopyFrom(numpy_helper.from_array(self._get(name), name))
        save_initializers_externally(self._model, names, target)


def read_place(tensor: TensorProto) -> dict[str, Any]:
    """Return where a file has a tensor's bytes: location, offset and length."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    return {
        "location": entries.get("location", ""),
        "offset": int(entries.get("offset") or 0),
        "length": int(entries["length"]) if "length" in entries else None,
    }


def read_initializer(tensor: TensorProto) -> Array:
    """Return the values of an initializer, from its file if it has one.

    Args:
        tensor: The initializer.

    Returns:
        The values.

    Raises:
        popart_exception: If the file cannot be read, or is too short.
    """
    if tensor.data_location != TensorProto.EXTERNAL:
        return np.array(numpy_helper.to_array(tensor))
    place = _check_place(tensor)
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    try:
        count = int(np.prod(tensor.dims))
        values = np.fromfile(place["location"], dtype, count, offset=place["offset"])
        return values.reshape(tuple(tensor.dims))
    except (OSError, ValueError) as error:
        raise popart_exception(
            f"Weight '{tensor.name}' cannot be read from file {place['location']!r}: {error}"
        ) from error


def _check_place(tensor: TensorProto) -> dict[str, Any]:
    """Return where a file has a tensor's bytes. Names of files count from the working folder, as in
    PopART, and not from the model's, as with other tools."""
    place, name = read_place(tensor), tensor.name
    if not place["location"]:
        raise popart_exception(f"No location information for externally stored tensor '{name}'")
    if not Path(place["location"]).exists():
        raise popart_exception(
            f"Unrecognised file name '{place['location']}' for externally stored tensor '{name}': "
            f"there is no such file in the working directory, {Path.cwd()}. Start the script in "
            "the model's folder"
        )
    if (place["length"] or 0) <= 0:
        raise popart_exception(
            f"Invalid 'length' information ({place['length'] or 0}) for externally stored tensor "
            f"'{name}'"
        )
    if place["offset"] < 0:
        raise popart_exception(
            f"Invalid 'offset' information ({place['offset']}) for externally stored tensor "
            f"'{name}'"
        )
    return place


def bring_weights_in(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model with the weights that files of their own hold; itself if there are none."""
    outside = [
        tensor for tensor in model.graph.initializer if tensor.data_location == TensorProto.EXTERNAL
    ]
    if not outside:
        return model
    full_model = onnx.ModelProto()
    full_model.CopyFrom(model)
    for tensor in full_model.graph.initializer:
        if tensor.data_location == TensorProto.EXTERNAL:
            tensor.CopyFrom(numpy_helper.from_array(read_initializer(tensor), tensor.name))
    return full_model


def _write_external(tensor: TensorProto, value: Array) -> None:
    place = read_place(tensor)
    try:
        with Path(place["location"]).open("r+b") as file:
            file.seek(place["offset"])
            file.write(value.tobytes())
    except OSError as error:
        raise popart_runtime_error(
            f"Trying to update initializer {tensor.name}, stored in file {place['location']}, when "
            f"writing modelToHost. Failed to open file: {error.strerror}"
        ) from error
