"""Row rules of operators that move or select values: views, slices, gathers, pads."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from onnx import helper
from onnxgraph.opsets import AXES_ARE_INPUTS, SLICE_TAKES_BOUNDS

from simipu.operators.rules.computing import leading_axis
from simipu.operators.rules.places import Node, NotIndependent, Rows


def transpose(node: Node) -> list[Rows]:
    """Row rule of Transpose: the rows move with their axis."""
    rows = node.only_rows()
    order = node.attribute("perm") or list(range(len(node.shape(0))))[::-1]
    return [rows.moved(list(order).index(rows.axis))]


def _reshaped(node: Node) -> Rows:
    """Return the place of the rows after a reshape. Row-major order is kept, so the number of
    elements before and after the rows stays the same."""
    # Element (i * batch + row) * after + j of the whole tensor belongs to that row, i < before and
    # j < after. An axis of the result can hold the rows if what lies outside of it divides `before`
    # and what lies inside divides `after`; the quotients become its own before and block:
    #     [batch, 49, 16] -> [batch * 49, 16]      axis 0, block 49
    #     [49, batch, 16] -> [49 * batch, 16]      axis 0, before 49
    # For a batch of one row several axes may match. The one with the least `before` has the row
    # alone: [49, 1, 16] -> [49, 1, 16] is axis 1, not axis 0 with before 49.
    rows = node.only_rows()
    shape, result = node.shape(0), node.results[0]
    before = math.prod(shape[: rows.axis]) * rows.before
    after = math.prod(shape[rows.axis + 1 :]) * rows.block
    places = []
    for axis in range(len(result)):
        outer, inner = math.prod(result[:axis]), math.prod(result[axis + 1 :])
        if outer and inner and before % outer == 0 and after % inner == 0:
            place = Rows(axis, after // inner, before // outer)
            places += [place] if place.size(node.batch) == result[axis] else []
    if not places:
        raise NotIndependent(f"from {shape} to {result} mixes rows with other axes")
    return min(places, key=lambda place: place.before)


def flatten(node: Node) -> list[Rows]:
    """Row rule of Flatten: it names an axis by index, not by size."""
    return [_reshaped(node)]


def unsqueeze(node: Node) -> list[Rows]:
    """Row rule of Unsqueeze: new axes before that of the rows move it."""
    rows, axes = node.only_rows(), _read_axes(node)
    if axes is None:
        return [_reshaped(node)]
    rank = len(node.results[0])
    new = {int(axis) % rank for axis in axes}
    old = [axis for axis in range(rank) if axis not in new]
    return [rows.moved(old[rows.axis])]


def _read_axes(node: Node) -> Sequence[int] | None:
    """Return the axes of a Squeeze or an Unsqueeze; None if they are omitted."""
    axes = node.attribute("axes")
    values = node.constant(1) if axes is None else np.asarray(axes)
    return None if values is None else values.ravel().tolist()


def squeeze(node: Node) -> list[Rows]:
    """Row rule of Squeeze. Omitted axes are written out: a batch of one row is also an axis of one
    element, and must stay. If the axis of a single row goes, rows are those of the axis behind."""
    rows, named_axes = node.only_rows(), _read_axes(node)
    rank = len(node.shape(0))
    gone = {axis % rank for axis in named_axes or ()}
    kept_axes = [axis for axis in range(rank) if axis not in gone]
    if named_axes is None or rows.axis in gone:
        place = _reshaped(node)
    else:
        place = rows.moved(kept_axes.index(rows.axis))
    if not node.has(1) and node.attribute("axes") is None:
        axes = [axis for axis, size in enumerate(node.shape(0)) if size == 1]
        if not axes:
            node.proto.op_type = "Identity"  # an empty list of axes would mean all of them
            del node.proto.input[1:]
        elif node.opset < AXES_ARE_INPUTS:
            node.proto.attribute.append(helper.make_attribute("axes", axes))
        else:
            del node.proto.input[1:]
            node.proto.input.append("")
            node.rewrites[1] = np.array(axes, np.int64)
    return [place]


def reshape(node: Node) -> list[Rows]:
    """Row rule of Reshape: the target's size along the rows becomes -1, which is inferred."""
    place = _reshaped(node)
    if node.constant(1) is None or 0 in node.shape(0):
        raise NotIndependent("its shape is not known")
    target = np.asarray(node.results[0], np.int64)
    target[place.axis] = -1
    node.rewrites[1] = target
    return [place]


