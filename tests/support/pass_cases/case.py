"""What the harness for passes (`tests/poprt/test_every_pass.py`) needs to know of one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

Feeds = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Case:
    """One pass: a model that it changes, one that it leaves alone, and what holds of both.

    Models have static shapes, named nodes and the outputs' shapes declared. `made` and `gone` are the
    operators that are there afterwards only, and no longer (in all graphs together).
    """

    positive: Callable[[], onnx.ModelProto]
    negative: Callable[[], onnx.ModelProto]
    arguments: Mapping[str, Any] | Callable[[onnx.ModelProto], Mapping[str, Any]] = field(
        default_factory=dict
    )
    """What the pass is made with, which may depend on the model."""
    made: frozenset[str] = frozenset()
    gone: frozenset[str] = frozenset()
    holds: Callable[[onnx.ModelProto], bool] | None = None
    """What is so of the model afterwards, and was not before, where operators do not show it."""
    tolerance: float = 0.0
    """Of answers after it, relative to the largest; 0: equal to the bit."""
    saves: bool = False
    """Whether it exists to save cycles: the placed graph never costs more than before."""
    main_only: str = ""
    """Why it does nothing inside a body; "": it does there what it does outside."""
    changes_borders: str = ""
    """Why the inputs or outputs are others afterwards (names, types, number); "": they are the same."""
    asked_otherwise: str = ""
    """Why the model is fed something else afterwards, so that answers cannot be compared."""
    feeds: Callable[[onnx.ModelProto], Feeds] | None = None
    """Inputs of one's own, where made-up ones (normal floats, ids 0 and 1) will not do."""
    invalid: str = ""
    """Why the checker refuses the model that it changes; "": it does not."""
    makes_own: str = ""
    """Why the checker refuses what it makes of a model; "": it does not."""
    changes_types: bool = False
    """Whether the answers are of another type, and compared as floats."""


def make_feeds(model: onnx.ModelProto, seed: int = 0) -> dict[str, npt.NDArray[Any]]:
    """Made-up inputs of a static model: normal floats, integers 0 and 1."""
    rng = np.random.default_rng(seed)
    weights = {tensor.name for tensor in model.graph.initializer}
    fed = {}
    for value in model.graph.input:
        if value.name not in weights:
            tensor = value.type.tensor_type
            shape = [dim.dim_value for dim in tensor.shape.dim]
            dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
            drawn = rng.normal(size=shape) if dtype.kind == "f" else rng.integers(0, 2, shape)
            fed[value.name] = np.asarray(drawn).astype(dtype)
    return fed
