"""Settings of a user: the config.pbtxt parameters of a model and the options of the backend, one
table each: a dataclass whose fields say how a value is parsed and documented.

BackendState has the options, shared by all models of a server. Triton passes the options of
`--backend-config=poplar,KEY=VALUE` only to native backends, so they are read from the server's
command line. If that cannot be read, and for options that are not on it, environment variables
count: `POPLAR_` and the name in capitals.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simipu.chip.target import MAX_IPUS, MAX_TILES_PER_IPU, find_target, known_chips

from popef._tools.options import (
    Kind,
    MismatchError,
    Option,
    Wording,
    option_field,
    options_of,
    quote,
    read_values,
    whole_number,
    word_of,
)
from popef._tools.text import MAX_NAME_CHARACTERS, find_name_fault, find_near
from triton_poplar.errors import ModelConfigError
from triton_poplar.server_start import START_SECONDS, ServerStart
from triton_poplar.statistics import DEFAULT_BUCKETS

MAX_DELAY_SECONDS, MAX_LOAD_SECONDS = 24 * 60 * 60, 24 * 60 * 60
"""Maximum of a delay for tests, and of the time limits of a load and of a server's start."""
MAX_PATH_BYTES = 4095
"""Maximum length of a path: Linux's PATH_MAX without the final zero."""
MAX_BUCKETS, MAX_BUCKET_SECONDS = 50, 24 * 60 * 60
"""Maximum number of buckets of a histogram, and maximum bound. Each bucket is a series for
Prometheus and one call to Triton per second."""
_MIN_SIMILARITY = 0.8
"""Minimum similarity (difflib) at which a name counts as a misspelling: `timeout` is one of
timeout_ns, `my_timeout` is not."""

_log = logging.getLogger("triton_poplar")


def parse_text(text: str) -> str:
    """Check a name that must be printable, and return it."""
    if find_name_fault(text.strip()):
        raise MismatchError(
            f"a name of 1 to {MAX_NAME_CHARACTERS} characters without control characters"
        )
    return text


def parse_paths(text: str) -> str:
    """Check a path, or several separated by commas, and return the text. Each must be printable and
    no longer than the system allows."""
    if not text.strip() or any(
        len(path.encode("utf-8", "surrogateescape")) > MAX_PATH_BYTES or not path.isprintable()
        for path in text.split(",")
    ):
        raise MismatchError(
            f"a path, or several paths separated by commas, each of at most {MAX_PATH_BYTES} "
            "bytes and without control characters"
        )
    return text


def parse_buckets(text: str) -> tuple[float, ...]:
    """Parse upper bounds in seconds, ascending."""
    try:
        bounds = tuple(float(part) for part in text.split(","))
    except ValueError:
        bounds = ()
    ascend = all(low < high for low, high in zip((0.0, *bounds), bounds, strict=False))
    if not ascend or not 0 < len(bounds) <= MAX_BUCKETS or not bounds[-1] <= MAX_BUCKET_SECONDS:
        raise MismatchError(
            f"1 to {MAX_BUCKETS} ascending numbers of seconds above 0 and up to "
            f"{MAX_BUCKET_SECONDS}, separated by commas"
        )
    return bounds


def parse_libraries(text: str) -> str:
    """Check a domain and the absolute path of its library, or several such pairs separated by
    commas."""
    for part in text.split(","):
        domain, _, path = part.strip().partition("=")
        if not domain or not path.startswith("/") or not path.isprintable():
            raise MismatchError(
                "DOMAIN=/path/of/library.so, or several of them separated by commas"
            )
    return text


_PATHS, _NAME = Kind("path", parse_paths), Kind("name", parse_text)
_SWITCHES = {"0": False, "1": True, "false": False, "true": True}
_SWITCH = Kind("flag", word_of(_SWITCHES, "0, 1, true or false").read)


def _choice(words: str, meaning: str) -> Any:
    """Return the field of a parameter that is one of some words, by default the first."""
    kind = word_of({word: word for word in words.split()})
    return option_field(kind, words.split()[0], meaning)


def _number(unit: str, default: int | None, bounds: tuple[int, int], meaning: str) -> Any:
    """Return the field of a parameter that is a whole number within `bounds`, both included."""
    kind = Kind(f"{unit}, {bounds[0]} to {bounds[1]}", whole_number(*bounds).read)
    return option_field(kind, default, meaning)


