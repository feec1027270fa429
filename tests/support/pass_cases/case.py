"""Facts about one pass for the harness of passes (`tests/poprt/passes/test_every_pass.py`)."""

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
    """One pass: a model that it changes, one that it leaves unchanged, and the properties of both.

    Models have static shapes, named nodes and the outputs' shapes declared. `made` and `gone` are
    the operators that exist only afterwards, and only before (in all graphs together).
    """

    positive: Callable[[], onnx.ModelProto]
    negative: Callable[[], onnx.ModelProto]
    arguments: Mapping[str, Any] | Callable[[onnx.ModelProto], Mapping[str, Any]] = field(
        default_factory=dict
    )
    """Arguments of the pass, which may depend on the model."""
    made: frozenset[str] = frozenset()
    gone: frozenset[str] = frozenset()
    holds: Callable[[onnx.ModelProto], bool] | None = None
    """Property of the model afterwards but not before, for changes that the operators do not
    show."""
    tolerance: float = 0.0
    """Tolerance of answers after the pass, relative to the largest; 0 means bitwise equal."""
    saves: bool = False
    """True if the pass exists to save cycles: the placed graph never costs more than before."""
    main_only: str = ""
    """Reason why it does nothing inside a body; "" if it does the same as outside."""
    changes_borders: str = ""
    """Reason why inputs or outputs change (names, types, number); "" if they do not."""
    asked_otherwise: str = ""
    """Reason why the model gets other inputs afterwards, so that answers cannot be compared."""
    feeds: Callable[[onnx.ModelProto], Feeds] | None = None
    """Inputs of one's own, where made-up ones (normal floats, ids 0 and 1) will not do."""
    invalid: str = ""
    """Reason why the checker rejects the model that it changes; "" if it does not."""
    makes_own: str = ""
    """Reason why the checker rejects its result for a model; "" if it does not."""
    changes_types: bool = False
    """True if the answers have another type, and are compared as floats."""


def make_feeds(model: onnx.ModelProto, seed: int = 0) -> dict[str, npt.NDArray[Any]]:
    """Return random inputs of a static model: normal floats, integers 0 and 1."""
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
