"""PopTorch's operators: functions for a forward function, which also run on the CPU.

Hints about memory, overlap and recomputation change no result: they check their arguments and
return their tensors. Control flow is in `control`, custom operators are in `custom_ops`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from poptorch.enums import MatMulSerializationMode
from poptorch.errors import Error
from poptorch.operators import scopes
from poptorch.operators.popart_nodes import HINTS
from poptorch.operators.tracing import Print, current_trace, isRunningOnIpu, leave_node

_FLOAT_FORMATS = {"auto": 0, "fixed": 1, "scientific": 2, "none": 3}
"""PrintTensor's numbers of the formats."""
_MIN_BOUNDS = 2
"""Least number of bounds of the examples of `fps`."""


def _require_tensor(value: Any, text: str) -> None:
    """Raise Error with a text and the value's type if it is no tensor."""
    if not isinstance(value, torch.Tensor):
        raise Error(f"{text} {type(value)} is not supported.")


def nop(tensor: Any) -> Any:
    """Return the tensor.

    Args:
        tensor: A tensor.

    Raises:
        Error: If it is no tensor.
    """
    _require_tensor(tensor, "nop must take a torch.tensor argument.")
    return tensor.clone() if isRunningOnIpu() else tensor


def recomputationCheckpoint(*tensors: Any) -> Any:
    """Return the tensors, which training would not compute a second time.

    Args:
        *tensors: Tensors.

    Returns:
        The tensor, or a tuple of them; for one tuple or list of tensors, one of that type.

    Raises:
        ValueError: If one is no tensor.
    """
    if len(tensors) == 1 and isinstance(tensors[0], (tuple, list)):
        return type(tensors[0])(recomputationCheckpoint(item) for item in tensors[0])
    if not all(isinstance(tensor, torch.Tensor) for tensor in tensors):
        raise ValueError("All inputs must be tensors")
    return tensors[0] if len(tensors) == 1 else tensors


def set_available_memory(tensor: Any, available_memory_proportion: float) -> Any:
    """Return the tensor. The proportion of tile memory for its operator is a hint.

    Args:
        tensor: Result of an operator.
        available_memory_proportion: A number between 0 and 1.

    Raises:
        Error: If the first argument is no tensor.
    """
    _require_tensor(tensor, "You may only set available memory for torch.tensor values.")
    if not isRunningOnIpu():
        return tensor
    proportion = {"availableMemoryProportion": float(available_memory_proportion)}
    return leave_node(HINTS, "set_available_memory", [tensor], [tensor], proportion)[0]


def identity_loss(x: Any, reduction: str) -> Any:
    """Return a loss that the model has computed itself, reduced.

    Args:
        x: The loss of each element.
        reduction: "sum", "mean" or "none".

    Raises:
        AssertionError: If the reduction is another.
    """
    if reduction not in ("sum", "mean", "none"):
        raise AssertionError(
            f"Unsupported reduction type! Expected 'sum', 'mean' or 'none', found {reduction!r}"
        )
    if reduction == "none":
        return x.clone() if isRunningOnIpu() else x
    return x.sum() if reduction == "sum" else x.mean()


def serializedMatMul(
    lhs: Any,
    rhs: Any,
    mode: MatMulSerializationMode,
    factor: int = 0,
    keep_precision: bool = False,
) -> Any:
    """Return a matrix product. Its serialization is a hint.

    Args:
        lhs: Left matrix or matrices.
        rhs: Right matrix or matrices.
        mode: Dimension that is serialized.
        factor: Number of parts.
        keep_precision: Whether sums over the parts of half tensors are float.

    Raises:
        AssertionError: If the mode is no MatMulSerializationMode, the factor no integer or
            keep_precision no truth value, or if the factor does not divide the dimension.
    """
    assert isinstance(keep_precision, bool), f"keep_precision: found {keep_precision!r}"
    assert isinstance(factor, int), f"factor: expected an integer, found {factor!r}"
    assert isinstance(mode, MatMulSerializationMode), f"unknown serialization mode {mode!r}"
    if mode is not MatMulSerializationMode.Disabled:
        assert factor > 0, f"factor: expected a positive number, found {factor}"
        size = {
            MatMulSerializationMode.InputChannels: lhs.shape[-2],
            MatMulSerializationMode.ReducingDim: rhs.shape[-2],
            MatMulSerializationMode.OutputChannels: rhs.shape[-1],
        }[mode]
        assert size % factor == 0, f"the dimension ({size}) must be a multiple of {factor}"
    return torch.matmul(lhs, rhs)