def parse_ipu_version(text: str) -> int:
    """Parse 1, 2 or 21, or the name of a chip that has that version."""
    # Imported late: the process that completes configurations must not load ONNX Runtime.
    from simipu import LoadError

    name = text.strip()
    try:
        return find_target(f"ipu{name}" if name.isdecimal() else name).ipu_version
    except LoadError:
        raise MismatchError(f"1, 2 or 21 or a chip's name ({known_chips()})") from None


@dataclass(frozen=True, slots=True)
class Parameters:
    """Parameters of a model: their values, and for each its default, parser and documentation."""

    executable_path: str = option_field(
        _PATHS,
        "",
        "PopEF file of the executable, or several files separated by commas; default: "
        "`executable.popef` in the model's folder",
    )
    weights_path: str = option_field(
        _PATHS,
        "",
        "PopEF file of the weights, or several files separated by commas; default: "
        "`weights.popef`, if it exists",
    )
    name_map_file_path: str = option_field(
        _PATHS,
        "",
        "JSON file of friendly names; default: `name_map.json`, if it exists",
    )
    check_package_hash: bool = option_field(
        _SWITCH, True, "reject an executable that an incompatible version of this software compiled"
    )
    synchronous_execution: bool = option_field(
        _SWITCH,
        False,
        "block until all requests of a call are answered; faster, and the only mode in which "
        "Triton's own statistics are correct",
    )
    timeout_ns: int | None = _number(
        "ns",
        None,
        (0, 2**63 - 1),
        "how long an incomplete batch waits at most for more rows after its last row arrived; 0: "
        "no limit. It waits no longer than a run takes, and not at all while runs are shorter than "
        "0.5 ms and this time, or if all clients' requests seem to be there. In synchronous mode "
        "a batch never waits. Default: 500000, the value of the guide's example and of all public "
        "configurations",
    )
    execute_delay_ms: int = _number(
        "ms",
        0,
        (0, 1000 * MAX_DELAY_SECONDS),
        "for tests: delay before the requests of a call are processed",
    )
    instance_wise_delay_multiplier: int = _number(
        "count",
        0,
        (0, 1_000_000),
        "for tests: the delay of an instance is `execute_delay_ms` times max(multiplier * "
        "instance id, 1), at most one day",
    )
    creation_delay_sec: int = _number(
        "s", 0, (0, MAX_DELAY_SECONDS), "for tests: delay before an instance is created"
    )
    executable_name: str = option_field(
        _NAME,
        "",
        "name of the executable, if the files contain several; default: the one with the "
        "model's name, or the only one",
    )
    sim_graph_path: str = option_field(
        _PATHS,
        "",
        "ONNX graph that a real executable was compiled from; the backend simulates this "
        "graph instead of the executable",
    )
    sim_timing: str = _choice(
        "fast paced",
        "fast: return rows as soon as they are computed; paced: return rows only after "
        "their modelled time on IPU and host link",
    )
    sim_threads: int = _number(
        "count",
        0,
        (0, 1024),
        "CPU threads per instance; 0: the machine's cores are divided among the instances",
    )
    sim_memory_mib: int = _number(
        "MiB",
        0,
        (0, 1 << 24),
        "memory limit for the values of a run or a load, without weights; 0: what the machine or "
        "the container has. A run never takes more than [is free]"
        "(operations.md#limits-of-time-and-memory). With ONNX Runtime before 1.23, the first model "
        "loaded in a process sets the limit",
    )
    sim_load_sec: int = _number(
        "s",
        90,
        (1, MAX_LOAD_SECONDS),
        "time limit of a model load, well below the time limit of a server's start; while the "
        "server starts, the limit is lower "
        "([limits](operations.md#limits-of-time-and-memory)). The limit of a run is "
        "`target.hostSyncTimeout` of `POPLAR_RUNTIME_OPTIONS`",
    )
    sim_first_load: bool = option_field(
        _SWITCH,
        True,
        "load unknown files in a child process first, within `sim_load_sec` and `sim_memory_mib`; "
        "false: for trusted files. A file that was loaded before is known by its digest",
    )
    sim_graph_cache: bool = option_field(
        _SWITCH,
        True,
        "take the model's checked and lowered graph from the "
        "[cache](operations.md#the-cache-of-graphs) of the server's user, and write it there: a "
        "model that was loaded before takes less memory and time",
    )
    sim_isolation: str = _choice(
        "none process",
        "process: compute in a sandboxed child process "
        "([sandbox](operations.md#untrusted-models)). If the child dies, its batch fails with "
        "UNAVAILABLE and a new child replaces it",
    )
    sim_prepack: bool = option_field(
        _SWITCH,
        True,
        "let ONNX Runtime repack weights for speed, in each instance's own memory; false: all "
        "instances share the mapped file, and 8-bit weights stay one byte each",
    )
    sim_numerics: str = _choice(
        "exact fast",
        "exact: half and fp8 are rounded as on the chip; fast: operators compute in fp32, so "
        "answers differ from the chip's",
    )
    sim_accelerator_fallback: bool = option_field(
        _SWITCH,
        False,
        "compute on ONNX Runtime's CPU kernels what an execution accelerator cannot "
        "([accelerators](configuration.md#execution-accelerators)); false: the model does not load",
    )
    sim_index_check: str = _choice(
        "error clamp",
        "what happens if an index computed at run time is out of range (Gather, GatherElements, "
        "GatherND): error fails the run; clamp uses the nearest element, because the chip "
        "raises no error. The runners of `poprt.runtime` default to clamp. An out-of-range "
        "Scatter index always fails the run",
    )
    sim_custom_ops: str = option_field(
        Kind("DOMAIN=path", parse_libraries),
        "",
        "custom-operator library of ONNX Runtime and the domain of its operators, or several "
        "separated by commas; absolute paths only. The library's code runs with the server's "
        "permissions",
    )
    join_dependent_rows: bool = option_field(
        _SWITCH,
        False,
        "join and split requests like the real backend, even if the rows of a batch are not "
        "proven to be independent; answers can then depend on other clients' rows",
    )
    drain_backlog: bool = option_field(
        _SWITCH,
        True,
        "under overload, if clients cancel or time out before their requests are computed, reject "
        "all waiting requests with UNAVAILABLE, so that later requests are answered in time",
    )
    latency_buckets: tuple[float, ...] = option_field(
        Kind("s, ascending", parse_buckets),
        DEFAULT_BUCKETS,
        "upper bounds of the buckets of the histograms `poplar_request_seconds` and "
        "`poplar_request_queue_seconds`, separated by commas",
    )


