"""Tests of the kit of options: kinds, wordings, tables, settings and fields of dataclasses."""

import copy
import dataclasses
import pickle
from collections.abc import Sequence
from typing import ClassVar

import pytest

from popef._tools.options import (
    TEXT,
    UNSET,
    MismatchError,
    Option,
    Settings,
    Wording,
    instance,
    list_of,
    make_table,
    map_of,
    maybe,
    option_field,
    options_of,
    read_values,
    set_of,
    whole_number,
    word_of,
)

WORDING = Wording(ValueError, "{owner}.{name}{why}", KeyError, "{owner} has no {quoted}{hint}")
INT = instance(int)


class Inner(Settings):
    WORDING = WORDING
    OPTIONS: ClassVar = make_table(Option("size", kind=INT, default=2))


class Outer(Settings):
    WORDING = WORDING
    ALIASES: ClassVar = {"depth": "depths"}
    OPTIONS: ClassVar = make_table(
        Option("inner", kind=instance(Inner), default=Inner()),
        Option("depths", kind=map_of(INT), default={}),
        Option("names", kind=list_of(TEXT), default=["a"]),
        Option("late", kind=maybe(INT), default=UNSET),
    )


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    threads: int = option_field(whole_number(0, 1024), 0, "number of threads")
    names: Sequence[str] = option_field(list_of(TEXT), ["a"])


@pytest.mark.parametrize(
    ("kind", "value", "read"),
    [
        (whole_number(0, 1024), " 007 ", 7),
        (whole_number(-1, 9), "-1", -1),
        (word_of({"Fast": 1, "exact": 2}), " FAST ", 1),
        (instance(float, int), 3, 3.0),
        (list_of(INT), (1, 2), [1, 2]),
        (set_of(INT), [1, 1], {1}),
        (maybe(INT), None, None),
    ],
)
def test_a_kind_reads_the_forms_that_users_write(kind, value, read):
    assert (kind.read(value), type(kind.read(value))) == (read, type(read))


@pytest.mark.parametrize(
    ("kind", "value", "reason"),
    [
        (whole_number(0, 9), "10", "a whole number from 0 to 9, found '10'"),
        (whole_number(0, 9), "1_0", "a whole number from 0 to 9"),
        (whole_number(0, 9), "٣", "a whole number from 0 to 9"),
        (whole_number(0, 9), "9" * 5000, r"found '9+ \[4802 characters\] 9+'"),
        (word_of({"fast": 1, "exact": 2}), "slow", "fast or exact, found 'slow'"),
        (list_of(INT), ["a"], "expected int, found 'a'"),
        (list_of(INT), "a", r"expected list\[int\], found 'a'"),
        (map_of(INT), {1: 1}, "expected str, found 1"),
    ],
)
def test_a_value_of_no_such_kind_is_refused_with_the_words_of_the_table(kind, value, reason):
    with pytest.raises(ValueError, match=rf"model\.x: expected.*{reason.removeprefix('expected')}"):
        read_values({"x": Option("x", kind=kind)}, {"x": value}, WORDING, "model")


def test_an_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(KeyError, match="model has no 'thread'; did you mean threads"):
        read_values(options_of(Record), {"thread": "1"}, WORDING, "model")


def test_the_first_unknown_name_in_their_order_is_refused_whatever_it_is():
    with pytest.raises(KeyError, match="model has no 3"):
        read_values(options_of(Record), {"zebra": "1", 3: "1"}, WORDING, "model")


def test_fields_of_a_dataclass_are_options_and_share_no_default():
    assert options_of(Record)["threads"].help == "number of threads"
    assert options_of(Record)["threads"].default == 0
    assert Record().names == ["a"]
    assert Record().names is not Record().names


def test_settings_check_what_is_assigned_and_know_older_names():
    made = Outer(names=("b",))
    made.depth = {"x": 1}
    assert (made.names, made.depths, made.changed()) == (
        ["b"],
        {"x": 1},
        {"depths": {"x": 1}, "names": ["b"]},
    )
    with pytest.raises(ValueError, match=r"Outer.depth: expected dict\[str, int\], found 3"):
        made.depth = 3
    with pytest.raises(MismatchError, match="expected int, found 'b'"):
        made.depths["a"] = "b"
    with pytest.raises(KeyError, match="no 'name'; did you mean names"):
        made.name = 3
    with pytest.raises(KeyError, match="no 'late'"):
        made.late  # noqa: B018
    with pytest.raises(TypeError, match="expected at most 4, found 5"):
        Outer(1, 2, 3, 4, 5)


@pytest.mark.parametrize(
    "again", [copy.copy, copy.deepcopy, lambda made: pickle.loads(pickle.dumps(made))]
)
def test_copies_of_settings_are_equal_independent_and_checked(again):
    made = Outer(depths={"x": 1})
    other = again(made)
    assert (other, repr(other)) == (made, repr(made))
    other.inner.size, other.depths["y"] = 3, 2
    other.names.append("c")
    assert made == Outer(depths={"x": 1})
    with pytest.raises(MismatchError):
        other.depths["z"] = "z"
