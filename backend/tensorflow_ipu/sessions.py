"""Sessions: what is placed on an IPU is compiled, also where nothing calls `compile`.

`install` makes TensorFlow's sessions do three things more: they accept devices that stock
TensorFlow does not have (soft placement), they run operations placed on an IPU as computations, and
they begin the infeeds whose initializers ran.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, Final

import tensorflow as tf
from tensorflow.python.client import session as session_module
from tensorflow.python.eager import context
from tensorflow.python.framework import importer
from tensorflow.python.ops import control_flow_v2_toggles

from tensorflow_ipu import eager_operations, launching, markers, scope_hooks
from tensorflow_ipu.execution import Computation, Input
from tensorflow_ipu.feeds import ipu_infeed_queue as feeds

_UNCOMPILED: Final = frozenset(
    ("VarHandleOp", "Placeholder", "PlaceholderWithDefault", "NoOp", "Const", "VariableV2")
)
"""Operations that are no computation: on an IPU or on the host they are the same."""
_MOVES: Final = frozenset(("AssignVariableOp", "ReadVariableOp", "Identity"))
"""Operations that are no computation if the values that they move are the host's."""


def install() -> None:
    """Change TensorFlow's sessions; once."""
    base = session_module.BaseSession
    if getattr(base, "_ipu_hooked", False):
        return
    base._ipu_hooked = True  # noqa: SLF001
    # Setting it makes TensorFlow's context, which must not exist when a script disables eager mode.
    # A context that is made later is soft anyway, in eager mode.
    if context.context_safe() is not None:
        tf.config.set_soft_device_placement(True)
    eager_operations.install()
    scope_hooks.install()
    tf.compat.v1.enable_control_flow_v2()
    # `disable_v2_behavior` would bring loops back that are no functions, also after this import.
    control_flow_v2_toggles.disable_control_flow_v2 = lambda: None
    make, run, make_callable = base.__init__, base.run, base.make_callable

    def make_soft(self: Any, target: str = "", graph: Any = None, config: Any = None) -> None:
        config = tf.compat.v1.ConfigProto() if config is None else config
        copy = tf.compat.v1.ConfigProto()
        copy.CopyFrom(config)
        copy.allow_soft_placement = True
        # Operations of an IPU need no kernel of the CPU, as long as nothing runs them there.
        copy.graph_options.place_pruned_graph = True
        make(self, target, graph, copy)

    def run_with_ipus(
        self: Any,
        fetches: Any,
        feed_dict: Any = None,
        options: Any = None,
        run_metadata: Any = None,
    ) -> Any:
        rewritten = _rewriter(self.graph).rewrite(fetches, feed_dict or {})
        try:
            result = run(self, rewritten.fetches, feed_dict, options, run_metadata)
        except tf.errors.OpError as error:
            if (own := launching.take_error(str(error))) is not None:
                raise own from None
            raise
        for operation in rewritten.begun:
            feeds.begin_infeeds(operation, self)
        return result

    def make_callable_with_ipus(
        self: Any, fetches: Any, feed_list: Any = None, accept_options: bool = False
    ) -> Any:
        rewritten = _rewriter(self.graph).rewrite(fetches, {})
        if feed_list is None and not rewritten.begun and rewritten.fetches is fetches:
            return make_callable(self, fetches, feed_list, accept_options)
        return make_callable(self, fetches, feed_list or [], accept_options)  # it calls `run`

    base.__init__, base.run = make_soft, run_with_ipus
    base.make_callable = make_callable_with_ipus


class _Rewritten:
    """Fetches of a run with computations in place of operations placed on an IPU."""

    def __init__(self, fetches: Any, begun: Sequence[tf.Operation]) -> None:
        self.fetches = fetches
        self.begun = begun
        """Operations that begin or end infeeds."""


