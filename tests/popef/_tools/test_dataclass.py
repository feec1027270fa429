"""The quick `dataclass` makes the same classes as the standard library's."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest

from popef._tools.dataclass import dataclass

ROOT = Path(__file__).parents[3]


def make_plain(decorate, **flags):
    @decorate(**flags)
    class Part:
        first: int
        second: list[int] = dataclasses.field(default_factory=list, repr=False)
        third: tuple[int, ...] = (1, 2)
        fourth: int = dataclasses.field(init=False, default=7, compare=False)
        fifth: str = dataclasses.field(default="x", kw_only=True)

    return Part


def make_derived(decorate, **flags):
    @decorate(**flags)
    class Base:
        first: int

    @decorate(**flags)
    class Part(Base):
        """A text of its own."""

        second: int = 2
        third: int = dataclasses.field(init=False)

        def __post_init__(self):
            object.__setattr__(self, "third", self.first + self.second)

        def __repr__(self):
            return "own"

        def __eq__(self, other):
            return self.first == other.first

    return Part


FLAGS = [
    {},
    {"frozen": True},
    {"slots": True},
    {"frozen": True, "slots": True},
    {"repr": False},
    {"eq": False, "slots": True},
    {"order": True},
]
CALLS = [
    lambda part: repr(part(first=3)).partition(" object at ")[0],
    lambda part: part(1) == part(1),
    lambda part: part(1) != part(2),
    lambda part: part(1) == 1,
    lambda part: hash(part(1)) == hash(part(1)),
    lambda part: hash(part(1, ())) == hash(part(1, ())),
    lambda part: part(),
    lambda part: part(1, 2, 3, 4, 5, 6),
    lambda part: part(1, unknown=2),
    lambda part: part(1) < part(2),
    lambda part: setattr(part(1), "first", 2),
    lambda part: setattr(part(1), "unknown", 2) if "__slots__" in vars(part) else None,
    lambda part: delattr(part(1), "first"),
    lambda part: dataclasses.asdict(part(1)),
    lambda part: dataclasses.replace(part(1), first=2).first,
    lambda part: part.__match_args__,
    lambda part: getattr(part, "__slots__", None),
    lambda part: str(inspect.signature(part)),
    lambda part: part(1).second is part(1).second,
    lambda part: copy.deepcopy(part(1)).first,
    lambda part: part(1).__reduce_ex__(2)[2],
]


def describe(call, part):
    """Return the result of a call, or the error and its text."""
    try:
        return call(part)
    except Exception as error:  # noqa: BLE001  whichever the standard library raises
        if isinstance(error, TypeError) and "obj must be an instance" in str(error):
            return dataclasses.FrozenInstanceError  # a defect of Python before 3.12
        frozen = isinstance(error, dataclasses.FrozenInstanceError)
        return type(error) if frozen else (type(error), str(error).replace("function ", ""))


@pytest.mark.parametrize("flags", FLAGS, ids=str)
@pytest.mark.parametrize("make", [make_plain, make_derived])
def test_its_classes_behave_as_those_of_the_standard_library(make, flags):
    ours, theirs = make(dataclass, **flags), make(dataclasses.dataclass, **flags)
    for number, call in enumerate(CALLS):
        found, expected = describe(call, ours), describe(call, theirs)
        assert found == expected, number


@dataclass(frozen=True, slots=True)
class Kept:
    """A class at the top of a module, as pickle needs it."""

    value: int
    others: tuple[Kept, ...] = ()


def test_frozen_classes_with_slots_can_be_pickled_and_used_as_keys():
    kept = Kept(1, (Kept(2),))
    assert pickle.loads(pickle.dumps(kept)) == kept
    assert {kept: "found"}[copy.copy(kept)] == "found"
    assert Kept.__doc__ == "A class at the top of a module, as pickle needs it."


def test_an_object_that_contains_itself_has_a_text():
    @dataclass
    class Ring:
        next: object = None

    ring = Ring()
    ring.next = ring
    assert repr(ring).endswith("Ring(next=...)")


def test_no_room_uses_the_slow_decorator_of_the_standard_library():
    slow = re.compile(r"^from dataclasses import .*\bdataclass\b|dataclasses\.dataclass\b", re.M)
    for folder in ("backend", "popef"):
        for file in (ROOT / folder).rglob("*.py"):
            found = slow.search(file.read_text())
            assert not found or file.name == "dataclass.py", f"{file}: use popef._tools.dataclass"


def test_a_class_that_is_never_made_compiles_nothing():
    program = (
        "import sys\nfrom popef._tools.dataclass import dataclass\n"
        "sys.addaudithook(lambda event, _: sys.exit(1) if event == 'compile' else None)\n"
        "@dataclass(frozen=True, slots=True)\nclass Part:\n a: int\n b: int = 2\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
