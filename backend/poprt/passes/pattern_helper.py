"""Search for nodes by the graph around them, described by path strings. Callers replace the nodes.

    s:0 -> MatMul:product -> Add:bias -> e:1

is a path along which tensors flow: any maker, a MatMul, an Add that reads it, any reader. The
node's key follows the colon. A key in several paths is the same node in each, so that several paths
describe a graph; different keys are different nodes. `s` and `e` match anything, whatever their
keys."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx
from simipu import CompileError

_ENDS = ("s", "e")


@dataclass(frozen=True, slots=True)
class Found:
    """Node of the graph that matches a key, and its place in the order of the graph."""

    node: onnx.NodeProto
    index: int


class PatternMatcher:
    """Search for one pattern, which may continue while the graph changes between matches."""

    def __init__(self, paths: Sequence[str]) -> None:
        """Parse the paths. Raise CompileError for an invalid path, and for a key with two
        operators."""
        self._operators: dict[str, str] = {}
        self._edges: list[tuple[str, str]] = []
        for path in paths:
            self._add(path)
        self._given: set[tuple[str, ...]] = set()

    def _add(self, path: str) -> None:
        keys = []
        for step in path.split("->"):
            operator, separator, key = step.strip().partition(":")
            if not separator or not operator or not key:
                raise CompileError(
                    f"pattern {path!r}: expected Operator:key between arrows, found {step!r}"
                )
            if operator in _ENDS:
                continue
            if self._operators.setdefault(key, operator) != operator:
                raise CompileError(
                    f"pattern {path!r}: key {key!r} is of {self._operators[key]} and of "
                    f"{operator}; give one of them another key"
                )
            keys.append(key)
        self._edges += itertools.pairwise(keys)

    def next_pattern(self, graph: onnx.GraphProto) -> dict[str, Found] | None:
        """Return the first match, by key, in the order of the graph that was not returned before;
        None if there is none."""
        for match in self._iter_matches(graph):
            outputs = tuple(
                name for node_match in match.values() for name in node_match.node.output
            )
            if outputs not in self._given:
                self._given.add(outputs)
                return match
        return None

    def _iter_matches(self, graph: onnx.GraphProto) -> Iterator[dict[str, Found]]:
        nodes = [Found(node, i) for i, node in enumerate(graph.node)]
        by_operator: dict[str, list[Found]] = {}
        for candidate in nodes:
            by_operator.setdefault(candidate.node.op_type, []).append(candidate)
        makers = {name: candidate for candidate in nodes for name in candidate.node.output if name}
        yield from self._extend({}, by_operator, makers)

    def _extend(
        self,
        found: dict[str, Found],
        by_operator: Mapping[str, list[Found]],
        makers: Mapping[str, Found],
    ) -> Iterator[dict[str, Found]]:
        """Yield all matches that extend the nodes found so far."""
        key = self._next_key(found)
        if key is None:
            yield dict(found)
            return
        users = [user for maker, user in self._edges if maker == key and user in found]
        # Next to a found node there are few candidates: the nodes whose results it reads.
        candidates = (
            [makers[name] for name in dict.fromkeys(found[users[0]].node.input) if name in makers]
            if users
            else by_operator.get(self._operators[key], [])
        )
        indices = {node_match.index for node_match in found.values()}
        for candidate in candidates:
            if candidate.node.op_type != self._operators[key] or candidate.index in indices:
                continue
            found[key] = candidate
            if self._holds(found, key):
                yield from self._extend(found, by_operator, makers)
            del found[key]

    def _next_key(self, found: Mapping[str, Found]) -> str | None:
        """Return a key that is not found yet, if possible one that a found node reads."""
        unmatched = [key for key in reversed(self._operators) if key not in found]
        near = (
            key for key in unmatched if any(m == key and user in found for m, user in self._edges)
        )
        return next(near, unmatched[0] if unmatched else None)

    def _holds(self, found: Mapping[str, Found], key: str) -> bool:
        """Return whether the graph has all edges between `key` and the other found keys."""
        edges = [(m, u) for m, u in self._edges if key in (m, u) and m in found and u in found]
        return all(set(found[m].node.output) & set(found[u].node.input) for m, u in edges)
