"""What a user may set: the config.pbtxt parameters of a model and the options of the backend, one table each.

Parsing, validation, errors and the README's tables come from the tables.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from triton_poplar.errors import ModelConfigError

_log = logging.getLogger("triton_poplar")


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter: `parse` turns its text into a value or raises ValueError saying what it expects."""

    name: str
    kind: str
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
    execute_delay_ms: int
    instance_wise_delay_multiplier: int
    creation_delay_sec: int
    executable_name: str
    sim_graph_path: str
    sim_timing: str
    sim_threads: int
    sim_isolation: str
    sim_prepack: bool
    sim_numerics: str
    join_dependent_rows: bool


@dataclass(frozen=True, slots=True)
class BackendOptions:
    """The values of the backend's options; None where nothing was set."""

    use_sim_if_no_hw: bool
    sim_num_IPUs: int | None
    sim_tiles_per_IPU: int | None
    sim_ipu_version: int | None


def parse_flag(text: str) -> bool:
    """0, 1, true or false in any case."""
    flags = {"0": False, "1": True, "false": False, "true": True}
    try:
        return flags[text.strip().lower()]
    except KeyError:
        raise ValueError("0, 1, true or false") from None


def parse_count(text: str) -> int:
    """A whole number of at least 0."""
    if not (text.strip().isascii() and text.strip().isdecimal() and len(text) < 20):
        raise ValueError("a whole number of at least 0")
    return int(text)


def parse_positive(text: str) -> int:
    """A whole number of at least 1."""
    try:
        number = parse_count(text)
    except ValueError:
        number = 0
    if not number:
        raise ValueError("a whole number of at least 1")
    return number


def parse_text(text: str) -> str:
    """A path or name, not empty."""
    if not text.strip():
        raise ValueError("some text")
    return text


def one_of(*words: str) -> Callable[[str], str]:
    """One of some words, in any case."""

    def parse(text: str) -> str:
        word = text.strip().lower()
        if word not in words:
            raise ValueError(" or ".join(words))
        return word

    return parse


def parse_ipu_version(text: str) -> int:
    """1, 2 or 21, with or without ipu before it."""
    number = text.strip().lower().removeprefix("ipu")
    if number not in ("1", "2", "21"):
        raise ValueError("1, 2 or 21")
    return int(number)


PARAMETERS = (
    Parameter(
        "executable_path",
        "path",
        "",
        parse_text,
        "PopEF file of the executable, or several with commas between; not set: `executable.popef` in the model's folder",
    ),
    Parameter(
        "weights_path", "path", "", parse_text, "PopEF file of the weights, or several; not set: `weights.popef`, if there"
    ),
    Parameter("name_map_file_path", "path", "", parse_text, "JSON file of friendly names; not set: `name_map.json`, if there"),
    Parameter(
        "check_package_hash", "flag", True, parse_flag, "refuse an executable that another generation of this software compiled"
    ),
    Parameter(
        "synchronous_execution",
        "flag",
        False,
        parse_flag,
        "block until all requests of a call are answered; faster, and the only mode in which Triton's own statistics are right",
    ),
    Parameter(
        "timeout_ns",
        "ns",
        500_000,
        parse_count,
        "how long an incomplete batch waits for more rows after the last one came; 0: for ever. In synchronous mode none can "
        "come, so it never waits. The default is what the guide's example and all public configurations say",
    ),
    Parameter("execute_delay_ms", "ms", 0, parse_count, "for tests: wait before processing the requests of a call"),
    Parameter(
        "instance_wise_delay_multiplier",
        "count",
        0,
        parse_count,
        "for tests: the wait is max(multiplier * instance id, 1) times that",
    ),
    Parameter("creation_delay_sec", "s", 0, parse_count, "for tests: wait before an instance is created"),
    Parameter(
        "executable_name",
        "name",
        "",
        parse_text,
        "which executable, where the files hold several; not set: the one called like the model, or the only one",
    ),
    Parameter(
        "sim_graph_path",
        "path",
        "",
        parse_text,
        "ONNX graph that a real executable was compiled from: it is simulated in the executable's place",
    ),
    Parameter(
        "sim_timing",
        "fast, paced",
        "fast",
        one_of("fast", "paced"),
        "paced: no row leaves before its modelled time on IPU and host link has passed",
    ),
    Parameter(
        "sim_threads",
        "count",
        0,
        parse_count,
        "CPU threads per instance; 0: the machine's cores shared out among the instances",
    ),
    Parameter(
        "sim_isolation",
        "none, process",
        "none",
        one_of("none", "process"),
        "process: compute in a child process; when it dies, its batch gets UNAVAILABLE and a new one takes its place",
    ),
    Parameter(
        "sim_prepack",
        "flag",
        True,
        parse_flag,
        "let ONNX Runtime repack weights for speed, in each instance's own memory; false: all instances share the mapped file",
    ),
    Parameter(
        "sim_numerics",
        "exact, fast",
        "exact",
        one_of("exact", "fast"),
        "exact: half and fp8 are rounded as on the chip; fast: fp32 between operators, so answers are not the chip's",
    ),
    Parameter(
        "join_dependent_rows",
        "flag",
        False,
        parse_flag,
        "join and split requests as the real backend does also where the rows of a batch are not proven to be independent: "
        "answers may then depend on other clients' rows",
    ),
)

