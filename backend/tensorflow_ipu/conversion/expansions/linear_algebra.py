"""Expansions of linear algebra: the loops over rows or columns are written out."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tensorflow_ipu.conversion.expanding import expands


@expands("Cholesky", "BatchCholesky")
def _cholesky(_: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    """Column j of L is (A - L L^T)[j:, j], with the columns so far, over the root of its first."""
    matrix = inputs[0]
    size = matrix.shape[-1]
    columns: list[Any] = []
    for place in range(size):
        rest = matrix[..., place:, place : place + 1]
        if columns:
            made = tf.concat(columns, axis=-1)
            rest -= tf.matmul(
                made[..., place:, :], made[..., place : place + 1, :], transpose_b=True
            )
        column = rest / tf.sqrt(rest[..., :1, :])
        columns.append(_pad_rows(column, place, 0))
    return tf.concat(columns, axis=-1) if columns else tf.identity(matrix)


def _pad_rows(value: Any, before: int, behind: int) -> Any:
    return tf.pad(value, [*[[0, 0]] * (value.shape.rank - 2), [before, behind], [0, 0]])


@expands("MatrixTriangularSolve", "BatchMatrixTriangularSolve")
def _triangular_solve(operation: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    matrix, right = inputs
    is_lower = operation.get_attr("lower")
    if operation.get_attr("adjoint"):
        matrix, is_lower = tf.linalg.matrix_transpose(matrix), not is_lower
    return _solve_triangle(matrix, right, is_lower)


def _solve_triangle(matrix: Any, right: Any, is_lower: bool) -> Any:
    """Row i of the solution is (b - A X)[i] over A[i, i], with the rows so far."""
    size = matrix.shape[-1]
    rows: list[Any] = []
    for place in range(size) if is_lower else reversed(range(size)):
        rest = right[..., place : place + 1, :]
        if rows:
            known = tf.concat(rows if is_lower else rows[::-1], axis=-2)
            factors = matrix[..., place : place + 1, :]
            factors = factors[..., :place] if is_lower else factors[..., place + 1 :]
            rest -= tf.matmul(factors, known)
        rows.append(rest / matrix[..., place : place + 1, place : place + 1])
    return tf.concat(rows if is_lower else rows[::-1], axis=-2) if rows else tf.identity(right)


@expands("MatrixSolve", "BatchMatrixSolve")
def _solve(operation: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    matrix, right = inputs
    if operation.get_attr("adjoint"):
        matrix = tf.linalg.matrix_transpose(matrix)
    return _eliminate(matrix, right)


@expands("MatrixInverse", "BatchMatrixInverse")
def _invert(operation: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    matrix = inputs[0]
    if operation.get_attr("adjoint"):
        matrix = tf.linalg.matrix_transpose(matrix)
    size = matrix.shape[-1]
    unit = tf.broadcast_to(tf.eye(size, dtype=matrix.dtype), matrix.shape)
    return _eliminate(matrix, unit)


def _eliminate(matrix: Any, right: Any) -> Any:
    """Return the solution by Gauss and Jordan: in column i the largest element of the rows from i
    on is brought to row i, and the column is cleared in all other rows."""
    size = matrix.shape[-1]
    joined = tf.concat([matrix, right], axis=-1)
    places = tf.constant(np.arange(size, dtype=np.int32)[:, None])
    zero = tf.zeros([], matrix.dtype)
    for place in range(size):
        column = joined[..., place : place + 1]
        sizes = tf.where(places >= place, tf.abs(column), tf.constant(-1.0, matrix.dtype))
        pivot = tf.cast(tf.argmax(sizes, axis=-2, output_type=tf.int32), tf.int32)[..., None, :]
        is_pivot = tf.equal(places, pivot)
        chosen = tf.reduce_sum(tf.where(is_pivot, joined, zero), axis=-2, keepdims=True)
        replaced = joined[..., place : place + 1, :]
        joined = tf.where(is_pivot, replaced, joined)
        joined = tf.where(tf.equal(places, place), chosen, joined)
        row = chosen / chosen[..., place : place + 1]
        cleared = joined - joined[..., place : place + 1] * row
        joined = tf.where(tf.equal(places, place), row, cleared)
    return joined[..., size:]


@expands("Qr")
def _qr(operation: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    """Reflections of Householder: each clears a column below the diagonal."""
    matrix = inputs[0]
    rows, columns = matrix.shape[-2:]
    upper = matrix
    unit = tf.eye(rows, dtype=matrix.dtype)
    orthogonal = tf.broadcast_to(unit, [*matrix.shape[:-2], rows, rows])
    places = tf.constant(np.arange(rows)[:, None])
    for place in range(min(rows - 1, columns)):
        column = tf.where(
            places >= place, upper[..., place : place + 1], tf.zeros([], matrix.dtype)
        )
        first = column[..., place : place + 1, :]
        length = tf.sqrt(tf.reduce_sum(column * column, axis=-2, keepdims=True))
        signed = tf.where(first < 0, -length, length)
        axis = column + tf.where(tf.equal(places, place), signed, tf.zeros([], matrix.dtype))
        weight = tf.reduce_sum(axis * axis, axis=-2, keepdims=True)
        weight = tf.where(tf.equal(weight, 0), tf.ones([], matrix.dtype), weight)
        factor = 2.0 / weight
        upper -= factor * axis * tf.matmul(axis, upper, transpose_a=True)
        orthogonal -= factor * tf.matmul(orthogonal, axis) * tf.linalg.matrix_transpose(axis)
    if operation.get_attr("full_matrices"):
        return [orthogonal, upper]
    count = min(rows, columns)
    return [orthogonal[..., :count], upper[..., :count, :]]


@expands("LogMatrixDeterminant")
def _log_determinant(_: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    determinant = tf.linalg.det(inputs[0])
    return [tf.sign(determinant), tf.math.log(tf.abs(determinant))]


@expands("TridiagonalMatMul")
def _tridiagonal_product(_: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    above, middle, below = (tf.linalg.matrix_transpose(value) for value in inputs[:3])
    value = inputs[3]
    down = _pad_rows(value[..., :-1, :], 1, 0)
    up = _pad_rows(value[..., 1:, :], 0, 1)
    return above * up + middle * value + below * down
