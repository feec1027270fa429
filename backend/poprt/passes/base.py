"""What a pass is, and the registry of them all: name, stage, default, the option that switches it, and what
it has to do with other passes.

Nothing here knows what a pass does, nor the order in which they run (`poprt.pipeline`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
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
    """What does not depend on the inputs."""
    BORDERS = 3
    """The types in which the host sends and gets."""
    PRECISION = 4
    """The types in which the chip computes."""
    CUSTOM = 5
    """Passes of users."""
    CHECKS = 6
    """The converted graph: can the chip run it."""
    LOWERING = 7
    """From the converted graph to the placed one."""


@dataclass(frozen=True, slots=True)
class PassInfo:
    """What is known of a pass before it is made."""

    stage: Stage = Stage.CUSTOM
    default: bool = False
    """Whether it runs without being asked for."""
    option: str = ""
    """The option that switches it on, where it does not run by default."""
    values: frozenset[str] = frozenset()
    """Of that option those that do; none listed: whatever is not empty."""
    takes: Mapping[str, str] = field(default_factory=dict)
    """The arguments of the pass, and the options that give them."""
    is_ours: bool = False
    """Whether the real tool has no pass of that name."""
    before: frozenset[str] = frozenset()
    """Passes that may only come later."""
    depend: frozenset[str] = frozenset()
    """Passes that have to have come."""
    against: frozenset[str] = frozenset()
    """Passes that may not run together with it."""

    def is_on(self, options: Any) -> bool:
        """Whether `options`, which has them as attributes, ask for the pass."""
        if self.default or not self.option:
            return self.default
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


_PASSES: dict[str, type[Pass]] = {}
_P = TypeVar("_P", bound=type[Pass])


def register(name: str, **facts: Any) -> Callable[[_P], _P]:
    """A decorator that registers a pass under `name`, with what `PassInfo` says of passes.

    Raises CompileError for a name that is taken.
    """
    sets = {key: frozenset(value) for key, value in facts.items() if key in _SETS}

    def add(made: _P) -> _P:
        if name in _PASSES:
            raise CompileError(f"pass {name!r} is registered already, as {_PASSES[name].__name__}")
        made.name, made.info = name, PassInfo(**{**facts, **sets})
        _PASSES[name] = made
        return made

    return add


_SETS = ("values", "before", "depend", "against")


def find_pass(name: str) -> type[Pass]:
    """The class of a pass. Raises CompileError for a name that is not registered."""
    if name not in _PASSES:
        raise CompileError(f"pass {name!r} is not registered; known are {', '.join(sorted(_PASSES))}")
    return _PASSES[name]


def get_pass(name: str, *arguments: Any, **options: Any) -> Pass:
    """A pass by its name, made with these arguments. Raises CompileError for a name that is not
    registered."""
    return find_pass(name)(*arguments, **options)


def get_registered_passes() -> dict[str, type[Pass]]:
    """All passes by name."""
    return dict(_PASSES)
