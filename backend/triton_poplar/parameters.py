"""The config.pbtxt parameters of the backend: one table from which parsing, errors and the README's table come."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from triton_poplar.errors import ModelConfigError

_log = logging.getLogger("triton_poplar")


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter: `parse` turns its string_value into a value or raises ValueError saying what it expects."""

    name: str
    default: Any
    parse: Callable[[str], Any]
    help: str


@dataclass(frozen=True, slots=True)
class Parameters:
    """The values of a model's parameters."""

    executable_path: str
    weights_path: str
    name_map_file_path: str
    check_package_hash: bool
    synchronous_execution: bool
    timeout_ns: int
    sim_threads: int


def parse_flag(text: str) -> bool:
    """0, 1, true or false in any case."""
    flags = {"0": False, "1": True, "false": False, "true": True}
    try:
        return flags[text.strip().lower()]
    except KeyError:
        raise ValueError("0, 1, true or false") from None


def parse_count(text: str) -> int:
    """A whole number of at least 0."""
    if not text.strip().isdecimal():
        raise ValueError("a whole number of at least 0")
    return int(text)


def parse_path(text: str) -> str:
    """A path, not empty."""
    if not text.strip():
        raise ValueError("a path")
    return text


PARAMETERS = (
    Parameter(
        "executable_path", "", parse_path, "PopEF file of the executable; not set: `executable.popef` in the model's folder"
    ),
    Parameter("weights_path", "", parse_path, "PopEF file of the weights; not set: `weights.popef`, if there is one"),
    Parameter("name_map_file_path", "", parse_path, "JSON file of friendly names; not set: `name_map.json`, if there is one"),
    Parameter("check_package_hash", True, parse_flag, "refuse an executable that another generation of this software compiled"),
    Parameter(
        "synchronous_execution",
        False,
        parse_flag,
        "block until all requests of a call are answered; this version always does",
    ),
    Parameter(
        "timeout_ns",
        10_000_000,
        parse_count,
        "nanoseconds before an incomplete batch is flushed; while execution blocks no further row can join, so it is "
        "flushed at once",
    ),
    Parameter("sim_threads", 0, parse_count, "CPU threads per instance; 0: the machine's cores shared out among the instances"),
)


def parse_parameters(config: Mapping[str, Any]) -> Parameters:
    """The parameters of a model configuration (Triton's JSON form).

    Raises ModelConfigError for a bad value; an unknown name is a warning with the nearest known one.
    """
    given = {name: value.get("string_value", "") for name, value in config.get("parameters", {}).items()}
    values = {}
    for parameter in PARAMETERS:
        text = given.pop(parameter.name, None)
        try:
            values[parameter.name] = parameter.default if text is None else parameter.parse(text)
        except ValueError as expected:
            raise ModelConfigError(
                f"parameter {parameter.name} of model {config.get('name', '')!r}: expected {expected}, found {text!r}"
            ) from None
    for name in given:
        near = difflib.get_close_matches(name, [parameter.name for parameter in PARAMETERS], 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        _log.warning("model %r: parameter %r is not known to the poplar backend%s", config.get("name", ""), name, hint)
    return Parameters(**values)


def describe_parameters() -> str:
    """The README's table."""
    rows = ["| parameter | default | meaning |", "| --- | --- | --- |"]
    rows += [f"| `{p.name}` | {_describe_default(p.default)} | {p.help} |" for p in PARAMETERS]
    return "\n".join(rows)


def _describe_default(default: Any) -> str:
    if default == "":
        return ""
    return f"`{str(default).lower()}`"