def dynamic_slice(tensor: Any, dim: int, start: Any, size: int, step: int) -> Any:
    """Return a window of a tensor whose start is known at run time.

    A window that passes the end goes on at the beginning.

    Args:
        tensor: The tensor.
        dim: Dimension of the window.
        start: Tensor of one element.
        size: Size of the window, before steps.
        step: Distance of the elements that are taken.

    Raises:
        Error: If an argument has another type, the size or the step is not positive, or, on the
            IPU, the size is no factor of the dimension.
    """
    _require_tensor(tensor, "dynamic_slice must take a torch.tensor input.")
    _check_window_types("dynamic_slice", start, dim=dim, size=size, step=step)
    _check_window(size)
    if step < 1:
        raise Error("Slicing step must be at least 1")
    length = tensor.shape[dim]
    if isRunningOnIpu() and length % size:
        raise Error(
            f"The size of the slice ({size}) must be a factor of the slicing dimension ({length})."
        )
    return torch.index_select(tensor, dim, _window(tensor, start, size, length, step))


def dynamic_update(input: Any, src: Any, dim: int, start: Any, size: int) -> Any:
    """Return a tensor with another one in a window of it, whose start is known at run time.

    Args:
        input: The tensor.
        src: The other tensor.
        dim: Dimension of the window.
        start: Tensor of one element.
        size: Size of the window.

    Raises:
        Error: If an argument has another type, the tensors do not fit each other, or the size is
            not positive.
    """
    _require_tensor(input, "dynamic_update must take a torch.tensor input.")
    _check_window_types("dynamic_update", start, dim=dim, size=size)
    _require_tensor(src, "Src argument to dynamic_update must be a torch.tensor.")
    if input.dtype != src.dtype:
        types = [_narrow(tensor.dtype) for tensor in (input, src)]
        raise Error(f"input and src tensor must have same dtype. ({types[0]} vs {types[1]})")
    if input.dim() != src.dim():
        raise Error(
            f"input and src tensors must have same dimensionality. ({input.dim()}) vs ({src.dim()})"
        )
    _check_window(size)
    places = _window(input, start, size, input.shape[dim], 1)
    return torch.index_copy(input, dim, places, src)


def _check_window_types(operator: str, start: Any, **numbers: Any) -> None:
    for name, value in numbers.items():
        if not isinstance(value, int):
            full = "Dimension" if name == "dim" else name.capitalize()
            raise Error(f"{full} must be an integer. {operator}: found {value!r}")
    _require_tensor(start, f"Slice start argument to {operator} must be a torch.tensor.")


def _narrow(dtype: Any) -> Any:
    """Return the type on the IPU."""
    return {torch.int64: torch.int32, torch.float64: torch.float32}.get(dtype, dtype)


def _check_window(size: int) -> None:
    if size == 0:
        raise Error("The start and end of a slice must be different.")
    if size < 0:
        raise Error("Taking a slice of a tensor with the end less than the start is not supported.")


def _window(tensor: Any, start: Any, size: int, length: int, step: int) -> Any:
    """Return the indices of a window."""
    offsets = torch.arange(0, size, step, device=tensor.device)
    if isinstance(start, torch.Tensor):
        start = start.reshape(()).to(torch.int64)
    return (offsets + start) % length