@dataclass(frozen=True, slots=True)
class BackendOptions:
    """Options of the backend, like `Parameters`; None if not set."""

    use_sim_if_no_hw: bool = option_field(
        _SWITCH,
        True,
        "simulate if the machine has no IPU; false: models fail to load, like the real backend "
        "on a machine without IPUs",
    )
    sim_num_IPUs: int | None = _number(
        "count",
        None,
        (1, MAX_IPUS),
        "number of IPUs of the simulated machine; default: as many as required",
    )
    sim_tiles_per_IPU: int | None = _number(
        "count",
        None,
        (1, MAX_TILES_PER_IPU),
        "tiles of each IPU; default: the number that the executable was compiled for",
    )
    sim_ipu_version: int | None = option_field(
        Kind("1, 2, 21, name", parse_ipu_version),
        None,
        "IPU version, or chip name (c600, mk2, bow, ...); default: the version that the "
        "executable was compiled for",
    )
    sim_start_sec: int = _number(
        "s",
        START_SECONDS,
        (1, MAX_LOAD_SECONDS),
        "time limit of the server's start, which the loads of its models share "
        "([limits](operations.md#limits-of-time-and-memory)); `poplar-triton serve` sets it to "
        "its `--start-seconds`",
    )


_WORDING = Wording(
    ModelConfigError, "{owner} {name}{why}", ModelConfigError, "{owner} {quoted} is not known{hint}"
)
PARAMETERS, BACKEND_OPTIONS = options_of(Parameters), options_of(BackendOptions)
"""The two tables, by name."""


def parse_parameters(config: Mapping[str, Any]) -> Parameters:
    """Parse the parameters of a model configuration (Triton's JSON form).

    Raises ModelConfigError for a bad value, and for a name that is similar to a known one. Other
    unknown names cause a warning.
    """
    texts = {
        name: value.get("string_value", "") for name, value in config.get("parameters", {}).items()
    }
    owner = f"model {config.get('name', '')!r}: parameter"
    return Parameters(**_parse(PARAMETERS, texts, owner))


