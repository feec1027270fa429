"""Passes that merge nodes of the same kind: products of one tensor, slices of one axis, Ifs with
one condition."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import onnx
from onnx import helper
from onnxgraph import (
    GraphEditor,
    Tape,
    attribute,
    is_operator,
    iter_defined,
    iter_reads,
    join_weights,
    rename,
    set_attribute,
)
from simipu import CompileError

from poprt.rewrite.base import Stage, register
from poprt.rewrite.rules import GraphRule

_MATRIX_RANK = 2


class NamedMerge(GraphRule):
    """Base class of passes that merge two parts of a graph, whose nodes the user names."""

    expected: ClassVar[str]
    """Names that the pass takes, in words."""
    missing: ClassVar[str]
    """Warning if the names do not match such nodes, or the parts cannot be merged."""

    def __init__(self, names: str | Sequence[str] | None) -> None:
        listed = names.split(",") if isinstance(names, str) else list(names or ())
        self._names = [name.strip() for name in listed]
        if self._names and not self.takes(self._names):
            raise CompileError(f"{self.name}: expected {self.expected}, found {names!r}")

    def takes(self, names: Sequence[str]) -> bool:
        """Return whether the number of names is right, and none is missing."""
        raise NotImplementedError

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Merge the parts. Warn if they are missing or cannot be merged."""
        self._is_done = False
        model = super().run(model) if self._names else model
        if self._names and not self._is_done:
            self.logger.warning("%s: %s: %s", self.name, self.missing, ", ".join(self._names))
        return model


class _MergingProducts(NamedMerge):
    """Base class that merges two products of one tensor with weights along the last dimension."""

    op_types = frozenset(("MatMul",))
    missing = "there are no such products of one tensor with weights in the model"
    count: ClassVar[int]

    def takes(self, names: Sequence[str]) -> bool:
        """Return whether there are as many names as expected, all different."""
        return len(set(names)) == self.count

    def rewrite_at(self, node: onnx.NodeProto, view: GraphEditor) -> None:
        """Merge the products at the first of the two."""
        step = len(self._names) // 2
        if node.name not in self._names[::step] or not view.is_first(node.input[0], node):
            return
        readers = view.readers.get(node.input[0], {}).values()
        products = [_find(name, readers, view) for name in self._names[::step]]
        adds = [
            view.reader(product.output[0], "Add") if product is not None and step > 1 else None
            for product in products
        ]
        if None in products or (
            step > 1 and [bias_add and bias_add.name for bias_add in adds] != self._names[1::step]
        ):
            return
        merged = [
            _MergedProduct.of(matmul, add, view)
            for matmul, add in zip(products, adds, strict=True)
            if matmul
        ]
        joined = [product for product in merged if product is not None]
        if len(joined) == len(products) and len({product.source for product in joined}) == 1:
            _join(joined, view)
            self._is_done = True


def _find(name: str, nodes: Iterable[onnx.NodeProto], view: GraphEditor) -> onnx.NodeProto | None:
    candidates = (node for node in nodes if node.name == name and is_operator(node, "MatMul"))
    return next((node for node in candidates if view.maker(node.output[0], "MatMul") is node), None)


@dataclass(frozen=True, slots=True)
class _MergedProduct:
    """Product with a weight, and the name of the bias added to it; "" for none."""

    source: str
    weight: str
    bias: str
    width: int
    first: onnx.NodeProto
    last: onnx.NodeProto

    @classmethod
    def of(
        cls, product: onnx.NodeProto, add: onnx.NodeProto | None, view: GraphEditor
    ) -> _MergedProduct | None:
        """Return the product; None if weight or bias is no constant with the shape of a linear
        layer's."""
        source, weight = product.input
        tensor = view.tensor(weight)
        if tensor is None or len(tensor.dims) != _MATRIX_RANK or view.shape(source) is None:
            return None
        width, bias = int(tensor.dims[1]), ""
        if add is not None:
            bias = next(name for name in add.input if name != product.output[0])
            if view.tensor(bias) is None or view.shape(bias) != (width,):
                return None
        return cls(source, weight, bias, width, product, add or product)