class _Rewriter:
    """Finds the operations of a graph that are placed on an IPU, and launches computations."""

    def __init__(self, graph: tf.Graph) -> None:
        self._graph = weakref.ref(graph)
        self._known: dict[Any, _Rewritten] = {}

    def rewrite(self, fetches: Any, feed_dict: dict[Any, Any]) -> _Rewritten:
        """Return what a session runs for some fetches."""
        graph = self._graph()
        assert graph is not None
        elements = [
            graph.as_graph_element(value, allow_tensor=True, allow_operation=True)
            for value in tf.nest.flatten(fetches, expand_composites=True)
            if not isinstance(value, (list, dict)) and _is_element(graph, value)
        ]
        fed = tuple(sorted(_tensor_name(graph, key) for key in feed_dict))
        key = (tuple(element.name for element in elements), fed)
        if key not in self._known:
            self._known[key] = self._make(graph, elements, frozenset(fed))
        known = self._known[key]
        if not known.fetches:
            return _Rewritten(fetches, known.begun)
        return _Rewritten(_map_fetches(graph, fetches, known.fetches), known.begun)

    def _make(self, graph: tf.Graph, elements: list[Any], fed: frozenset[str]) -> _Rewritten:
        operations = _closure(elements, fed)
        begun = [
            operation
            for operation in operations
            if any(name in operation.node_def.attr for name in (feeds.INITIALIZER, feeds.DELETER))
        ]
        initial = _initial_operations(graph)
        placed = _without_moves(
            operations,
            [
                operation
                for operation in operations
                if _is_placed(operation) and operation.name not in initial
            ],
        )
        if not placed:
            return _Rewritten({}, begun)
        return _Rewritten(_launch_placed(graph, operations, placed, elements), begun)


_rewriters: weakref.WeakKeyDictionary[tf.Graph, _Rewriter] = weakref.WeakKeyDictionary()


def _rewriter(graph: tf.Graph) -> _Rewriter:
    if graph not in _rewriters:
        _rewriters[graph] = _Rewriter(graph)
    return _rewriters[graph]


def _is_element(graph: tf.Graph, value: Any) -> bool:
    try:
        graph.as_graph_element(value, allow_tensor=True, allow_operation=True)
    except (TypeError, ValueError, KeyError):
        return False
    return True


def _tensor_name(graph: tf.Graph, key: Any) -> str:
    try:
        return str(graph.as_graph_element(key, allow_operation=False).name)
    except (TypeError, ValueError, KeyError):
        return str(key)


def _map_fetches(graph: tf.Graph, fetches: Any, replaced: dict[str, Any]) -> Any:
    def replace(value: Any) -> Any:
        if not _is_element(graph, value):
            return value
        element = graph.as_graph_element(value, allow_tensor=True, allow_operation=True)
        return replaced.get(element.name, value)

    return tf.nest.map_structure(replace, fetches)


def _closure(elements: Sequence[Any], fed: frozenset[str]) -> list[tf.Operation]:
    """Return the operations that a run executes, in the graph's order."""
    pending = [
        element if isinstance(element, tf.Operation) else element.op
        for element in elements
        if element.name not in fed
    ]
    found: dict[str, tf.Operation] = {}
    while pending:
        operation = pending.pop()
        if operation.name in found:
            continue
        found[operation.name] = operation
        pending.extend(tensor.op for tensor in operation.inputs if tensor.name not in fed)
        pending.extend(operation.control_inputs)
    return sorted(found.values(), key=lambda operation: operation._id_value)  # noqa: SLF001


def _is_placed(operation: tf.Operation) -> bool:
    if operation.type in _UNCOMPILED or launching.HOST in operation.node_def.attr:
        return False
    if markers.kind_of(operation) is not None:
        return True
    return str(tf.DeviceSpec.from_string(operation.device or "").device_type) == "IPU"