BACKEND_OPTIONS = (
    Parameter(
        "use_sim_if_no_hw",
        "flag",
        True,
        parse_flag,
        "simulate, there being no IPU; false: models fail to load, as with the real backend on a machine without IPUs",
    ),
    Parameter("sim_num_IPUs", "count", None, parse_positive, "IPUs that the simulated machine has; not set: as many as needed"),
    Parameter("sim_tiles_per_IPU", "count", None, parse_positive, "tiles of each; not set: as the executable was compiled for"),
    Parameter(
        "sim_ipu_version", "1, 2, 21", None, parse_ipu_version, "their version; not set: as the executable was compiled for"
    ),
)


def parse_parameters(config: Mapping[str, Any]) -> Parameters:
    """The parameters of a model configuration (Triton's JSON form).

    Raises ModelConfigError for a bad value; an unknown name is a warning with the nearest known one.
    """
    given = {name: value.get("string_value", "") for name, value in config.get("parameters", {}).items()}
    return Parameters(**_parse(PARAMETERS, given, f"model {config.get('name', '')!r}: parameter"))


def parse_backend_options(given: Mapping[str, str]) -> BackendOptions:
    """The backend's options from names and texts; errors and warnings as for parameters."""
    return BackendOptions(**_parse(BACKEND_OPTIONS, given, "poplar backend: option"))


def _parse(table: Sequence[Parameter], given: Mapping[str, str], owner: str) -> dict[str, Any]:
    values = {}
    for parameter in table:
        text = given.get(parameter.name)
        try:
            values[parameter.name] = parameter.default if text is None else parameter.parse(text)
        except ValueError as expected:
            raise ModelConfigError(f"{owner} {parameter.name}: expected {expected}, found {text!r}") from None
    names = [parameter.name for parameter in table]
    for name in given:
        if name not in names and name not in _TRITON_PARAMETERS:
            near = difflib.get_close_matches(name, names, 1)
            hint = f"; did you mean {near[0]}?" if near else f"; known are {', '.join(names)}"
            _log.warning("%s %r is not known%s", owner, name, hint)
    return values


_TRITON_PARAMETERS = ("EXECUTION_ENV_PATH", "FORCE_CPU_ONLY_INPUT_TENSORS")
"""Parameters that Triton's Python backend takes itself."""


def describe_parameters(table: Sequence[Parameter] = PARAMETERS) -> str:
    """The README's table."""
    rows = ["| name | value | default | meaning |", "| --- | --- | --- | --- |"]
    rows += [f"| `{p.name}` | {p.kind} | {_describe_default(p.default)} | {p.help} |" for p in table]
    return "\n".join(rows)


def _describe_default(default: Any) -> str:
    if default in ("", None):
        return ""
    return f"`{str(default).lower()}`"