def concat(node: Node) -> list[Rows]:
    """Row rule of Concat along another axis. An input without rows, such as the class token of a
    vision transformer, is repeated for each row."""
    places = {rows for rows in node.rows if rows is not None}
    if len(places) != 1:
        raise NotIndependent("not all its inputs carry rows along the same axis")
    (place,) = places
    if node.axis(0, len(node.shape(0))) == place.axis:
        raise NotIndependent("it joins rows")
    node.repeat_others(place)
    return [place]


def slice_(node: Node) -> list[Rows]:
    """Row rule of Slice: it slices other axes than the rows', or keeps all rows."""
    rows = node.only_rows()
    rank = len(node.shape(0))
    names = ("starts", "ends", "axes", "steps")
    starts, ends, axes, steps = map(node.attribute, names)
    if starts is None:
        starts, ends, axes, steps = (node.constant(index) for index in (1, 2, 3, 4))
    if starts is None or ends is None:
        raise NotIndependent("the values of its starts and ends are unknown at compile time")
    places = [int(axis) % rank for axis in (axes if axes is not None else range(len(starts)))]
    if rows.axis not in places:
        return [rows]
    # All rows are kept if the slice starts at the first (0, or as far from the end as there are
    # rows, or further), has step 1, and ends at the last or beyond.
    index = places.index(rows.axis)
    step, size = 1 if steps is None else int(steps[index]), node.shape(0)[rows.axis]
    from_first = int(starts[index]) == 0 or int(starts[index]) <= -size
    if not from_first or step != 1 or int(ends[index]) < size:
        raise NotIndependent("it slices the rows")
    if node.attribute("ends") is None:  # all rows: the end must not contain their number
        node.rewrites[2] = np.asarray(ends).copy()
        node.rewrites[2][index] = np.iinfo(node.rewrites[2].dtype).max
        return [rows]
    if int(ends[index]) < np.iinfo(np.int32).max:
        raise NotIndependent("its range names the number of rows")
    return [rows]


def gather(node: Node) -> list[Rows]:
    """Row rule of Gather: either the table or the indices have rows, not both."""
    # data [a, AXIS, b], indices [i, j]  ->  [a, i, j, b]: the indices' axes take the place of AXIS.
    data, indices = node.rows
    axis = node.axis(0, len(node.shape(0)))
    if data is None and indices is not None:
        return [indices.moved(axis + indices.axis)]
    if data is None or indices is not None:
        raise NotIndependent("both its inputs carry rows")
    if axis == data.axis:
        raise NotIndependent("it picks among the rows")
    grown = len(node.shape(1)) - 1
    return [data if data.axis < axis else data.moved(data.axis + grown)]


def gather_elements(node: Node) -> list[Rows]:
    """Row rule of GatherElements along another axis, with indices that have the same rows, or are
    the same for all."""
    data, indices = node.rows
    if data is None or node.axis(0, len(node.shape(0))) == data.axis or indices not in (None, data):
        raise NotIndependent("its indices may point at other rows")
    node.repeat_others(data, 1)
    return [data]


def gather_nd(node: Node) -> list[Rows]:
    """Row rule of GatherND. Rows are in the indices alone, in both inputs along a batch dimension,
    or in data whose every index names its own row."""
    # data     [batch dims, `depth` axes that an index names, rest]
    # indices  [batch dims, i, j, depth]          result  [batch dims, i, j, rest]
    data, indices = node.rows
    depth, batched = node.shape(1)[-1], int(node.attribute("batch_dims", 0))
    if data is None:
        if indices is not None and batched <= indices.axis < len(node.shape(1)) - 1:
            return [indices]
        raise NotIndependent("its indices carry rows along a batch dimension, but its data do not")
    if data.axis < batched:
        if indices not in (None, data):
            raise NotIndependent("its inputs carry their rows along different axes")
        node.repeat_others(data, 1)
        return [data]
    if indices is not None:
        raise NotIndependent("both its inputs carry rows")
    if data.axis >= batched + depth:
        return [data.moved(data.axis + len(node.shape(1)) - 1 - depth - batched)]
    return [_gather_own_rows(node, data, data.axis - batched)]