def _without_moves(
    operations: Sequence[tf.Operation], placed: Sequence[tf.Operation]
) -> list[tf.Operation]:
    """Return the placed operations without those that only move values of the host.

    Where a variable lies on an IPU, restoring or loading it is an assignment placed there. It is no
    computation, and needs no value of the variable, so the host does it.
    """
    names = {operation.name for operation in placed}
    moves: set[str] = set()
    for operation in placed:
        if operation.type in _MOVES and all(
            tensor.op.name not in names or tensor.op.name in moves for tensor in operation.inputs
        ):
            moves.add(operation.name)
    # Moves whose results are computed with belong to the computation.
    for operation in reversed(operations):
        if operation.name in names and operation.name not in moves:
            moves.difference_update(tensor.op.name for tensor in operation.inputs)
    return [operation for operation in placed if operation.name not in moves]


def _initial_operations(graph: tf.Graph) -> set[str]:
    """Return the names of operations that compute initial values, which the host does."""
    variables = [
        *graph.get_collection(tf.compat.v1.GraphKeys.GLOBAL_VARIABLES),
        *graph.get_collection(tf.compat.v1.GraphKeys.LOCAL_VARIABLES),
    ]
    roots = [variable.initializer for variable in variables if variable.initializer is not None]
    return {operation.name for operation in _closure(roots, frozenset())}


class Region:
    """A part of a graph that is one computation; it is flattened like a FuncGraph."""

    def __init__(
        self,
        graph: tf.Graph,
        operations: Sequence[tf.Operation],
        inputs: Sequence[tf.Tensor],
        outputs: Sequence[tf.Tensor],
    ) -> None:
        self._operations = list(operations)
        self.inputs, self.outputs = list(inputs), list(outputs)
        self.outer_graph = graph

    def get_operations(self) -> list[tf.Operation]:
        """Return the operations, in order."""
        return self._operations

    def _get_function(self, name: str) -> Any:
        return self.outer_graph._get_function(name)  # noqa: SLF001


def _levels(operations: Sequence[tf.Operation], placed: set[str]) -> dict[str, int]:
    """Return the number of each operation's computation: how often a path to it leaves the IPU."""
    levels: dict[str, int] = {}
    for operation in operations:
        level = 0
        for source in (*(tensor.op for tensor in operation.inputs), *operation.control_inputs):
            if source.name not in levels:
                continue
            crossed = source.name in placed and operation.name not in placed
            level = max(level, levels[source.name] + crossed)
        levels[operation.name] = level
    return levels


def _launch_placed(
    graph: tf.Graph,
    operations: list[tf.Operation],
    placed: list[tf.Operation],
    elements: Sequence[Any],
) -> dict[str, Any]:
    """Add launches of computations to a graph, and copies of what depends on them.

    Returns:
        For the name of each fetched tensor or operation what is fetched in its place.
    """
    names = {operation.name for operation in placed}
    levels = _levels(operations, names)
    mapping: dict[str, Any] = {}
    finalized = graph.finalized
    if finalized:
        graph._unsafe_unfinalize()  # noqa: SLF001
    try:
        with graph.as_default(), tf.control_dependencies(None):
            for level in sorted({levels[name] for name in names}):
                region = [operation for operation in placed if levels[operation.name] == level]
                _launch_region(graph, operations, region, elements, mapping)
                _copy_dependents(graph, operations, names, levels, level, mapping)
    finally:
        if finalized:
            graph.finalize()
    return mapping


