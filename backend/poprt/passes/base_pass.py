"""What a pass is, and the registry of them all: name, stage, default, the option that switches it, and what
it has to do with other passes.

Nothing here knows what a pass does, nor the order in which they run (`poprt.pipeline`).
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

Transform = Callable[[onnx.GraphProto, bool], onnx.GraphProto]


class Stage(IntEnum):
    """The parts of a conversion, in their order: each takes what the one before it leaves."""

    ADMISSION = 0
    """What is given: is it a model that may be looked at."""
    INTERFACE = 1
    """Opset, inputs, outputs and their shapes."""
    FOLDING = 2
    """What does not depend on the inputs, and what need not be computed."""
    PATTERNS = 3
    """Subgraphs that one operator takes the place of, or a cheaper subgraph."""
    BORDERS = 4
    """The types in which the host sends and gets."""
    PRECISION = 5
    """The types in which the chip computes."""
    CHIP = 6
    """Operators that only the chip's own compiler knows: the real tool's popart_dependent_process."""
    CUSTOM = 7
    """Passes that the user lists."""
    LAYOUT = 8
    """Where tensors are laid out anew."""
    CHECKS = 9
    """The converted graph: can the chip run it."""
    LOWERING = 10
    """From the converted graph to the placed one."""


@dataclass(frozen=True, slots=True)
class PassInfo:
    """What is known of a pass before it is made."""

    stage: Stage = Stage.CUSTOM
    default: bool = False
    """Whether it runs without being asked for."""
    option: str = ""
    """The option that switches it on, where it does not run by default."""
    unless: str = ""
    """The option that switches it off, where it runs by default."""
    values: frozenset[str] = frozenset()
    """Of that option those that do; none listed: whatever is not empty."""
    takes: Mapping[str, str] = field(default_factory=dict)
    """The arguments of the pass, and the options that give them."""
    is_ours: bool = False
    """Whether the real tool has no pass of that name."""
    refusal: str = ""
    """Why it does not run here; "": it does."""
    properties: Mapping[str, Any] = field(default_factory=dict)
    """What users say of theirs, such as their type."""
    before: frozenset[str] = frozenset()
    """Passes that may only come later."""
    depend: frozenset[str] = frozenset()
    """Passes that have to have come."""
    against: frozenset[str] = frozenset()
    """Passes that may not run together with it."""

    def is_on(self, options: Any) -> bool:
        """Whether `options`, which has them as attributes, ask for the pass."""
        if self.default:
            return not (self.unless and getattr(options, self.unless))
        if not self.option:
            return False
        value = getattr(options, self.option)
        return value in self.values if self.values else bool(value)


class Pass:
    """One rewriting or check of a model; subclasses say in `run` what they do, and their arguments have
    defaults, but for those of lowering, which nobody asks for by name.

    Called, it gives the model that came of it, which may be the one it was given, changed in place. It visits
    the bodies of If, Loop and Scan, and does nothing where its conditions do not hold.
    """

    name: ClassVar[str] = ""
    info: ClassVar[PassInfo] = PassInfo()
    """Both are given by `register`."""

    def __init__(self, *_arguments: Any, **_options: Any) -> None:
        self.logger = logging.getLogger("poprt")

    def __call__(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """The model after the pass."""
        return self.run(model)

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """What the pass does; for subclasses to define."""
        raise NotImplementedError(f"pass {type(self).__name__} does not say what it does: define run")

    def traverse_graph(
        self, graph: onnx.GraphProto, transform: Transform, is_main_graph: bool = True
    ) -> onnx.GraphProto:
        """What `transform` makes of a graph and, before it, of the bodies inside its nodes."""
        for node in graph.node:
            for body in iter_bodies(node):
                changed = self.traverse_graph(body, transform, False)
                if changed is not body:
                    body.CopyFrom(changed)
        return transform(graph, is_main_graph)

    @staticmethod
    def get_pass(name: str, *arguments: Any, **options: Any) -> Pass:
        """`poprt.get_pass`."""
        return get_pass(name, *arguments, **options)

    @staticmethod
    def get_registered_passes() -> dict[str, type[Pass]]:
        """`poprt.get_registered_passes`."""
        return get_registered_passes()

    @staticmethod
    def get_typed_registered_passes(kind: Any) -> dict[str, type[Pass]]:
        """The passes whose property `type` is `kind`, by name."""
        return get_typed_registered_passes(kind)

    @staticmethod
    def register_pass(name: str) -> Callable[[_P], _P]:
        """`poprt.passes.register`."""
        return register(name)

    @staticmethod
    def override_register_pass(name: str) -> Callable[[_P], _P]:
        """A decorator that registers a pass under a name that may be taken."""
        return override_register(name)

    @staticmethod
    def property_register(key: str, value: Any) -> Callable[[_P], _P]:
        """A decorator that says something of a pass, such as its `type`."""

        def add(made: _P) -> _P:
            info = _own_info(made)
            made.info = replace(info, properties={**info.properties, key: value})
            return made

        return add

    @staticmethod
    def against_passes(names: Iterable[str]) -> Callable[[_P], _P]:
        """A decorator: the pass may not run together with those."""
        return _constrain("against", names)

    @staticmethod
    def constraint_passes(kind: str, names: Iterable[str]) -> Callable[[_P], _P]:
        """A decorator: `against`, as above; `depend`, those have to run before it; `before`, those only after
        it."""
        return _constrain(kind, names)


class ImmutablePass(Pass):
    """A pass that looks at a model and computes nothing else: a check, or a report."""


_PASSES: dict[str, type[Pass]] = {}
_P = TypeVar("_P", bound=type[Pass])
_SETS = ("values", "before", "depend", "against")
_KINDS = ("against", "depend", "before")


def get_all_named_subclasses(cls: type[Pass]) -> dict[str, type[Pass]]:
    """The registered subclasses of `cls` by name: what every pass is found in. Users put a function of their
    own in its place to have passes of theirs found."""
    return {name: found for name, found in _PASSES.items() if issubclass(found, cls)}


def register(name: str, **facts: Any) -> Callable[[_P], _P]:
    """A decorator that registers a pass under `name`, with what `PassInfo` says of passes.

    Raises CompileError for a name that is taken.
    """

    def add(made: _P) -> _P:
        if name in _PASSES:
            raise CompileError(
                f"pass {name!r} is registered already, as {_PASSES[name].__name__}; take another name, or "
                "Pass.override_register_pass"
            )
        return override_register(name, **facts)(made)

    return add


def override_register(name: str, **facts: Any) -> Callable[[_P], _P]:
    """The same for a name that may be taken: the pass takes the place of the one that has it, in the stage
    and under the conditions in which that one runs."""
    sets = {key: frozenset(value) for key, value in facts.items() if key in _SETS}

    def add(made: _P) -> _P:
        made.name, made.info = name, replace(_info_in_place(name, made), **{**facts, **sets})
        _PASSES[name] = made
        return made

    return add


def _info_in_place(name: str, made: type[Pass]) -> PassInfo:
    """Return the info of `made` in the place of the pass registered as `name`: when that one runs, and what
    decorators of `made` say. Its constructor is given those of the options that it takes."""
    own, replaced = _own_info(made), _PASSES.get(name, made)
    if replaced is made:
        return own
    given = replaced.info
    parameters = inspect.signature(made).parameters
    takes_any = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values())
    return replace(
        given,
        takes={key: option for key, option in given.takes.items() if takes_any or key in parameters},
        refusal="",
        properties={**given.properties, **own.properties},
        before=given.before | own.before,
        depend=given.depend | own.depend,
        against=given.against | own.against,
    )


def _own_info(made: type[Pass]) -> PassInfo:
    """What decorators below have said of that class already."""
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
    """Register a pass of the real tool that does not run here, with the reason, and where and by which option
    it would."""
    made = type(name, (RefusedPass,), {"__doc__": f"Refused: {reason}."})
    register(name, refusal=reason, **facts)(made)


class RefusedPass(Pass):
    """A pass of the real tool that does not run here; it can be made and listed."""

    def run(self, _model: onnx.ModelProto) -> onnx.ModelProto:
        """Raises CompileError with the reason."""
        raise CompileError(f"pass {self.name!r} does not run here: {self.info.refusal}")


def find_pass(name: str) -> type[Pass]:
    """The class of a pass. Raises CompileError for a name that is not registered."""
    known = get_all_named_subclasses(Pass)
    if name not in known:
        raise CompileError(f"pass {name!r} is not registered; known are {', '.join(sorted(known))}")
    found = known[name]
    if name in _PASSES and found is not _PASSES[name] and "info" not in found.__dict__:
        found.name, found.info = name, _info_in_place(name, found)
    return found


def get_pass(name: str, *arguments: Any, **options: Any) -> Pass:
    """A pass by its name, made with these arguments. Raises CompileError for a name that is not registered,
    and for arguments that the pass does not take, or needs and was not given."""
    found = find_pass(name)
    signature = inspect.signature(found)
    try:
        signature.bind(*arguments, **options)
    except TypeError as error:
        listed = ", ".join(signature.parameters) or "none"
        step = "; it is a step of the compiler's own" if found.info.stage is Stage.LOWERING else ""
        raise CompileError(f"pass {name!r}: {error}; its arguments are {listed}{step}") from None
    return found(*arguments, **options)


def get_registered_passes() -> dict[str, type[Pass]]:
    """All passes by name."""
    return get_all_named_subclasses(Pass)


def get_typed_registered_passes(kind: Any) -> dict[str, type[Pass]]:
    """The passes whose property `type` is `kind`, by name."""
    found = get_registered_passes()
    return {name: each for name, each in found.items() if each.info.properties.get("type") == kind}