def _join(products: Sequence[_MergedProduct], view: GraphEditor) -> None:
    at = min((product.first for product in products), key=view.place)
    source, rank = products[0].source, len(view.shape(products[0].source) or ())
    op = view.start(at, "merged")
    joint = op.add(
        "MatMul", source, join_weights([product.weight for product in products], 1, op, view)
    )
    if products[0].bias:
        joint = op.add(
            "Add", joint, join_weights([product.bias for product in products], 0, op, view)
        )
    results = [product.last.output[0] for product in products]
    widths, axis = [product.width for product in products], max(0, rank - 1)
    op.add_all(results, "Split", joint, split=widths, axis=axis)
    view.rewrite(at, op.nodes, [product.last for product in products])


@register("merge_matmul", stage=Stage.PATTERNS, option="merge_matmul", takes="merge_matmul")
class MergeMatMul(_MergingProducts):
    """Make one product of two of the same tensor with weights, which are put side by side, and
    split it.

    merge_matmul: the names of both nodes, as a text with a comma or one by one.
    """

    expected, count = "A,B, the names of nodes", 2

    def __init__(self, merge_matmul: str | Sequence[str] | None = None) -> None:
        super().__init__(merge_matmul)


@register(
    "merge_matmul_add", stage=Stage.PATTERNS, option="merge_matmul_add", takes="merge_matmul_add"
)
class MergeMatMulAdd(_MergingProducts):
    """Merge two products that share an input, with the biases that are added to them.

    merge_matmul_add: the names of product, sum, product and sum.
    """

    expected, count = "M1,A1,M2,A2, the names of nodes", 4

    def __init__(self, merge_matmul_add: str | Sequence[str] | None = None) -> None:
        super().__init__(merge_matmul_add)


@dataclass(frozen=True, slots=True)
class _SlicePart:
    """Slice along one axis, from `start` to below `end`."""

    node: onnx.NodeProto
    axis: int
    start: int
    end: int
    step: int


@register("merge_multi_slice")
class MergeMultiSlice(GraphRule):
    """Make one Split of Slices that together are all of a tensor along one axis: one behind the
    other, or each with every n-th element, which a Reshape puts side by side first."""

    op_types = frozenset(("Slice",))

    def rewrite_at(self, node: onnx.NodeProto, view: GraphEditor) -> None:
        """Replace the Slices of a computed tensor at the first of them."""
        source = node.input[0]
        shape = view.shape(source)
        if shape is None or not view.is_first(source, node) or view.tensor(source) is not None:
            return
        readers = view.readers.get(source, {}).values()
        slices = [
            reader
            for reader in readers
            if is_operator(reader, "Slice") and reader.input[0] == source
        ]
        parts = [
            part
            for slice_node in slices
            if (part := _read_part(slice_node, shape, view)) is not None
        ]
        for axis, step in dict.fromkeys((part.axis, part.step) for part in parts):
            alike = [part for part in parts if (part.axis, part.step) == (axis, step)]
            ordered = sorted(alike, key=lambda part: (part.start, part.end))
            if len(ordered) > 1 and _are_all(ordered, shape[axis]):
                op = view.start(node, "split")
                _split(ordered, source, shape, op)
                view.rewrite(node, op.nodes, [part.node for part in ordered])
                return


def _are_all(parts: Sequence[_SlicePart], size: int) -> bool:
    """Return whether parts with one step cover an axis, each element once."""
    step, starts = parts[0].step, [part.start for part in parts]
    if step == 1:
        return [*starts, size] == [0, *(part.end for part in parts)]
    are_whole = all(part.end > size - step + part.start for part in parts)
    return starts == list(range(step)) and size % step == 0 and are_whole


def _split(parts: Sequence[_SlicePart], source: str, shape: Sequence[int], made: Tape) -> None:
    axis, step = parts[0].axis, parts[0].step
    results = [part.node.output[0] for part in parts]
    if step == 1:
        sizes = [part.end - part.start for part in parts]
        made.add_all(results, "Split", source, split=sizes, axis=axis)
        return
    # A size of -1 keeps rows for any batch.
    sizes = [-1 if place == 0 and axis else size for place, size in enumerate(shape)]
    sizes[axis] //= step
    apart = made.add("Reshape", source, made.ints([*sizes[: axis + 1], step, *sizes[axis + 1 :]]))
    rows = made.add_all(len(results), "Split", apart, split=[1] * step, axis=axis + 1)
    for part, name in zip(rows, results, strict=True):
        made.add_as(name, "Reshape", part, made.ints(sizes))