def _gather_own_rows(node: Node, data: Rows, component: int) -> Rows:
    """Return the place of the rows for constant indices whose component along the rows' axis counts
    them, as exporters write `x[arange(batch), ...]`. Row i of the result is taken from row i. For n
    rows the first n indices are used."""
    indices = node.constant(1)
    assert indices is not None
    if node.opset < SLICE_TAKES_BOUNDS:
        raise NotIndependent("it picks among the rows")
    # If numbers[i] == i along one axis (`counted`) and the other parts of an index are the same for
    # every row (`others`), row i of the result depends on row i of the data alone.
    numbers = indices[..., component]
    for axis in range(numbers.ndim):
        shape = [1] * numbers.ndim
        shape[axis] = numbers.shape[axis]
        counted = np.arange(numbers.shape[axis]).reshape(shape)
        if numbers.shape[axis] == node.batch and data.size(1) == 1 and (numbers == counted).all():
            others = np.delete(indices, component, axis=-1)
            if (others == others.take([0], axis)).all():
                ends = node.count_rows()
                start, along = node.op.ints([0]), node.op.ints([axis])
                node.computed[1] = node.op.add("Slice", node.proto.input[1], start, ends, along)
                return Rows(axis)
    raise NotIndependent("it picks among the rows")


def scatter_elements(node: Node) -> list[Rows]:
    """Row rule of ScatterElements along another axis, with rows in all inputs."""
    data, indices, updates = node.rows
    places = {rows for rows in (data, indices, updates) if rows is not None}
    if len(places) != 1 or node.axis(0, len(node.shape(0))) == (place := places.pop()).axis:
        raise NotIndependent("its indices may point at other rows")
    node.repeat_others(place)
    return [place]


def scatter_nd(node: Node) -> list[Rows]:
    """Row rule of ScatterND along axes after those that the indices name, with updates that have
    the same rows, or are the same for all."""
    data, indices, updates = node.rows
    depth = node.shape(1)[-1]
    if data is None or indices is not None or data.axis < depth:
        raise NotIndependent("its indices may point at other rows")
    place = data.moved(data.axis - depth + len(node.shape(1)) - 1)
    if updates not in (None, place):
        raise NotIndependent("its inputs carry their rows along different axes")
    node.repeat_others(place, 2)
    return [data]


def affine_grid(node: Node) -> list[Rows]:
    """Row rule of AffineGrid: the grid's size contains the number of rows, and is composed at run
    time."""
    rows, size = node.only_rows(), node.constant(1)
    assert size is not None
    if rows.axis or rows.size(1) != 1:
        raise NotIndependent("rows do not lie along its batch axis alone")
    count, others = node.count_rows(), node.op.ints(size[1:].tolist())
    node.computed[1] = node.op.add("Concat", count, others, axis=0)
    return [rows]


def expand(node: Node) -> list[Rows]:
    """Row rule of Expand: the target's size along the rows becomes 1, which keeps their number."""
    rows = node.only_rows()
    shape = node.constant(1)
    if shape is None:
        raise NotIndependent("its shape is not known")
    # Shapes align at the end: new axes come first. A target shorter than the result does not reach
    # the rows, whose size then stays the input's.
    place = rows.moved(rows.axis + len(node.results[0]) - len(node.shape(0)))
    target = np.asarray(shape, np.int64).copy()
    from_end = place.axis - len(node.results[0])
    if -from_end <= target.size:
        target[from_end] = 1
    node.rewrites[1] = target
    return [place]


def tile(node: Node) -> list[Rows]:
    """Row rule of Tile: it must not repeat along the rows."""
    rows = node.only_rows()
    repeats = node.constant(1)
    if repeats is None or repeats[rows.axis] != 1:
        raise NotIndependent("it repeats the rows")
    return [rows]


def pad(node: Node) -> list[Rows]:
    """Row rule of Pad: it must not pad along the rows."""
    rows = node.only_rows()
    rank = len(node.shape(0))
    pads, axes = node.attribute("pads"), node.constant(3)
    if pads is None:
        pads = node.constant(1)
    if pads is None:
        raise NotIndependent("its pads are not known")
    # `pads` holds the begins of all padded axes, then their ends.
    padded = [int(axis) % rank for axis in axes] if axes is not None else list(range(rank))
    places = [i for i, axis in enumerate(padded) if axis == rows.axis]
    if any(pads[i] or pads[i + len(padded)] for i in places):
        raise NotIndependent("it pads the rows")
    return [rows]


