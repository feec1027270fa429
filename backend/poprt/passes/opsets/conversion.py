"""Passes that convert a model to another opset: up by the converter of onnx, down by our own rules,
since onnx has nearly none for that direction.

The rules are in `older_forms` and `older_spellings`."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import onnx
from onnx import AttributeProto, TensorProto, defs, helper
from onnxgraph import (
    LARGE,
    STANDARD_DOMAINS,
    GraphView,
    UnknownFactError,
    attribute,
    change_without_weights,
    drop_attribute,
    find_opset,
    is_outlined,
    iter_bodies,
    iter_nodes,
    type_name,
)
from onnxgraph.opsets import SCAN_HAS_NO_BATCH, SOFTMAX_HAS_ONE_AXIS
from simipu import CompileError
from simipu.numerics import OLDEST_OPSET

from poprt.passes.opsets import older_spellings as _older_spellings  # noqa: F401 - its rules register themselves
from poprt.passes.opsets.legacy_opsets import KeepHardmaxes, KeepResizes, UpgradeLegacyOpset
from poprt.passes.opsets.older_forms import RULES, NoOlderFormError, Older, Rule
from poprt.rewrite.base import Pass, Stage, register
from poprt.rewrite.explanations import describe_node
from poprt.rewrite.rules import NodeRule

_ONNX_ERRORS = (
    onnx.checker.ValidationError,
    onnx.shape_inference.InferenceError,
    onnx.version_converter.ConvertError,
    RuntimeError,
)
_MAX_NESTED = 8
"""Maximum depth of the standard's functions that call others; the known maximum is 3."""
_KEPT_WHOLE = frozenset(("AffineGrid", "LinearAttention"))
"""Operators whose definitions ONNX Runtime does not load in older opsets, because shapes in them
are not known."""
_WIDER = {
    TensorProto.BOOL: (TensorProto.INT32,),
    TensorProto.INT8: (TensorProto.INT32, TensorProto.FLOAT),
    TensorProto.UINT8: (TensorProto.INT32, TensorProto.FLOAT),
    TensorProto.INT16: (TensorProto.INT32, TensorProto.FLOAT),
    TensorProto.UINT16: (TensorProto.INT32, TensorProto.FLOAT),
    TensorProto.FLOAT16: (TensorProto.FLOAT,),
}
"""Types that have all values of another, the narrowest first. Values that overflow the narrow type
are truncated in the same way by the Cast back."""
_WIDER_IN_POW = dict.fromkeys(
    (*_WIDER, *(getattr(TensorProto, name) for name in ("INT32", "UINT32", "INT64", "UINT64"))),
    (TensorProto.FLOAT,),
)
"""Wider types for powers of integers, which older opsets compute in floats."""


@register(
    "check_opset", stage=Stage.ADMISSION, default=True, is_ours=True, before="check_operators"
)
class CheckOpset(Pass):
    """Reject a model whose opset the installed onnx does not support."""

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Check the opset. Raise CompileError if it is too new."""
        opset, newest = find_opset(model, 1), defs.onnx_opset_version()
        if opset > newest:
            raise CompileError(
                f"the model is of opset {opset}; the installed onnx {onnx.__version__} knows those "
                "up to "
                f"{newest}: export the model with opset {newest} or older, or install a newer onnx"
            )
        return model


@register(
    "convert_version",
    stage=Stage.INTERFACE,
    option="convert_version",
    takes="version=convert_version",
    is_ours=True,
    depend="admit",
)
class ConvertVersion(Pass):
    """Write a model in another opset, its bodies too; None: leave it.

    What has no older form is refused, and so is what an older form would need to know and cannot
    see.
    """

    def __init__(self, version: int | None = None) -> None:
        self._version = version

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Convert the model. Large weights are not copied. Raise CompileError if the model has no
        form in that opset."""
        if self._version is None or self._version == find_opset(model, 1):
            return model
        model = UpgradeLegacyOpset().run(model)
        opset = find_opset(model, 1)
        if not 1 <= self._version <= defs.onnx_opset_version():
            raise CompileError(
                f"convert_version={self._version}: the installed onnx knows opsets 1 to "
                f"{defs.onnx_opset_version()}"
            )
        lowest = max(self._version, OLDEST_OPSET)
        if lowest < opset:
            model = convert_down(model, lowest)
        if find_opset(model, 1) != self._version:
            _drop_unread_values(model)
            if opset < SOFTMAX_HAS_ONE_AXIS <= self._version:
                model = KeepHardmaxes().run(model)
            weights = model.graph.initializer
            large = {t.name for t in weights if is_outlined(t) or math.prod(t.dims) >= LARGE}
            change_without_weights(model, large, partial(convert_by_onnx, version=self._version))
            if opset < OLDEST_OPSET <= self._version:
                model = KeepResizes().run(model)
        return model