def _read_part(node: onnx.NodeProto, shape: Sequence[int], view: GraphEditor) -> _SlicePart | None:
    """Return the range that a Slice takes along one axis, forwards; None for other Slices."""
    read = [attribute(node, name) for name in ("starts", "ends", "axes", "steps")]
    if read[0] is None:
        names = [*node.input[1:], "", "", "", ""][:4]
        read = [view.numbers(name) if name else None for name in names]
        if any(name and value is None for name, value in zip(names, read, strict=True)):
            return None
    starts, ends, axes, steps = ([0] if numbers is None else list(numbers) for numbers in read)
    steps = [1] if read[3] is None else steps
    if [len(numbers) for numbers in (starts, ends, axes, steps)] != [1] * 4 or steps[0] < 1:
        return None
    axis = axes[0] % len(shape)
    size = shape[axis]
    start, end = (
        min(max(0, bound + size if bound < 0 else bound), size) for bound in (starts[0], ends[0])
    )
    return _SlicePart(node, axis, start, end, steps[0]) if start < end else None


@register("merge_if_with_same_cond", stage=Stage.FOLDING, option="merge_if_with_same_cond")
class MergeIfWithSameCond(GraphRule):
    """Make one If of those of the same condition, as far as the order of the graph allows: the
    later one needs nothing that is made between them, or nothing between them needs the earlier
    one."""

    op_types = frozenset(("If",))

    def rewrite_at(self, node: onnx.NodeProto, view: GraphEditor) -> None:
        """Merge two Ifs at the later one."""
        condition = node.input[0]
        earlier, view.marks[condition] = view.marks.get(condition), node
        if earlier is None or not _can_merge(earlier, node, view):
            return
        merged = _merge(earlier, node, view)
        at = earlier if _may_move_up(node, earlier, view) else node
        view.rewrite(at, [merged], [earlier, node])
        view.marks[condition] = merged


def _can_merge(earlier: onnx.NodeProto, later: onnx.NodeProto, view: GraphEditor) -> bool:
    for name in _BRANCHES:
        first, second = (
            {value.name for value in attribute(conditional, name).output}
            for conditional in (earlier, later)
        )
        own = set(iter_defined(attribute(later, name)))
        if (
            first & (second - own)
            or len(second) < len(later.output)
            or len(first) < len(earlier.output)
        ):
            return False  # two results would be one tensor
    return _may_move_up(later, earlier, view) or _may_move_down(earlier, later, view)


_BRANCHES = ("then_branch", "else_branch")


def _may_move_up(later: onnx.NodeProto, earlier: onnx.NodeProto, view: GraphEditor) -> bool:
    results = set(earlier.output)
    return all(name in results or view.is_before(name, earlier) for name in iter_reads(later))


def _may_move_down(earlier: onnx.NodeProto, later: onnx.NodeProto, view: GraphEditor) -> bool:
    return all(
        view.place(reader) >= view.place(later)
        for name in earlier.output
        for reader in view.readers.get(name, {}).values()
    )


def _merge(earlier: onnx.NodeProto, later: onnx.NodeProto, view: GraphEditor) -> onnx.NodeProto:
    """Return both Ifs as one. Results of the earlier one that the later one reads become tensors
    inside the branches."""
    branches = {}
    for name in _BRANCHES:
        first, second = onnx.GraphProto(), onnx.GraphProto()
        first.CopyFrom(attribute(earlier, name))
        second.CopyFrom(attribute(later, name))
        defined = set(iter_defined(first))
        view.names.taken |= defined
        renames = {
            defined_name: view.names.take(defined_name)
            for defined_name in iter_defined(second)
            if defined_name in defined
        }
        inner = {
            outer: value.name
            for outer, value in zip(earlier.output, first.output, strict=True)
            if outer
        }
        rename(second, {**inner, **renames})
        for tensor in second.initializer:
            tensor.name = renames.get(tensor.name, tensor.name)
        for value in second.output:
            value.name = renames.get(value.name, inner.get(value.name, value.name))
        for field in ("node", "initializer", "output", "value_info"):
            getattr(first, field).extend(getattr(second, field))
        branches[name] = first
    results = [*earlier.output, *later.output]
    merged = helper.make_node("If", [earlier.input[0]], results, name=earlier.name)
    for name, graph in branches.items():
        set_attribute(merged, name, graph)
    return merged
