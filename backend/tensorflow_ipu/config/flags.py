"""TF_POPLAR_FLAGS: one table of the flags, which are read when one is first needed.

The variable has flags separated by blanks, `--name=value`; a bare `--name` is true. If it does not
begin with a dash it is the name of a file that has them. Unlike the real library, a later change of
the variable is noticed.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NoReturn

from popef._tools.options import (
    TEXT,
    Kind,
    MismatchError,
    Option,
    Wording,
    make_table,
    whole_number,
    word_of,
)
from popef._tools.text import escape, find_near

VARIABLE: Final = "TF_POPLAR_FLAGS"
CACHE_VARIABLE: Final = "POPDIST_EXECUTABLE_CACHE_PATH"
"""Variable that names the folder of the executable cache where the flag does not."""
_MIN_POLL_MS: Final = 100
_MAX: Final = (1 << 63) - 1
_INTEGER: Final = whole_number(-_MAX, _MAX)
_TRUTH: Final = word_of(
    {"true": True, "1": True, "": True, "false": False, "0": False}, "true or false"
)
CATEGORIES: Final = {
    "seed": 0,
    "infeed": 1,
    "outfeed": 2,
    "hostembedding": 3,
    "parameters": 4,
}
"""Kinds of data that can be synthetic, by their names in the flag, with their numbers."""


def _read_categories(text: str) -> frozenset[int]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in CATEGORIES:
            raise MismatchError("infeed, outfeed, seed, hostembedding or parameters", name)
    return frozenset(CATEGORIES[name] for name in names)


def _flag(name: str, default: Any, help: str, effect: str = "", kind: Kind | None = None) -> Option:
    if kind is None:
        kinds = {bool: _TRUTH, int: _INTEGER}
        kind = kinds.get(type(default), TEXT)
    return Option(name, help, kind=kind, default=default, effect=effect)


FLAGS: Final = make_table(
    _flag("help", False, "Print all flags when a program is compiled.", "prints them"),
    _flag(
        "use_synthetic_data",
        False,
        "No data is exchanged between the host and the IPUs.",
        "inputs are made up, and results are not read",
    ),
    _flag(
        "synthetic_data_initializer",
        "",
        "What synthetic inputs are: random, uniform, normal, or a number.",
        "the values of synthetic inputs",
    ),
    _flag(
        "synthetic_data_categories",
        frozenset(),
        "Kinds of data that are synthetic, separated by commas: infeed, outfeed, seed, "
        "hostembedding, parameters.",
        "as use_synthetic_data, for these kinds",
        Kind("words", _read_categories),
    ),
    _flag("use_ipu_model", False, "Run on the IPU Model, not on IPUs.", "devices are IPU Models"),
    _flag(
        "log_cycle_count",
        -1,
        "Tile whose number of cycles is logged; negative: none.",
        "the modelled cycles of each run are logged, for the whole chip",
    ),
    _flag(
        "while_loop_brute_force_max_trip_count",
        128,
        "Number of iterations that the compiler tries in order to find the trip count of a loop.",
    ),
    _flag("max_compilation_threads", -1, "Number of threads that compile; negative: any."),
    _flag("max_infeed_threads", -1, "Number of threads of an infeed queue; negative: any."),
    _flag(
        "executable_cache_path",
        "",
        "Folder of the executable cache; empty: none.",
        "compiled programs are written to it and loaded from it",
    ),
    _flag("dump_schedule_as_dot", False, "Write the schedule as a dot file."),
    _flag("tensor_map_file_path", "", "Folder of the files of tensor maps."),
    _flag("fallback_scheduler", False, "Use the scheduler of last resort."),
    _flag("allow_nans", False, "Allow NaN in constants."),
    _flag("null_data_feed", False, "Infeeds provide no data, in order to measure the rest."),
    _flag(
        "show_progress_bar",
        "auto",
        "Whether the compiler shows its progress: true, false or auto.",
        kind=word_of({word: word for word in ("true", "false", "auto")}),
    ),
    _flag(
        "use_on_demand",
        False,
        "Attach devices when a program is run, whatever the configuration says.",
        "as device_connection.type ON_DEMAND",
    ),
    _flag(
        "on_demand_device_poll_time",
        1000,
        "Milliseconds between two attempts to attach on demand, at least 100.",
        "the interval",
    ),
    _flag(
        "on_demand_device_timeout",
        3_600_000,
        "Milliseconds after which no further attempt to attach on demand is made.",
        "the limit",
    ),
    _flag(
        "ipu_model_tiles",
        -1,
        "Number of tiles of an IPU Model, unless IPUConfig.ipu_model.tiles_per_ipu is set.",
        "the number that reports show",
    ),
    _flag("sync_replica_start", False, "Start the replicas' programs at the same time."),
    _flag("enable_hlo_verifier", False, "Check the compiler's graphs before and after each pass."),
    _flag("disable_poplar_version_check", False, "Do not compare the versions of Poplar."),
)
"""All flags, by name."""
_WORDING: Final = Wording(
    ValueError,
    f"{VARIABLE}: --{{name}}{{why}}",
    ValueError,
    f"Unknown flag in {VARIABLE}: {{name}}",
)


@dataclass(frozen=True)
class PoplarFlags:
    """Values of all flags."""

    values: Mapping[str, Any]
    text: str
    """The variable's value."""

    def __getattr__(self, name: str) -> Any:
        """Return the value of a flag."""
        try:
            return self.values[name]
        except KeyError:
            raise AttributeError(name) from None

    def is_synthetic(self, category: int) -> bool:
        """Return whether a kind of data, one of `CATEGORIES`, is synthetic."""
        return bool(self.use_synthetic_data) or category in self.synthetic_data_categories

    @property
    def cache_path(self) -> str:
        """Folder of the executable cache; empty if there is none."""
        return str(self.executable_cache_path or os.environ.get(CACHE_VARIABLE, ""))

    @property
    def poll_seconds(self) -> float:
        """Interval between two attempts to attach on demand."""
        return float(max(self.on_demand_device_poll_time, _MIN_POLL_MS)) / 1000

    @property
    def timeout_seconds(self) -> float:
        """Time after which no further attempt to attach on demand is made."""
        return float(self.on_demand_device_timeout) / 1000