def _drop_unread_values(model: onnx.ModelProto) -> None:
    """Remove the value of each Pad that does not pad with a constant. The converter would keep it
    in newer opsets, which have no such attribute."""
    for node in iter_nodes(model.graph):
        if node.op_type == "Pad" and attribute(node, "mode", b"constant") != b"constant":
            drop_attribute(node, "value")


def convert_by_onnx(
    model: onnx.ModelProto, version: int, what: str = "the model"
) -> onnx.ModelProto:
    """Return a model in a newer opset, by onnx's converter. Raise CompileError, which speaks of
    `what`, if the converter fails."""
    if find_opset(model, 1) < SCAN_HAS_NO_BATCH <= version:
        old = next((node for node in iter_nodes(model.graph) if node.op_type == "Scan"), None)
        if old is not None:
            raise CompileError(
                f"node {describe_node(old)}: a Scan of opset 8 has an axis for the batch, which "
                "those of "
                f"opset {version} lack; export the model with opset {SCAN_HAS_NO_BATCH} or later"
            )
    context = onnx.checker.C.CheckerContext()
    others = {opset.domain: opset.version for opset in model.opset_import if opset.domain}
    context.ir_version = model.ir_version
    context.opset_imports = {**others, "": find_opset(model, 1)}
    try:
        for node in iter_nodes(model.graph):  # the converter crashes on invalid ones
            if not any(True for _ in iter_bodies(node)):
                onnx.checker.check_node(node, context)
        return onnx.version_converter.convert_version(model, version)
    except _ONNX_ERRORS as error:
        raise CompileError(
            f"{what} cannot be converted to opset {version}: {' '.join(str(error).split())}"
        ) from error


def convert_down(model: onnx.ModelProto, version: int) -> onnx.ModelProto:
    """Convert `model` in place to an older opset, 11 or newer, and return it. Raise CompileError
    with the name of a node that cannot be converted."""
    source = find_opset(model, 1)
    for _ in range(_MAX_NESTED):
        functions = _Functions(source, version)
        if not any(functions.matches(node) for node in iter_nodes(model.graph)):
            break
        model = functions.run(model)
    model = _OlderForms(source, version).run(model)
    for entry in model.opset_import:
        if entry.domain in STANDARD_DOMAINS:
            entry.version = version
    return model


class _Functions(NodeRule):
    """Rule that replaces operators that the older opset lacks, and for which we have no rule, by
    their standard definitions."""

    name = "convert_version"
    op_types = frozenset()

    def __init__(self, source: int, target: int) -> None:
        self._source, self._target, self.opset = source, target, source

    def matches(self, node: onnx.NodeProto) -> bool:
        """Return whether the older opset lacks the operator, and the standard defines it by
        others."""
        if (
            node.domain not in STANDARD_DOMAINS
            or node.op_type in RULES
            or node.op_type in _KEPT_WHOLE
        ):
            return False
        if defs.has(node.op_type, self._target) or not defs.has(node.op_type, self._source):
            return False
        schema: Any = defs.get_schema(node.op_type, self._source)
        return bool(schema.has_function or schema.has_context_dependent_function)

    def make_nodes(self, node: onnx.NodeProto, view: GraphView) -> list[onnx.NodeProto] | None:
        """Return the nodes of the definition; None if it needs types that are not known."""
        types = [
            helper.make_tensor_type_proto(view.type(name), view.shape(name))
            if name
            else onnx.TypeProto()
            for name in node.input
        ]
        prefix = view.names.take_prefix(f"{next(filter(None, node.output), node.op_type)}/function")
        return expand(node, self._source, types, prefix)


