"""Pass packed_transformer: a model of padded samples becomes a model of samples that lie end to
end.

Operators that compute each token by itself, most of a transformer, do not change and work on packed
tokens. Before operators that combine tokens, above all attention, samples are unpacked; behind them
they are packed again. `token_flow` finds where an operator's results have samples and tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx
from onnx import TensorProto, helper
from onnxgraph import (
    CHIP_DOMAIN,
    GraphView,
    NameScope,
    Tape,
    find_inputs,
    find_opset,
    forget_values,
    infer_shapes,
    iter_bodies,
    iter_defined,
    iter_reads,
    rename,
    replace_nodes,
    set_shape,
)
from simipu import CompileError
from simipu.operators import Family, operator_of

from popef._tools.options import (
    UNSET,
    Wording,
    option_field,
    options_of,
    read_values,
    reading,
    word_of,
)
from poprt.passes.fusion.masks import find_mask_inputs
from poprt.passes.packing.token_flow import (
    BOTH,
    LEADING,
    PLAIN,
    TOKENS,
    Labels,
    MixedSamples,
    NodeFlow,
    TokenSizes,
    follow,
)
from poprt.passes.pattern_helper import PatternMatcher
from poprt.rewrite.base import Pass, Stage, register
from poprt.rewrite.rules import declare_chip

LENGTHS = "unpack_info"
"""Input with the lengths of the samples; published runners know this name."""
_OLDEST_OPSET = 11
_FLAT, _DEEP = 2, 3
"""Numbers of axes of packed tensors: a number, or a row of numbers, for each token."""
_MAX_INT32 = 2**31 - 1
_BOOLS = {"true": True, "1": True, "false": False, "0": False}
_PATH = "s:0->MatMul:1->Add:2->e:3"


def _size(value: Any) -> int:
    size = int(value)
    if isinstance(value, bool) or not 0 < size <= _MAX_INT32:
        raise ValueError
    return size


def _segments(value: Any) -> tuple[int, ...]:
    if isinstance(value, Sequence) and not isinstance(value, str):
        lengths = tuple(map(_size, value))
    else:
        lengths = tuple(map(_size, str(value).strip("[]").replace(",", "+").split("+")))
    if not 0 < sum(lengths) <= _MAX_INT32:
        raise ValueError
    return lengths


def _paths(value: Any) -> tuple[str, ...]:
    """Return paths from a list or a comma-separated string. No path contains a comma; quotes around
    a path are removed."""
    listed = value.split(",") if isinstance(value, str) else list(value)
    paths = tuple(str(path).strip().strip("'\"").strip() for path in listed)
    return tuple(path for path in paths if path)


def _groups(value: Any) -> tuple[tuple[str, ...], ...]:
    """Return groups from lists or from a string as [[a,b],[c]], with or without quotes around the
    names."""
    if isinstance(value, str):
        text = value.replace("'", "").replace('"', "").replace(" ", "")
        if not (text.startswith("[[") and text.endswith("]]")):
            raise ValueError
        listed: Any = [part.split(",") for part in text[2:-2].split("],[")]
    else:
        listed = value
    groups = tuple(
        tuple(str(name) for name in group if name) for group in listed if not isinstance(group, str)
    )
    if not groups or not all(groups):
        raise ValueError
    return groups


_WORDS = word_of(_BOOLS)
_FLAG = reading(lambda value: _WORDS.read(str(value)), "true or false")


@dataclass(frozen=True, slots=True)
class PackArgs:
    """Arguments of --pack_args, by the real tool's names.

    max_valid_num: maximum number of samples in a run. segment_max_size: length of the longest
    sample; for samples with several segments the longest of each, 13+51. head_pattern: paths of the
    nodes at the end that are computed on unpacked tokens; without it, each output is unpacked as
    late as possible. dynamic_groups: inputs that are packed together; all inputs with their leading
    axes are packed. enable_double_batch_unpack, efficiency_priority: options of the real tool's
    vertices, which are not public; they have no effect here.
    """

    max_valid_num: int = option_field(reading(_size, "a number of samples from 1 on"), UNSET)
    segment_max_size: tuple[int, ...] = option_field(
        reading(_segments, "a number of tokens from 1 on, or several as in 13+51"), UNSET
    )
    enable_double_batch_unpack: bool = option_field(_FLAG, False)
    efficiency_priority: bool = option_field(_FLAG, False)
    head_pattern: tuple[str, ...] = option_field(reading(_paths, f"paths such as '{_PATH}'"), ())
    dynamic_groups: tuple[tuple[str, ...], ...] = option_field(
        reading(_groups, "inputs in groups, as in [[input_ids,attention_mask]]"), ()
    )

    @classmethod
    def read(cls, arguments: Mapping[str, Any]) -> PackArgs:
        """Return the arguments from strings, as on the command line, or from values. Raise
        CompileError for invalid ones."""
        values = read_values(_OPTIONS, arguments, _WORDING)
        for name, entry in _OPTIONS.items():
            if entry.default is UNSET and name not in values:
                raise CompileError(
                    f"pack_args: expected {name}, as in max_valid_num=40 segment_max_size=256"
                )
        return cls(**values)


_OPTIONS = options_of(PackArgs)
_WORDING = Wording(
    CompileError,
    "pack_args: {name}{why}",
    CompileError,
    "pack_args: there is no {name!r}; there are {known}",
)


@register("packed_transformer", stage=Stage.CHIP, option="pack_args", takes="pack_args")
class PackedTransformer(Pass):
    """Have a model take samples that lie end to end in [batch, tokens], over the ends of rows, and
    give the results of each sample in a row of its own.

    There is a new input `unpack_info`, int32 [max_valid_num, segments]: the lengths of the samples,
    in order, 0 for none. Inputs keep their shapes; an output of [batch, tokens, ...] becomes
    [max_valid_num, segment_max_size, ...], zero or of no meaning behind a sample's end, one of
    [batch, ...] becomes [max_valid_num, ...]. Masks may number samples, 1, 2, 3, or be 1 for all.
    Positions have to begin at 0 in each sample where they are an input; those that the model holds
    do by themselves.

    pack_args: see PackArgs, or the dictionary of it. A model that mixes samples, or tokens in a way
    that depends on padding (the mean over all of them), is refused by the node. A model that has
    been packed is left as it is.
    """

    def __init__(self, pack_args: PackArgs | Mapping[str, Any] | None = None) -> None:
        self._given = pack_args

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Pack the model. Raise CompileError if it cannot be packed."""
        if not self._given:
            raise CompileError(
                "packed_transformer: expected pack_args, such as max_valid_num=40 "
                "segment_max_size=256; give them"
            )
        args = self._given if isinstance(self._given, PackArgs) else PackArgs.read(self._given)
        if any(
            node.op_type == "Unpack" and node.domain == CHIP_DOMAIN for node in model.graph.node
        ):
            self.logger.warning("packed_transformer: the model is packed already")
            return model
        if find_opset(model, 1) < _OLDEST_OPSET:
            raise CompileError(
                f"packed_transformer: expected a model of opset {_OLDEST_OPSET} or later, found "
                f"{find_opset(model, 1)}; convert_version={_OLDEST_OPSET} brings it there"
            )
        packing = _TransformerPacking.of(model, args)
        head = packing.find_head()
        if args.head_pattern and not head:
            self.logger.warning(
                "packed_transformer: head_pattern is nowhere in the model: outputs are unpacked at "
                "their ends"
            )
        packing.rewrite(model.graph, head)
        declare_chip(model)
        packing.check_sizes(model)
        for name in packing.unmasked:
            self.logger.warning(
                "packed_transformer: node %r takes tokens together without a mask: positions "
                "behind a sample that is shorter than segment_max_size count, too",
                name,
            )
        return model


