"""LSTM, GRU and RNN in half, in plain numpy, step after step: what the recurrent operators of the
computed graph and the kernel are compared with. Only the emulation's rounding and products are
used."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from half_emulation import multiply, to_half

Array = npt.NDArray[Any]
Function = Callable[[Array], Array]
BLOCK = 16


@dataclass(frozen=True, slots=True)
class Network:
    """One direction of a recurrent network: its weights as ONNX has them, without their first axis,
    and its functions, of halves to halves."""

    kind: str
    weights: Mapping[str, Array]
    """The weights that are given, by the names W, R, B, h, c, P of ONNX's inputs."""
    functions: Sequence[Function]
    nan_on_overflow: bool = False
    is_reversed: bool = False
    clip: float = np.inf
    options: frozenset[str] = field(default_factory=frozenset)
    """Names of attributes that are 1: input_forget and linear_before_reset."""

    def run(self, x: Array, lengths: Array | None = None) -> tuple[Array, Array, Array]:
        """Return the states of all steps, the last states, and the last cells."""
        hidden = self.weights["R"].shape[1]
        zeros = np.zeros((x.shape[1], hidden), np.float16)
        h, c = (self.weights.get(name, zeros) for name in "hc")
        states = np.zeros((*x.shape[:2], hidden), np.float16)
        order = range(len(x))
        for step in reversed(order) if self.is_reversed else order:
            new_h, new_c = self._step(x[step], h, c)
            is_there = np.full(len(h), True) if lengths is None else step < lengths
            h = np.where(is_there[:, None], new_h, h)
            c = np.where(is_there[:, None], new_c, c)
            states[step] = np.where(is_there[:, None], new_h, np.float16(0))
        return states, h, c

    def _step(self, x: Array, h: Array, c: Array) -> tuple[Array, Array]:
        if self.kind == "LSTM":
            return self._lstm(x, h, c)
        if "linear_before_reset" in self.options:
            return self._gru_reset_after(x, h), c
        if self.kind == "GRU":
            return self._gru(x, h), c
        return self._apply(0, self._gates(x, h, [0])[0]), c

    def _round(self, value: Array) -> Array:
        return to_half(value, self.nan_on_overflow)

    def _add(self, one: Array, other: Array) -> Array:
        return self._round(one.astype(np.float32) + other.astype(np.float32))

    def _subtract(self, one: Array, other: Array) -> Array:
        return self._round(one.astype(np.float32) - other.astype(np.float32))

    def _times(self, one: Array, other: Array) -> Array:
        return self._round(one.astype(np.float32) * other.astype(np.float32))

    def _apply(self, function: int, gate: Array) -> Array:
        # numpy's extremes keep NaN, as the chip's do.
        bound = np.float16(self.clip)
        return self.functions[function](np.maximum(np.minimum(gate, bound), -bound))

    def _part(self, name: str, gate: int) -> Array:
        hidden = self.weights["R"].shape[1]
        return self.weights[name][gate * hidden : (gate + 1) * hidden]

    def _product(self, left: Array, right: Array) -> Array:
        return multiply(left, right.T, BLOCK, self.nan_on_overflow)

    def _gates(self, x: Array, h: Array, gates: Sequence[int]) -> list[Array]:
        """Return the sums of gates, each of input and state joined."""
        count = len(self.weights["R"]) // self.weights["R"].shape[1]
        joined, found = np.concatenate([x, h], 1), []
        for gate in gates:
            weights = np.concatenate([self._part("W", gate), self._part("R", gate)], 1)
            total = self._product(joined, weights)
            if "B" in self.weights:
                bias = self._add(self._part("B", gate), self._part("B", count + gate))
                total = self._add(total, bias)
            found.append(total)
        return found

    def _lstm(self, x: Array, h: Array, c: Array) -> tuple[Array, Array]:
        gates = self._gates(x, h, range(4))

        def look(gate: int, cells: Array) -> Array:
            if "P" not in self.weights:
                return gates[gate]
            return self._add(gates[gate], self._times(cells, self._part("P", gate)))

        i = self._apply(0, look(0, c))
        forget = self._apply(0, look(2, c))
        if "input_forget" in self.options:
            forget = self._subtract(np.ones_like(i), i)
        new = self._apply(1, gates[3])
        cells = self._add(self._times(forget, c), self._times(i, new))
        o = self._apply(0, look(1, cells))
        return self._times(o, self.functions[2](cells)), cells

    def _gru(self, x: Array, h: Array) -> Array:
        update, reset = (self._apply(0, gate) for gate in self._gates(x, h, [0, 1]))
        (candidate,) = self._gates(x, self._times(reset, h), [2])
        return self._mix(self._apply(1, candidate), update, h)

    def _gru_reset_after(self, x: Array, h: Array) -> Array:
        sides: list[list[Array]] = []
        for value, name, first in ((x, "W", 0), (h, "R", 3)):
            side = [self._product(value, self._part(name, gate)) for gate in range(3)]
            if "B" in self.weights:
                side = [self._add(each, self._part("B", first + i)) for i, each in enumerate(side)]
            sides.append(side)
        update, reset = (self._apply(0, self._add(sides[0][i], sides[1][i])) for i in range(2))
        candidate = self._add(sides[0][2], self._times(reset, sides[1][2]))
        return self._mix(self._apply(1, candidate), update, h)

    def _mix(self, new: Array, update: Array, h: Array) -> Array:
        return self._add(new, self._times(update, self._subtract(h, new)))