def parse_backend_options(texts: Mapping[str, str]) -> BackendOptions:
    """Parse the backend's options from names and texts. Errors and warnings are those of
    parameters."""
    return BackendOptions(**_parse(BACKEND_OPTIONS, texts, "poplar backend: option"))


def _parse(table: Mapping[str, Option], texts: Mapping[str, str], owner: str) -> dict[str, Any]:
    """Return the values of texts. A misspelt name is an error, because its author would serve with
    the default without noticing. Other unknown names only cause a warning, because another program
    may read them."""
    for name in texts:
        if name in table or name in _FOREIGN_PARAMETERS:
            continue
        if find_near(name, table, _MIN_SIMILARITY):
            _WORDING.refuse(name, table, owner)
        _log.warning("%s %s is not known; known are %s", owner, quote(name), ", ".join(table))
    own = {name: text for name, text in texts.items() if name in table}
    return read_values(table, own, _WORDING, owner)


RELOAD_PARAMETER = "poplar_supervisor.reload"
"""Parameter that the supervisor of `poplar-triton serve` sets, so that Triton reloads an unchanged
model."""
_FOREIGN_PARAMETERS = ("EXECUTION_ENV_PATH", "FORCE_CPU_ONLY_INPUT_TENSORS", RELOAD_PARAMETER)
"""Parameters that Triton's Python backend reads itself, or that are never read."""

OWN_PARAMETERS = frozenset((*PARAMETERS, *_FOREIGN_PARAMETERS))
"""Parameters that no other backend reads."""


def describe_parameters(table: Mapping[str, Option] = PARAMETERS) -> str:
    """Return the table for the documentation."""
    rows = ["| name | value | default | meaning |", "| --- | --- | --- | --- |"]
    rows += [
        f"| `{name}` | {entry.kind.name} | {_describe_default(entry.default)} | {entry.help} |"
        for name, entry in table.items()
    ]
    return "\n".join(rows)


def _describe_default(default: Any) -> str:
    if default in ("", None):
        return ""
    if isinstance(default, tuple):
        return f"`{','.join(f'{number:g}' for number in default)}`"
    return f"`{str(default).lower()}`"


_FLAG, _BACKEND = "--backend-config", "poplar,"
"""Flag of tritonserver's command line, and how its values for this backend begin."""


class BackendState:
    """Options of the backend, and the start of the server that loads the models. Raises
    ModelConfigError naming an option with a bad value."""

    def __init__(
        self,
        command_line: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
        start: ServerStart | None = None,
    ) -> None:
        environ = os.environ if environ is None else environ
        texts = {
            name: environ[variable]
            for name in BACKEND_OPTIONS
            if (variable := environment_variable(name)) in environ
        }
        self.options: BackendOptions = parse_backend_options(
            {**texts, **find_options(command_line)}
        )
        self.start = start or ServerStart()

    @staticmethod
    def of_server() -> BackendState:
        """Return the options of the tritonserver whose child process this is."""
        server = os.getppid()
        backend = BackendState(read_command_line(server))
        backend.start = ServerStart.of_process(server, backend.options.sim_start_sec)
        return backend


def environment_variable(option: str) -> str:
    """Return the name of an option's environment variable; sim_num_IPUs is POPLAR_SIM_NUM_IPUS."""
    return f"POPLAR_{option.upper()}"


def read_command_line(pid: int) -> list[str]:
    """Return the command-line arguments of a process, or an empty list if /proc does not show
    them."""
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return []
    return [os.fsdecode(argument) for argument in raw.split(b"\0")]


def find_options(command_line: Sequence[str]) -> dict[str, str]:
    """Return the poplar options in a server's arguments, in both spellings of the flag. The last
    value of a name wins."""
    options = {}
    for index, argument in enumerate(command_line):
        value = argument.removeprefix(f"{_FLAG}=")
        if argument == _FLAG:
            value = command_line[index + 1] if index + 1 < len(command_line) else ""
        elif value == argument:
            continue
        if value.startswith(_BACKEND) and "=" in value:
            name, _, text = value.removeprefix(_BACKEND).partition("=")
            options[name] = text
    return options