def resize(node: Node) -> list[Rows]:
    """Row rule of Resize: by scales, where the rows' scale is 1, or to sizes, where the number of
    rows is inserted at run time."""
    rows, rank = node.only_rows(), len(node.shape(0))
    if node.attribute("coordinate_transformation_mode", b"") == b"tf_crop_and_resize":
        raise NotIndependent("it crops, and may crop the rows")
    axes = [axis % rank for axis in node.attribute("axes", range(rank))]
    sizes = node.constant(3)
    if sizes is None:
        scales = node.constant(2)
        if scales is not None and rows.axis in axes and scales[axes.index(rows.axis)] != 1:
            raise NotIndependent("it resizes the rows")
        return [rows]
    if rows.axis not in axes:
        return [rows]
    # Another policy than stretch changes all sizes together. The compiled number of rows among the
    # sizes is replaced by that of the run.
    at = axes.index(rows.axis)
    policy = node.attribute("keep_aspect_ratio_policy", b"stretch")
    if sizes[at] != node.shape(0)[rows.axis] or rows.size(1) != 1 or policy != b"stretch":
        raise NotIndependent("it resizes the rows")
    op = node.op
    parts = [op.ints(sizes[:at].tolist())] * bool(at) + [node.count_rows()]
    parts += [op.ints(sizes[at + 1 :].tolist())] * (at + 1 < len(sizes))
    node.computed[3] = op.add("Concat", *parts, axis=0)
    return [rows]


def upsample(node: Node) -> list[Rows]:
    """Row rule of Upsample by scales, where the rows' scale is 1."""
    rows = node.only_rows()
    scales = node.attribute("scales") or node.constant(1)
    if scales is None or scales[rows.axis] != 1:
        raise NotIndependent("it resizes the rows")
    return [rows]


def trilu(node: Node) -> list[Rows]:
    """Row rule of Trilu: the matrices are the last two axes. Rows may lie along one of these if the
    same elements are kept for all rows."""
    rows, shape = node.only_rows(), node.shape(0)
    along = rows.axis - (len(shape) - 2)
    if along >= 0:
        constant = node.constant(1)
        diagonal = 0 if constant is None else int(constant.item())
        # np.tri has ones up to the diagonal: the kept elements of a lower matrix, the dropped ones
        # of an upper matrix if it ends one diagonal before. Either must be equal along the rows.
        mask = np.tri(shape[-2], shape[-1], diagonal - int(bool(node.attribute("upper", 1))))
        first = mask.take([0], along)
        if rows.before != 1 or (mask != first).any():
            raise NotIndependent("rows lie along its matrices")
    return [rows]


def space_to_depth(node: Node) -> list[Rows]:
    """Row rule of SpaceToDepth: axis 0 is a batch. The channels, axis 1, become those of block *
    block places, one after the other."""
    rows = node.only_rows()
    if rows.axis != 1:
        return leading_axis(node)
    # Channel c of place p becomes channel p * channels + c.
    return [Rows(1, rows.block, rows.before * _count_places(node))]


def depth_to_space(node: Node) -> list[Rows]:
    """Row rule of DepthToSpace, the inverse of SpaceToDepth. In the mode CRD the places of each
    channel follow each other."""
    rows, places = node.only_rows(), _count_places(node)
    if rows.axis != 1:
        return leading_axis(node)
    # Channel c at place p comes from channel p * channels + c (DCR: the places are part of
    # `before`) or c * places + p (CRD: part of `block`).
    block, before = rows.block, rows.before
    if node.attribute("mode", b"DCR") == b"CRD":
        if block % places == 0:
            return [Rows(1, block // places, before)]
    elif before % places == 0:
        return [Rows(1, block, before // places)]
    raise NotIndependent("places of a channel come from several rows")


def _count_places(node: Node) -> int:
    return int(node.attribute("blocksize")) ** 2


def one_hot(node: Node) -> list[Rows]:
    """Row rule of OneHot: it inserts a new axis among those of the indices."""
    rows = node.only_rows()
    axis = int(node.attribute("axis", -1)) % len(node.results[0])
    return [rows.moved(rows.axis + (axis <= rows.axis))]


def reverse_sequence(node: Node) -> list[Rows]:
    """Row rule of ReverseSequence: its batch axis is the rows', with lengths that also have rows,
    or are the same for all."""
    rows = node.rows[0]
    if rows is None or int(node.attribute("batch_axis", 1)) != rows.axis:
        raise NotIndependent("rows do not lie along its batch axis")
    if node.rows[1] not in (None, rows.moved(0)):
        raise NotIndependent("its lengths carry rows along another axis")
    node.repeat_others(rows.moved(0), 1)
    return [rows]