class _OlderForms(NodeRule):
    """Rule that writes all nodes in the forms of an older opset."""

    name = "convert_version"
    op_types = frozenset()

    def __init__(self, source: int, target: int) -> None:
        self._source, self.opset = source, target
        self._stays: dict[str, bool] = {}

    def matches(self, node: onnx.NodeProto) -> bool:
        """Return whether the operator has another version in the older opset, or none."""
        if node.domain not in STANDARD_DOMAINS:
            return False
        if node.op_type not in self._stays:
            self._stays[node.op_type] = defs.has(node.op_type, self.opset) and (
                defs.get_schema(node.op_type, self.opset).since_version
                == defs.get_schema(node.op_type, self._source).since_version
            )
        return not self._stays[node.op_type]

    def make_nodes(self, node: onnx.NodeProto, view: GraphView) -> list[onnx.NodeProto] | None:
        """Apply the operator's rule. If the node stays, check its types."""
        own_rule = RULES.get(node.op_type)
        try:
            self._check_types(node, view)
            nodes = self._write(own_rule, node, view) if own_rule else None
            if nodes is None or (len(nodes) == 1 and nodes[0].op_type == node.op_type):
                return self._widen(nodes[0] if nodes else node, view) or nodes
            return nodes
        except UnknownFactError as error:
            raise CompileError(
                f"the model cannot be converted to opset {self.opset}: node {describe_node(node)}: "
                f"{error}. Keep the model's opset {self._source} (no convert_version), or export "
                "the model without it"
            ) from None

    def _write(
        self, own_rule: Rule, node: onnx.NodeProto, view: GraphView
    ) -> list[onnx.NodeProto] | None:
        op = view.start(node, "older")
        results = own_rule(op, Older(node, view, op, self._source, self.opset))
        return None if results is None else op.finish(results, node.output, node.name)

    def _widen(self, node: onnx.NodeProto, view: GraphView) -> list[onnx.NodeProto] | None:
        """Return the node between Casts, if the older opset does not support its types; None if it
        does."""
        if not defs.has(node.op_type, self.opset):
            raise NoOlderFormError(
                f"opset {self.opset} has no {node.op_type}, and nothing to make it of"
            )
        schema = defs.get_schema(node.op_type, self.opset)
        self._check_form(node, schema)
        inputs = _match(node.input, schema.inputs)
        outputs = _match(node.output, schema.outputs)
        casts = self._find_casts(node, view, [*inputs, *outputs])
        if not casts:
            return None
        op = view.start(node, "wider")
        sources = list(node.input)
        for place, (name, parameter) in enumerate(inputs):
            if name and parameter.type_str in casts:
                sources[place] = op.Cast(name, to=casts[parameter.type_str])
        results = op.copy(node, sources)
        for place, (name, parameter) in enumerate(outputs):
            if name and parameter.type_str in casts:
                results[place] = op.Cast(results[place], to=view.type(name))
        return op.finish(results, node.output, node.name)

    def _check_types(self, node: onnx.NodeProto, view: GraphView) -> None:
        """Raise NoOlderFormError for tensors of types that the older opset lacks entirely."""
        types = defs.get_schema("Identity", self.opset).inputs[0].types
        for name in (*node.input, *node.output):
            element = view.type(name) if name else 0
            if element and type_name(element) not in types:
                raise NoOlderFormError(
                    f"{name!r} is of {TensorProto.DataType.Name(element)}, which opset "
                    f"{self.opset} has not"
                )

    def _check_form(self, node: onnx.NodeProto, schema: defs.OpSchema) -> None:
        new = [entry.name for entry in node.attribute if entry.name not in schema.attributes]
        if new:
            raise NoOlderFormError(f"it has {new[0]}, which opset {self.opset} does not know")
        fits = schema.min_input <= len(node.input) <= schema.max_input
        if not fits or len(node.output) > schema.max_output:
            raise NoOlderFormError(f"it has other inputs or outputs than in opset {self.opset}")

    def _find_casts(
        self,
        node: onnx.NodeProto,
        view: GraphView,
        parameters: list[tuple[str, defs.OpSchema.FormalParameter]],
    ) -> dict[str, int]:
        """Return the wider type of each type variable that needs one."""
        casts: dict[str, int] = {}
        for name, parameter in parameters:
            element = view.type(name) if name else 0
            if not element or type_name(element) in parameter.types:
                continue
            wider_types = {**_WIDER, **(_WIDER_IN_POW if node.op_type == "Pow" else {})}
            wider = [
                element_type
                for element_type in wider_types.get(element, ())
                if type_name(element_type) in parameter.types
            ]
            if not wider:
                raise NoOlderFormError(
                    f"{name!r} is of {TensorProto.DataType.Name(element)}, which {node.op_type} "
                    f"does not take in opset {self.opset}"
                )
            casts.setdefault(parameter.type_str, wider[0])
        return casts