def ipu_print_tensor(
    tensor: Any,
    title: str = "",
    print_gradient: bool = True,  # noqa: ARG001
    summarise_threshold: int = 1000,
    edge_items: int = 3,
    max_line_width: int = 80,
    digits: int = 4,
    float_format: str = "auto",
    separator: str = ", ",
    open_bracket: str = "(",
    close_bracket: str = ")",
) -> Any:
    """Return the tensor, and print it each time the model runs on the IPU.

    Args:
        tensor: The tensor.
        title: Text in front of the value.
        print_gradient: Accepted; there is no training.
        summarise_threshold: Number of elements from which only the edges are printed; 0: never.
        edge_items: Number of elements at each edge.
        max_line_width: Number of characters of a line; 0: no limit.
        digits: Number of significant digits.
        float_format: "auto", "fixed", "scientific" or "none".
        separator: Character between elements.
        open_bracket: Character that opens a dimension.
        close_bracket: Character that closes a dimension.

    Raises:
        ValueError: If the format is unknown.
        Error: If the first argument is no tensor.
    """
    _require_tensor(tensor, "ipu print tensor must take a torch.tensor argument.")
    if float_format not in _FLOAT_FORMATS:
        raise ValueError(
            f"Unknown float_format {float_format!r}: expected one of {', '.join(_FLOAT_FORMATS)}"
        )
    trace = current_trace()
    if trace is None:
        return tensor
    form = {
        "summariseThreshold": summarise_threshold,
        "edgeItems": edge_items,
        "maxLineWidth": max_line_width,
        "digits": digits,
        "floatFormat": _FLOAT_FORMATS[float_format],
        "separator": ord(separator[:1] or " "),
        "openBracket": ord(open_bracket[:1] or "("),
        "closeBracket": ord(close_bracket[:1] or ")"),
    }
    printed = tensor.clone()
    trace.prints.append((printed, Print(title or f"print_tensor_{len(trace.prints)}", form)))
    return tensor


class CPU:
    """A function of tensors that the real module calls on the host.

    While forward is captured, the function is captured with it, so it must consist of functions of
    torch: files and servers have no Python to call. Its results are those of the host.

    Args:
        layer_to_call: The function or module.
        ID: Name of the operator.
    """

    def __init__(self, layer_to_call: Callable[..., Any], ID: str) -> None:
        self._layer, self._id = layer_to_call, ID

    def __call__(self, *input: Any, **keywords: Any) -> Any:
        """Call the function.

        Raises:
            Error: If the function needs the values of tensors while it is captured.
        """
        if not isRunningOnIpu():
            return self._layer(*input, **keywords)
        try:
            return self._layer(*input, **keywords)
        except Exception as error:
            raise Error(
                f"poptorch.CPU {self._id!r}: its function is captured with the model, and a file "
                "that compileAndExport writes has no Python to call. So it must consist of "
                "functions of torch, without numpy or branches on values of tensors. "
                f"It raised {type(error).__name__}: {error}"
            ) from error


class NameScope:
    """Context whose name is part of its operators' names; results do not change.

    Args:
        name: The name.
    """

    def __init__(self, name: str) -> None:
        assert isinstance(name, str), f"Parameter to NameScope must be a string, found {name!r}"
        self.name = name

    def __enter__(self) -> NameScope:
        scopes.push(self.name)
        return self

    def __exit__(self, *_: object) -> None:
        scopes.pop()


class Attribute:
    """Context that gives its operators attributes; results do not change.

    Args:
        **attributes: Only `__outline`, a dict of strings to strings.

    Raises:
        ValueError: If an attribute is another.
    """

    def __init__(self, **attributes: Mapping[str, str]) -> None:
        unknown = [attribute for attribute in attributes if attribute.split("__")[-1] != "outline"]
        if unknown or not attributes:
            raise ValueError(f"expected the attribute __outline, found {unknown}")
        self.attributes = attributes

    def __enter__(self) -> Attribute:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def ctc_beam_search_decoder(
    probs: Any, lengths: Any, blank: int = 0, beam_width: int = 100, top_paths: int = 1
) -> list[Any]:
    """Return the likeliest label sequences of connectionist temporal classification.

    Args:
        probs: Logarithms of probabilities, [steps, batch, classes].
        lengths: Number of steps of each sequence, [batch].
        blank: Class of the blank.
        beam_width: Number of beams.
        top_paths: Number of sequences to return.

    Returns:
        Logarithms of the sequences' probabilities [batch, paths], their lengths [batch, paths],
        and their labels [batch, paths, steps].

    Raises:
        Error: If the first two arguments are no tensors.
    """
    for name, value in (("probs", probs), ("lengths", lengths)):
        _require_tensor(value, f"ctc_beam_search_decoder: {name} must be a torch.tensor argument.")
    from poptorch.operators.custom_ops import call_popart

    steps, batch, _ = probs.shape
    counts = torch.zeros(batch, top_paths, dtype=torch.int32)
    examples = [
        torch.zeros(batch, top_paths, dtype=probs.dtype),
        counts,
        torch.zeros(batch, top_paths, steps, dtype=torch.int32),
    ]
    return call_popart(
        [probs, lengths.to(torch.int32)],
        "CtcBeamSearchDecoder",
        examples,
        {"blank": blank, "beam_width": beam_width, "top_paths": top_paths},
    )


