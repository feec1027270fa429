"""Text files as editors write them: with a byte-order mark, in UTF-16, with other line ends, and
with bytes that are no text."""

from __future__ import annotations

import codecs

READABLE = {
    "plain": lambda text: text.encode(),
    "mark": lambda text: codecs.BOM_UTF8 + text.encode(),
    "CRLF": lambda text: text.replace("\n", "\r\n").encode(),
    "mark and CRLF": lambda text: codecs.BOM_UTF8 + text.replace("\n", "\r\n").encode(),
}
"""Encodings that are read, by name."""
REJECTED = {
    "UTF-16": lambda text: text.encode("utf-16"),
    "UTF-16 ": lambda text: codecs.BOM_UTF16_LE + text.encode("utf-16-le"),
    "UTF-16  ": lambda text: codecs.BOM_UTF16_BE + text.encode("utf-16-be"),
    "UTF-16 without a byte-order mark": lambda text: text.encode("utf-16-le"),
    "UTF-16 without a byte-order mark ": lambda text: text.encode("utf-16-be"),
    "the byte 0xe9 at 0": lambda text: "é".encode("latin-1") + text.encode(),
    "the byte 0xff at 3": lambda text: text.encode()[:3] + b"\xff" + text.encode()[3:],
}
"""Encodings that are rejected, by the words of the error."""
