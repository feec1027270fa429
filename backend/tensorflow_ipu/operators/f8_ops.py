"""Numbers in the two 8-bit formats of the chip: bytes, and a byte of metadata for all of them.

  7   6 5        0
+----+-+----------+      format: 1 is F143 (4 bits of exponent, bias 8, 3 of mantissa),
|form|0|  scale   |              0 is F152 (5 bits of exponent, bias 16, 2 of mantissa)
+----+-+----------+      scale: signed; a value is what its code says times 2^scale
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Any, Final

import numpy as np
import tensorflow as tf

from tensorflow_ipu.operators.placement import on_ipu


class Format(IntEnum):
    """Formats of 8-bit floats."""

    F143 = 0
    F152 = 1


_SHAPES: Final = {Format.F143: (3, 8), Format.F152: (2, 16)}
"""Bits of the mantissa, and bias of the exponent."""
_F143_MARK, _SCALES, _NEGATIVE_SCALE = 128, 64, 32
_SIGN, _LARGEST, _NAN, _CODES = 128, 127, 128, 256
_SAFETY: Final = 1e-3
"""Added to a logarithm, so that rounding never puts a power of two below itself; a value so close
below a power of two is rounded up to it in either case."""
_MATRIX, _CONV_RANKS = 2, {1: 3, 2: 4, 3: 5}


def create_metadata(fmt: Format, scale: int = 0) -> int:
    """Return the metadata of a format and a scale.

    Args:
        fmt: Format.
        scale: Exponent of the power of two that all values are multiplied by, -32 to 31.

    Returns:
        A byte.
    """
    return (_F143_MARK if fmt == Format.F143 else 0) | scale & (_SCALES - 1)


class QuarterTensor:
    """Codes of 8-bit floats with their metadata."""

    def __init__(self, data: Any, metadata: Any) -> None:
        self.data = self._maybe_get_tf_variable(data)
        self.metadata = self._maybe_get_tf_variable(metadata)

    def _maybe_get_tf_variable(self, data: Any) -> Any:
        if isinstance(data, (np.ndarray, int)):
            data = tf.convert_to_tensor(data, dtype=tf.uint8)
        if data.dtype != "uint8":
            raise TypeError(
                "Trying to set/update QuarterTensor data with a tensor of type "
                f"{data.dtype}, but only uint8 are supported. Check that data is a value returned "
                "by `convert_to_f8`"
            )
        return data

    def numpy(self) -> list[Any]:
        """Return the codes and the metadata as arrays."""
        return [self.data.numpy(), self.metadata.numpy()]

    def assign(self, new_values: Sequence[Any], **kwargs: Any) -> None:
        """Replace codes and metadata.

        Args:
            new_values: The codes and the metadata.
            **kwargs: Accepted.
        """
        del kwargs
        self.data = self._maybe_get_tf_variable(new_values[0])
        self.metadata = self._maybe_get_tf_variable(new_values[1])

    def __repr__(self) -> str:
        return f"QuarterTensor(data={self.data}, metadata={self.metadata})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, QuarterTensor):
            return NotImplemented
        return all(np.array_equal(*pair) for pair in zip(self.numpy(), other.numpy(), strict=True))

    __hash__ = None  # type: ignore[assignment]

    @property
    def shape(self) -> Any:
        """Shape of the codes."""
        return self.data.shape

    @property
    def dtype(self) -> Any:
        """Type of the codes, uint8."""
        return tf.uint8

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: Any) -> Any:
        return self.data[index]

    def __iter__(self) -> Iterator[Any]:
        return iter([self.data, self.metadata])


def convert_to_f8(values: Any, metadata: Any, name: str | None = None) -> QuarterTensor:
    """Round values to the nearest codes, halves to even; too large ones to the largest code.

    Args:
        values: Tensor; other types are cast to float16 first.
        metadata: Byte with the format and the scale.
        name: Name of the operation.

    Returns:
        The codes and their metadata.
    """
    if not tf.is_tensor(values):
        values = tf.convert_to_tensor(values)
    if not tf.is_tensor(metadata):
        metadata = tf.convert_to_tensor(metadata, dtype=tf.uint8)
    return QuarterTensor(*_encode(values, metadata, name))


def convert_from_f8(packed_input: Any, dtype: Any = tf.float16, name: str | None = None) -> Any:
    """Return the values of codes.

    Args:
        packed_input: The codes and their metadata.
        dtype: Type of the result.
        name: Name of the operation.

    Returns:
        A tensor of the codes' shape.
    """
    codes, metadata = packed_input
    if not tf.is_tensor(metadata):
        metadata = tf.convert_to_tensor(metadata, dtype=tf.uint8)
    return _decode(codes, metadata, tf.as_dtype(dtype), name)


@on_ipu
def _encode(values: Any, metadata: Any, name: str | None) -> tuple[Any, Any]:
    half = tf.cast(tf.cast(values, tf.float16), tf.float32)
    is_f143, power = _read_metadata(metadata)
    scaled = half / power
    codes = [_round(scaled, *_SHAPES[fmt]) for fmt in (Format.F143, Format.F152)]
    code = tf.where(is_f143, *codes)
    code = tf.where(tf.math.is_nan(half), tf.cast(_NAN, tf.float32), code)
    return tf.cast(tf.cast(code, tf.int32), tf.uint8, name=name), tf.identity(metadata)


def _round(scaled: Any, bits: int, bias: int) -> Any:
    """Return the codes, as floats, of values that are finite.

    With e the exponent, at least that of the smallest normal value, and m = |x| / 2^(e - bits)
    rounded, the code is (e + bias - 1) * 2^bits + m. A carry out of m increments the exponent.
    """
    size = tf.abs(scaled)
    normal = tf.maximum(size, 2.0 ** (1 - bias))
    exponent = tf.floor(tf.math.log(normal) / np.float32(np.log(2.0)) + _SAFETY)
    mantissa = tf.round(size / tf.pow(2.0, exponent - bits))
    code = (exponent + (bias - 1.0)) * 2.0**bits + mantissa
    code = tf.minimum(code, float(_LARGEST))
    is_negative = tf.logical_and(scaled < 0.0, code > 0.0)
    return tf.where(is_negative, code + float(_SIGN), code)


@on_ipu
def _decode(codes: Any, metadata: Any, dtype: Any, name: str | None) -> Any:
    half = tf.cast(_read(codes, metadata), tf.float16)
    return tf.cast(half, dtype, name=name)


def _read(codes: Any, metadata: Any) -> Any:
    """Return the values of codes in float."""
    is_f143, power = _read_metadata(metadata)
    tables = np.concatenate([_list_values(*_SHAPES[fmt]) for fmt in (Format.F143, Format.F152)])
    first = tf.where(is_f143, 0, _CODES)
    return tf.gather(tf.constant(tables), tf.cast(codes, tf.int32) + first) * power


def _read_metadata(metadata: Any) -> tuple[Any, Any]:
    """Return whether the format is F143, and the power of two of the scale."""
    number = tf.cast(metadata, tf.int32)
    is_f143 = number >= _F143_MARK
    low = number - tf.where(is_f143, _F143_MARK, 0)
    low -= tf.where(low >= _SCALES, _SCALES, 0)
    scale = low - tf.where(low >= _NEGATIVE_SCALE, _SCALES, 0)
    return is_f143, tf.pow(2.0, tf.cast(scale, tf.float32))


def _list_values(bits: int, bias: int) -> Any:
    """Return the values of all codes of a format."""
    codes = np.arange(_SIGN)
    exponents, mantissas = codes >> bits, codes % (1 << bits)
    significands = mantissas + np.where(exponents > 0, 1 << bits, 0)
    values = np.ldexp(significands.astype(np.float64), np.maximum(exponents, 1) - bias - bits)
    values = np.concatenate([values, -values]).astype(np.float32)
    values[_NAN] = np.nan
    return values


def _open(tensor: Any) -> Any:
    """Return the values of an operand in float, whose products are exact."""
    if isinstance(tensor, QuarterTensor):
        return _read(tensor.data, tensor.metadata)
    tensor = tf.convert_to_tensor(tensor)
    if tensor.dtype == tf.uint8:
        return _read(tensor, tf.constant(0, tf.uint8))
    return tf.cast(tensor, tf.float32)


def _check_rank(tensor: Any, rank: int) -> None:
    if not tensor.shape.is_fully_defined():
        raise Exception(f"Input shape must be fully defined: {tensor}")
    tensor.shape.assert_has_rank(rank)


@on_ipu
def f8_matmul(lhs: Any, rhs: Any, name: str = "f8_matmul") -> Any:
    """Multiply matrices of 8-bit floats.

    Args:
        lhs: Matrix [m, k] or [groups, m, k], a QuarterTensor or a tensor in float.
        rhs: Matrix [k, n] or [groups, k, n].
        name: Name of the operation.

    Returns:
        The product in float16.
    """
    is_matrix = len(lhs.shape) == _MATRIX
    values = [_open(tensor) for tensor in (lhs, rhs)]
    left, right = (
        tf.expand_dims(value, 0) if len(value.shape) == _MATRIX else value for value in values
    )
    for value in (left, right):
        _check_rank(value, _MATRIX + 1)
    product = tf.cast(tf.matmul(left, right), tf.float16, name=name)
    return tf.squeeze(product, axis=0) if is_matrix else product


@on_ipu
def f8_conv_1d(
    inputs: Any,
    filters: Any,
    strides: Any,
    padding: Any,
    data_format: str = "NWC",
    dilations: Any = (1,),
    name: str = "f8_conv_1d",
) -> Any:
    """Convolve rows of 8-bit floats.

    Args:
        inputs: Rows, a QuarterTensor or a tensor in float.
        filters: Filters [width, in_channels, out_channels].
        strides: Stride, as tf.nn.conv1d takes it.
        padding: SAME or VALID.
        data_format: NWC or NCW.
        dilations: Dilation.
        name: Name of the operation.

    Returns:
        The result in float16.

    Raises:
        ValueError: If `data_format` is another.
    """
    if data_format not in ("NWC", "NCW"):
        raise ValueError(
            f"`data_format` must be 'NWC' or 'NCW'. Received: data_format={data_format}"
        )
    x, kernel = _open(inputs), _open(filters)
    for value in (x, kernel):
        _check_rank(value, _CONV_RANKS[1])
    if data_format == "NCW":
        x = tf.transpose(x, [0, 2, 1])
    dilation = dilations[0] if len(dilations) == 1 else dilations[data_format.index("W")]
    step = _pick(strides, data_format.index("W"))
    result = tf.nn.conv1d(x, kernel, step, padding, "NWC", dilation)
    if data_format == "NCW":
        result = tf.transpose(result, [0, 2, 1])
    return tf.cast(result, tf.float16, name=name)


def _pick(sizes: Any, place: int) -> int:
    if isinstance(sizes, int):
        return sizes
    sizes = list(sizes)
    return int(sizes[0] if len(sizes) == 1 else sizes[place])


@on_ipu
def f8_conv_2d(
    inputs: Any,
    filters: Any,
    strides: Any,
    padding: Any,
    data_format: str = "NHWC",
    dilations: Any = (1, 1, 1, 1),
    name: str = "f8_conv_2d",
) -> Any:
    """Convolve images of 8-bit floats.

    Args:
        inputs: Images, a QuarterTensor or a tensor in float.
        filters: Filters [height, width, in_channels, out_channels].
        strides: Strides of all axes, or of the spatial ones.
        padding: SAME, VALID or a list.
        data_format: NHWC or NCHW.
        dilations: Dilations of all axes, or of the spatial ones.
        name: Name of the operation.

    Returns:
        The result in float16.
    """
    return _convolve(2, inputs, filters, strides, padding, data_format, dilations, name)


@on_ipu
def f8_conv_3d(
    inputs: Any,
    filters: Any,
    strides: Any,
    padding: Any,
    data_format: str = "NDHWC",
    dilations: Any = (1, 1, 1, 1, 1),
    name: str = "f8_conv_3d",
) -> Any:
    """Convolve volumes of 8-bit floats.

    Args:
        inputs: Volumes, a QuarterTensor or a tensor in float.
        filters: Filters [depth, height, width, in_channels, out_channels].
        strides: Strides of all axes.
        padding: SAME or VALID.
        data_format: NDHWC or NCDHW.
        dilations: Dilations of all axes.
        name: Name of the operation.

    Returns:
        The result in float16.
    """
    return _convolve(3, inputs, filters, strides, padding, data_format, dilations, name)


def _convolve(
    axes: int,
    inputs: Any,
    filters: Any,
    strides: Any,
    padding: Any,
    data_format: str,
    dilations: Any,
    name: str,
) -> Any:
    x, kernel = _open(inputs), _open(filters)
    for value in (x, kernel):
        _check_rank(value, _CONV_RANKS[axes])
    convolve = tf.nn.conv2d if axes == _MATRIX else tf.nn.conv3d
    options = {"data_format": data_format, "dilations": list(dilations)}
    return tf.cast(convolve(x, kernel, list(strides), padding, **options), tf.float16, name=name)
