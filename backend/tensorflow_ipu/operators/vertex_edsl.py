"""Expressions of vertices: Python functions of placeholders, elementwise on the chip.

An expression computes itself on tensors (`compute`), and says what its C++ would be (`lower`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Any, Final

import tensorflow as tf


class BaseType(IntEnum):
    """Kinds of types."""

    Unknown = 0
    Int16 = 1
    Int32 = 2
    Float16 = 3
    Float32 = 4
    Sequence = 5


class Type:
    """Type of an expression."""

    def __init__(self, type: BaseType) -> None:
        self._type = type

    def getType(self) -> BaseType:
        """Return the kind."""
        return self._type

    def getElementType(self) -> BaseType:
        """Return the kind of an element."""
        return self.getType()


class Unknown(Type):
    """Type that is not known."""

    def __init__(self) -> None:
        super().__init__(BaseType.Unknown)


class Int16(Type):
    """Whole numbers of 16 bits."""

    def __init__(self) -> None:
        super().__init__(BaseType.Int16)


class Int32(Type):
    """Whole numbers of 32 bits."""

    def __init__(self) -> None:
        super().__init__(BaseType.Int32)


class Float16(Type):
    """Floats of 16 bits."""

    def __init__(self) -> None:
        super().__init__(BaseType.Float16)


class Float32(Type):
    """Floats of 32 bits."""

    def __init__(self) -> None:
        super().__init__(BaseType.Float32)


class Sequence(Type):
    """Sequences of elements of one type."""

    def __init__(self, element_type: Type) -> None:
        super().__init__(BaseType.Sequence)
        self._element_type = element_type

    def getElementType(self) -> BaseType:
        """Return the kind of an element."""
        return self._element_type.getElementType()


class DefaultNameSource:
    """Numbers for the names of variables."""

    def __init__(self) -> None:
        self._next = 0

    def GetNextName(self) -> int:
        """Return the next number."""
        self._next += 1
        return self._next - 1


class VertexExpression:
    """Expression; its operators make larger ones."""

    def __init__(self, type: Type | None) -> None:
        self._type = type

    def __abs__(self) -> VertexExpression:
        return UnaryFunctionExpr("std::abs", self)

    def __add__(self, other: Any) -> VertexExpression:
        return BinaryExpr("+", self, other)

    def __sub__(self, other: Any) -> VertexExpression:
        return BinaryExpr("-", self, other)

    def __mul__(self, other: Any) -> VertexExpression:
        return BinaryExpr("*", self, other)

    def __neg__(self) -> VertexExpression:
        return BinaryExpr("-", ConstantVertexExpr(0), self)

    def __invert__(self) -> VertexExpression:
        return self.__neg__()

    def __pos__(self) -> VertexExpression:
        return self

    def getType(self) -> Type | None:
        """Return the type."""
        return self._type

    def lower(self, source: Any) -> str:
        """Return the C++ of the expression.

        Args:
            source: Source of names.

        Returns:
            The text.
        """
        raise NotImplementedError

    def compute(self, values: Mapping[str, Any]) -> Any:
        """Compute the expression.

        Args:
            values: Tensors by the names of placeholders.

        Returns:
            The tensor.
        """
        raise NotImplementedError


class ConstantVertexExpr(VertexExpression):
    """Number."""

    def __init__(self, val: float) -> None:
        if not isinstance(val, (int, float)):
            raise NotImplementedError(f"a constant must be a number, found {val!r}")
        super().__init__(Int32() if isinstance(val, int) else Float32())
        self._val = val

    def __str__(self) -> str:
        return str(self._val)

    def lower(self, source: Any) -> str:
        """Return the number in brackets."""
        del source
        return f"({self._val})"

    def compute(self, values: Mapping[str, Any]) -> Any:
        """Return the number."""
        del values
        return self._val


def constant(value: float) -> ConstantVertexExpr:
    """Return a number as an expression."""
    return ConstantVertexExpr(value)


class PlaceholderVertexExpr(VertexExpression):
    """Input."""

    def __init__(self, name: str, type: Type | None = None) -> None:
        super().__init__(type)
        self._name = name

    def __str__(self) -> str:
        return str(self._name)

    def lower(self, source: Any) -> str:
        """Return the name."""
        del source
        return self._name

    def compute(self, values: Mapping[str, Any]) -> Any:
        """Return the tensor of that name."""
        return values[self._name]


def _wrap(value: Any) -> VertexExpression:
    return value if isinstance(value, VertexExpression) else ConstantVertexExpr(value)


_OPERATORS: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "<": lambda a, b: a < b,
    ">": lambda a, b: a > b,
    "<=": lambda a, b: a <= b,
    ">=": lambda a, b: a >= b,
    "==": tf.equal,
    "!=": tf.not_equal,
}
_FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {
    "std::abs": tf.abs,
    "std::exp": tf.exp,
    "std::log": tf.math.log,
    "std::sqrt": tf.sqrt,
    "std::sin": tf.sin,
    "std::cos": tf.cos,
    "std::tanh": tf.tanh,
    "std::max": tf.maximum,
    "std::min": tf.minimum,
    "std::pow": tf.pow,
}


def _look_up(table: Mapping[str, Callable[..., Any]], name: str) -> Callable[..., Any]:
    if name not in table:
        raise NotImplementedError(
            f"{name!r} is not supported in an expression; supported are {', '.join(table)}"
        )
    return table[name]


class BinaryExpr(VertexExpression):
    """Operator of two expressions."""

    def __init__(self, op: str, lhs: Any, rhs: Any) -> None:
        self._op, self._lhs, self._rhs = op, _wrap(lhs), _wrap(rhs)
        super().__init__(self._lhs.getType())

    def __str__(self) -> str:
        return f"({self._lhs}{self._op}{self._rhs})"

    def lower(self, source: Any) -> str:
        """Return the operator between its operands."""
        return f"({self._lhs.lower(source)}{self._op}{self._rhs.lower(source)})"

    def compute(self, values: Mapping[str, Any]) -> Any:
        """Compute both sides and the operator."""
        operator = _look_up(_OPERATORS, self._op)
        return operator(self._lhs.compute(values), self._rhs.compute(values))


class BinaryFunctionExpr(VertexExpression):
    """Function of two expressions."""

    def __init__(self, op: str, lhs: Any, rhs: Any) -> None:
        self._op, self._lhs, self._rhs = op, _wrap(lhs), _wrap(rhs)
        super().__init__(self._lhs.getType())

    def __str__(self) -> str:
        return f"({self._op}({self._lhs},{self._rhs}))"

    def lower(self, source: Any) -> str:
        """Return the call of the function."""
        return f"({self._op}({self._lhs.lower(source)},{self._rhs.lower(source)}))"

    def compute(self, values: Mapping[str, Any]) -> Any:
        """Compute both arguments and the function."""
        function = _look_up(_FUNCTIONS, self._op)
        return function(self._lhs.compute(values), self._rhs.compute(values))


class UnaryFunctionExpr(VertexExpression):
    """Function of an expression."""

    def __init__(self, op: str, lhs: Any) -> None:
        self._op, self._lhs = op, _wrap(lhs)
        super().__init__(self._lhs.getType())

    def __str__(self) -> str:
        return f"({self._op}({self._lhs}) )"

    def lower(self, source: Any) -> str:
        """Return the call of the function."""
        return f"({self._op}({self._lhs.lower(source)}) )"

    def compute(self, values: Mapping[str, Any]) -> Any:
        """Compute the argument and the function."""
        return _look_up(_FUNCTIONS, self._op)(self._lhs.compute(values))


class LetVertexExpr(VertexExpression):
    """Expression with a name inside another."""

    def __init__(self, expr: Any, f: Callable[[VertexExpression], VertexExpression]) -> None:
        self._expr, self._f = _wrap(expr), f
        super().__init__(f(self._expr).getType())

    def __str__(self) -> str:
        name = f"x{hash(self)}"
        return f"(let {name}={self._expr} in {self._f(PlaceholderVertexExpr(name))})"

    def lower(self, source: Any) -> str:
        """Return a lambda that captures the value."""
        name = f"var{source.GetNextName()}"
        inner = self._f(PlaceholderVertexExpr(name)).lower(source)
        return f"[&, {name}={self._expr.lower(source)}]{{return {inner};}}()"

    def compute(self, values: Mapping[str, Any]) -> Any:
        """Compute the value, and what uses it."""
        name = f"let{len(values)}"
        inner = self._f(PlaceholderVertexExpr(name))
        return inner.compute({**values, name: self._expr.compute(values)})


def let(expr: Any, f: Callable[[VertexExpression], VertexExpression]) -> LetVertexExpr:
    """Return the expression that a function makes of another, which is computed once."""
    return LetVertexExpr(expr, f)


class Conditional(VertexExpression):
    """Choice between two expressions."""

    def __init__(self, pred: Any, a: Any, b: Any) -> None:
        self._pred, self._a, self._b = _wrap(pred), _wrap(a), _wrap(b)
        super().__init__(self._a.getType())

    def __str__(self) -> str:
        return f"(if ({self._pred}) then ({self._a}) else ({self._b}))"

    def lower(self, source: Any) -> str:
        """Return the conditional operator."""
        parts = (self._pred.lower(source), self._a.lower(source), self._b.lower(source))
        return "(({}) ? ({}) : ({}))".format(*parts)

    def compute(self, values: Mapping[str, Any]) -> Any:
        """Compute both and choose."""
        chosen = tf.cast(self._pred.compute(values), tf.bool)
        return tf.where(chosen, self._a.compute(values), self._b.compute(values))


def condition(pred: Any, a: Any, b: Any) -> Conditional:
    """Return the choice of `a` where `pred` is not zero, else of `b`."""
    return Conditional(pred, a, b)
