"""Tests that freed memory returns to the machine."""

import os

from popef._tools.memory import return_memory

PIECE, PIECES = 100_000, 1000
"""Size and number of pieces. The size is below that from which an allocation has its own
mapping."""


def read_resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_memory_that_was_freed_is_given_back():
    pieces = [os.urandom(PIECE) for _ in range(PIECES)]
    last = pieces[::100]  # so that the freed memory is not at the end
    del pieces
    before = read_resident_bytes()
    return_memory()
    assert before - read_resident_bytes() > PIECE * PIECES / 2
    assert len(last) == PIECES // 100
