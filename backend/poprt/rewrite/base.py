"""Base class of passes and their registry. The registry has the name, stage, default and option of
each pass, and its constraints on other passes.

This module does not know what a pass does, nor the order in which passes run (`poprt.pipeline`).
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, ClassVar, TypeVar

import onnx
from onnxgraph import iter_bodies
from simipu import CompileError

from popef._tools.text import did_you_mean

Transform = Callable[[onnx.GraphProto, bool], onnx.GraphProto]


class Stage(IntEnum):
    """Stages of a conversion, in their order. Each stage takes the model that the stage before it
    leaves."""

    ADMISSION = 0
    """Check of the given file: whether it is a model that may be read."""
    INTERFACE = 1
    """Passes on the opset, the inputs, the outputs and their shapes."""
    FOLDING = 2
    """Folding of nodes that do not depend on the inputs, and removal of unneeded computation."""
    PATTERNS = 3
    """Replacement of subgraphs by one operator, or by a cheaper subgraph."""
    BORDERS = 4
    """Types in which the host sends inputs and receives outputs."""
    PRECISION = 5
    """Types in which the chip computes."""
    CHIP = 6
    """Operators that only the chip's own compiler knows: the real tool's
    popart_dependent_process."""
    CUSTOM = 7
    """Passes that the user lists."""
    LAYOUT = 8
    """Changes of the layout of tensors."""
    CHECKS = 9
    """Checks that the chip can run the converted graph."""
    LOWERING = 10
    """Lowering of the converted graph to the placed one."""


@dataclass(frozen=True, slots=True)
class PassInfo:
    """Facts about a pass that are known before it is created."""

    stage: Stage = Stage.CUSTOM
    default: bool = False
    """Flag that the pass runs by default."""
    option: str = ""
    """Option that enables the pass, where it does not run by default."""
    unless: str = ""
    """Option that disables the pass, where it runs by default."""
    values: frozenset[str] = frozenset()
    """Values of `option` that enable the pass; if empty, every non-empty value does."""
    takes: Mapping[str, str] = field(default_factory=dict)
    """Arguments of the pass, each with the option that gives its value."""
    is_ours: bool = False
    """Flag that the real tool has no pass of that name."""
    refusal: str = ""
    """Reason why the pass is unsupported here; "" if it is supported."""
    properties: Mapping[str, Any] = field(default_factory=dict)
    """Properties that users give to their passes, such as `type`."""
    before: frozenset[str] = frozenset()
    """Passes that may run only after this one."""
    depend: frozenset[str] = frozenset()
    """Passes that must have run before this one."""
    against: frozenset[str] = frozenset()
    """Passes that may not run together with this one."""

    def is_on(self, options: Any) -> bool:
        """Return whether `options`, an object with the options as attributes, enables the pass."""
        if self.default:
            return not (self.unless and getattr(options, self.unless))
        if not self.option:
            return False
        value = getattr(options, self.option)
        return value in self.values if self.values else bool(value)


class Pass:
    """Base class of passes: a pass rewrites or checks a model.

    Subclasses define `run`. Their arguments have defaults, except those of lowering passes, which
    are not requested by name. A call returns the resulting model, which may be the given one,
    changed in place. A pass visits the bodies of If, Loop and Scan. It changes nothing where its
    conditions do not hold.

    Example:
        >>> import onnx
        >>> import poprt
        >>> class CountNodes(poprt.Pass):
        ...     def run(self, model):
        ...         print(len(model.graph.node), "nodes")
        ...         return model
        >>> _ = poprt.PassManager([CountNodes()]).run(onnx.load("model.onnx"))
        1 nodes
    """

    name: ClassVar[str] = ""
    info: ClassVar[PassInfo] = PassInfo()
    """Facts about the pass. `register` sets both `name` and `info`."""

    logger = logging.getLogger("poprt")
    """Logger of its warnings; a Converter sets its own."""

    def __init__(self, *_arguments: Any, **_options: Any) -> None:
        """Take any arguments: passes of users hand theirs on."""

    def __call__(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Run the pass and return the resulting model."""
        return self.run(model)

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Run the pass. Subclasses define it."""
        raise NotImplementedError(
            f"pass {type(self).__name__} does not say what it does: define run"
        )

    def traverse_graph(
        self, graph: onnx.GraphProto, transform: Transform, is_main_graph: bool = True
    ) -> onnx.GraphProto:
        """Apply a function to the bodies inside a graph's nodes, then to the graph.

        Args:
            graph: the graph.
            transform: called with each graph and whether it is the main one; returns the new graph.
            is_main_graph: whether `graph` is the model's own.

        Returns:
            The result for `graph`.
        """
        for node in graph.node:
            for body in iter_bodies(node):
                changed = self.traverse_graph(body, transform, False)
                if changed is not body:
                    body.CopyFrom(changed)
        return transform(graph, is_main_graph)

    @staticmethod
    def get_pass(name: str, *arguments: Any, **options: Any) -> Pass:
        """Call `poprt.get_pass`."""
        return get_pass(name, *arguments, **options)

    @staticmethod
    def get_registered_passes() -> dict[str, type[Pass]]:
        """Call `poprt.get_registered_passes`."""
        return get_registered_passes()

    @staticmethod
    def get_typed_registered_passes(kind: Any) -> dict[str, type[Pass]]:
        """Return the passes whose property `type` is `kind`, by name."""
        return get_typed_registered_passes(kind)

    @staticmethod
    def register_pass(name: str) -> Callable[[_P], _P]:
        """Call `poprt.passes.register`."""
        return register(name)

    @staticmethod
    def override_register_pass(name: str) -> Callable[[_P], _P]:
        """Return a decorator that registers a pass under a name that may be registered already."""
        return override_register(name)

    @staticmethod
    def property_register(key: str, value: Any) -> Callable[[_P], _P]:
        """Return a decorator that sets a property of a pass, such as its `type`."""

        def add(made: _P) -> _P:
            info = _own_info(made)
            made.info = replace(info, properties={**info.properties, key: value})
            return made

        return add

    @staticmethod
    def against_passes(names: Iterable[str]) -> Callable[[_P], _P]:
        """Return a decorator that forbids the pass to run together with those passes."""
        return _constrain("against", names)

    @staticmethod
    def constraint_passes(kind: str, names: Iterable[str]) -> Callable[[_P], _P]:
        """Return a decorator that adds a constraint of one kind. `against`: the pass may not run
        together with those passes. `depend`: those passes have to run before it. `before`: those
        passes may run only after it."""
        return _constrain(kind, names)


class ImmutablePass(Pass):
    """Base class of passes that do not change a model: checks and reports."""


_PASSES: dict[str, type[Pass]] = {}
_P = TypeVar("_P", bound=type[Pass])
_KINDS = ("against", "depend", "before")


def get_all_named_subclasses(cls: type[Pass]) -> dict[str, type[Pass]]:
    """Return the registered subclasses of `cls` by name. Every look-up of a pass calls it. Users
    replace this function to have their own passes found."""
    if cls is Pass:
        return dict(_PASSES)
    return {name: pass_type for name, pass_type in _PASSES.items() if issubclass(pass_type, cls)}


def register(name: str, **facts: Any) -> Callable[[_P], _P]:
    """Return a decorator that registers a pass.

    Args:
        name: the name of the pass.
        facts: fields of its `PassInfo`. Sets may be texts of words; `takes` may be a text of
            words, each an option of the argument's name, or argument=option.

    Returns:
        The decorator.

    Raises:
        CompileError: for a name that is registered already.
    """

    def add(made: _P) -> _P:
        if name in _PASSES:
            raise CompileError(
                f"pass {name!r} is registered already, as {_PASSES[name].__name__}; take another "
                "name, or Pass.override_register_pass"
            )
        return override_register(name, **facts)(made)

    return add


def _read_words(given: str | Iterable[str]) -> frozenset[str]:
    return frozenset(given.split() if isinstance(given, str) else given)


def _read_takes(given: str | Mapping[str, str]) -> Mapping[str, str]:
    if not isinstance(given, str):
        return given
    pairs = (word.partition("=") for word in given.split())
    return {argument: option or argument for argument, _, option in pairs}


_READERS: Mapping[str, Callable[[Any], Any]] = {
    "takes": _read_takes,
    **dict.fromkeys(("values", "before", "depend", "against"), _read_words),
}


def override_register(name: str, **facts: Any) -> Callable[[_P], _P]:
    """Return a decorator that registers a pass under a name that may be registered already. The
    pass replaces the registered one, and runs in its stage and under its conditions."""
    read = {key: _READERS[key](value) if key in _READERS else value for key, value in facts.items()}

    def add(made: _P) -> _P:
        made.name, made.info = name, replace(_info_in_place(name, made), **read)
        _PASSES[name] = made
        return made

    return add


def _info_in_place(name: str, made: type[Pass]) -> PassInfo:
    """Return the info of `made` if it replaces the pass registered as `name`. The replaced pass
    tells when it runs; decorators of `made` add to that. The constructor receives only the options
    that it takes."""
    own, replaced = _own_info(made), _PASSES.get(name, made)
    if replaced is made:
        return own
    info = replaced.info
    parameters = inspect.signature(made).parameters
    takes_any = any(
        parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()
    )
    return replace(
        info,
        takes={key: option for key, option in info.takes.items() if takes_any or key in parameters},
        refusal="",
        properties={**info.properties, **own.properties},
        before=info.before | own.before,
        depend=info.depend | own.depend,
        against=info.against | own.against,
    )


def _own_info(made: type[Pass]) -> PassInfo:
    """Return the facts that inner decorators have already set on that class."""
    info: PassInfo = made.__dict__.get("info", PassInfo())
    return info


def _constrain(kind: str, names: Iterable[str]) -> Callable[[_P], _P]:
    if kind not in _KINDS:
        raise CompileError(f"passes have no constraint {kind!r}; they have {', '.join(_KINDS)}")

    def add(made: _P) -> _P:
        info = _own_info(made)
        made.info = replace(info, **{kind: getattr(info, kind) | frozenset(names)})
        return made

    return add


def refuse_pass(name: str, reason: str, **facts: Any) -> None:
    """Register a pass of the real tool that is unsupported here. `reason` says why; `facts` say
    where it would run and which option would enable it."""
    pass_type = type(name, (RefusedPass,), {"__doc__": f"Refused: {reason}."})
    register(name, refusal=reason, **facts)(pass_type)


class RefusedPass(Pass):
    """Pass of the real tool that is unsupported here. It can be created and listed."""

    def run(self, _model: onnx.ModelProto) -> onnx.ModelProto:
        """Raise CompileError with the reason."""
        raise CompileError(f"pass {self.name!r} does not run here: {self.info.refusal}")


def find_pass(name: str) -> type[Pass]:
    """Return the class of a pass. Raise CompileError for a name that is not registered."""
    passes = get_all_named_subclasses(Pass)
    if name not in passes:
        raise CompileError(
            f"pass {name!r} is not registered{did_you_mean(name, passes)}; `poprt "
            "--list_all_passes` prints the known ones"
        )
    pass_type = passes[name]
    if name in _PASSES and pass_type is not _PASSES[name] and "info" not in pass_type.__dict__:
        pass_type.name, pass_type.info = name, _info_in_place(name, pass_type)
    return pass_type


def get_pass(name: str, *arguments: Any, **options: Any) -> Pass:
    """Return a new pass.

    Args:
        name: the registered name.
        arguments: the arguments of the pass.
        options: its keyword arguments.

    Returns:
        The pass.

    Raises:
        CompileError: for a name that is not registered, for arguments that the pass does not take,
            and for missing arguments.

    Example:
        >>> import poprt
        >>> poprt.get_pass("remove_duplicated_initializer").name
        'remove_duplicated_initializer'
    """
    pass_type = find_pass(name)
    signature = inspect.signature(pass_type)
    try:
        signature.bind(*arguments, **options)
    except TypeError as error:
        listed = ", ".join(signature.parameters) or "none"
        step = (
            "; it is a step of the compiler's own" if pass_type.info.stage is Stage.LOWERING else ""
        )
        raise CompileError(f"pass {name!r}: {error}; its arguments are {listed}{step}") from None
    return pass_type(*arguments, **options)


def get_registered_passes() -> dict[str, type[Pass]]:
    """Return all passes by name."""
    return get_all_named_subclasses(Pass)


def get_typed_registered_passes(kind: Any) -> dict[str, type[Pass]]:
    """Return the passes whose property `type` is `kind`, by name."""
    passes = get_registered_passes()
    return {
        name: pass_type
        for name, pass_type in passes.items()
        if pass_type.info.properties.get("type") == kind
    }