def read_flags() -> PoplarFlags:
    """Return the values of all flags; ends the process for an unknown flag or a wrong value."""
    try:
        return parse(os.environ.get(VARIABLE, ""))
    except ValueError as error:
        _end(str(error))


def reset() -> None:
    """Forget the values that were read."""
    parse.cache_clear()


@lru_cache(maxsize=8)
def parse(text: str) -> PoplarFlags:
    """Return the flags that a text has.

    Args:
        text: Value of the variable.

    Returns:
        The flags.

    Raises:
        ValueError: For an unknown flag, a wrong value, and flags that exclude each other.
    """
    values = {name: flag.default for name, flag in FLAGS.items()}
    for word in _split(text):
        name, _, value = word.removeprefix("--").removeprefix("-").partition("=")
        if not word.startswith("-") or name not in FLAGS:
            raise ValueError(f"Unknown flag in {VARIABLE}: {escape(word, 200)}{_suggest(name)}")
        if "=" not in word and FLAGS[name].kind is not _TRUTH:
            raise ValueError(f"{VARIABLE}: --{name} requires a value: --{name}=VALUE")
        values[name] = _WORDING.read(FLAGS[name], value)
    flags = PoplarFlags(values, text)
    is_synthetic = flags.use_synthetic_data or flags.synthetic_data_categories
    if flags.synthetic_data_initializer and not is_synthetic:
        raise ValueError(
            'The flag "synthetic_data_initializer" can only be used in combination with '
            '"use_synthetic_data" or "synthetic_data_categories".'
        )
    return flags


def describe() -> str:
    """Return the text of --help."""
    return "\n".join(
        [f"Usage for {VARIABLE} is:", *(f"\t--{flag.name}: {flag.help}" for flag in FLAGS.values())]
    )


def _split(text: str) -> list[str]:
    """Return the words of the variable's value, or of the file that it names."""
    text = text.strip()
    if text and not text.startswith("-"):
        try:
            with open(text, encoding="utf-8") as file:
                text = file.read()
        except (OSError, UnicodeError) as error:
            raise ValueError(
                f"{VARIABLE}: expected flags or a file with flags, found {escape(text, 200)}"
            ) from error
    return shlex.split(text)


def _suggest(name: str) -> str:
    near = find_near(name, FLAGS)
    return f"; did you mean --{near}?" if near else ""


def _end(message: str) -> NoReturn:
    """End the process with one line, as the real library does."""
    sys.exit(message)
