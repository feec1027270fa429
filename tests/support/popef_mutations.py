"""Ways to damage PopEF files and their messages that know where words, pointers and blobs are."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from random import Random

MASK = (1 << 64) - 1
_EDGES = (
    0,
    1,
    2,
    7,
    8,
    63,
    64,
    (1 << 29) - 1,
    1 << 31,
    (1 << 32) - 1,
    (1 << 63) - 8,
    (1 << 63) - 1,
    1 << 63,
    MASK - 7,
    MASK,
)

# Of a word that is a pointer: kind, offset (far: double and pad), list code, count (far: segment),
# words, pointers.
_PARTS = (
    (0, 2),
    (2, 30),
    (2, 1),
    (3, 29),
    (32, 3),
    (35, 29),
    (32, 16),
    (48, 16),
    (32, 32),
    (63, 1),
)


def mutate_words(data: bytes, random: Random, starts: Sequence[int] = (0,)) -> bytes:
    """Change one to three words, counted from one of `starts`, where blobs or messages begin."""
    changed = bytearray(data)
    for _ in range(random.randint(1, 3)):
        _change_word(changed, random, starts)
    return bytes(changed)


def _change_word(data: bytearray, random: Random, starts: Sequence[int]) -> None:
    start = random.choice(starts) % 8
    places = (len(data) - start) // 8
    if places <= 0:
        return
    at = start + 8 * random.randrange(places)
    other = start + 8 * random.randrange(places)
    (word,), (copied,) = struct.unpack_from("<Q", data, at), struct.unpack_from("<Q", data, other)
    kind = random.randrange(6)
    if kind == 0:
        word = copied
    elif kind == 1:
        word = random.choice(_EDGES)
    elif kind == 2:
        word ^= 1 << random.randrange(64)
    else:
        word = _change_part(word, random)
    struct.pack_into("<Q", data, at, word)


def _change_part(word: int, random: Random) -> int:
    shift, bits = random.choice(_PARTS)
    mask = (1 << bits) - 1
    part = word >> shift & mask
    part = (
        random.choice(
            (
                part + 1,
                part - 1,
                0,
                1,
                2,
                mask,
                mask >> 1,
                random.randrange(64),
                random.getrandbits(bits),
            )
        )
        & mask
    )
    return word & ~(mask << shift) | part << shift


def mutate_file(data: bytes, random: Random, starts: Sequence[int]) -> bytes:
    """Damage a file one to three times; `starts` are the offsets of its blobs, in order."""
    for _ in range(random.randint(1, 3)):
        data = random.choices(_WAYS, _WEIGHTS)[0](data, random, starts)
    return data


def _change_byte(data: bytes, random: Random, _: Sequence[int]) -> bytes:
    if not data:
        return data
    at = random.randrange(len(data))
    return data[:at] + random.randbytes(random.randint(1, 2)) + data[at + 1 :]


def _truncate(data: bytes, random: Random, _: Sequence[int]) -> bytes:
    return data[: random.randrange(len(data) + 1)]


def _delete(data: bytes, random: Random, _: Sequence[int]) -> bytes:
    at = random.randrange(len(data) // 8 + 1) * 8
    return data[:at] + data[at + 8 * random.randint(1, 4) :]


def _duplicate(data: bytes, random: Random, _: Sequence[int]) -> bytes:
    at = random.randrange(len(data) // 8 + 1) * 8
    piece = data[at : at + 8 * random.randint(1, 8)]
    return data[:at] + piece * random.randint(2, 4) + data[at + len(piece) :]


def _splice(data: bytes, random: Random, starts: Sequence[int]) -> bytes:
    """Move, double or cut out a piece between the beginnings of blobs, or between a blob and the
    middle of another."""
    ends = [*starts, len(data)]
    first, last = sorted(random.choices(ends, k=2))
    return data[: random.choice(ends)] + data[first:last] + data[random.choice(ends) :]


_WAYS: tuple[Callable[[bytes, Random, Sequence[int]], bytes], ...] = (
    mutate_words,
    _change_byte,
    _truncate,
    _delete,
    _duplicate,
    _splice,
)
_WEIGHTS = (12, 3, 1, 1, 1, 2)