@dataclass(slots=True)
class _TransformerPacking:
    """Graph during packing: the place of samples in each tensor, and whether they are packed
    there."""

    args: PackArgs
    sizes: TokenSizes
    view: GraphView
    inferred: onnx.GraphProto
    names: NameScope
    labels: dict[str, Labels] = field(default_factory=dict)
    unpacked: set[str] = field(default_factory=set)
    """Tensors that are made unpacked, under their own names."""
    others: dict[str, str] = field(default_factory=dict)
    """Name of the unpacked twin of a packed tensor, and of the packed twin of an unpacked one."""
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    masked: set[str] = field(default_factory=set)
    """Tensors that have been combined with another number for each token, as with a mask."""
    unmasked: list[str] = field(default_factory=list)
    """Nodes that take tokens together which nothing has masked."""

    @classmethod
    def of(cls, model: onnx.ModelProto, args: PackArgs) -> _TransformerPacking:
        """Return the packing of a model with static shapes."""
        inferred = infer_shapes(model).graph
        names = NameScope(model.graph, find_opset(model, _OLDEST_OPSET), reserved={LENGTHS})
        view = GraphView(names, model.graph, inferred)
        inputs = _find_inputs(model.graph, view, args)
        batch, tokens = next(iter(inputs.values()))[:_FLAT]
        sizes = TokenSizes(batch, tokens, args.max_valid_num, sum(args.segment_max_size))
        if LENGTHS in iter_defined(model.graph):
            raise CompileError(
                f"packed_transformer: the model has a tensor {LENGTHS!r}, the name of the lengths; "
                "rename it"
            )
        packing = cls(args, sizes, view, inferred, names)
        for name, shape in inputs.items():
            packing.labels[name] = (*LEADING, *(PLAIN,) * (len(shape) - _FLAT))
        return packing

    def find_head(self) -> frozenset[str]:
        """Return the outputs of the head's nodes."""
        if not self.args.head_pattern:
            return frozenset()
        match = PatternMatcher(self.args.head_pattern).next_pattern(self.inferred)
        return frozenset(
            name for node_match in (match or {}).values() for name in node_match.node.output
        )

    def rewrite(self, graph: onnx.GraphProto, head: frozenset[str]) -> None:
        """Insert Unpack and Repack where needed, change constants that count samples, and declare
        the new inputs and outputs."""
        self._start_with_masks(graph)
        for node in graph.node:
            self._add(node, unpacked=bool(head.intersection(node.output)))
        self._give_outputs(graph)
        replace_nodes(graph, self.nodes)
        graph.initializer.extend(self.names.added)
        shape = (self.args.max_valid_num, len(self.args.segment_max_size))
        graph.input.append(helper.make_tensor_value_info(LENGTHS, TensorProto.INT32, shape))
        forget_values(graph)

    def check_sizes(self, model: onnx.ModelProto) -> None:
        """Raise CompileError for a node whose unpacked result does not have the size that its
        labels say: it writes out a number of samples or tokens. A mask may have one element for all
        tokens that see."""
        view = GraphView(self.names, model.graph, infer_shapes(model).graph)
        for node in self.nodes:
            for name in filter(self.unpacked.__contains__, node.output):
                labels, sizes = self.labels[name], view.shape(name) or ()
                expected_sizes = tuple(
                    map(self.sizes.unpacked, self.view.shape(name) or (), labels)
                )
                if len(sizes) != len(expected_sizes) or any(
                    size != expected and (label, size) != (TOKENS, 1)
                    for label, size, expected in zip(labels, sizes, expected_sizes, strict=True)
                ):
                    raise _refuse(
                        node,
                        f"it writes out the number of samples or tokens: its result {name!r} is "
                        f"{list(sizes)}, not {list(expected_sizes)}",
                    )

    def _start_with_masks(self, graph: onnx.GraphProto) -> None:
        """Replace masks that number samples by masks of which tokens are present."""
        masks = {name for name in find_mask_inputs(graph, self.inferred) if name in self.labels}
        renames = {}
        for name in sorted(masks):
            shown = self.names.take(f"{name}/shown")
            op = Tape(shown, names=self.names)
            op.chip_as(shown, "NotZero", name)
            self.nodes += op.nodes
            self.labels[shown], self.view.types[shown] = self.labels[name], self.view.types[name]
            renames[name] = shown
        outputs = {value.name for value in graph.output}
        rename(graph, {old: new for old, new in renames.items() if old not in outputs})

    def _add(self, node: onnx.NodeProto, *, unpacked: bool) -> None:
        if not any(name in self.labels for name in iter_reads(node)):
            self.nodes.append(node)
            return
        if any(iter_bodies(node)):
            raise _refuse(node, "samples go into graphs inside nodes")
        flow = NodeFlow(node, self.view, self.names.opset, self.sizes, self.labels)
        try:
            follow(flow)
        except (MixedSamples, IndexError, ValueError, ZeroDivisionError) as reason:
            raise _refuse(node, str(reason)) from None
        labels = [
            *flow.results.values(),
            *(self.labels[name] for name in node.input if name in self.labels),
        ]
        is_packed = not (unpacked or flow.mixes) and all(map(_is_packed, labels))
        if flow.packed_only and not is_packed:
            raise _refuse(node, flow.packed_only)
        own = onnx.NodeProto()
        own.CopyFrom(node if is_packed else flow.unpacked)
        own.input[:] = [self._bring(name, packed=is_packed) for name in own.input]
        changed = flow.shrunk if is_packed else {**flow.shrunk, **flow.changed}
        for place, value in changed.items():
            own.input[place] = self.names.hold_once(f"{own.output[0]}/sizes", value)
        if not is_packed:
            self.unpacked.update(filter(None, node.output))
        is_softmax = operator_of(node).family is Family.SOFTMAX
        if is_softmax and flow.mixes and node.input[0] not in self.masked:
            self.unmasked.append(node.name)
        if self._may_mask(node, flow):
            self.masked.update(node.output)
        self.labels |= flow.results
        self.nodes.append(own)

    def _may_mask(self, node: onnx.NodeProto, flow: NodeFlow) -> bool:
        """Return whether a node combines numbers of tokens, or constants of positions, or passes on
        such a combination."""
        operator = operator_of(node)
        if not (operator.is_elementwise or operator.is_view):
            return False
        of_tokens = {
            name for name in node.input if {TOKENS, BOTH}.intersection(self.labels.get(name, ()))
        }
        combines = operator.is_elementwise and (len(of_tokens) > 1 or flow.mixes)
        return combines or not self.masked.isdisjoint(node.input)

    def _bring(self, name: str, *, packed: bool) -> str:
        """Return the name of a tensor in its packed or unpacked form, which is made if needed."""
        if name not in self.labels or packed == (name not in self.unpacked):
            return name
        if name not in self.others:
            self.others[name] = self.names.take(f"{name}/{'packed' if packed else 'unpacked'}")
            self._turn(name, self.others[name], self.labels[name], packed=packed)
        return self.others[name]

    def _turn(self, name: str, result: str, labels: Labels, *, packed: bool) -> None:
        """Add the Unpack or Repack of a tensor, with Reshapes if needed: both have batch and tokens
        as separate axes."""
        op, sizes = Tape(result, names=self.names), self.sizes
        rest = list((self.view.shape(name) or ())[1 if labels[0] == BOTH else _FLAT :])
        pair = (sizes.batch, sizes.tokens), (sizes.samples, sizes.longest)
        before, behind = pair[::-1] if packed else pair
        source = name
        if labels[0] == BOTH:
            source = op.add("Reshape", name, op.ints([*before, *rest]))
        attributes: dict[str, Any] = {
            "max_valid_num": sizes.samples,
            "segment_max_size": list(self.args.segment_max_size),
        }
        if packed:
            attributes |= {"batch_size": sizes.batch, "sequence_length": sizes.tokens}
        turned = op.new_name() if labels[0] == BOTH else result
        op.chip_as(turned, "Repack" if packed else "Unpack", source, LENGTHS, **attributes)
        if labels[0] == BOTH:
            op.add_as(result, "Reshape", turned, op.ints([behind[0] * behind[1], *rest]))
        self.nodes += op.nodes

    def _give_outputs(self, graph: onnx.GraphProto) -> None:
        """Make each output unpacked, with each sample's results in a row of its own, under the old
        names."""
        renames: dict[str, str] = {}
        ends: list[onnx.NodeProto] = []
        for value in graph.output:
            labels = self.labels.get(value.name)
            if labels is None:
                raise CompileError(
                    f"packed_transformer: output {value.name!r} does not come of samples; "
                    "remove_outputs drops it"
                )
            shape = self.view.shape(value.name) or ()
            set_shape(value, map(self.sizes.unpacked, shape, labels))
            if value.name not in self.unpacked:
                source = self._bring(value.name, packed=False)
                renames[value.name] = self.names.take(f"{value.name}/packed")
                ends.append(
                    helper.make_node("Identity", [source], [value.name], name=f"{value.name}/end")
                )
        for node in self.nodes:
            node.input[:] = [renames.get(name, name) for name in node.input]
            node.output[:] = [renames.get(name, name) for name in node.output]
        self.nodes += ends