def _match(
    names: Sequence[str], parameters: Sequence[defs.OpSchema.FormalParameter]
) -> list[tuple[str, defs.OpSchema.FormalParameter]]:
    """Return each tensor of a node with its parameter in the schema; the last parameter may stand
    for many."""
    return [(name, parameters[min(place, len(parameters) - 1)]) for place, name in enumerate(names)]


def expand(
    node: onnx.NodeProto, opset: int, types: Sequence[onnx.TypeProto], prefix: str
) -> list[onnx.NodeProto] | None:
    """Return the nodes, in that opset, by which the standard defines `node`; None if it does not
    define it.

    `types` are the types of the node's inputs. The names of the new nodes start with `prefix`.
    """
    body = _find_body(node, opset, types)
    if body is None:
        return None
    schema = defs.get_schema(node.op_type, opset)
    attributes = {entry.name: entry for entry in node.attribute}
    for name, declared in schema.attributes.items():
        if declared.default_value.type:
            attributes.setdefault(name, declared.default_value)
    renames = dict(zip(body.input, [*node.input, *[""] * len(body.input)], strict=False))
    renames.update(
        (inner, name) for inner, name in zip(body.output, node.output, strict=False) if name
    )
    nodes = []
    for number, inner in enumerate(body.node):
        own = copy.deepcopy(inner)
        own.name = f"{prefix}/{inner.op_type}_{number}"
        _settle(own, prefix, renames, attributes)
        nodes.append(own)
    return nodes


def _find_body(
    node: onnx.NodeProto, opset: int, types: Sequence[onnx.TypeProto]
) -> onnx.FunctionProto | None:
    schema: Any = defs.get_schema(node.op_type, opset)  # onnx's stubs are incomplete
    body = onnx.FunctionProto()
    fixed = [version for version in schema.function_opset_versions if version <= opset]
    if fixed:
        body.ParseFromString(schema.get_function_with_opset_version(max(fixed)))
        return body
    built = [
        version for version in schema.context_dependent_function_opset_versions if version <= opset
    ]
    if not built:
        return None
    function = schema.get_context_dependent_function_with_opset_version(
        max(built),
        node.SerializeToString(),
        [value_type.SerializeToString() for value_type in types],
    )
    body.ParseFromString(function)
    return body if body.node else None


def _settle(
    node: onnx.NodeProto, prefix: str, renames: dict[str, str], given: dict[str, AttributeProto]
) -> None:
    """Replace the names and attribute references of a function's node, in place, by those of the
    graph."""
    node.input[:] = [_own_name(name, prefix, renames) for name in node.input]
    node.output[:] = [_own_name(name, prefix, renames) for name in node.output]
    attributes = list(_iter_attributes(node, given))
    del node.attribute[:]
    node.attribute.extend(attributes)
    for entry in node.attribute:
        for body in (entry.g, *entry.graphs):
            for value in (*body.input, *body.output):
                value.name = _own_name(value.name, prefix, renames)
            for inner in body.node:
                _settle(inner, prefix, renames, given)


def _own_name(name: str, prefix: str, renames: dict[str, str]) -> str:
    return renames.setdefault(name, f"{prefix}/{name}") if name else ""


def _iter_attributes(
    node: onnx.NodeProto, given: dict[str, AttributeProto]
) -> Iterator[AttributeProto]:
    for entry in node.attribute:
        if not entry.ref_attr_name:
            yield entry
        elif entry.ref_attr_name in given:
            own = AttributeProto()
            own.CopyFrom(given[entry.ref_attr_name])
            own.name = entry.name
            yield own