def fps(src: Any, ptr: Sequence[int], ratio: float = 0.5, random_start: bool = False) -> Any:
    """Return the indices of points that farthest point sampling picks.

    Each next point is the one that is farthest from all points picked so far.

    Args:
        src: Points, [points, features].
        ptr: First index of each example's points, and the number of points.
        ratio: Proportion of the points that is picked; rounded up.
        random_start: Whether the first point is random instead of the example's first.

    Raises:
        Error: If an argument has another type, or `ptr` has less than two elements.
    """
    _require_tensor(src, "`fps` must take a torch.tensor input.")
    if not isinstance(ptr, list):
        raise Error(f"`ptr` must be a list of integers. {type(ptr)} is not supported.")
    if len(ptr) < _MIN_BOUNDS:
        raise Error("`ptr` must containt at least 2 elements.")  # PopTorch spells it so
    if not isinstance(ratio, float):
        raise Error(f"`ratio` must be of float type. {type(ratio)} is not supported.")
    if not isinstance(random_start, bool):
        raise Error(f"`random_start` must be of bool type. {type(random_start)} is not supported.")
    picked = []
    for first, end in itertools.pairwise(ptr):
        points = src[first:end]
        count = int(np.ceil(ratio * (end - first)))
        start = torch.randint(0, end - first, (1,)) if random_start else torch.zeros(1).long()
        places = [start]
        distances = torch.sum((points - points[start]) ** 2, dim=-1)
        for _ in range(count - 1):
            place = torch.argmax(distances).reshape(1)
            places.append(place)
            distances = torch.minimum(distances, torch.sum((points - points[place]) ** 2, dim=-1))
        picked += [place + first for place in places]
    return torch.cat(picked)


def nearest(x: Any, y: Any, batch_x: Any = None, batch_y: Any = None) -> Any:
    """Return the index of the point of `y` that is nearest to each point of `x`.

    Args:
        x: Points, [points, features].
        y: Points, [points, features].
        batch_x: Example of each point of `x`, ascending; a tensor, a list or None for one example.
        batch_y: Example of each point of `y`.

    Raises:
        Error: If an argument has another type, or only one of the batches is given.
    """
    _require_tensor(x, "`nearest` must take a torch.tensor `x` input.")
    _require_tensor(y, "`nearest` must take a torch.tensor `y` input.")
    batches = [
        None if numbers is None or (isinstance(numbers, list) and not numbers) else numbers
        for numbers in (batch_x, batch_y)
    ]
    kinds = (torch.Tensor, list, type(None))
    if not all(isinstance(batch, kinds) for batch in batches):
        raise Error(
            "`batch_x` and `batch_y` must be torch.Tensors or lists while `batch_x` is of type "
            f"{type(batch_x)} and `batch_y` is of type {type(batch_y)}."
        )
    batch_x, batch_y = batches
    if (batch_x is None) != (batch_y is None):
        raise Error("nearest: batch_x and batch_y must be given together")
    x, y = (numbers.reshape(-1, 1) if numbers.dim() == 1 else numbers for numbers in (x, y))
    difference = x.unsqueeze(1) - y.unsqueeze(0)
    distances = (difference * difference).sum(-1)
    if batch_x is not None:
        left, right = (torch.as_tensor(numbers) for numbers in (batch_x, batch_y))
        is_same = left.reshape(-1, 1) == right.reshape(1, -1)
        distances = torch.where(is_same, distances, torch.full_like(distances, 3e38))
    return torch.argmin(distances, dim=-1)