def _is_packed(labels: Labels) -> bool:
    """Return whether tokens lie in packed order, with at most one axis behind them."""
    if labels[:1] == (BOTH,):
        return len(labels) <= _FLAT and not any(labels[1:])
    return labels[:_FLAT] == LEADING and len(labels) <= _DEEP and not any(labels[_FLAT:])


def _refuse(node: onnx.NodeProto, reason: str) -> CompileError:
    return CompileError(
        f"packed_transformer: node {node.name!r} ({node.op_type}): expected an operator that keeps "
        "samples "
        f"apart, found that {reason}; pack this model without it, or use insert_attention_mask"
    )


def _find_inputs(
    graph: onnx.GraphProto, view: GraphView, args: PackArgs
) -> dict[str, tuple[int, ...]]:
    """Return the packed inputs, whose leading axes are batch and tokens, with their shapes."""
    shapes = {value.name: view.shape(value.name) for value in find_inputs(graph)}
    unknown = next((name for name, shape in shapes.items() if shape is None), None)
    if unknown is not None:
        raise CompileError(
            f"packed_transformer: the shape of input {unknown!r} is not known; give input_shape"
        )
    grouped = [name for group in args.dynamic_groups for name in group]
    for name in grouped:
        if name not in shapes:
            raise CompileError(
                f"pack_args: dynamic_groups names {name!r}; the model has the inputs "
                f"{', '.join(shapes)}"
            )
    known_shapes = {name: shape for name, shape in shapes.items() if shape is not None}
    first = (
        grouped[0]
        if grouped
        else next((name for name, shape in known_shapes.items() if len(shape) >= _FLAT), "")
    )
    if not first or len(known_shapes[first]) < _FLAT:
        raise CompileError(
            "packed_transformer: expected inputs [batch, tokens], found none; give dynamic_groups"
        )
    leading = known_shapes[first][:_FLAT]
    for name, shape in known_shapes.items():
        if shape[:_FLAT] != leading or len(shape) > _DEEP:
            raise CompileError(
                f"packed_transformer: expected input {name!r} to be {list(leading)} like "
                f"{first!r}, found "
                f"{list(shape)}; samples that are packed have all inputs token by token"
            )
    return known_shapes
