"""A case of a method: its inputs, how it is called, and what a witness says of its results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import popart
from onnx.reference import ReferenceEvaluator

Array = npt.NDArray[Any]
Build = Callable[[popart.Builder, list[str]], Any]
Expect = Callable[..., Any]
VERSIONS = range(6, 12)
"""Opsets of the standard that a builder offers."""


@dataclass(frozen=True, slots=True)
class Case:
    """A call of a method."""

    method: str
    """Name, as `aiOnnx.add`."""
    label: str
    """What is special about it."""
    inputs: tuple[Array, ...]
    build: Build
    expect: Expect | None = None
    """Function from the inputs to the results, in double; None: the model itself, by ONNX Runtime
    without its optimizers, or where it lacks the operator by ONNX's evaluator."""
    opset: int = 11
    rtol: float = 1e-5


def call(domain: str, name: str, *args: Any, **kwargs: Any) -> Build:
    """Return a function that calls a method on all inputs."""
    return lambda builder, names: getattr(getattr(builder, domain), name)(names, *args, **kwargs)


def standard(
    name: str,
    label: str,
    inputs: Sequence[Array],
    *args: Any,
    expect: Expect | None = None,
    opset: int = 11,
    rtol: float = 1e-5,
    **kwargs: Any,
) -> Case:
    """Return a case of a method of `aiOnnx`."""
    domain = f"aiOnnxOpset{opset}"
    build = call(domain, name, *args, **kwargs)
    return Case(f"aiOnnx.{name}", label, tuple(inputs), build, expect, opset, rtol)


def own(
    name: str,
    label: str,
    inputs: Sequence[Array],
    expect: Expect,
    *args: Any,
    rtol: float = 1e-5,
    **kwargs: Any,
) -> Case:
    """Return a case of a method of `aiGraphcore`."""
    build = call("aiGraphcore", name, *args, **kwargs)
    if name == "reshape":  # it takes a name, not a list
        build = lambda builder, names: builder.aiGraphcore.reshape(names[0], *args, **kwargs)
    return Case(f"aiGraphcore.{name}", label, tuple(inputs), build, expect, 11, rtol)


def build_model(case: Case, inputs: Sequence[Array]) -> tuple[onnx.ModelProto, bytes, list[str]]:
    """Return the model of a case, its bytes, and the names of its results."""
    builder = popart.Builder(opsets={"ai.onnx": case.opset, "ai.graphcore": 1})
    names = [
        builder.addInputTensor(popart.TensorInfo(each), f"x{place}")
        for place, each in enumerate(inputs)
    ]
    made = case.build(builder, names)
    results = [made] if isinstance(made, str) else [name for name in made or () if name]
    data = builder.getModelProto()
    model = onnx.load_from_string(data)
    for name in results:
        model.graph.output.add(name=name)
    return model, data, results


def ask_witness(case: Case) -> list[Array]:
    """Return what a witness says of a case's results. Halves are computed in float."""
    if case.expect is not None:
        with np.errstate(all="ignore"):
            found = case.expect(*case.inputs)
        return [np.asarray(each) for each in (found if isinstance(found, tuple) else (found,))]
    inputs = [x.astype(np.float32) if x.dtype == np.float16 else x for x in case.inputs]
    model, _, names = build_model(case, inputs)
    feeds = {f"x{place}": each for place, each in enumerate(inputs)}
    try:
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        read = {each.name for each in session.get_inputs()}
        return list(session.run(names, {k: v for k, v in feeds.items() if k in read}))
    except Exception:  # noqa: BLE001  each witness has errors of its own
        with np.errstate(all="ignore"):
            return list(ReferenceEvaluator(model).run(names, feeds))


def compute(case: Case) -> list[Array]:
    """Return popart's results of a case."""
    _, data, names = build_model(case, case.inputs)
    device = popart.DeviceManager().createCpuDevice()
    session = popart.InferenceSession(data, popart.DataFlow(1, names), device)
    session.prepareDevice()
    arrays = session.initAnchorArrays()
    feeds = {
        f"x{place}": np.ascontiguousarray(each).reshape(each.shape)
        for place, each in enumerate(case.inputs)
        if session.hasInfo(f"x{place}")
    }
    session.run(popart.PyStepIO(feeds, arrays))
    return [arrays[name] for name in names]


def tell_difference(case: Case, found: Sequence[Array], expected: Sequence[Array]) -> str:
    """Return how popart's results differ from those of a witness; "" if they agree."""
    if len(found) != len(expected):
        return f"{len(found)} results, expected {len(expected)}"
    for place, (mine, theirs) in enumerate(zip(found, expected, strict=True)):
        if mine.shape != theirs.shape:
            return f"result {place} has shape {mine.shape}, expected {theirs.shape}"
        is_half = np.float16 in {mine.dtype.type, *(each.dtype.type for each in case.inputs)}
        rtol = 4e-3 if is_half else case.rtol
        with np.errstate(all="ignore"):
            if mine.dtype.kind in "iu" and theirs.dtype.kind in "iub":
                wanted = theirs.astype(np.int64).astype(
                    np.int32 if mine.dtype.itemsize > 4 else mine.dtype
                )
                equal = np.array_equal(mine.astype(wanted.dtype), wanted)
            elif mine.dtype.kind in "iu" and mine.dtype.itemsize > 1:
                bits = 8 * min(4, mine.dtype.itemsize)
                low = -(2 ** (bits - 1)) if mine.dtype.kind == "i" else 0
                wanted = (np.nan_to_num(theirs.astype(np.float64)) - low) % 2**bits + low
                equal = np.array_equal(mine, np.trunc(wanted))
            else:
                wanted = theirs.astype(mine.dtype if mine.dtype.kind == "f" else np.float64)
                if is_half:  # what is too large is the largest half, on the chip
                    largest = float(np.finfo(np.float16).max)
                    mine, wanted = (
                        np.clip(x.astype(np.float64), -largest, largest) for x in (mine, wanted)
                    )
                equal = np.allclose(mine, wanted, rtol, rtol / 10, equal_nan=True)
        if not equal:
            return f"result {place}: {_show(mine, wanted, rtol)}"
    return ""


def _show(mine: Array, wanted: Array, rtol: float) -> str:
    """Return the first places where two arrays differ, with both values."""
    differ = ~np.isclose(
        mine.astype(np.float64), wanted.astype(np.float64), rtol, rtol / 10, equal_nan=True
    )
    places = [tuple(map(int, each)) for each in np.argwhere(differ)[:4]]
    return f"{int(differ.sum())} of {mine.size} differ, " + ", ".join(
        f"{place} is {mine[place]}, expected {wanted[place]}" for place in places
    )


def iter_runs(cases: Sequence[Case]) -> Iterator[tuple[Case, str, str]]:
    """Run cases; yield each with its outcome (right, refused, wrong, escaped, no witness) and a
    text."""
    for case in cases:
        try:
            found = compute(case)
        except (popart.popart_exception, popart.poplar_exception) as error:
            yield case, "refused", str(error)
            continue
        except Exception as error:  # noqa: BLE001  what escapes is what is looked for
            yield case, "escaped", f"{type(error).__name__}: {error}"
            continue
        try:
            expected = ask_witness(case)
        except Exception as error:  # noqa: BLE001
            yield case, "no witness", f"{type(error).__name__}: {error}"
            continue
        difference = tell_difference(case, found, expected)
        yield case, "wrong" if difference else "right", difference