def _launch_region(
    graph: tf.Graph,
    operations: Sequence[tf.Operation],
    region: Sequence[tf.Operation],
    elements: Sequence[Any],
    mapping: dict[str, Any],
) -> None:
    inside = {operation.name for operation in region}
    constants = _constant_operations(region)
    needed = [*constants, *region]
    inside_all = {operation.name for operation in needed}
    sources = {
        tensor.name: tensor
        for operation in region
        for tensor in operation.inputs
        if tensor.op.name not in inside_all
    }
    fetched = {element.name for element in elements}
    results = {
        tensor.name: tensor
        for operation in operations
        if operation.name not in inside
        for tensor in operation.inputs
        if tensor.op.name in inside
    }
    results.update(
        {
            tensor.name: tensor
            for operation in region
            for tensor in operation.outputs
            if tensor.name in fetched
        }
    )
    part = Region(graph, needed, list(sources.values()), list(results.values()))
    inputs = [_region_input(tensor) for tensor in sources.values()]
    outputs = [name.split(":")[0] for name in results]
    ordinal = int(tf.DeviceSpec.from_string(region[0].device or "").device_index or 0)
    computation = Computation(part, inputs, outputs, ordinal)
    order = [
        mapping.get(f"^{operation.name}")
        for member in region
        for operation in member.control_inputs
        if operation.name not in inside
    ]
    external = [
        operation
        for member in region
        for operation in member.control_inputs
        if operation.name not in inside and f"^{operation.name}" not in mapping
    ]
    dependencies = [entry for entry in order if entry is not None] + external
    with tf.control_dependencies(dependencies):
        arguments = [mapping.get(name, tensor) for name, tensor in sources.items()]
        launched = launching.launch(computation, arguments, [])
    mapping.update(zip(results, launched, strict=False))
    for operation in region:
        mapping[operation.name] = mapping[f"^{operation.name}"] = launched[0].op


def _constant_operations(region: Sequence[tf.Operation]) -> list[tf.Operation]:
    """Return the constants that a region reads."""
    found: dict[str, tf.Operation] = {}
    for operation in region:
        for tensor in operation.inputs:
            if tensor.op.type == "Const":
                found[tensor.op.name] = tensor.op
    return list(found.values())


def _region_input(tensor: tf.Tensor) -> Input:
    key = None
    if tensor.dtype == tf.resource:
        key = launching.variable_key(tensor, tensor, {})
    return Input(tensor.op.name, tensor, key)


def _tensor_after(operation: tf.Operation) -> tf.Tensor:
    """Return a tensor that stands for an operation where only its order matters."""
    if operation.outputs:
        return operation.outputs[0]
    with tf.control_dependencies([operation]):
        return tf.constant(0)


def _find_dependents(
    operations: Sequence[tf.Operation],
    placed: set[str],
    levels: dict[str, int],
    level: int,
    mapping: dict[str, Any],
) -> list[tf.Operation]:
    dependents = []
    changed = {name.split(":")[0].lstrip("^") for name in mapping}
    for operation in operations:
        if operation.name in placed or levels[operation.name] != level + 1:
            continue
        sources = [tensor.op.name for tensor in operation.inputs]
        sources += [source.name for source in operation.control_inputs]
        if any(source in changed for source in sources):
            dependents.append(operation)
            changed.add(operation.name)
    return dependents


def _copy_dependents(
    graph: tf.Graph,
    operations: Sequence[tf.Operation],
    placed: set[str],
    levels: dict[str, int],
    level: int,
    mapping: dict[str, Any],
) -> None:
    """Copy the host's operations that read what was launched, so that they get its results."""
    dependents = _find_dependents(operations, placed, levels, level, mapping)
    if not dependents:
        return
    copied = {operation.name for operation in dependents}
    definition = tf.compat.v1.GraphDef()
    definition.versions.CopyFrom(graph.graph_def_versions)
    inputs: dict[str, Any] = {}
    for operation in dependents:
        node = definition.node.add()
        node.CopyFrom(operation.node_def)
        node.device = operation.device
        node.attr.pop("_class", None)
        for tensor in operation.inputs:
            if tensor.op.name not in copied:
                inputs[tensor.name] = mapping.get(tensor.name, tensor)
        for source in operation.control_inputs:
            if source.name not in copied:
                after = mapping.get(f"^{source.name}", source)
                inputs[f"^{source.name}"] = _tensor_after(after)
    definition.library.CopyFrom(graph.as_graph_def().library)
    wanted = [tensor.name for operation in dependents for tensor in operation.outputs]
    returned = importer.import_graph_def(
        definition, input_map=inputs, return_elements=[*wanted, *sorted(copied)], name="ipu_host"
    )
    copies = dict(zip([*wanted, *sorted(copied)], returned, strict=True))
    mapping.update(copies)
    for name in copied:
        mapping[f"^{name}"] = copies[name]
