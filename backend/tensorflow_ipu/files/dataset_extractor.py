"""Operations that write variables and data sets to PopEF files, and read variables back."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tensorflow_ipu.files.variable_files import (
    AnyPath,
    FeedFile,
    clean_name,
    read_variables,
    select_variables,
    write_feed,
    write_variables,
)

_PROGRESS = 1000
"""Number of elements between two messages about progress."""
_log = logging.getLogger("tensorflow_ipu")


def dataset_extractor(
    dataset: Any, num_elements: int, filename: AnyPath, feed_name: str, print_stats: bool = True
) -> Any:
    """Return an operation that writes elements of a data set to a PopEF file.

    All tensors of an element go into the same file, as feeds `NAME.0`, `NAME.1` and so on.

    Args:
        dataset: The tf.data.Dataset.
        num_elements: Number of elements to write.
        filename: Path of the file.
        feed_name: Name of the feeds; "" means `infeed`.
        print_stats: Whether to log progress.

    Returns:
        The operation, which is done already in eager mode.

    Raises:
        TypeError: If `dataset` is no data set.
        ValueError: If `num_elements` is below 1, or a shape is unknown.
    """
    if num_elements < 1:
        raise ValueError("Expected `num_elements` to be at least 1.")
    if not isinstance(dataset, tf.data.Dataset):
        raise TypeError(
            "Expected `dataset` argument to be of type `tf.data.Dataset`, but got "
            f"{dataset} instead."
        )
    specs = tf.nest.flatten(dataset.element_spec)
    for number, spec in enumerate(specs):
        if not spec.shape.is_fully_defined():
            raise ValueError(
                f"tensor {number} of the dataset: expected a shape that is fully defined, found "
                f"{spec.shape}; batch it with drop_remainder=True"
            )
    names = [f"{feed_name or 'infeed'}.{number}" for number in range(len(specs))]
    shapes = [(spec.shape.as_list(), np.dtype(spec.dtype.as_numpy_dtype)) for spec in specs]
    export = _Export(lambda: write_feed(names, shapes, num_elements, filename), print_stats)
    return _call_for_each(dataset.take(num_elements), export)


class _Export:
    """Functions that an operation calls: for each element, and at the end."""

    def __init__(self, open_file: Callable[[], FeedFile], print_stats: bool) -> None:
        self._open_file, self._print_stats = open_file, print_stats
        self._is_eager = bool(tf.executing_eagerly())
        self._file: FeedFile | None = None

    def write(self, count: Any, *tensors: Any) -> np.int64:
        if self._file is None:
            self._file = self._open_file()
        if self._print_stats and count and count % _PROGRESS == 0:
            _log.info("Exported %d elements", count)
        self._file.append(*tensors)
        following: np.int64 = np.int64(count + 1)
        return following

    def close(self, _: Any) -> np.bool_:
        file, self._file = self._file or self._open_file(), None
        try:
            file.close()
        except EOFError as error:
            if self._is_eager:
                raise tf.errors.OutOfRangeError(None, None, str(error)) from error
            # In a graph, TensorFlow turns this one into OutOfRangeError.
            raise StopIteration(str(error)) from error
        return np.True_


def _call_for_each(dataset: Any, export: _Export) -> Any:
    def write(count: Any, *element: Any) -> Any:
        tensors = tf.nest.flatten(element)
        written = tf.numpy_function(export.write, [count, *tensors], tf.int64)
        return tf.ensure_shape(written, [])

    count = dataset.reduce(np.int64(0), write)
    return tf.numpy_function(export.close, [count], tf.bool)


def get_variable_handles(variables: Sequence[Any]) -> list[Any]:
    """Return the names of the resource handles of variables.

    Args:
        variables: The variables.

    Returns:
        A string tensor of shape [1] for each.
    """
    return [tf.constant([find_handle_name(variable)]) for variable in variables]


def find_handle_name(variable: Any) -> str:
    """Return the name of a variable's resource handle, under which files hold its value.

    Args:
        variable: A resource variable, or a variable of Keras.

    Returns:
        The name, such as `scope/name`.

    Raises:
        ValueError: If it is no resource variable.
    """
    path = getattr(variable, "path", None)
    if isinstance(path, str) and path:  # Keras 3, whose variables' own names are not unique
        return path
    handle = getattr(variable, "handle", None)
    if handle is None:
        raise ValueError(
            f"variable {getattr(variable, 'name', variable)!r}: expected a resource variable, "
            f"found {type(variable).__name__}; create it with use_resource=True or within ipu_scope"
        )
    operation = None if tf.is_tensor(handle) and hasattr(handle, "numpy") else handle.op
    if operation is not None and operation.type == "VarHandleOp":
        return bytes(operation.get_attr("shared_name")).decode() or str(operation.name)
    return clean_name(str(variable.name))


def export_variables(
    variables: Sequence[Any],
    names: Sequence[str | bytes],
    filename: AnyPath,
    metadata: AnyPath | None = None,
    print_stats: bool = True,
) -> Any:
    """Return an operation that writes the values of variables to one PopEF file.

    Args:
        variables: Variables or tensors.
        names: Name of each value in the file.
        filename: Path of the file.
        metadata: Path of an executable's PopEF file, whose anchors the values must match; None
            checks nothing.
        print_stats: Accepted, without effect: writing variables is quick.

    Returns:
        The operation, which is done already in eager mode.
    """
    del print_stats
    texts = [name.decode() if isinstance(name, bytes) else str(name) for name in names]

    def write(*values: Any) -> np.bool_:
        pairs = zip(map(clean_name, texts), map(np.asarray, values), strict=True)
        write_variables(dict(pairs), filename, metadata or None)
        return np.True_

    tensors = [tf.convert_to_tensor(variable) for variable in variables]
    return tf.numpy_function(write, tensors, tf.bool)


def import_variables(
    variables: Sequence[Any],
    filenames: Sequence[AnyPath],
    is_input: bool = True,
    strict: bool = True,
    print_stats: bool = True,
) -> list[Any]:
    """Return operations that assign values from PopEF files to variables.

    Args:
        variables: The variables.
        filenames: Paths of the files.
        is_input: Accepted, without effect: PopEF has one kind of tensor.
        strict: Whether the files must have a value for each variable, and no others.
        print_stats: Accepted, without effect.

    Returns:
        An operation for each variable that the files have a value for; done already in eager mode.

    Raises:
        ValueError: If a file is damaged, or a value has another shape or type.
    """
    del is_input, print_stats
    named = {clean_name(variable.name): variable for variable in variables}
    expected = {
        name: (variable.shape.as_list(), np.dtype(variable.dtype.as_numpy_dtype))
        for name, variable in named.items()
    }
    values = select_variables(read_variables(filenames), expected, strict=strict)
    return [named[name].assign(value) for name, value in values.items()]
